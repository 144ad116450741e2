// With 4 channels, 4 taps of a row fill half (128 bits) of a register; with 3 channels, 3/4 of a
// half; with 1 channel, 4 taps of 4 rows fill a half. A byte shuffle widens them to pairs of taps
// for pmaddwd, so that the 4 sums of a half are the channels of one output pixel of a row (or, with
// 1 channel, that pixel in 4 rows).
#include <cstring>

#include "intrinsics.h"
#include "resample_kernels.h"

namespace fastio {
namespace {

template <int kChannels>
struct Shape {
  static constexpr int kHalfRows = kChannels == 1 ? 4 : 1;
  static constexpr int kRegisters = kChannels == 1 ? 1 : 2;
  static constexpr int kRows = kHalfRows * 2 * kRegisters;  // computed together
};

inline std::int32_t load_dword(const void* from) {
  std::int32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <int kChannels>
inline __m128i load_half(const std::uint8_t* const* rows, std::ptrdiff_t at) {
  if constexpr (kChannels == 1) {
    const auto row = [&](int j) { return _mm_cvtsi32_si128(load_dword(rows[j] + at)); };
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(row(0), row(1)),
                              _mm_unpacklo_epi32(row(2), row(3)));
  } else {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[0] + at));
  }
}

// Returns the byte shuffle of a half that makes dword c [tap `first`, 0, next tap, 0] of channel c
// (or of row c).
template <int kChannels>
inline __m256i pair_shuffle(int first) {
  alignas(16) std::uint8_t index[16];
  for (int c = 0; c < 4; ++c) {
    const int at = kChannels == 1 ? 4 * c + first : first * kChannels + c;
    const bool real = c < kChannels || kChannels == 1;
    index[4 * c] = static_cast<std::uint8_t>(real ? at : 0x80);
    index[4 * c + 1] = 0x80;
    index[4 * c + 2] = static_cast<std::uint8_t>(real ? at + kChannels : 0x80);
    index[4 * c + 3] = 0x80;
  }
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(index)));
}

// Returns the byte shuffle that brings the 4 output pixels of a half into the order of a row.
template <int kChannels>
inline __m256i store_shuffle() {
  switch (kChannels) {
    case 1:
      return _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    case 3:
      return _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    default:
      return _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  }
}

// Converts sums in dwords to bytes: each half of the result has that half of a, b, c and d.
inline __m256i to_bytes(__m256i a, __m256i b, __m256i c, __m256i d, __m256i shift) {
  const __m256i ab = _mm256_packs_epi32(_mm256_srav_epi32(a, shift), _mm256_srav_epi32(b, shift));
  const __m256i cd = _mm256_packs_epi32(_mm256_srav_epi32(c, shift), _mm256_srav_epi32(d, shift));
  return _mm256_packus_epi16(ab, cd);
}

// kSteps: the number of taps divided by 4 if it is known (in the common cases, so that the loop
// over the taps is unrolled), else 0.
template <int kChannels, int kSteps>
void horizontal_rows(const HorizontalTables& t, const std::uint8_t* src, std::ptrdiff_t src_stride,
                     std::int32_t rows, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  using S = Shape<kChannels>;
  const __m256i half = _mm256_set1_epi32(1 << (t.shift - 1));
  const __m256i shift = _mm256_set1_epi32(t.shift);
  const __m256i taps01 = pair_shuffle<kChannels>(0), taps23 = pair_shuffle<kChannels>(2);
  const __m256i store_order = store_shuffle<kChannels>();
  const std::ptrdiff_t taps = kSteps > 0 ? 4 * kSteps : t.taps;

  for (std::int32_t y = 0; y < rows; y += S::kRows) {
    const std::uint8_t* s[S::kRows];
    std::uint8_t* d[S::kRows];
    for (int j = 0; j < S::kRows; ++j) {
      const std::int32_t row = y + j < rows ? y + j : rows - 1;  // repeats the last row
      s[j] = src + row * src_stride;
      d[j] = dst + row * dst_stride;
    }
    for (std::int32_t i = 0; i < t.outputs; i += 4) {
      const int pixels = t.outputs - i < 4 ? t.outputs - i : 4;
      __m256i sum[S::kRegisters][4];
      for (int p = 0; p < 4; ++p) {
        const std::ptrdiff_t output = p < pixels ? i + p : i;
        const std::int16_t* weights = t.weights + output * taps;
        std::ptrdiff_t at = t.offset[output];
        for (int r = 0; r < S::kRegisters; ++r) sum[r][p] = half;
        for (std::ptrdiff_t k = 0; k < taps; k += 4, at += 4 * kChannels) {
          const __m256i w01 = _mm256_set1_epi32(load_dword(weights + k));
          const __m256i w23 = _mm256_set1_epi32(load_dword(weights + k + 2));
          for (int r = 0; r < S::kRegisters; ++r) {
            const std::uint8_t* const* row = s + 2 * S::kHalfRows * r;
            const __m256i samples =
                _mm256_inserti128_si256(_mm256_castsi128_si256(load_half<kChannels>(row, at)),
                                        load_half<kChannels>(row + S::kHalfRows, at), 1);
            const __m256i a = _mm256_madd_epi16(_mm256_shuffle_epi8(samples, taps01), w01);
            const __m256i b = _mm256_madd_epi16(_mm256_shuffle_epi8(samples, taps23), w23);
            sum[r][p] = _mm256_add_epi32(sum[r][p], _mm256_add_epi32(a, b));
          }
        }
      }
      constexpr int kBytes = 4 * kChannels;  // of 4 pixels of a row
      alignas(32) std::uint8_t bytes[S::kRegisters * 32];
      for (int r = 0; r < S::kRegisters; ++r) {
        const __m256i packed = to_bytes(sum[r][0], sum[r][1], sum[r][2], sum[r][3], shift);
        _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + 32 * r),
                           _mm256_shuffle_epi8(packed, store_order));
      }
      for (int j = 0; j < S::kRows; ++j) {
        std::uint8_t* to = d[j] + static_cast<std::ptrdiff_t>(i) * kChannels;
        const std::uint8_t* from = bytes + 16 / S::kHalfRows * j;
        if (pixels == 4) {
          std::memcpy(to, from, kBytes);
        } else {
          std::memcpy(to, from, static_cast<std::size_t>(pixels) * kChannels);
        }
      }
    }
  }
}

