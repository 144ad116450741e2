// Like block_encoder_avx2.cpp, with a whole block in one register.
#include "block_encoder_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

template <int kCount>
inline int search(const ClassCosts& costs, std::uint64_t positions, const std::uint8_t* width,
                  std::uint64_t* best) {
  __m512i sum[kCount];
  for (int g = 0; g < kCount; ++g) sum[g] = _mm512_load_si512(costs.mask + 64 * g);
  for (; positions; positions &= positions - 1) {
    const auto z = _tzcnt_u64(positions);
    const std::uint8_t* row = costs.value[z][width[z]];
    for (int g = 0; g < kCount; ++g)
      sum[g] = _mm512_adds_epu8(sum[g], _mm512_load_si512(row + 64 * g));
  }
  __m512i all = sum[0];
  for (int g = 1; g < kCount; ++g) all = _mm512_min_epu8(all, sum[g]);
  const __m256i half =
      _mm256_min_epu8(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  __m128i least = _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  least = _mm_min_epu8(least, _mm_srli_epi16(least, 8));  // the low byte of each 16 bits
  least = _mm_minpos_epu16(_mm_and_si128(least, _mm_set1_epi16(255)));
  const int result = _mm_extract_epi16(least, 0);
  const __m512i wanted = _mm512_set1_epi8(static_cast<char>(result));
  for (int g = 0; g < kCount; ++g) best[g] = _mm512_cmpeq_epi8_mask(sum[g], wanted);
  for (int g = kCount; g < kGroups; ++g) best[g] = 0;
  return result;
}

}  // namespace

std::uint64_t take_apart_avx512(const std::int16_t* block, const std::uint8_t* order,
                                BlockBits& out) {
  const __m256i top = _mm512_cvtsepi16_epi8(_mm512_loadu_si512(block));
  const __m256i bottom = _mm512_cvtsepi16_epi8(_mm512_loadu_si512(block + 32));
  const __m512i natural = _mm512_inserti64x4(_mm512_castsi256_si512(top), bottom, 1);
  const __m512i value = _mm512_permutexvar_epi8(_mm512_loadu_si512(order), natural);
  const std::uint64_t mask = _mm512_test_epi8_mask(value, value) & ~std::uint64_t{1};
  const __m512i absolute = _mm512_abs_epi8(value);  // of -128: 128, unsigned
  const __m512i magnitude = _mm512_sub_epi8(absolute, _mm512_set1_epi8(1));

  const __m512i low_bits = _mm512_set1_epi8(15);
  const __m512i of_low =
      _mm512_broadcast_i32x4(_mm_setr_epi8(1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5));
  const __m512i of_high =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 6, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9));
  const __m512i high = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), low_bits);
  _mm512_store_si512(
      out.width, _mm512_max_epu8(_mm512_shuffle_epi8(of_low, _mm512_and_si512(magnitude, low_bits)),
                                 _mm512_shuffle_epi8(of_high, high)));

  out.mask = mask;
  out.half = 0;
  out.plane[0] = _mm512_movepi8_mask(value) & mask;
  for (int j = 1; j <= 8; ++j)
    out.plane[j] = _mm512_mask_test_epi8_mask(mask, magnitude,
                                              _mm512_set1_epi8(static_cast<char>(1 << (j - 1))));
  for (int j = 9; j < kPlanes; ++j) out.plane[j] = 0;
  return _mm512_mask_cmpge_epu8_mask(mask, absolute, _mm512_set1_epi8(127));
}

int search_avx512(const ClassCosts& costs, std::uint64_t positions, const std::uint8_t* width,
                  int groups, std::uint64_t* best) {
  switch (groups) {
    case 1:
      return search<1>(costs, positions, width, best);
    case 2:
      return search<2>(costs, positions, width, best);
    case 3:
      return search<3>(costs, positions, width, best);
    default:
      return search<4>(costs, positions, width, best);
  }
}

}  // namespace fastio
