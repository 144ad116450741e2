#include "store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu.h"
#include "store_kernels.h"

namespace fastio {
namespace {

// Computes all 256 results of each channel. The portable path looks results up, because fma is slow
// without an instruction for it.
void fill_values(const StoreSpec& spec, int c, float (*values)[256]) {
  for (int k = 0; k < c; ++k) {
    for (int v = 0; v < 256; ++v) {
      values[k][v] = std::fma(static_cast<float>(v), spec.scale[k], spec.bias[k]);
    }
  }
}

// Copies pixels of kBytes bytes between images with arbitrary steps, as transposes and flips need.
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
  std::uint8_t *const a = planes[0], *const b = planes[1], *const c = planes[2];
  for (std::size_t i = 0; i < pixels; ++i, src += channels) {
    a[i] = src[0];
    b[i] = src[1];
    c[i] = src[2];
    if (channels == 4) planes[3][i] = src[3];
  }
}

std::size_t store_bytes(const StoreSpec& spec, std::int32_t h, std::int32_t w, int c) {
  const auto values = static_cast<std::size_t>(h) * w * c;
  return spec.element == Element::f32 ? values * sizeof(float) : values;
}

void split_pixels(const std::uint8_t* src, std::size_t pixels, int channels, std::uint8_t* dst,
                  std::ptrdiff_t plane) {
  static constexpr Choice<SplitKernel*> kChoices[] = {
#ifdef FASTIO_X86
      {kAvx512, split_avx512},
      {kAvx2, split_avx2},
#endif
#ifdef FASTIO_ARM64
      {kNeon, split_neon},
#endif
      {0, split_portable}};
  std::uint8_t* planes[4] = {};
  for (int k = 0; k < channels; ++k) planes[k] = dst + k * plane;
  choose(kChoices)(src, pixels, channels, planes);
}

void store_floats(const StoreSpec& spec, const std::uint8_t* src, int src_channels,
                  std::size_t pixels, int channels, float* dst) {
  static constexpr Choice<ScaleKernel*> kChoices[] = {
#ifdef FASTIO_X86
      {kAvx2, scale_avx2},  // AVX-512 gains nothing
#endif
#ifdef FASTIO_ARM64
      {kNeon, scale_neon},
#endif
      {0, scale_portable}};
  ScaleKernel* const scale = choose(kChoices);
  float values[4][256];
  if (scale == scale_portable) fill_values(spec, channels, values);
  if (spec.layout == Layout::chw) {
    for (int k = 0; k < channels; ++k) {
      scale(src + (src_channels == 1 ? 0 : k * pixels), pixels, 1,
            {spec.scale + k, spec.bias + k, values + k}, dst + k * pixels);
    }
  } else if (src_channels == channels) {
    scale(src, pixels * channels, channels, {spec.scale, spec.bias, values}, dst);
  } else {
    for (std::size_t i = 0; i < pixels; ++i) {
      for (int k = 0; k < channels; ++k) {
        *dst++ = std::fma(static_cast<float>(src[i]), spec.scale[k], spec.bias[k]);
      }
    }
  }
}

// The sides of the upright image at which the stored image's first row and first column are: 1 top
// left, 2 top right, 3 bottom right, 4 bottom left, 5 left top, 6 right top, 7 right bottom, 8 left
// bottom (Exif 2.3, 4.6.4 A).
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
