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

const Simd kLevels[] = {Simd::portable, Simd::avx2, Simd::avx512};  // simd_force() clamps

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

std::size_t index_of(Layout layout, int h, int w, int c, int y, int x, int k) {
  return layout == Layout::hwc ? (static_cast<std::size_t>(y) * w + x) * c + k
                               : (static_cast<std::size_t>(k) * h + y) * w + x;
}

// Every size of tail, rows with and without a gap, and pieces longer than a kernel's buffer.
const struct Size {
  int h, w, gap;
} kSizes[] = {{1, 1, 0},  {3, 1, 2},  {1, 7, 0},   {2, 15, 1},   {4, 16, 0},   {5, 17, 3},
              {3, 33, 0}, {2, 64, 5}, {7, 100, 0}, {1, 1025, 0}, {2, 2100, 9}, {40, 61, 0}};

}  // namespace

TEST_CASE("uint8 samples are kept in either layout, on every path") {
  for (const Size& size : kSizes) {
    for (int c : {1, 3, 4}) {
      const int row = size.w * c, stride = row + size.gap;
      const Bytes src = random_bytes(static_cast<std::size_t>(stride) * (size.h - 1) + row);
      for (Layout layout : {Layout::hwc, Layout::chw}) {
        const StoreSpec spec = spec_of(layout, Element::u8);
        for (Simd level : kLevels) {
          ForceSimd force(level);
          Bytes dst(store_bytes(spec, size.h, size.w, c));
          REQUIRE(dst.size() == static_cast<std::size_t>(row) * size.h);
          store_image(spec, src.data(), stride, size.h, size.w, c, dst.data());
          for (int y = 0; y < size.h; ++y) {
            for (int x = 0; x < row; ++x) {
              REQUIRE(dst[index_of(layout, size.h, size.w, c, y, x / c, x % c)] ==
                      src[static_cast<std::size_t>(y) * stride + x]);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("float values are one fused multiply-add, to the bit, in either layout, on every path") {
  for (const Size& size : kSizes) {
    for (int c : {1, 3, 4}) {
      const int row = size.w * c, stride = row + size.gap;
      const Bytes src = random_bytes(static_cast<std::size_t>(stride) * (size.h - 1) + row);
      for (Layout layout : {Layout::hwc, Layout::chw}) {
        const StoreSpec spec = spec_of(layout, Element::f32);
        for (Simd level : kLevels) {
          ForceSimd force(level);
          std::vector<float> dst(static_cast<std::size_t>(row) * size.h);
          REQUIRE(store_bytes(spec, size.h, size.w, c) == dst.size() * sizeof(float));
          store_image(spec, src.data(), stride, size.h, size.w, c, dst.data());
          for (int y = 0; y < size.h; ++y) {
            for (int x = 0; x < row; ++x) {
              const auto value = static_cast<float>(src[static_cast<std::size_t>(y) * stride + x]);
              const float expected = std::fma(value, spec.scale[x % c], spec.bias[x % c]);
              const float got = dst[index_of(layout, size.h, size.w, c, y, x / c, x % c)];
              REQUIRE(std::memcmp(&got, &expected, sizeof got) == 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a negative stride stores an image bottom up") {
  const Bytes src = random_bytes(5 * 12);
  for (Layout layout : {Layout::hwc, Layout::chw}) {
    Bytes dst(5 * 12);
    store_image(spec_of(layout, Element::u8), src.data() + 4 * 12, -12, 5, 4, 3, dst.data());
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 12; ++x) {
        CHECK(dst[index_of(layout, 5, 4, 3, y, x / 3, x % 3)] == src[(4 - y) * 12 + x]);
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