// Computes 32 output bytes of a row.
inline void vertical_block(const std::uint8_t* src, std::ptrdiff_t src_stride,
                           const std::int16_t* weights, std::int32_t count, int shift,
                           std::uint8_t* dst) {
  const __m256i low_bytes = _mm256_set1_epi16(0x00FF);
  const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
  // A dword of `low` has 2 columns of 2 rows: the even column's samples are the low bytes of its
  // words, and the odd column's are the high bytes. So even and odd columns are summed separately.
  __m256i even_low = half, odd_low = half, even_high = half, odd_high = half;
  for (std::int32_t k = 0; k < count; k += 2, src += 2 * src_stride) {
    const __m256i w = _mm256_set1_epi32(load_dword(weights + k));
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    const __m256i b = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(k + 1 < count ? src + src_stride : src));
    const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    const auto add = [&](__m256i sum, __m256i pairs) {
      return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, w));
    };
    even_low = add(even_low, _mm256_and_si256(low, low_bytes));
    odd_low = add(odd_low, _mm256_srli_epi16(low, 8));
    even_high = add(even_high, _mm256_and_si256(high, low_bytes));
    odd_high = add(odd_high, _mm256_srli_epi16(high, 8));
  }
  const __m256i bytes = to_bytes(even_low, even_high, odd_low, odd_high, _mm256_set1_epi32(shift));
  const __m256i interleave = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), _mm256_shuffle_epi8(bytes, interleave));
}

}  // namespace

void horizontal_avx2(const HorizontalTables& tables, const std::uint8_t* src,
                     std::ptrdiff_t src_stride, std::int32_t rows, std::uint8_t* dst,
                     std::ptrdiff_t dst_stride) {
  static constexpr HorizontalKernel* kKernels[3][3] = {
      {horizontal_rows<1, 0>, horizontal_rows<1, 1>, horizontal_rows<1, 2>},
      {horizontal_rows<3, 0>, horizontal_rows<3, 1>, horizontal_rows<3, 2>},
      {horizontal_rows<4, 0>, horizontal_rows<4, 1>, horizontal_rows<4, 2>}};
  const int steps = tables.taps <= 8 ? tables.taps / 4 : 0;
  const int channels = tables.channels == 1 ? 0 : tables.channels - 2;
  kKernels[channels][steps](tables, src, src_stride, rows, dst, dst_stride);
}

void vertical_avx2(const std::uint8_t* src, std::ptrdiff_t src_stride, const std::int16_t* weights,
                   std::int32_t count, int shift, std::size_t row_bytes, std::uint8_t* dst) {
  constexpr std::size_t kBlock = 32;
  if (row_bytes < kBlock) {
    return vertical_portable(src, src_stride, weights, count, shift, row_bytes, dst);
  }
  // The last block overlaps the one before it, so as not to pass the end.
  for (std::size_t x = 0; x < row_bytes; x += kBlock) {
    const std::size_t at = x + kBlock <= row_bytes ? x : row_bytes - kBlock;
    vertical_block(src + at, src_stride, weights, count, shift, dst + at);
  }
}

}  // namespace fastio
