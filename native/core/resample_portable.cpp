// The portable kernels of the resampler: plain loops that compilers vectorise.
#include <algorithm>

#include "resample_kernels.h"

namespace fastio {
namespace {

inline std::uint8_t clamp_u8(std::int32_t value) {
  return static_cast<std::uint8_t>(std::min(std::max(value, 0), 255));
}

template <int kChannels>
void horizontal_rows(const HorizontalTables& t, const std::uint8_t* src, std::ptrdiff_t src_stride,
                     std::int32_t rows, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  const std::int32_t half = 1 << (t.shift - 1);
  for (std::int32_t y = 0; y < rows; ++y, src += src_stride, dst += dst_stride) {
    const std::int16_t* weights = t.weights;
    for (std::int32_t i = 0; i < t.outputs; ++i, weights += t.taps) {
      const std::uint8_t* samples = src + t.offset[i];
      std::int32_t sum[kChannels];
      for (int c = 0; c < kChannels; ++c) sum[c] = half;
      for (std::int32_t k = 0; k < t.taps; ++k, samples += kChannels) {
        for (int c = 0; c < kChannels; ++c) sum[c] += weights[k] * samples[c];
      }
      for (int c = 0; c < kChannels; ++c) dst[i * kChannels + c] = clamp_u8(sum[c] >> t.shift);
    }
  }
}

}  // namespace

void horizontal_portable(const HorizontalTables& tables, const std::uint8_t* src,
                         std::ptrdiff_t src_stride, std::int32_t rows, std::uint8_t* dst,
                         std::ptrdiff_t dst_stride) {
  switch (tables.channels) {
    case 1:
      return horizontal_rows<1>(tables, src, src_stride, rows, dst, dst_stride);
    case 3:
      return horizontal_rows<3>(tables, src, src_stride, rows, dst, dst_stride);
    default:
      return horizontal_rows<4>(tables, src, src_stride, rows, dst, dst_stride);
  }
}

void vertical_portable(const std::uint8_t* src, std::ptrdiff_t src_stride,
                       const std::int16_t* weights, std::int32_t count, int shift,
                       std::size_t row_bytes, std::uint8_t* dst) {
  // Columns are processed in blocks, so that compilers vectorise the loops over a block.
  constexpr std::size_t kBlock = 64;
  for (std::size_t x = 0; x < row_bytes; x += kBlock) {
    const std::size_t n = std::min(kBlock, row_bytes - x);
    std::int32_t sum[kBlock];
    for (std::size_t j = 0; j < n; ++j) sum[j] = 1 << (shift - 1);
    const std::uint8_t* row = src + x;
    for (std::int32_t k = 0; k < count; ++k, row += src_stride) {
      for (std::size_t j = 0; j < n; ++j) sum[j] += weights[k] * row[j];
    }
    for (std::size_t j = 0; j < n; ++j) dst[x + j] = clamp_u8(sum[j] >> shift);
  }
}

}  // namespace fastio
