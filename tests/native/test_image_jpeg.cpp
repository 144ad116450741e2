// Resized crops of baseline JPEGs in ImageDecoder, whose planes are resampled, against the block
// records made of them and against libjpeg's pixels.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "block_images.h"

using namespace fastio;
using test::Bench;
using test::Bytes;
using test::ForcedSimd;
using test::JpegOptions;
using test::random_int;
using test::Result;
using test::Sample;
using test::sized;
using Kind = GeometryStep::Kind;

namespace {

constexpr Filter kFilters[] = {Filter::nearest, Filter::bilinear, Filter::bicubic};

struct Crop {
  Chain chain;
  ImageTask task;
  ImageRequest request;

  Crop(std::mt19937& rng, int height, int width) {
    GeometryStep step = sized(Kind::random_resized_crop, height, width);
    step.filter = kFilters[rng() % 3];
    chain.add(step);
    if (rng() % 2) chain.add(sized(Kind::horizontal_flip, 0, 0));
    task.chain = &chain;
    task.channels = rng() % 3 == 0 ? 1 : 3;
    task.store.layout = rng() % 2 ? Layout::hwc : Layout::chw;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    request.row = static_cast<std::int64_t>(rng() % 1000);
  }
};

JpegOptions options(std::mt19937& rng) {
  JpegOptions o;
  do {
    o = test::random_options(rng);
  } while (o.components > 3);
  o.height = random_int(rng, 1, 150);
  o.width = random_int(rng, 1, 400);
  return o;
}

// The file with everything from `at` on replaced by an EOI marker.
Bytes ended(const Bytes& file, std::size_t at) {
  Bytes out(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(at));
  out.insert(out.end(), {0xFF, 0xD9});
  return out;
}

std::size_t scan_begin(const Bytes& file) {
  std::size_t at = 2;
  while (file[at + 1] != 0xDA) at += 2 + file[at + 2] * 256u + file[at + 3];
  return at + 2 + file[at + 2] * 256u + file[at + 3];
}

}  // namespace

TEST_CASE("a resized crop of a JPEG is that of its block record, byte for byte") {
  std::mt19937 rng(1);
  Bench bench;
  int compared = 0;
  for (int round = 0; round < 900; ++round) {
    const JpegOptions o = options(rng);
    const Bytes jpeg = test::make_jpeg(o, rng());
    JpegCoefficients coefficients;
    if (!read_coefficients(jpeg.data(), jpeg.size(), coefficients).ok()) continue;
    Sample sample;
    sample.record = test::record_of(*sample.book, jpeg);
    // No crop shrinks so far that one of the two is decoded at another size than the other.
    Crop crop(rng, std::max(1, o.height / 6), std::max(1, o.width / 6));
    if (crop.request.orientation >= 5 && std::max(o.height, o.width) > 100) continue;
    crop.task.codebook = sample.book.get();
    CAPTURE(test::describe(o));
    const Result record = bench.decode(crop.task, crop.request, Codec::blocks, sample.record);
    REQUIRE(record.status.ok());
    for (const Simd level : {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512}) {
      const ForcedSimd force(level);
      const Result got = bench.decode(crop.task, crop.request, Codec::jpeg, jpeg);
      CAPTURE(got.status.message);
      REQUIRE(got.status.ok());
      REQUIRE(got.out == record.out);
    }
    ++compared;
  }
  CHECK(compared > 200);
}

TEST_CASE("a file that is cut short gives the crop, or is truncated") {
  std::mt19937 rng(2);
  Bench bench;
  int whole = 0, truncated = 0;
  for (int round = 0; round < 40; ++round) {
    JpegOptions o = options(rng);
    o.height += 40;
    const Bytes jpeg = test::make_jpeg(o, rng());
    Crop crop(rng, 9, 11);
    const Result all = bench.decode(crop.task, crop.request, Codec::jpeg, jpeg);
    REQUIRE(all.status.ok());
    const std::size_t begin = scan_begin(jpeg);
    for (int cut = 0; cut < 40; ++cut) {
      const std::size_t size = begin + rng() % (jpeg.size() - begin);
      const Bytes part(jpeg.begin(), jpeg.begin() + static_cast<std::ptrdiff_t>(size));
      const Result got = bench.decode(crop.task, crop.request, Codec::jpeg, part);
      CAPTURE(test::describe(o));
      CAPTURE(got.status.message);
      if (got.status.ok()) {
        REQUIRE(got.out == all.out);
        ++whole;
      } else {
        REQUIRE(got.status.code == Code::truncated);
        ++truncated;
      }
    }
  }
  CHECK(whole > 50);
  CHECK(truncated > 50);
}

