// The DC section with AVX-512, compiled twice: with VBMI, byte permutations take fewer
// instructions.
#pragma once

#include "expand_bits.h"
#include "expand_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or an intrinsic: see CMakeLists.txt.

[[gnu::always_inline]] inline __m256i load32(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Looks up the widths of the differences of n <= 64 blocks. Sets the rest of 64 to 0.
[[gnu::always_inline]] inline void look_up(const std::uint8_t* table, const std::uint8_t* classes,
                                           int n, std::uint8_t* width) {
#ifdef __AVX512VBMI__
  const u64 all = n < 64 ? (u64{1} << n) - 1 : ~u64{0};
  const __m512i numbers = _mm512_maskz_loadu_epi8(all, classes);
  const __m512i low =
      _mm512_permutex2var_epi8(_mm512_load_si512(table), numbers, _mm512_load_si512(table + 64));
  const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table + 128), numbers,
                                                _mm512_load_si512(table + 192));
  _mm512_store_si512(
      width,
      _mm512_maskz_mov_epi8(all, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(numbers), high)));
#else
  _mm512_store_si512(width, _mm512_setzero_si512());
  for (int i = 0; i < n; ++i) width[i] = table[classes[i]];
#endif
}

// Returns the exclusive prefix sums of 16 numbers, and their sum in `total`.
[[gnu::always_inline]] inline __m512i sums_before(__m512i numbers, u64& total) {
  __m512i sums = numbers;
  const __m512i zero = _mm512_setzero_si512();
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 15));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 14));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 12));
  sums = _mm512_add_epi32(sums, _mm512_alignr_epi32(sums, zero, 8));
  total = static_cast<std::uint32_t>(_mm_extract_epi32(_mm512_extracti32x4_epi32(sums, 3), 3));
  return _mm512_sub_epi32(sums, numbers);
}

// Decodes the differences of 16 blocks at `position`, which it advances, and stores those of
// `wanted`. Returns which of them are escapes.
[[gnu::always_inline]] inline __mmask16 sixteen_differences(__m512i width, const std::uint8_t* bits,
                                                            u64& position, std::int16_t* diff,
                                                            __mmask16 wanted) {
  u64 total = 0;
  const __m512i at = _mm512_add_epi32(sums_before(width, total),
                                      _mm512_set1_epi32(static_cast<int>(position & 7)));
  // All 16 lie in 32 bytes, and each in two consecutive 16-bit words.
  const __m512i words = _mm512_castsi256_si512(load32(bits + (position >> 3)));
  const __m512i first_word = _mm512_shuffle_epi8(
      _mm512_srli_epi32(at, 4), _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100));
  const __m512i pair =
      _mm512_permutexvar_epi16(_mm512_add_epi32(first_word, _mm512_set1_epi32(0x00010000)), words);
  const __m512i value = _mm512_srlv_epi32(pair, _mm512_and_si512(at, _mm512_set1_epi32(15)));
  const __m512i empty = _mm512_sub_epi32(_mm512_set1_epi32(32), width);  // shifts by 32 give 0
  const __m512i number = _mm512_srav_epi32(_mm512_sllv_epi32(value, empty), empty);
  const __m512i lowest =
      _mm512_sllv_epi32(_mm512_set1_epi32(-1), _mm512_sub_epi32(width, _mm512_set1_epi32(1)));
  _mm512_mask_cvtepi32_storeu_epi16(diff, wanted, number);
  position += total;
  return _mm512_mask_cmpeq_epi32_mask(_mm512_mask_test_epi32_mask(wanted, width, width), number,
                                      lowest);
}

// Returns the prefix sums of 32 words plus `carry`.
[[gnu::always_inline]] inline __m512i running_sums(__m512i numbers, __m512i carry) {
  __m512i sums = _mm512_add_epi16(numbers, _mm512_bslli_epi128(numbers, 2));
  sums = _mm512_add_epi16(sums, _mm512_bslli_epi128(sums, 4));
  sums = _mm512_add_epi16(sums, _mm512_bslli_epi128(sums, 8));
  // The last sum of each 128-bit lane, in all words of the lane; then the same, shifted by one, two
  // and three lanes.
  const __m512i last = _mm512_shuffle_epi8(sums, _mm512_set1_epi16(15 << 8 | 14));
  const __m512i zero = _mm512_setzero_si512();
  const __m512i one = _mm512_alignr_epi64(last, zero, 6), two = _mm512_alignr_epi64(last, zero, 4),
                three = _mm512_alignr_epi64(last, zero, 2);
  return _mm512_add_epi16(_mm512_add_epi16(sums, carry),
                          _mm512_add_epi16(_mm512_add_epi16(one, two), three));
}

[[gnu::always_inline]] inline u64 differences(const Codebook& book, const std::uint8_t* classes,
                                              int n, const std::uint8_t* bits, u64 position,
                                              std::int16_t* diff, std::uint64_t& escapes) {
  alignas(64) std::uint8_t width[64];
  look_up(book.dc_bits, classes, n, width);
  const u64 all = n < 64 ? (u64{1} << n) - 1 : ~u64{0};
  u64 any = 0;
  for (int i = 0; i < n; i += 16) {
    const __m512i of_sixteen =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(width + i)));
    const auto some = static_cast<__mmask16>(all >> i);
    any |= u64{sixteen_differences(of_sixteen, bits, position, diff + i, some)} << i;
  }
  escapes = any;
  return position;
}

[[gnu::always_inline]] inline void sum_up(std::int16_t* dc, std::int32_t n, std::uint16_t start) {
  const __m512i last = _mm512_set1_epi16(31);
  __m512i carry = _mm512_set1_epi16(static_cast<short>(start));
  for (std::int32_t i = 0; i < n; i += 32) {
    const std::int32_t left = n - i;
    const auto some = static_cast<__mmask32>(left < 32 ? (1u << left) - 1 : ~0u);
    const __m512i sums = running_sums(_mm512_maskz_loadu_epi16(some, dc + i), carry);
    _mm512_mask_storeu_epi16(dc + i, some, sums);
    carry = _mm512_permutexvar_epi16(last, sums);
  }
}

}  // namespace
}  // namespace fastio
