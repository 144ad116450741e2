#include "core/store.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/cpu.h"

using namespace fastio;

namespace {

using Bytes = std::vector<std::uint8_t>;

const Simd kLevels[] = {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon};

class ForceSimd {
 public:
  explicit ForceSimd(Simd level) : before_(simd_active()) { simd_force(level); }
  ~ForceSimd() { simd_force(before_); }

 private:
  Simd before_;
};

Bytes random_bytes(std::size_t n) {
  static std::mt19937 engine(7);
  Bytes bytes(n);
  for (auto& b : bytes) b = static_cast<std::uint8_t>(engine());
  return bytes;
}

StoreSpec spec_of(Layout layout, Element element) {
  StoreSpec spec{layout, element};
  for (int c = 0; c < 4; ++c) {  // ImageNet's mean and deviation, and a fourth channel
    const float mean[] = {0.485f, 0.456f, 0.406f, 0.5f}, deviation[] = {0.229f, 0.224f, 0.225f, 1};
    spec.scale[c] = 1 / (255 * deviation[c]);
    spec.bias[c] = -mean[c] / deviation[c];
  }
  return spec;
}

// Every size of tail, and more than a kernel takes at once.
std::vector<std::size_t> some_lengths() {
  std::vector<std::size_t> lengths = {100, 128, 191, 192, 193, 1025, 2100};
  for (std::size_t n = 1; n <= 70; ++n) lengths.push_back(n);
  return lengths;
}

}  // namespace

TEST_CASE("pixels are split into planes, and nothing else is written, on every path") {
  for (const std::size_t pixels : some_lengths()) {
    for (const int c : {3, 4}) {
      const Bytes src = random_bytes(pixels * c);
      const std::size_t plane = pixels + 5;
      for (const Simd level : kLevels) {
        const ForceSimd force(level);
        Bytes dst(plane * c, 7), expected = dst;
        split_pixels(src.data(), pixels, c, dst.data(), static_cast<std::ptrdiff_t>(plane));
        for (std::size_t i = 0; i < pixels * c; ++i) expected[i % c * plane + i / c] = src[i];
        REQUIRE(dst == expected);
      }
    }
  }
}

TEST_CASE("float values are one fused multiply-add, to the bit, in either layout, on every path") {
  for (const std::size_t pixels : some_lengths()) {
    for (const auto& [from, c] : {std::pair{1, 1}, {3, 3}, {4, 4}, {1, 3}}) {
      const Bytes src = random_bytes(pixels * from);
      for (const Layout layout : {Layout::hwc, Layout::chw}) {
        const StoreSpec spec = spec_of(layout, Element::f32);
        for (const Simd level : kLevels) {
          const ForceSimd force(level);
          std::vector<float> dst(pixels * c);
          REQUIRE(store_bytes(spec, 1, static_cast<int>(pixels), c) == dst.size() * sizeof(float));
          store_floats(spec, src.data(), from, pixels, c, dst.data());
          for (std::size_t i = 0; i < dst.size(); ++i) {
            const std::size_t k = layout == Layout::hwc ? i % c : i / pixels;
            const std::size_t pixel = layout == Layout::hwc ? i / c : i % pixels;
            const std::size_t at = layout == Layout::hwc ? pixel * from + (from == 1 ? 0 : k)
                                                         : (from == 1 ? 0 : k * pixels) + pixel;
            const float expected =
                std::fma(static_cast<float>(src[at]), spec.scale[k], spec.bias[k]);
            REQUIRE(std::memcmp(&dst[i], &expected, sizeof expected) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("orientations are those of EXIF") {
  // Where the stored pixel (y, x) of an h x w image goes, as (row, column).
  const auto goes_to = [](int orientation, int h, int w, int y, int x) -> std::pair<int, int> {
    switch (orientation) {
      case 2:
        return {y, w - 1 - x};
      case 3:
        return {h - 1 - y, w - 1 - x};
      case 4:
        return {h - 1 - y, x};
      case 5:
        return {x, y};
      case 6:
        return {x, h - 1 - y};
      case 7:
        return {w - 1 - x, h - 1 - y};
      case 8:
        return {w - 1 - x, y};
      default:
        return {y, x};
    }
  };
  for (const auto& [h, w] : {std::pair{1, 1}, {1, 9}, {9, 1}, {5, 7}, {70, 33}, {32, 64}}) {
    for (int c : {1, 3, 4}) {
      const int stride = w * c + 3;
      const Bytes src = random_bytes(static_cast<std::size_t>(stride) * (h - 1) + w * c);
      for (int orientation = 1; orientation <= 8; ++orientation) {
        const int rows = orientation >= 5 ? w : h, columns = orientation >= 5 ? h : w;
        const int dst_stride = columns * c + 2;
        Bytes dst(static_cast<std::size_t>(dst_stride) * (rows - 1) + columns * c);
        orient(src.data(), stride, h, w, c, orientation, dst.data(), dst_stride);
        for (int y = 0; y < h; ++y) {
          for (int x = 0; x < w; ++x) {
            const auto [row, column] = goes_to(orientation, h, w, y, x);
            REQUIRE(std::memcmp(&dst[row * dst_stride + column * c], &src[y * stride + x * c], c) ==
                    0);
          }
        }
      }
    }
  }
}