TEST_CASE("a scan that a marker ends too early is gray from there on, as libjpeg has it") {
  std::mt19937 rng(3);
  Bench bench;
  for (int round = 0; round < 60; ++round) {
    JpegOptions o = options(rng);
    o.height += 60;
    o.width += 60;
    o.quality = 90;
    o.noise = 2;
    const Bytes jpeg = test::make_jpeg(o, rng());
    const std::size_t begin = scan_begin(jpeg);
    const Bytes file = ended(jpeg, begin + (jpeg.size() - begin) / 2);
    Chain chain;
    GeometryStep step = sized(Kind::resize, o.height - 20, o.width - 20);
    chain.add(step);
    ImageTask task;
    task.chain = &chain;
    ImageRequest request;
    request.orientation = 1;
    const Result got = bench.decode(task, request, Codec::jpeg, file);
    CAPTURE(test::describe(o));
    CAPTURE(got.status.message);
    REQUIRE(got.status.ok());
    const test::Decoded pixels = test::decode_fully(file, 1);
    REQUIRE(pixels.ok);
    request.height = pixels.height;
    request.width = pixels.width;
    request.channels = pixels.channels;
    const Result expected = bench.decode(task, request, Codec::raw, pixels.pixels);
    REQUIRE(expected.status.ok());
    double sum = 0;
    for (std::size_t i = 0; i < got.out.size(); ++i) sum += std::abs(got.out[i] - expected.out[i]);
    CHECK(sum / static_cast<double>(got.out.size()) < 0.5);
  }
}

TEST_CASE("views of one JPEG are those that each would be alone") {
  std::mt19937 rng(4);
  Bench bench;
  JpegOptions o;
  o.height = 160;
  o.width = 240;
  o.sampling[0] = {2, 2};
  const Bytes jpeg = test::make_jpeg(o, 4);
  Chain large, small;
  large.add(sized(Kind::random_resized_crop, 100, 90));
  small.add(sized(Kind::random_resized_crop, 60, 70));
  ImageTask both;
  both.chain = &large;
  both.others.push_back({&small, {}});
  ImageTask alone[2];
  alone[0].chain = &large;
  alone[1].chain = &small;
  for (int row = 0; row < 20; ++row) {
    ImageRequest request;
    request.row = row;
    request.orientation = static_cast<std::uint8_t>(1 + row % 8);
    struct Two {
      Bytes out[2];
      int next = 0;
    } two;
    const auto place = [](void* context, std::int32_t height, std::int32_t width) -> void* {
      auto& to = *static_cast<Two*>(context);
      to.out[to.next].resize(static_cast<std::size_t>(height * width * 3));
      return to.out[to.next++].data();
    };
    const test::PaddedBytes padded(jpeg);
    request.data = padded.data();
    request.size = padded.size();
    REQUIRE(bench.decoder.decode(both, request, place, &two).ok());
    for (int i = 0; i < 2; ++i)
      CHECK(two.out[i] == bench.decode(alone[i], request, Codec::jpeg, jpeg).out);
  }
}

namespace {

void extend(JpegIndex& index, const JpegIndex& found) {
  if (found.points.empty()) return;
  index.scan = found.scan;
  index.points.insert(index.points.end(), found.points.begin(), found.points.end());
}

// The points that twenty crops of a file find.
JpegIndex index_of_crops(Bench& bench, std::mt19937& rng, const Bytes& file) {
  JpegIndex index;
  for (int n = 0; n < 20; ++n) {
    Crop crop(rng, 20, 30);
    JpegIndex found;
    crop.request.index = index.points.empty() ? nullptr : &index;
    crop.request.found = &found;
    REQUIRE(bench.decode(crop.task, crop.request, Codec::jpeg, file).status.ok());
    extend(index, found);
  }
  REQUIRE_FALSE(index.points.empty());
  return index;
}

}  // namespace

