// Horizontal pass: four taps of an output at a time. With 3 or 4 channels, a register has the sums
// of the channels; with 1 channel, those of the four taps. Vertical pass: 16 values at a time.
#include <arm_neon.h>

#include "resample_kernels.h"

namespace fastio {
namespace {

inline std::uint8_t clamp_u8(std::int32_t value) {
  return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

// Drops `shift` bits of the sums of 4 channels of an output, and clamps them to bytes.
inline std::uint32_t to_pixel(int32x4_t sum, int32x4_t minus_shift) {
  const uint16x4_t words = vqmovun_s32(vshlq_s32(sum, minus_shift));
  const uint8x8_t bytes = vqmovn_u16(vcombine_u16(words, words));
  return vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
}

// Loads two adjacent pixels, with four lanes each. Reads 8 bytes.
template <int kChannels>
inline int16x8_t two_pixels(const std::uint8_t* from) {
  if constexpr (kChannels == 4) {
    return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from)));
  } else {
    static constexpr std::uint8_t kPixels[16] = {0, 255, 1, 255, 2, 255, 255, 255,
                                                 3, 255, 4, 255, 5, 255, 255, 255};
    return vreinterpretq_s16_u8(
        vqtbl1q_u8(vcombine_u8(vld1_u8(from), vdup_n_u8(0)), vld1q_u8(kPixels)));
  }
}

template <int kChannels>
inline std::uint32_t pixel(const std::uint8_t* samples, const std::int16_t* weights,
                           std::int32_t taps, int32x4_t half, int32x4_t minus_shift) {
  int32x4_t even = half, odd = vdupq_n_s32(0);
  for (std::int32_t k = 0; k < taps; k += 4, samples += 4 * kChannels) {
    const int16x4_t w = vld1_s16(weights + k);
    const int16x8_t first = two_pixels<kChannels>(samples);
    const int16x8_t second = two_pixels<kChannels>(samples + 2 * kChannels);
    even = vmlal_lane_s16(even, vget_low_s16(first), w, 0);
    odd = vmlal_high_lane_s16(odd, first, w, 1);
    even = vmlal_lane_s16(even, vget_low_s16(second), w, 2);
    odd = vmlal_high_lane_s16(odd, second, w, 3);
  }
  return to_pixel(vaddq_s32(even, odd), minus_shift);
}

template <int kChannels>
void colour_rows(const HorizontalTables& t, const std::uint8_t* src, std::ptrdiff_t src_stride,
                 std::int32_t rows, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const int32x4_t half = vdupq_n_s32(1 << (t.shift - 1)), minus_shift = vdupq_n_s32(-t.shift);
  for (std::int32_t y = 0; y < rows; ++y, src += src_stride, dst += dst_stride) {
    const std::int16_t* weights = t.weights;
    std::uint8_t* out = dst;
    for (std::int32_t i = 0; i < t.outputs; ++i, weights += t.taps, out += kChannels) {
      const std::uint32_t bytes =
          pixel<kChannels>(src + t.offset[i], weights, t.taps, half, minus_shift);
      // Store four bytes at once: the next pixel overwrites the fourth.
      if (kChannels == 4 || i + 1 < t.outputs) {
        __builtin_memcpy(out, &bytes, 4);
      } else {
        __builtin_memcpy(out, &bytes, 3);
      }
    }
  }
}

void gray_rows(const HorizontalTables& t, const std::uint8_t* src, std::ptrdiff_t src_stride,
               std::int32_t rows, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const std::int32_t half = 1 << (t.shift - 1);
  for (std::int32_t y = 0; y < rows; ++y, src += src_stride, dst += dst_stride) {
    const std::int16_t* weights = t.weights;
    for (std::int32_t i = 0; i < t.outputs; ++i, weights += t.taps) {
      const std::uint8_t* samples = src + t.offset[i];
      int32x4_t sum = vdupq_n_s32(0);
      for (std::int32_t k = 0; k < t.taps; k += 4) {
        std::uint32_t four;
        __builtin_memcpy(&four, samples + k, 4);
        const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
        sum = vmlal_s16(sum, vreinterpret_s16_u16(vget_low_u16(words)), vld1_s16(weights + k));
      }
      dst[i] = clamp_u8((vaddvq_s32(sum) + half) >> t.shift);
    }
  }
}

// Computes 16 output bytes of a row.
inline void vertical_block(const std::uint8_t* src, std::ptrdiff_t src_stride,
                           const std::int16_t* weights, std::int32_t count, int shift,
                           std::uint8_t* dst) {
  int32x4_t sums[4];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(1 << (shift - 1));
  for (std::int32_t k = 0; k < count; ++k, src += src_stride) {
    const uint8x16_t bytes = vld1q_u8(src);
    const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
    const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
    sums[0] = vmlal_n_s16(sums[0], vget_low_s16(low), weights[k]);
    sums[1] = vmlal_high_n_s16(sums[1], low, weights[k]);
    sums[2] = vmlal_n_s16(sums[2], vget_low_s16(high), weights[k]);
    sums[3] = vmlal_high_n_s16(sums[3], high, weights[k]);
  }
  const int32x4_t minus_shift = vdupq_n_s32(-shift);
  uint16x4_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = vqmovun_s32(vshlq_s32(sums[i], minus_shift));
  vst1q_u8(dst, vcombine_u8(vqmovn_u16(vcombine_u16(words[0], words[1])),
                            vqmovn_u16(vcombine_u16(words[2], words[3]))));
}

}  // namespace

void horizontal_neon(const HorizontalTables& tables, const std::uint8_t* src,
                     std::ptrdiff_t src_stride, std::int32_t rows, std::uint8_t* dst,
                     std::ptrdiff_t dst_stride) {
  const auto kernel = tables.channels == 1   ? gray_rows
                      : tables.channels == 3 ? colour_rows<3>
                                             : colour_rows<4>;
  kernel(tables, src, src_stride, rows, dst, dst_stride);
}

void vertical_neon(const std::uint8_t* src, std::ptrdiff_t src_stride, const std::int16_t* weights,
                   std::int32_t count, int shift, std::size_t row_bytes, std::uint8_t* dst) {
  constexpr std::size_t kBlock = 16;
  if (row_bytes < kBlock)
    return vertical_portable(src, src_stride, weights, count, shift, row_bytes, dst);
  // The last block overlaps the one before it, so as not to pass the end.
  for (std::size_t x = 0; x < row_bytes; x += kBlock) {
    const std::size_t at = x + kBlock <= row_bytes ? x : row_bytes - kBlock;
    vertical_block(src + at, src_stride, weights, count, shift, dst + at);
  }
}

}  // namespace fastio
