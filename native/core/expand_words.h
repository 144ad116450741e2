// Expansion with AVX-512, compiled twice: with VBMI, byte permutations take fewer instructions.
#pragma once

#include "expand_bits.h"
#include "expand_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or an intrinsic: see CMakeLists.txt.

// Registers with 1 << k in each byte. The asm statements keep them in registers: compilers would
// recompute them for each block.
struct Powers {
  __m512i of[7];
  [[gnu::always_inline]] Powers() {
    for (int k = 0; k < 7; ++k) {
      of[k] = _mm512_set1_epi8(static_cast<char>(1 << k));
      asm("" : "+v"(of[k]));
    }
  }
};

// Adds a plane to the byte lanes: `bit` where a bit of the plane is set. Returns the position after
// the plane.
template <bool kDense>
[[gnu::always_inline]] inline u64 add_plane(const std::uint8_t* bits, u64 position, u64 plane,
                                            __m512i bit, __m512i& lanes) {
  const u64 set = _pdep_u64(bits_at<kDense>(bits, position), plane);
  lanes = _mm512_mask_add_epi8(lanes, set, lanes, bit);
  return position + count(plane);
}

struct Quant {
  __m512i low, high;
};

[[gnu::always_inline]] inline __m256i load32(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Words converts bytes in zigzag order to words in natural order, sign-extended. Order: its
// permutation.
#ifdef __AVX512VBMI__
struct Order {
  __m512i from = _mm512_loadu_si512(kZigzagInverse);
};

struct Words {
  __m512i low, high;
  [[gnu::always_inline]] Words(__m512i bytes, const Order& order) {
    const __m512i natural = _mm512_permutexvar_epi8(order.from, bytes);
    low = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(natural));
    high = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(natural, 1));
  }
};
#else
struct Order {
  __m512i low = _mm512_cvtepu8_epi16(load32(kZigzagInverse));
  __m512i high = _mm512_cvtepu8_epi16(load32(kZigzagInverse + 32));
};

struct Words {
  __m512i low, high;
  [[gnu::always_inline]] Words(__m512i bytes, const Order& order) {
    const __m512i first = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(bytes));
    const __m512i second = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(bytes, 1));
    low = _mm512_permutex2var_epi16(first, order.low, second);
    high = _mm512_permutex2var_epi16(first, order.high, second);
  }
};
#endif

// Adds planes [first, last) to the byte lanes. Loads their bits at once if 57 bits suffice.
template <bool kDense>
[[gnu::always_inline]] inline u64 add_planes(const std::uint8_t* bits, u64 position, u64 mask,
                                             const u64* has, int first, int last,
                                             const Powers& powers, __m512i& lanes) {
  unsigned all = 0;
  for (int j = first; j < last; ++j) all += count(mask & has[j]);
  if (kDense || __builtin_expect(all > 57, 0)) {
    for (int j = first; j < last; ++j)
      position = add_plane<kDense>(bits, position, mask & has[j], powers.of[j - 1], lanes);
    return position;
  }
  u64 word = bits57(bits, position);
  for (int j = first; j < last; ++j) {
    const u64 plane = mask & has[j];
    lanes = _mm512_mask_add_epi8(lanes, _pdep_u64(word, plane), lanes, powers.of[j - 1]);
    word >>= count(plane) & 63;
  }
  return position + all;
}

// Writes a block of a class whose widths are at most 8, so that each value is a byte lane. Returns
// the position after its values.
template <bool kDense>
[[gnu::always_inline]] inline u64 narrow_block(const std::uint8_t* bits, u64 position, u64 mask,
                                               const u64* has, const Powers& powers,
                                               const Order& order, const Quant& quant,
                                               std::int16_t* out) {
  const u64 negative = _pdep_u64(bits_at<kDense>(bits, position), mask);
  position += count(mask);
  __m512i lanes = _mm512_maskz_mov_epi8(mask, powers.of[0]);
  position = add_planes<kDense>(bits, position, mask, has, 1, 2, powers, lanes);
  position = add_planes<kDense>(bits, position, mask, has, 2, 4, powers, lanes);
  position = add_planes<kDense>(bits, position, mask, has, 4, 8, powers, lanes);
  lanes = _mm512_mask_sub_epi8(lanes, negative, _mm512_setzero_si512(), lanes);
  const Words words(lanes, order);
  _mm512_store_si512(out, _mm512_mullo_epi16(words.low, quant.low));
  _mm512_store_si512(out + 32, _mm512_mullo_epi16(words.high, quant.high));
  return position;
}

// Writes half of a wide block from the low and high bytes of its values, each as words. Subtracts
// `less`.
[[gnu::always_inline]] inline void wide_half(__m512i low, __m512i high, __m512i less, __m512i quant,
                                             std::int16_t* out) {
  constexpr int kSelect = 0xca;  // selects the second operand where the first is 1, else the third
  const __m512i v =
      _mm512_ternarylogic_epi32(_mm512_set1_epi16(0xff), low, _mm512_slli_epi16(high, 8), kSelect);
  _mm512_store_si512(out, _mm512_mullo_epi16(_mm512_sub_epi16(v, less), quant));
}