TEST_CASE("an index of another scan is not used, and nothing is added to it") {
  std::mt19937 rng(7);
  Bench bench;
  JpegOptions o;
  o.height = o.width = 400;
  const Bytes large = test::make_jpeg(o, 1);
  o.height = o.width = 200;
  const Bytes small = test::make_jpeg(o, 2);
  const JpegIndex index = index_of_crops(bench, rng, large);
  REQUIRE(index.points.back().byte > small.size());  // where the other has nothing
  for (int n = 0; n < 20; ++n) {
    Crop crop(rng, 20, 30);
    const Result expected = bench.decode(crop.task, crop.request, Codec::jpeg, small);
    JpegIndex found;
    crop.request.index = &index;
    crop.request.found = &found;
    CHECK(bench.decode(crop.task, crop.request, Codec::jpeg, small).out == expected.out);
    CHECK(found.points.empty());
  }
}

TEST_CASE("an index of a file of the same size and shape is not used") {
  std::mt19937 rng(8);
  Bench bench;
  JpegOptions o;
  o.height = o.width = 400;
  Bytes first = test::make_jpeg(o, 1), second = test::make_jpeg(o, 2);
  const std::size_t size = std::max(first.size(), second.size());
  for (Bytes* file : {&first, &second}) file->resize(size);  // bytes behind the end do not count
  const JpegIndex index = index_of_crops(bench, rng, first);
  for (int n = 0; n < 20; ++n) {
    Crop crop(rng, 20, 30);
    const Result expected = bench.decode(crop.task, crop.request, Codec::jpeg, second);
    crop.request.index = &index;
    CHECK(bench.decode(crop.task, crop.request, Codec::jpeg, second).out == expected.out);
  }
}

TEST_CASE("a crop that begins where an index says is that of a decode from the beginning") {
  std::mt19937 rng(5);
  Bench bench;
  int known = 0;
  for (int round = 0; round < 150; ++round) {
    JpegOptions o = options(rng);
    o.height += 100;
    o.width = random_int(rng, 1, 900);
    const Bytes jpeg = test::make_jpeg(o, rng());
    JpegIndex index;
    CAPTURE(test::describe(o));
    for (int n = 0; n < 6; ++n) {
      Crop crop(rng, 20, 30);
      const Result expected = bench.decode(crop.task, crop.request, Codec::jpeg, jpeg);
      JpegIndex found;
      crop.request.index = index.points.empty() ? nullptr : &index;
      crop.request.found = &found;
      const Result got = bench.decode(crop.task, crop.request, Codec::jpeg, jpeg);
      REQUIRE(got.status.code == expected.status.code);
      REQUIRE(got.out == expected.out);
      extend(index, found);
      known += !found.points.empty();
    }
    for (std::size_t i = 1; i < index.points.size(); ++i)
      REQUIRE(index.points[i].byte >= index.points[i - 1].byte);
  }
  CHECK(known > 100);
}

TEST_CASE("an index of a file that is damaged is that of the damaged file") {
  std::mt19937 rng(6);
  Bench bench;
  for (int round = 0; round < 300; ++round) {
    JpegOptions o = options(rng);
    o.height += 100;
    Bytes jpeg = test::make_jpeg(o, rng());
    const std::size_t begin = scan_begin(jpeg);
    for (int n = random_int(rng, 1, 20); n > 0; --n)
      jpeg[begin + rng() % (jpeg.size() - begin)] =
          static_cast<std::uint8_t>(rng() % 4 ? rng() : 0xFF);
    JpegIndex index;
    CAPTURE(test::describe(o));
    for (int n = 0; n < 4; ++n) {
      Crop crop(rng, 20, 30);
      const Result expected = bench.decode(crop.task, crop.request, Codec::jpeg, jpeg);
      JpegIndex found;
      crop.request.index = index.points.empty() ? nullptr : &index;
      crop.request.found = &found;
      const Result got = bench.decode(crop.task, crop.request, Codec::jpeg, jpeg);
      if (!expected.status.ok()) break;
      REQUIRE(got.status.ok());
      REQUIRE(got.out == expected.out);
      extend(index, found);
    }
  }
}
