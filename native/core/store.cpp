#include "store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu.h"
#include "store_kernels.h"

namespace fastio {
namespace {

struct Kernels {
  SplitKernel* split;
  ScaleKernel* scale;
};

// (AVX-512 was tried and gains nothing here: these loops wait for memory.)
Kernels choose_kernels() {
#ifdef FASTIO_X86
  if (simd_active() >= Simd::avx2) return {split_avx2, scale_avx2};
#endif
  return {split_portable, scale_portable};
}

// Interleaved uint8 rows to contiguous planes.
void store_planes_u8(SplitKernel* split, const std::uint8_t* src, std::ptrdiff_t src_stride,
                     std::size_t h, std::size_t w, int c, std::uint8_t* dst) {
  for (std::size_t y = 0; y < h; ++y, src += src_stride) {
    std::uint8_t* planes[4];
    for (int k = 0; k < c; ++k) planes[k] = dst + (k * h + y) * w;
    split(src, w, c, planes);
  }
}

// The same to planes of floats. Rows go in pieces whose bytes stay in cache between the two steps.
void store_planes_f32(const Kernels& kernels, const ScaleSpec& spec, const std::uint8_t* src,
                      std::ptrdiff_t src_stride, std::size_t h, std::size_t w, int c, float* dst) {
  constexpr std::size_t kPiece = 1024;
  std::uint8_t bytes[4][kPiece];
  std::uint8_t* const planes[4] = {bytes[0], bytes[1], bytes[2], bytes[3]};
  for (std::size_t y = 0; y < h; ++y, src += src_stride) {
    for (std::size_t x = 0; x < w; x += kPiece) {
      const std::size_t n = std::min(kPiece, w - x);
      kernels.split(src + x * c, n, c, planes);
      for (int k = 0; k < c; ++k) {
        kernels.scale(planes[k], n, 1, {spec.scale + k, spec.bias + k, spec.values + k},
                      dst + (k * h + y) * w + x);
      }
    }
  }
}

// All 256 results of each channel. Where fma is no instruction it takes many, so that the portable
// path looks results up.
void fill_values(const StoreSpec& spec, int c, float (*values)[256]) {
  for (int k = 0; k < c; ++k) {
    for (int v = 0; v < 256; ++v) {
      values[k][v] = std::fma(static_cast<float>(v), spec.scale[k], spec.bias[k]);
    }
  }
}

template <int kBytes>
void copy_pixels(const std::uint8_t* src, std::ptrdiff_t row_step, std::ptrdiff_t pixel_step,
                 std::int32_t rows, std::int32_t columns, std::uint8_t* dst,
                 std::ptrdiff_t dst_stride) {
  constexpr std::int32_t kBlock = 32;  // square blocks, so that transposing stays in cache
  for (std::int32_t y0 = 0; y0 < rows; y0 += kBlock) {
    const std::int32_t y1 = std::min(rows, y0 + kBlock);
    for (std::int32_t x0 = 0; x0 < columns; x0 += kBlock) {
      const std::int32_t x1 = std::min(columns, x0 + kBlock);
      for (std::int32_t y = y0; y < y1; ++y) {
        const std::uint8_t* from = src + y * row_step + x0 * pixel_step;
        std::uint8_t* to = dst + y * dst_stride + static_cast<std::ptrdiff_t>(x0) * kBytes;
        for (std::int32_t x = x0; x < x1; ++x, from += pixel_step, to += kBytes) {
          std::memcpy(to, from, kBytes);
        }
      }
    }
  }
}

}  // namespace

void scale_portable(const std::uint8_t* src, std::size_t count, int channels, const ScaleSpec& spec,
                    float* dst) {
  for (int c = 0; c < channels; ++c) {
    const float* values = spec.values[c];
    for (std::size_t i = c; i < count; i += channels) dst[i] = values[src[i]];
  }
}

void split_portable(const std::uint8_t* src, std::size_t pixels, int channels,
                    std::uint8_t* const* planes) {
  for (int c = 0; c < channels; ++c) {
    for (std::size_t i = 0; i < pixels; ++i) planes[c][i] = src[i * channels + c];
  }
}

std::size_t store_bytes(const StoreSpec& spec, std::int32_t h, std::int32_t w, int c) {
  const auto values = static_cast<std::size_t>(h) * w * c;
  return spec.element == Element::f32 ? values * sizeof(float) : values;
}

void store_image(const StoreSpec& spec, const std::uint8_t* src, std::ptrdiff_t src_stride,
                 std::int32_t h, std::int32_t w, int c, void* dst) {
  const Kernels kernels = choose_kernels();
  auto rows = static_cast<std::size_t>(h), columns = static_cast<std::size_t>(w);
  if (src_stride == static_cast<std::ptrdiff_t>(columns * c)) {
    columns *= rows;  // contiguous rows are one long row
    rows = 1;
  }
  const std::size_t row_values = columns * c;
  const bool planar = spec.layout == Layout::chw && c > 1;
  if (spec.element == Element::f32) {
    float values[4][256];
    if (kernels.scale == scale_portable) fill_values(spec, c, values);
    const ScaleSpec scale{spec.scale, spec.bias, values};
    auto* to = static_cast<float*>(dst);
    if (planar) {
      return store_planes_f32(kernels, scale, src, src_stride, rows, columns, c, to);
    }
    for (std::size_t y = 0; y < rows; ++y, src += src_stride, to += row_values) {
      kernels.scale(src, row_values, c, scale, to);
    }
  } else {
    auto* to = static_cast<std::uint8_t*>(dst);
    if (planar) return store_planes_u8(kernels.split, src, src_stride, rows, columns, c, to);
    for (std::size_t y = 0; y < rows; ++y, src += src_stride, to += row_values) {
      std::memcpy(to, src, row_values);
    }
  }
}

// Orientation n puts the stored image's first row and column at: 1 top left, 2 top right, 3 bottom
// right, 4 bottom left, 5 left top, 6 right top, 7 right bottom, 8 left bottom (Exif 2.3, 4.6.4 A).
void orient(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t h, std::int32_t w,
            int c, int orientation, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const bool transpose = orientation >= 5;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  if (from_bottom) src += (h - 1) * src_stride;
  if (from_right) src += static_cast<std::ptrdiff_t>(w - 1) * c;
  const std::ptrdiff_t down = from_bottom ? -src_stride : src_stride;
  const std::ptrdiff_t right = from_right ? -c : c;
  const std::ptrdiff_t row_step = transpose ? right : down;
  const std::ptrdiff_t pixel_step = transpose ? down : right;
  const std::int32_t rows = transpose ? w : h, columns = transpose ? h : w;
  if (pixel_step == c) {
    for (std::int32_t y = 0; y < rows; ++y) {
      std::memcpy(dst + y * dst_stride, src + y * row_step, static_cast<std::size_t>(columns) * c);
    }
    return;
  }
  switch (c) {
    case 1:
      return copy_pixels<1>(src, row_step, pixel_step, rows, columns, dst, dst_stride);
    case 3:
      return copy_pixels<3>(src, row_step, pixel_step, rows, columns, dst, dst_stride);
    default:
      return copy_pixels<4>(src, row_step, pixel_step, rows, columns, dst, dst_stride);
  }
}

}  // namespace fastio
