// Block records in ImageDecoder, against the JPEG files that they were made of.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "block_images.h"

using namespace fastio;
using test::Bench;
using test::ForcedSimd;
using test::JpegOptions;
using test::random_int;
using test::random_step;
using test::Result;
using test::Sample;
using test::sized;
using Kind = GeometryStep::Kind;

namespace {

constexpr Filter kFilters[] = {Filter::nearest, Filter::bilinear, Filter::bicubic};

// As photos are: neighbours alike, the more so the finer the detail.
JpegCoefficients photo(int height, int width, int components, test::Sampling sampling,
                       std::uint32_t seed) {
  std::mt19937 rng(seed);
  JpegCoefficients in;
  in.shape = test::make_shape(height, width, components, sampling);
  std::fill(in.shape.quant[0], in.shape.quant[0] + 64, std::uint16_t{4});
  for (int c = 0; c < components; ++c) {
    const std::int32_t across = in.shape.blocks_x(c), down = in.shape.blocks_y(c);
    const int strength = c == 0 ? 60 : 12;
    for (std::int32_t y = 0; y < down; ++y)
      for (std::int32_t x = 0; x < across; ++x) {
        std::int16_t block[64] = {};
        const double wave = std::sin(0.13 * x + c) + std::cos(0.17 * y - 0.1 * x + 2 * c);
        block[0] = static_cast<std::int16_t>(wave * (c == 0 ? 70 : 35));
        for (int z = 1; z < 64; ++z) {
          const int most = strength / ((z / 8 + z % 8) * (z / 8 + z % 8) + 1);
          if (most > 0) block[z] = static_cast<std::int16_t>(random_int(rng, -most, most));
        }
        in.blocks[c].insert(in.blocks[c].end(), block, block + 64);
      }
  }
  return in;
}

double mean_difference(const Result& a, const Result& b) {
  REQUIRE(a.height == b.height);
  REQUIRE(a.width == b.width);
  REQUIRE(a.out.size() == b.out.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.out.size(); ++i) sum += std::abs(a.out[i] - b.out[i]);
  return sum / static_cast<double>(std::max<std::size_t>(1, a.out.size()));
}

int most_difference(const Result& a, const Result& b) {
  int most = 0;
  for (std::size_t i = 0; i < a.out.size(); ++i)
    most = std::max(most, std::abs(a.out[i] - b.out[i]));
  return most;
}

// A record, and what the JPEG gives in the same way.
struct Both {
  Result blocks, jpeg;
};

Both decode_both(Bench& bench, const Sample& s, ImageTask task, ImageRequest request) {
  task.codebook = s.book.get();
  Both both;
  for (const Simd level : test::kLevels) {
    const ForcedSimd forced(level);
    Result now = bench.decode(task, request, Codec::blocks, s.record);
    if (level != Simd::portable) {
      REQUIRE(now.status.code == both.blocks.status.code);
      if (now.status.ok()) REQUIRE(now.out == both.blocks.out);
    }
    both.blocks = std::move(now);
  }
  both.jpeg = bench.decode(task, request, Codec::jpeg, s.jpeg);
  CAPTURE(both.blocks.status.message);
  CAPTURE(both.jpeg.status.message);
  REQUIRE(both.blocks.status.code == both.jpeg.status.code);
  return both;
}

}  // namespace

TEST_CASE("crops, padding, flips and orientations of a record are those of its JPEG") {
  std::mt19937 rng(1);
  Bench bench;
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    const Sample s(test::random_picture(rng, 60, 200), rng());
    Chain chain;
    for (int i = random_int(rng, 0, 3); i > 0; --i) chain.add(random_step(rng, 60));
    ImageTask task;
    task.chain = &chain;
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    request.row = round;
    CAPTURE(int{request.orientation});
    const Both both = decode_both(bench, s, task, request);
    if (!both.blocks.status.ok()) continue;
    CHECK(mean_difference(both.blocks, both.jpeg) < 1);
    CHECK(most_difference(both.blocks, both.jpeg) <= 3);
    ++compared;
  }
  CHECK(compared > 100);
}

