// 16 output values per register. One byte permutation (VBMI) fetches the pairs of taps of all 16,
// and its zero mask widens them to 16 bits; one vpdpwssd multiplies and adds them.
#include <cstring>

#include "intrinsics.h"
#include "resample_kernels.h"

namespace fastio {
namespace {

constexpr int kRows = 4;  // rows that are computed together; the last row is repeated

// Returns a pair of taps of 16 outputs, as dwords of two 16-bit samples.
template <int kLoads>
inline __m512i tap_pairs(const std::uint8_t* src, __m512i index) {
  constexpr __mmask64 kLowBytes = 0x5555555555555555;
  const __m512i low = _mm512_loadu_si512(src);
  if constexpr (kLoads == 1) {
    return _mm512_maskz_permutexvar_epi8(kLowBytes, index, low);
  } else {
    return _mm512_maskz_permutex2var_epi8(kLowBytes, low, index, _mm512_loadu_si512(src + 64));
  }
}

template <int kLoads>
void horizontal_groups(const HorizontalTables& t, const std::uint8_t* src,
                       std::ptrdiff_t src_stride, std::int32_t rows, std::uint8_t* dst,
                       std::ptrdiff_t dst_stride) {
  const __m512i half = _mm512_set1_epi32(1 << (t.shift - 1));
  const __m512i shift = _mm512_set1_epi32(t.shift);
  // After packing, dword 4 * q + r of a register is quarter q of row r.
  const __m512i by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const int pairs = t.taps / 2;
  for (std::int32_t y = 0; y < rows; y += kRows) {
    const std::uint8_t* s[kRows];
    std::uint8_t* d[kRows];
    for (int j = 0; j < kRows; ++j) {
      const std::int32_t row = y + j < rows ? y + j : rows - 1;
      s[j] = src + row * src_stride;
      d[j] = dst + row * dst_stride;
    }
    const LaneWeights* weights = t.group_weights;
    for (std::int32_t g = 0; g < t.groups; ++g) {
      const __m512i index = _mm512_load_si512(t.group_index + g);
      __m512i sum[kRows] = {half, half, half, half};
      std::ptrdiff_t at = t.group_base[g];
      for (int p = 0; p < pairs; ++p, ++weights, at += 2 * t.channels) {
        const __m512i w = _mm512_load_si512(weights);
        for (int j = 0; j < kRows; ++j) {
          sum[j] = _mm512_dpwssd_epi32(sum[j], tap_pairs<kLoads>(s[j] + at, index), w);
        }
      }
      for (int j = 0; j < kRows; ++j) sum[j] = _mm512_srav_epi32(sum[j], shift);
      const __m512i packed =
          _mm512_permutexvar_epi32(by_row, _mm512_packus_epi16(_mm512_packs_epi32(sum[0], sum[1]),
                                                               _mm512_packs_epi32(sum[2], sum[3])));
      const std::int32_t out = t.group_output[g];
      const auto store = [&](int j, __m128i bytes) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(d[j] + out), bytes);
      };
      store(0, _mm512_castsi512_si128(packed));
      store(1, _mm512_extracti32x4_epi32(packed, 1));
      store(2, _mm512_extracti32x4_epi32(packed, 2));
      store(3, _mm512_extracti32x4_epi32(packed, 3));
    }
  }
}

}  // namespace

void horizontal_avx512(const HorizontalTables& tables, const std::uint8_t* src,
                       std::ptrdiff_t src_stride, std::int32_t rows, std::uint8_t* dst,
                       std::ptrdiff_t dst_stride) {
  if (tables.loads == 1) {
    horizontal_groups<1>(tables, src, src_stride, rows, dst, dst_stride);
  } else {
    horizontal_groups<2>(tables, src, src_stride, rows, dst, dst_stride);
  }
}

void vertical_avx512(const std::uint8_t* src, std::ptrdiff_t src_stride,
                     const std::int16_t* weights, std::int32_t count, int shift,
                     std::size_t row_bytes, std::uint8_t* dst) {
  const __m512i low_bytes = _mm512_set1_epi16(0x00FF);
  const __m512i half = _mm512_set1_epi32(1 << (shift - 1));
  const __m512i shifts = _mm512_set1_epi32(shift);
  const __m512i interleave =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  for (std::size_t x = 0; x < row_bytes; x += 64) {
    const std::size_t left = row_bytes - x;
    const __mmask64 inside = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    // As in the AVX2 kernel: sums of even and of odd columns, for each half of the 128-bit lanes.
    __m512i even_low = half, odd_low = half, even_high = half, odd_high = half;
    const std::uint8_t* row = src + x;
    for (std::int32_t k = 0; k < count; k += 2, row += 2 * src_stride) {
      std::int32_t pair;
      std::memcpy(&pair, weights + k, sizeof pair);
      const __m512i w = _mm512_set1_epi32(pair);
      const __m512i a = _mm512_maskz_loadu_epi8(inside, row);
      const __m512i b = _mm512_maskz_loadu_epi8(inside, k + 1 < count ? row + src_stride : row);
      const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
      even_low = _mm512_dpwssd_epi32(even_low, _mm512_and_si512(low, low_bytes), w);
      odd_low = _mm512_dpwssd_epi32(odd_low, _mm512_srli_epi16(low, 8), w);
      even_high = _mm512_dpwssd_epi32(even_high, _mm512_and_si512(high, low_bytes), w);
      odd_high = _mm512_dpwssd_epi32(odd_high, _mm512_srli_epi16(high, 8), w);
    }
    const __m512i even = _mm512_packs_epi32(_mm512_srav_epi32(even_low, shifts),
                                            _mm512_srav_epi32(even_high, shifts));
    const __m512i odd =
        _mm512_packs_epi32(_mm512_srav_epi32(odd_low, shifts), _mm512_srav_epi32(odd_high, shifts));
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_packus_epi16(even, odd), interleave);
    _mm512_mask_storeu_epi8(dst + x, inside, bytes);
  }
}

}  // namespace fastio
