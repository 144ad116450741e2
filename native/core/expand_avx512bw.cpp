// Expansion with AVX-512 without VBMI: pdep moves the bits of each plane to their ranks.
#include "expand_dc.h"

namespace fastio {
namespace {

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

// Words converts bytes ordered by rank to words ordered by place, sign-extended. Order: the ranks
// of places, as words.
struct Order {
  __m512i low, high;
  [[gnu::always_inline]] explicit Order(const std::uint8_t* pairs) {
    const __m512i both = _mm512_load_si512(pairs);
    low = _mm512_and_si512(both, _mm512_set1_epi16(255));
    high = _mm512_srli_epi16(both, 8);
  }
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
                                               const std::uint8_t* pairs, const Quant& quant,
                                               std::int16_t* out) {
  const u64 negative = _pdep_u64(bits_at<kDense>(bits, position), mask);
  position += count(mask);
  __m512i lanes = _mm512_maskz_mov_epi8(mask, powers.of[0]);
  position = add_planes<kDense>(bits, position, mask, has, 1, 2, powers, lanes);
  position = add_planes<kDense>(bits, position, mask, has, 2, 4, powers, lanes);
  position = add_planes<kDense>(bits, position, mask, has, 4, 8, powers, lanes);
  lanes = _mm512_mask_sub_epi8(lanes, negative, _mm512_setzero_si512(), lanes);
  const Words words(lanes, Order(pairs));
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
                                 const u64* has_wide, const std::uint8_t* pairs, const Quant& quant,
                                 std::int16_t* out) {
  const Order order(pairs);
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
                                  const std::uint8_t* pairs, const Quant& quant,
                                  std::int16_t* out) {
  return narrow_block<kDense>(bits, position, mask, has, Powers(), pairs, quant, out);
}

// Returns the number of bits of a block's values.
[[gnu::always_inline]] inline u64 value_bits(u64 mask, const std::uint8_t* width) {
  const __m512i widths = _mm512_maskz_loadu_epi8(mask, width);
  const __m512i eighths = _mm512_sad_epu8(widths, _mm512_setzero_si512());
  return static_cast<u64>(_mm512_reduce_add_epi64(eighths));
}

}  // namespace

std::uint64_t expand_avx512bw(const ExpandJob& job) {
  const Codebook& book = *job.book;
  // Copies: otherwise the compiler has to assume that stores to `out` change the job.
  const std::uint8_t* const bits = job.bits;
  const std::uint8_t* const classes = job.classes;
  const std::int16_t* const dcs = job.dcs;
  const u64 wanted = job.wanted, end = job.end;
  std::int16_t* const blocks = job.out;
  const Powers powers;
  u64 masks = 0, values = job.mask_bits;
  for (int c = 0; c < 3; ++c) {
    const Quant quant{_mm512_load_si512(job.quant->value[c]),
                      _mm512_load_si512(job.quant->value[c] + 32)};
    for (int i = job.first[c], last = job.last[c]; i < last; ++i) {
      const int cls = classes[i];
      const u64* has = book.has[cls];
      const std::uint8_t* pairs = book.rank_pairs[cls];
      const unsigned length = book.mask_bits[cls];
      const u64 mask = _bzhi_u64(bits64(bits, masks), length) << 1;
      masks += length;
      std::int16_t* out = blocks + 64 * i;
      if (!(wanted >> i & 1)) {
        values += value_bits(mask, book.rank_width[cls]);
      } else if (__builtin_expect(book.planes[cls] > 8, 0)) {
        values =
            count(mask) > 57
                ? wide_block<true>(bits, values, mask, has, book.has_wide[cls], pairs, quant, out)
                : wide_block<false>(bits, values, mask, has, book.has_wide[cls], pairs, quant, out);
      } else if (__builtin_expect(count(mask) > 57, 0)) {
        values = dense_block<true>(bits, values, mask, has, pairs, quant, out);
      } else {
        values = narrow_block<false>(bits, values, mask, has, powers, pairs, quant, out);
      }
      if (wanted >> i & 1) *out = dcs[i];
      if (values > end) return values;
    }
  }
  return values;
}

std::uint64_t dc_differences_avx512bw(const Codebook& book, const std::uint8_t* classes, int n,
                                      const std::uint8_t* bits, std::uint64_t position,
                                      std::int16_t* diff, std::uint64_t& escapes) {
  return differences(book, classes, n, bits, position, diff, escapes);
}

void sum_avx512bw(std::int16_t* dc, std::int32_t n, std::uint16_t start) { sum_up(dc, n, start); }

}  // namespace fastio
