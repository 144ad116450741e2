// Block records in ImageDecoder: what a row of a batch may name, and how pixels are delivered.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "block_images.h"

using namespace fastio;
using test::Bench;
using test::Bytes;
using test::ForcedSimd;
using test::JpegOptions;
using test::PaddedBytes;
using test::random_int;
using test::Result;
using test::Sample;
using test::sized;
using Kind = GeometryStep::Kind;

namespace {

JpegOptions small_picture() {
  JpegOptions o;
  o.height = 50;
  o.width = 150;
  o.sampling[0] = {2, 2};
  o.noise = 5;
  return o;
}

// A task for records of `sample` with these steps.
struct Task : ImageTask {
  Chain steps;
  Task(const Sample& sample, const std::vector<GeometryStep>& of) {
    for (const GeometryStep& step : of) steps.add(step);
    chain = &steps;
    codebook = sample.book.get();
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
};

Result blocks(Bench& bench, const ImageTask& task, const ImageRequest& request,
              const Bytes& bytes) {
  return bench.decode(task, request, Codec::blocks, bytes);
}

}  // namespace

TEST_CASE("planes and floats of a record hold the values of interleaved bytes") {
  const Sample s(small_picture(), 1);
  Bench bench;
  for (const int channels : {1, 3})
    for (const int orientation : {1, 6}) {
      Task task(s, {sized(Kind::center_crop, 60, 70)});
      task.channels = channels;
      ImageRequest request;
      request.orientation = static_cast<std::uint8_t>(orientation);
      const Result bytes = blocks(bench, task, request, s.record);
      REQUIRE(bytes.status.ok());
      const std::size_t pixels = 60 * 70, depth = static_cast<std::size_t>(channels);
      for (const Layout layout : {Layout::hwc, Layout::chw})
        for (const Element element : {Element::u8, Element::f32})
          for (const Simd level : test::kLevels) {
            const ForcedSimd forced(level);
            task.store.layout = layout;
            task.store.element = element;
            task.store.scale[1] = 0.25f;
            task.store.bias[2] = -3;
            const Result got = blocks(bench, task, request, s.record);
            REQUIRE(got.status.ok());
            for (std::size_t i = 0; i < pixels * depth; ++i) {
              const std::size_t c = i % depth;
              const std::size_t at = layout == Layout::hwc ? i : c * pixels + i / depth;
              float value = got.out[element == Element::u8 ? at : 0];
              if (element == Element::f32) std::memcpy(&value, got.out.data() + at * 4, 4);
              const float sample = bytes.out[i];
              REQUIRE(value == (element == Element::u8
                                    ? sample
                                    : std::fma(sample, task.store.scale[c], task.store.bias[c])));
            }
          }
    }
}

TEST_CASE("columns that name another size than the record do not matter") {
  const Sample s(small_picture(), 2);
  Bench bench;
  const Task task(s, {sized(Kind::random_resized_crop, 20, 30)});
  const Result right = blocks(bench, task, {}, s.record);
  REQUIRE(right.status.ok());
  for (const auto& [height, width] : std::vector<std::pair<int, int>>{{50, 150},
                                                                      {1, 1},
                                                                      {0, 0},
                                                                      {-7, 40},
                                                                      {65535, 65535},
                                                                      {8, 60000},
                                                                      {INT32_MAX, INT32_MAX},
                                                                      {1, INT32_MIN}}) {
    ImageRequest request;
    request.height = height;
    request.width = width;
    const Result got = blocks(bench, task, request, s.record);
    REQUIRE(got.status.ok());
    CHECK(got.out == right.out);
  }
}

TEST_CASE("a header longer than the columns say is read all the same") {
  JpegOptions o = small_picture();
  o.height = 2000;
  o.width = 9;
  const Sample s(o, 3);  // an index of 250 tile rows
  Bench bench;
  const Task task(s, {sized(Kind::center_crop, 10, 10)});
  const Result right = blocks(bench, task, {}, s.record);
  REQUIRE(right.status.ok());
  ImageRequest request;
  request.height = request.width = 1;
  CHECK(blocks(bench, task, request, s.record).out == right.out);
}

TEST_CASE("orientation 0 is 1, and there is none above 8") {
  const Sample s(small_picture(), 4);
  Bench bench;
  const Task task(s, {});
  ImageRequest request;
  const Result unknown = blocks(bench, task, request, s.record);
  request.orientation = 1;
  CHECK(unknown.out == blocks(bench, task, request, s.record).out);
  for (int orientation = 9; orientation < 256; ++orientation) {
    request.orientation = static_cast<std::uint8_t>(orientation);
    CHECK(blocks(bench, task, request, s.record).status.code == Code::corrupt);
  }
}

TEST_CASE("a record without a codebook is an error") {
  const Sample s(small_picture(), 5);
  Bench bench;
  Task task(s, {});
  task.codebook = nullptr;
  const Result got = blocks(bench, task, {}, s.record);
  CHECK(got.status.code == Code::corrupt);
  CHECK(got.status.message.find("codebook") != std::string::npos);
}

TEST_CASE("a record that is cut short or longer is an error, and the next one is whole") {
  const Sample s(small_picture(), 6);
  Bench bench;
  const Task task(s, {});
  const Result right = blocks(bench, task, {}, s.record);
  for (std::size_t size = 0; size < s.record.size(); ++size) {
    const Bytes part(s.record.data(), s.record.data() + size);
    const Status status = blocks(bench, task, {}, part).status;
    REQUIRE((status.code == Code::truncated || status.code == Code::corrupt));
  }
  Bytes longer = s.record;
  longer.push_back(0);
  CHECK(blocks(bench, task, {}, longer).status.code == Code::corrupt);
  CHECK(blocks(bench, task, {}, s.record).out == right.out);
  CHECK(bench.counters.images.load() == 2);
}

TEST_CASE("damage in what a picture takes is an error, elsewhere it is not seen") {
  const Sample s(small_picture(), 7);
  const BlockHeader header = test::header_of(s.record);
  Bench bench;
  const Task whole(s, {}), small(s, {sized(Kind::resize, 5, 10)});
  const Result right = blocks(bench, small, {}, s.record);
  REQUIRE(right.status.ok());
  for (std::size_t at = 0; at < s.record.size(); at += 7) {
    Bytes damaged = s.record;
    damaged[at] ^= 0x81;
    const Result large = blocks(bench, whole, {}, damaged),
                 eighth = blocks(bench, small, {}, damaged);
    REQUIRE(large.status.ok() == (at >= header.ac_begin.back()));
    REQUIRE(eighth.status.ok() == (at >= header.ac_begin[0]));
    if (eighth.status.ok()) REQUIRE(eighth.out == right.out);
  }
}

TEST_CASE("a JPEG file is no block record, nor the other way round") {
  const Sample s(small_picture(), 8);
  Bench bench;
  const Task task(s, {});
  CHECK_FALSE(blocks(bench, task, {}, s.jpeg).status.ok());
  CHECK_FALSE(bench.decode(task, {}, Codec::jpeg, s.record).status.ok());
}

TEST_CASE("a record whose size is refused ends there, and the next one is whole") {
  const Sample s(small_picture(), 9);
  Bench bench;
  const Task task(s, {});
  const PaddedBytes bytes(s.record);
  ImageRequest request;
  request.codec = Codec::blocks;
  request.data = bytes.data();
  request.size = bytes.size();
  const auto refuse = [](void*, std::int32_t, std::int32_t) -> void* { return nullptr; };
  CHECK(bench.decoder.decode(task, request, refuse, nullptr).code == Code::unsupported);
  CHECK(blocks(bench, task, {}, s.record).status.ok());
  CHECK(bench.counters.images.load() == 1);
}

TEST_CASE("a decoder depends on nothing that it decoded before") {
  std::mt19937 rng(10);
  Bench used;
  for (int round = 0; round < 100; ++round) {
    const Sample s(test::random_picture(rng, 100, 300), rng());
    Task task(s, {sized(Kind::random_resized_crop, random_int(rng, 1, 60), 40)});
    task.channels = rng() % 3 ? 3 : 1;
    ImageRequest request;
    request.row = round;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    Bench fresh;
    const Result expected = blocks(fresh, task, request, s.record);
    REQUIRE(expected.status.ok());
    REQUIRE(blocks(used, task, request, s.record).out == expected.out);
    if (round % 5 == 0) {
      request.orientation = 1;
      REQUIRE(used.decode(task, request, Codec::jpeg, s.jpeg).status.ok());
    }
  }
}

TEST_CASE("any chain on any record stays within its memory, and every level gives the same") {
  std::mt19937 rng(11);
  Bench bench;
  static constexpr Filter kFilters[] = {Filter::nearest, Filter::bilinear, Filter::bicubic};
  for (int round = 0; round < 400; ++round) {
    JpegOptions o = test::random_picture(rng, 60, 60);
    if (round % 10 == 0) o.height *= 10;
    if (round % 10 == 1) o.width *= 10;
    const Sample s(o, rng());
    std::vector<GeometryStep> steps;
    bool resized = false;
    for (int i = random_int(rng, 1, 4); i > 0; --i) {
      GeometryStep step = test::random_step(rng, 90);
      if (!resized && rng() % 2) {
        resized = true;
        step.kind = rng() % 2 ? Kind::resize : Kind::random_resized_crop;
        if (step.kind == Kind::resize && rng() % 2) step.width = 0;
        step.max_size = step.width == 0 && rng() % 2 ? step.height + 5 : 0;
        step.filter = kFilters[rng() % 3];
        step.antialias = rng() % 4 != 0;
      }
      steps.push_back(step);
    }
    Task task(s, steps);
    task.channels = rng() % 3 == 0 ? 1 : 3;
    task.store.layout = rng() % 2 ? Layout::hwc : Layout::chw;
    task.store.element = rng() % 2 ? Element::u8 : Element::f32;
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(rng() % 9);
    request.row = round;
    Result before;
    for (const Simd level : test::kLevels) {
      const ForcedSimd forced(level);
      Result now = blocks(bench, task, request, s.record);
      REQUIRE((now.status.ok() || now.status.code == Code::unsupported));
      if (level != Simd::portable) REQUIRE(now.out == before.out);
      before = std::move(now);
    }
  }
}