TEST_CASE("resized crops are near those of the JPEG: each filter, window, flip and orientation") {
  std::mt19937 rng(2);
  Bench bench;
  for (int round = 0; round < 150; ++round) {
    JpegOptions o = test::random_picture(rng, 150, 300);
    o.height += 40;
    o.width += 40;
    o.noise = 5;
    CAPTURE(test::describe(o));
    const Sample s(o, rng());
    Chain chain;
    // One after the other: compilers evaluate arguments in any order.
    const int width = random_int(rng, 48, 160), height = random_int(rng, 48, 160);
    const Kind kind = rng() % 2 ? Kind::resize : Kind::random_resized_crop;
    GeometryStep step = sized(kind, height, width);
    if (step.kind == Kind::resize && rng() % 2) step.width = 0;
    step.filter = kFilters[round % 3];
    step.antialias = rng() % 4 != 0;
    chain.add(step);
    if (rng() % 2) chain.add(sized(Kind::horizontal_flip, 0, 0));
    if (rng() % 2) chain.add(sized(Kind::center_crop, 60, 70));
    if (rng() % 4 == 0) chain.add(random_step(rng, 50));
    ImageTask task;
    task.chain = &chain;
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    request.row = round;
    CAPTURE(int{request.orientation});
    const Both both = decode_both(bench, s, task, request);
    if (both.blocks.status.ok()) CHECK(mean_difference(both.blocks, both.jpeg) < 1);
  }
}

TEST_CASE("zeros around a picture stand where they do for its JPEG") {
  std::mt19937 rng(3);
  Bench bench;
  for (int round = 0; round < 150; ++round) {
    JpegOptions o = test::random_picture(rng, 80, 200);
    o.level = 255;
    o.quality = 100;
    const Sample s(o, 1);
    Chain chain;
    if (rng() % 2) chain.add(sized(Kind::resize, random_int(rng, 1, 50), 0));
    for (int i = random_int(rng, 1, 3); i > 0; --i) chain.add(random_step(rng, 90));
    ImageTask task;
    task.chain = &chain;
    task.channels = rng() % 3 ? 3 : 1;
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    request.row = round;
    const Both both = decode_both(bench, s, task, request);
    if (both.blocks.status.ok()) REQUIRE(both.blocks.out == both.jpeg.out);
  }
}

TEST_CASE("gray pictures for RGB, and any picture for gray") {
  std::mt19937 rng(4);
  Bench bench;
  for (int round = 0; round < 60; ++round) {
    const int components = round % 3 == 0 ? 1 : 3;
    JpegCoefficients in = photo(90, 170, components, test::kSamplings[rng() % 5], rng());
    if (round % 3 == 2) {
      in.shape.colour = Colour::rgb;
      in.shape.sub_x = in.shape.sub_y = 1;
      in.blocks[1] = in.blocks[2] = in.blocks[0];
    }
    const Sample s(in);
    Chain chain;
    chain.add(sized(Kind::random_resized_crop, 60, 50));
    ImageTask task;
    task.chain = &chain;
    task.channels = round % 2 ? 1 : 3;
    ImageRequest request;
    request.row = round;
    const Both both = decode_both(bench, s, task, request);
    REQUIRE(both.blocks.status.ok());
    CHECK(mean_difference(both.blocks, both.jpeg) < 1);
  }
}

TEST_CASE("files coded as RGB, also where two components are subsampled") {
  std::mt19937 rng(5);
  Bench bench;
  for (int round = 0; round < 30; ++round) {
    JpegCoefficients in = photo(70, 150, 3, test::kSamplings[round % 5], rng());
    in.shape.colour = Colour::rgb;
    const Sample s(in);
    Chain chain;
    if (round % 2) chain.add(sized(Kind::resize, 60, 100));
    ImageTask task;
    task.chain = &chain;
    task.channels = round % 3 ? 3 : 1;
    const Both both = decode_both(bench, s, task, {});
    REQUIRE(both.blocks.status.ok());
    CHECK(mean_difference(both.blocks, both.jpeg) < 1);
  }
}

