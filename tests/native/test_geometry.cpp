#include "core/geometry.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/rng.h"

using namespace fastio;
using Kind = GeometryStep::Kind;

namespace {

GeometryStep step(Kind kind, std::int32_t height = 0, std::int32_t width = 0) {
  GeometryStep s;
  s.kind = kind;
  s.height = height;
  s.width = width;
  return s;
}

CropPlan plan(const Geometry& geometry, std::int32_t height, std::int32_t width,
              std::int64_t row = 0) {
  CropPlan out;
  REQUIRE(geometry.plan(height, width, 7, 3, row, out).ok());
  return out;
}

CropPlan plan_of(const GeometryStep& s, std::int32_t height, std::int32_t width,
                 std::int64_t row = 0) {
  Geometry geometry;
  REQUIRE(geometry.add(s, 0).ok());
  return plan(geometry, height, width, row);
}

void check_inside(const CropPlan& p, std::int32_t height, std::int32_t width) {
  REQUIRE(p.crop_y >= 0);
  REQUIRE(p.crop_x >= 0);
  REQUIRE(p.crop_height >= 1);
  REQUIRE(p.crop_width >= 1);
  REQUIRE(p.crop_y + p.crop_height <= height);
  REQUIRE(p.crop_x + p.crop_width <= width);
  REQUIRE(p.out_height >= 1);
  REQUIRE(p.out_width >= 1);
  REQUIRE(p.window_height >= 1);
  REQUIRE(p.window_width >= 1);
}

}  // namespace

TEST_CASE("a chain without steps keeps the image") {
  const CropPlan p = plan(Geometry(), 11, 65535);
  check_inside(p, 11, 65535);
  CHECK(p.window_height == 11);
  CHECK(p.window_width == 65535);
  CHECK_FALSE(p.resamples());
}

TEST_CASE("a random resized crop lies inside, for all sizes and rows") {
  std::mt19937_64 rng(1);
  const std::vector<std::int32_t> edges = {1, 2, 3, 10, 375, 500, 65535};
  for (const std::int32_t height : edges) {
    for (const std::int32_t width : edges) {
      for (int i = 0; i < 50; ++i) {
        const CropPlan p = plan_of(step(Kind::random_resized_crop, 224, 7), height, width,
                                   static_cast<std::int64_t>(rng()));
        check_inside(p, height, width);
        REQUIRE(p.out_height == 224);
        REQUIRE(p.out_width == 7);
      }
    }
  }
}

TEST_CASE("scales and ratios that make no sense give a crop inside all the same") {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double values[] = {-inf, -1, 0, 1e-300, 0.5, 1, 2, 1e300, inf, nan};
  for (const double low : values) {
    for (const double high : values) {
      GeometryStep ratio = step(Kind::random_resized_crop, 9, 9);
      ratio.ratio[0] = low;
      ratio.ratio[1] = high;
      GeometryStep scale = step(Kind::random_resized_crop, 9, 9);
      scale.scale[0] = low;
      scale.scale[1] = high;
      CAPTURE(low);
      CAPTURE(high);
      for (std::int64_t row = 0; row < 20; ++row) {
        check_inside(plan_of(ratio, 65535, 3, row), 65535, 3);
        check_inside(plan_of(scale, 65535, 3, row), 65535, 3);
        check_inside(plan_of(ratio, 1, 1, row), 1, 1);
      }
    }
  }
}

TEST_CASE("a resize of the shorter edge keeps the ratio, within its limit") {
  const auto resized = [](std::int32_t size, std::int32_t max_size, std::int32_t h,
                          std::int32_t w) {
    GeometryStep s = step(Kind::resize, size, 0);
    s.max_size = max_size;
    const CropPlan p = plan_of(s, h, w);
    return std::pair(p.window_height, p.window_width);
  };
  CHECK(resized(256, 0, 375, 500) == std::pair(256, 341));
  CHECK(resized(256, 0, 500, 375) == std::pair(341, 256));
  CHECK(resized(256, 300, 375, 500) == std::pair(225, 300));
  CHECK(resized(1, 0, 65535, 1) == std::pair(65535, 1));
  CHECK(resized(1, 2, 65535, 1) == std::pair(2, 1));  // never nothing
  const auto huge = resized(65535, 0, 65535, 1);      // refused later, but no overflow here
  CHECK(huge.first >= 65535);
  CHECK(huge.second == 65535);
}

TEST_CASE("a central crop pads where the image is smaller") {
  const CropPlan p = plan_of(step(Kind::center_crop, 65535, 3), 1, 65535);
  CHECK(p.window_y == -32767);
  CHECK(p.window_height == 65535);
  CHECK(p.window_x == 32766);
  CHECK(p.window_width == 3);
}

TEST_CASE("a random crop finds every place, and only places that fit") {
  GeometryStep s = step(Kind::random_crop, 3, 3);
  s.padding = 1;
  bool seen[4][4] = {};
  for (std::int64_t row = 0; row < 1000; ++row) {
    const CropPlan p = plan_of(s, 4, 4, row);
    REQUIRE(p.window_y >= -1);
    REQUIRE(p.window_y <= 2);
    REQUIRE(p.window_x >= -1);
    REQUIRE(p.window_x <= 2);
    seen[p.window_y + 1][p.window_x + 1] = true;
  }
  for (const auto& line : seen)
    for (const bool place : line) CHECK(place);

  Geometry too_large;
  REQUIRE(too_large.add(step(Kind::random_crop, 5, 4), 0).ok());
  CropPlan out;
  CHECK(too_large.plan(4, 4, 0, 0, 0, out).code == Code::unsupported);
  CHECK(too_large.plan(5, 4, 0, 0, 0, out).ok());
}