// Writes a block of a class with wider values, which are 16-bit lanes. Returns the position after
// its values.
template <bool kDense>
[[gnu::noinline]] u64 wide_block(const std::uint8_t* bits, u64 position, u64 mask, const u64* has,
                                 const u64* has_wide, const Quant& quant, std::int16_t* out) {
  const Order order;
  const u64 negative = _pdep_u64(bits_at<kDense>(bits, position), mask);
  position += count(mask);
  __m512i low = _mm512_setzero_si512(), high = low;
  const auto plane = [&](u64 of, int bit, __m512i& lanes) {
    position =
        add_plane<kDense>(bits, position, of, _mm512_set1_epi8(static_cast<char>(1 << bit)), lanes);
  };
  for (int j = 1; j < 8; ++j) plane(mask & has[j], j - 1, low);
  plane(mask & has_wide[0], 7, low);
  plane(mask & has_wide[1], 0, high);
  if (__builtin_expect((mask & has_wide[2]) != 0, 0))  // more than 10 bits
    for (int j = 2; j < kPlanes - 8; ++j) plane(mask & has_wide[j], j - 1, high);
  // The lanes have magnitudes less 1. -m is ~(m - 1); +m is (m - 1) + 1, i.e. minus -1.
  const __m512i minus = _mm512_movm_epi8(negative);
  const Words low_words(_mm512_xor_si512(low, minus), order);
  const Words high_words(_mm512_xor_si512(high, minus), order);
  const Words less(_mm512_movm_epi8(mask & ~negative), order);
  wide_half(low_words.low, high_words.low, less.low, quant.low, out);
  wide_half(low_words.high, high_words.high, less.high, quant.high, out + 32);
  return position;
}

template <bool kDense>
[[gnu::noinline]] u64 dense_block(const std::uint8_t* bits, u64 position, u64 mask, const u64* has,
                                  const Quant& quant, std::int16_t* out) {
  return narrow_block<kDense>(bits, position, mask, has, Powers(), Order(), quant, out);
}

// Returns the number of bits of a block's values.
[[gnu::always_inline]] inline u64 value_bits(u64 mask, const std::uint8_t* width) {
  const __m512i widths = _mm512_maskz_loadu_epi8(mask, width);
  const __m512i eighths = _mm512_sad_epu8(widths, _mm512_setzero_si512());
  return static_cast<u64>(_mm512_reduce_add_epi64(eighths));
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

[[gnu::always_inline]] inline u64 expand_blocks(const ExpandJob& job) {
  const Codebook& book = *job.book;
  // Copies: otherwise the compiler has to assume that stores to `out` change the job.
  const std::uint8_t* const bits = job.bits;
  const std::uint8_t* const classes = job.classes;
  const u64 wanted = job.wanted, end = job.end;
  std::int16_t* const blocks = job.out;
  const Order order;
  const Powers powers;
  u64 masks = 0, values = job.mask_bits;
  for (int c = 0; c < 3; ++c) {
    const Quant quant{_mm512_load_si512(job.quant->value[c]),
                      _mm512_load_si512(job.quant->value[c] + 32)};
    for (int i = job.first[c], last = job.last[c]; i < last; ++i) {
      const int cls = classes[i];
      const u64* has = book.has[cls];
      const unsigned length = book.mask_bits[cls];
      const u64 mask = _bzhi_u64(bits64(bits, masks), length) << 1;
      masks += length;
      std::int16_t* out = blocks + 64 * i;
      if (!(wanted >> i & 1)) {
        values += value_bits(mask, book.width[cls]);
      } else if (__builtin_expect(book.planes[cls] > 8, 0)) {
        values = count(mask) > 57
                     ? wide_block<true>(bits, values, mask, has, book.has_wide[cls], quant, out)
                     : wide_block<false>(bits, values, mask, has, book.has_wide[cls], quant, out);
      } else if (__builtin_expect(count(mask) > 57, 0)) {
        values = dense_block<true>(bits, values, mask, has, quant, out);
      } else {
        values = narrow_block<false>(bits, values, mask, has, powers, order, quant, out);
      }
      if (values > end) return values;
    }
  }
  return values;
}

[[gnu::always_inline]] inline u64 differences(const Codebook& book, const std::uint8_t* classes,
                                              int n, const std::uint8_t* bits, u64 position,
                                              std::int16_t* diff, bool& escapes) {
  alignas(64) std::uint8_t width[64];
  look_up(book.dc_bits, classes, n, width);
  const u64 all = n < 64 ? (u64{1} << n) - 1 : ~u64{0};
  unsigned any = 0;
  for (int i = 0; i < n; i += 16) {
    const __m512i of_sixteen =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(width + i)));
    any |=
        sixteen_differences(of_sixteen, bits, position, diff + i, static_cast<__mmask16>(all >> i));
  }
  escapes |= any != 0;
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