TEST_CASE("a photo that is shrunk, a little or a lot, is near its exact pixels shrunk") {
  std::mt19937 rng(6);
  Bench bench;
  for (const test::Sampling sampling : test::kSamplings)
    for (const int size : {300, 200, 120, 90, 70, 40, 20, 9}) {
      const Sample s(photo(640, 800, 3, sampling, rng()));
      Chain chain;
      chain.add(sized(Kind::random_resized_crop, size, size));
      ImageTask task;
      task.chain = &chain;
      task.codebook = s.book.get();
      const test::Decoded exact = test::decode_fully(s.jpeg, 1);
      for (int row = 0; row < 4; ++row) {
        ImageRequest request;
        request.row = row;
        const Result got = bench.decode(task, request, Codec::blocks, s.record);
        request.height = exact.height;
        request.width = exact.width;
        const Result expected = bench.decode(task, request, Codec::raw, exact.pixels);
        REQUIRE(got.status.ok());
        REQUIRE(expected.status.ok());
        CAPTURE(size);
        CAPTURE(sampling.h * 10 + sampling.v);
        // From a shrink of 8 on it is the mean of each block that is shrunk.
        DrawnChain drawn;
        REQUIRE(chain.draw(exact.height, exact.width, 0, 0, row, drawn).ok());
        const bool means = std::min(drawn.crop.crop_height, drawn.crop.crop_width) >= 8 * size;
        CHECK(mean_difference(got, expected) < (means ? 3 : 1));
      }
    }
}

TEST_CASE("without antialiasing or with nearest nothing is reduced, however much is left out") {
  std::mt19937 rng(9);
  Bench bench;
  for (int round = 0; round < 20; ++round) {
    const Sample s(photo(300, 300, 3, test::kSamplings[round % 5], rng()));
    GeometryStep step = sized(Kind::resize, random_int(rng, 5, 60), random_int(rng, 5, 60));
    step.filter = kFilters[round % 3];
    step.antialias = step.filter == Filter::nearest && round % 2 == 1;
    Chain chain;
    chain.add(step);
    ImageTask task;
    task.chain = &chain;
    const Both both = decode_both(bench, s, task, {});
    REQUIRE(both.blocks.status.ok());
    CHECK(mean_difference(both.blocks, both.jpeg) < 1);
  }
}

TEST_CASE("one pixel of a picture, and a picture of one pixel") {
  std::mt19937 rng(7);
  Bench bench;
  for (int round = 0; round < 100; ++round) {
    JpegOptions o = test::random_picture(rng, round % 2 ? 1 : 70, round % 4 < 2 ? 1 : 200);
    const Sample s(o, rng());
    Chain chain;
    GeometryStep step = sized(Kind::random_crop, 1, 1);
    if (round % 3 == 1) step = sized(Kind::resize, 1, 1);
    if (round % 3 == 2) {
      step = sized(Kind::random_resized_crop, random_int(rng, 1, 30), random_int(rng, 1, 30));
      step.scale[0] = step.scale[1] = 1.0 / (o.height * o.width);
      step.ratio[0] = step.ratio[1] = 1;
    }
    chain.add(step);
    ImageTask task;
    task.chain = &chain;
    ImageRequest request;
    request.row = round;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    const Both both = decode_both(bench, s, task, request);
    REQUIRE(both.blocks.status.ok());
    // A crop of a pixel is exact but for the rounding of colours.
    if (round % 3 != 1) CHECK(most_difference(both.blocks, both.jpeg) <= 3);
  }
}

TEST_CASE("edges of 65535 pixels") {
  Bench bench;
  Sample s;  // libjpeg writes no file of it
  s.record = test::encode_record(*s.book, photo(1, 65535, 1, {1, 1}, 8));
  ImageTask task;
  task.codebook = s.book.get();
  for (const auto& [height, width] :
       std::vector<std::pair<int, int>>{{1, 65535}, {65535, 1}, {3, 3}, {1, 100}}) {
    Chain chain;
    chain.add(sized(Kind::resize, height, width));
    task.chain = &chain;
    for (const int orientation : {1, 6}) {
      ImageRequest request;
      request.orientation = static_cast<std::uint8_t>(orientation);
      CHECK(bench.decode(task, request, Codec::blocks, s.record).status.ok());
    }
  }
  Chain larger;
  larger.add(sized(Kind::resize, 65536, 4));
  task.chain = &larger;
  CHECK(bench.decode(task, {}, Codec::blocks, s.record).status.code == Code::unsupported);
}