TEST_CASE("what cannot be one crop and one resampling is refused") {
  Geometry twice;
  REQUIRE(twice.add(step(Kind::resize, 8, 8), 0).ok());
  CHECK(twice.add(step(Kind::random_resized_crop, 8, 8), 1).code == Code::unsupported);

  Geometry padded;  // where the image is smaller than 20 x 20
  REQUIRE(padded.add(step(Kind::center_crop, 20, 20), 0).ok());
  CHECK(padded.add(step(Kind::resize, 8, 8), 1).code == Code::unsupported);
  CHECK(padded.add(step(Kind::horizontal_flip), 1).ok());
}

// The source pixel (in one dimension, -1: padding) that each output shows, step by step.
TEST_CASE("crops after flips are those of the flipped image, and what was cut off stays so") {
  std::mt19937 rng(5);
  for (int round = 0; round < 2000; ++round) {
    const std::int32_t height = 1 + static_cast<std::int32_t>(rng() % 20);
    const std::int32_t width = 1 + static_cast<std::int32_t>(rng() % 20);
    std::vector<std::int32_t> ys, xs;
    for (std::int32_t i = 0; i < height; ++i) ys.push_back(i);
    for (std::int32_t i = 0; i < width; ++i) xs.push_back(i);
    Geometry geometry;
    for (int i = 0; i < 5; ++i) {
      GeometryStep s;
      const bool vertical = rng() % 2;
      if (rng() % 2) {
        s = step(vertical ? Kind::vertical_flip : Kind::horizontal_flip);
        s.probability = 1.0;
        auto& axis = vertical ? ys : xs;
        axis = std::vector<std::int32_t>(axis.rbegin(), axis.rend());
      } else {
        s = step(Kind::center_crop, 1 + static_cast<std::int32_t>(rng() % 25),
                 1 + static_cast<std::int32_t>(rng() % 25));
        const auto crop = [](std::vector<std::int32_t>& axis, std::int32_t wanted) {
          const auto size = static_cast<std::int32_t>(axis.size());
          const std::int32_t begin =
              size < wanted ? -((wanted - size) / 2)
                            : static_cast<std::int32_t>(std::nearbyint((size - wanted) / 2.0));
          std::vector<std::int32_t> out;
          for (std::int32_t k = begin; k < begin + wanted; ++k)
            out.push_back(k >= 0 && k < size ? axis[static_cast<std::size_t>(k)] : -1);
          axis = out;
        };
        crop(ys, s.height);
        crop(xs, s.width);
      }
      REQUIRE(geometry.add(s, 0).ok());
    }
    const CropPlan p = plan(geometry, height, width);
    REQUIRE(p.window_height == static_cast<std::int32_t>(ys.size()));
    REQUIRE(p.window_width == static_cast<std::int32_t>(xs.size()));
    const auto source = [](std::int32_t i, std::int32_t begin, std::int32_t size, bool flip,
                           std::int32_t from, std::int32_t to) {
      const std::int32_t at = begin + (flip ? size - 1 - i : i);
      return at >= from && at < to ? at : -1;
    };
    for (std::int32_t i = 0; i < p.window_height; ++i)
      REQUIRE(source(i, p.window_y, p.window_height, p.flip_vertical, p.kept_top, p.kept_bottom) ==
              ys[static_cast<std::size_t>(i)]);
    for (std::int32_t i = 0; i < p.window_width; ++i)
      REQUIRE(source(i, p.window_x, p.window_width, p.flip_horizontal, p.kept_left, p.kept_right) ==
              xs[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("draws differ by seed, epoch, row and step, and by nothing else") {
  const auto crop = [](std::uint64_t seed, std::uint64_t epoch, std::int64_t row, int before) {
    Geometry geometry;
    GeometryStep never = step(Kind::horizontal_flip);
    never.probability = 0;
    std::uint32_t number = 0;
    for (; number < static_cast<std::uint32_t>(before); ++number)
      REQUIRE(geometry.add(never, number).ok());
    REQUIRE(geometry.add(step(Kind::random_crop, 1, 1), number).ok());
    CropPlan out;
    REQUIRE(geometry.plan(60000, 60000, seed, epoch, row, out).ok());
    return std::pair(out.window_y, out.window_x);
  };
  const auto base = crop(1, 2, 3, 0);
  CHECK(crop(1, 2, 3, 0) == base);
  CHECK(crop(2, 2, 3, 0) != base);
  CHECK(crop(1ull << 63 | 1, 2, 3, 0) != base);
  CHECK(crop(1, 3, 3, 0) != base);
  CHECK(crop(1, 2, 4, 0) != base);
  CHECK(crop(1, 2, 3 | 1ll << 40, 0) != base);
  CHECK(crop(1, 2, 3, 1) != base);
}

TEST_CASE("random words are those of the Philox4x32-10 paper") {
  CHECK(philox(0, {0, 0, 0, 0}) == Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~0ull, {~0u, ~0u, ~0u, ~0u}) ==
        Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}
