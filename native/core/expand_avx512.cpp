// Expansion with AVX-512 (VBMI and later). A block has no loop over planes: eight planes are eight
// qwords of a register, from the counts of their bits to the transposition that makes bytes of
// them. A plane's bits belong to the first values of the block (see codebook.h), so the bytes of
// all values are made in the order of the stream, and one instruction moves them to their ranks.
#include "expand_dc.h"

namespace fastio {
namespace {

// For a qword `plane` of Planes::of, the permutation that collects byte i of planes 0 to 7 in qword
// i. The affine transformation takes the bit 7 of its results from the first byte: the sign, or in
// wide blocks plane 8; then planes 7 to 1.
struct alignas(64) PlaneIndex {
  std::uint8_t narrow[64], wide[64];
  constexpr PlaneIndex() : narrow(), wide() {
    for (int i = 0; i < 8; ++i) {
      for (int k = 0; k < 8; ++k)
        narrow[8 * i + k] = wide[8 * i + k] = static_cast<std::uint8_t>(8 * (-k & 7) + i);
      wide[8 * i] = static_cast<std::uint8_t>(64 + i);  // of the second register
    }
  }
};
constexpr PlaneIndex kPlaneIndex;

// Constants of blocks. The asm statements keep them in registers: compilers would load them again
// for each block.
struct Constants {
  __m512i first_bytes = _mm512_set1_epi64(0x3830282018100800);  // of each qword
  __m512i units = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201));
  // Matrices of affine transformations. complement: complements bits 0 to 6 if bit 7 is set; sign:
  // bit 7 becomes bit 0, the others 0.
  __m512i complement = _mm512_set1_epi64(static_cast<long long>(0x8182848890a0c080));
  __m512i sign = _mm512_set1_epi64(static_cast<long long>(0x8000000000000000));
  __m512i narrow = _mm512_load_si512(kPlaneIndex.narrow);
  __mmask64 before = 0x7f3f1f0f070301ff;  // of qword j > 0, bytes 0 to j - 1; of the first one, all
  __mmask8 but_first = 0xfe;

  [[gnu::always_inline]] Constants() {
    asm("" : "+v"(first_bytes), "+v"(units), "+v"(complement), "+v"(sign), "+v"(narrow));
    asm("" : "+Yk"(before), "+Yk"(but_first));
  }
};

// Loads the 64 bytes (kPlanesRead: 8), or the 32 bytes (4), in which the planes lie.
template <int kPlanesRead>
[[gnu::always_inline]] inline __m512i load_bits(const std::uint8_t* from) {
  return kPlanesRead == 8 ? _mm512_loadu_si512(from) : _mm512_zextsi256_si512(load32(from));
}

// How many bits the planes of a block have.
struct Counts {
  __m512i of;      // each plane in a qword
  __m512i before;  // those before each plane; in the first qword all
  u64 all;

  // has: the ranks of each plane.
  [[gnu::always_inline]] Counts(u64 mask, __m512i has, const Constants& constants) {
    const __m512i present = _mm512_set1_epi64(static_cast<long long>(mask));
    of = _mm512_popcnt_epi64(_mm512_and_si512(present, has));
    before =
        _mm512_sad_epu8(_mm512_maskz_permutexvar_epi8(constants.before, constants.first_bytes, of),
                        _mm512_setzero_si512());
    all = static_cast<u64>(_mm_cvtsi128_si64(_mm512_castsi512_si128(before)));
  }
};

// Returns the bits of kPlanesRead planes that start at `position`, one plane in each qword, and
// zeros above them.
template <int kPlanesRead>
[[gnu::always_inline]] inline __m512i read_planes(const std::uint8_t* bits, u64 position,
                                                  const Counts& counts,
                                                  const Constants& constants) {
  const __m512i base = _mm512_set1_epi64(static_cast<long long>(position & 7));
  const __m512i at = _mm512_mask_add_epi64(base, constants.but_first, base, counts.before);
  const std::uint8_t* from = bits + (position >> 3);
  const __m512i qword = _mm512_srli_epi64(at, 6);
  const __m512i low = _mm512_permutexvar_epi64(qword, load_bits<kPlanesRead>(from));
  const __m512i high = _mm512_permutexvar_epi64(qword, load_bits<kPlanesRead>(from + 8));
  const __m512i words = _mm512_shrdv_epi64(low, high, at);  // shifts by at % 64
  return _mm512_andnot_si512(_mm512_sllv_epi64(_mm512_set1_epi64(-1), counts.of), words);
}

// Returns bytes whose bits are the bits of planes, which have been collected by kPlaneIndex.
[[gnu::always_inline]] inline __m512i bytes_of(__m512i planes, const Constants& constants) {
  return _mm512_gf2p8affine_epi64_epi8(constants.units, planes, 0);
}

// The quantisation table of a component, as words, and as the factors of the even and the odd bytes
// of words, for tables without values above 255.
struct Quant {
  __m512i low, high, odd;
  [[gnu::always_inline]] explicit Quant(const std::int16_t* values)
      : low(_mm512_load_si512(values)),
        high(_mm512_load_si512(values + 32)),
        odd(_mm512_slli_epi16(high, 8)) {}
};

// Writes a block of a class whose widths are at most 8, so that each value is a byte. pairs:
// Codebook::rank_pairs.
template <bool kByteQuant>
[[gnu::always_inline]] inline void narrow_block(const std::uint8_t* bits, u64 position, u64 mask,
                                                const Counts& counts, const std::uint8_t* pairs,
                                                const Constants& constants, const Quant& quant,
                                                std::int16_t* out) {
  const __m512i planes = read_planes<8>(bits, position, counts, constants);
  const __m512i stored = bytes_of(_mm512_permutexvar_epi8(constants.narrow, planes), constants);
  // The low bits are magnitudes less 1. -m is ~(m - 1); +m is (m - 1) + 1.
  const __m512i less = _mm512_gf2p8affine_epi64_epi8(stored, constants.complement, 0);
  const __m512i positive = _mm512_gf2p8affine_epi64_epi8(stored, constants.sign, 1);
  const __m512i ranked = _mm512_maskz_expand_epi8(mask, _mm512_add_epi8(less, positive));
  const __m512i values = _mm512_permutexvar_epi8(_mm512_load_si512(pairs), ranked);
  if constexpr (kByteQuant) {
    _mm512_store_si512(out, _mm512_maddubs_epi16(quant.low, values));
    _mm512_store_si512(out + 32, _mm512_maddubs_epi16(quant.odd, values));
  } else {
    const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16(values, 8), 8);
    _mm512_store_si512(out, _mm512_mullo_epi16(low, quant.low));
    _mm512_store_si512(out + 32, _mm512_mullo_epi16(_mm512_srai_epi16(values, 8), quant.high));
  }
}

// Writes a block of a class with wider values, which are words. high_counts: those of planes 8 to
// 11.
[[gnu::always_inline]] inline void wide_block(const std::uint8_t* bits, u64 position, u64 mask,
                                              const Counts& counts, const Counts& high_counts,
                                              const std::uint8_t* pairs, const Constants& constants,
                                              const Quant& quant, std::int16_t* out) {
  const __m512i first = read_planes<8>(bits, position, counts, constants);
  const __m512i second = read_planes<4>(bits, position + counts.all, high_counts, constants);
  const u64 signs = static_cast<u64>(_mm_cvtsi128_si64(_mm512_castsi512_si128(first)));
  const u64 negative = _pdep_u64(signs, mask);
  // Magnitudes less 1: planes 1 to 8 are the low bytes, planes 9 to 11 the high ones.
  constexpr __mmask64 kHigh = 0xe0e0e0e0e0e0e0e0;
  const __m512i low_planes =
      _mm512_permutex2var_epi8(first, _mm512_load_si512(kPlaneIndex.wide), second);
  const __m512i high_planes = _mm512_maskz_permutexvar_epi8(kHigh, constants.narrow, second);
  const __m512i low = _mm512_maskz_expand_epi8(mask, bytes_of(low_planes, constants));
  const __m512i high = _mm512_maskz_expand_epi8(mask, bytes_of(high_planes, constants));
  // -m is ~(m - 1); +m is (m - 1) + 1, i.e. minus -1.
  const __m512i order = _mm512_load_si512(pairs), minus = _mm512_movm_epi8(negative);
  const auto ordered = [&](__m512i bytes) { return _mm512_permutexvar_epi8(order, bytes); };
  const __m512i lows = ordered(_mm512_xor_si512(low, minus));
  const __m512i highs = ordered(_mm512_xor_si512(high, minus));
  const __m512i less = ordered(_mm512_movm_epi8(mask & ~negative));
  constexpr int kSelect = 0xca;  // selects the second operand where the first is 1, else the third
  const __m512i low_bytes = _mm512_set1_epi16(255);
  const __m512i even =
      _mm512_ternarylogic_epi32(low_bytes, lows, _mm512_slli_epi16(highs, 8), kSelect);
  const __m512i odd =
      _mm512_ternarylogic_epi32(low_bytes, _mm512_srli_epi16(lows, 8), highs, kSelect);
  const __m512i even_less = _mm512_srai_epi16(_mm512_slli_epi16(less, 8), 8);
  const __m512i odd_less = _mm512_srai_epi16(less, 8);
  _mm512_store_si512(out, _mm512_mullo_epi16(_mm512_sub_epi16(even, even_less), quant.low));
  _mm512_store_si512(out + 32, _mm512_mullo_epi16(_mm512_sub_epi16(odd, odd_less), quant.high));
}

// Where the bits of a tile are, while its blocks are expanded one after the other.
struct Position {
  u64 masks, values;
};

// Expands the blocks of a component, until the values exceed job.end.
template <bool kByteQuant>
[[gnu::always_inline]] inline void expand_component(const ExpandJob& job, int first, int last,
                                                    const Quant& quant, const Constants& constants,
                                                    Position& position) {
  const Codebook& book = *job.book;
  // Copies: otherwise the compiler has to assume that stores to `out` change the job.
  const std::uint8_t* const bits = job.bits;
  const std::uint8_t* const classes = job.classes;
  const std::int16_t* const dcs = job.dcs;
  const u64 wanted = job.wanted, end = job.end;
  std::int16_t* const blocks = job.out;
  u64 masks = position.masks, values = position.values;
  for (std::ptrdiff_t i = first; i < last && values <= end; ++i) {
    const std::size_t cls = classes[i];
    const unsigned length = book.mask_bits[cls];
    const u64 mask = _bzhi_u64(bits64(bits, masks), length) << 1;
    masks += length;
    const bool read = wanted >> i & 1;
    std::int16_t* out = blocks + 64 * i;
    const std::uint8_t* pairs = book.rank_pairs[cls];
    const Counts counts(mask, _mm512_load_si512(book.has[cls]), constants);
    if (__builtin_expect(book.planes[cls] > 8, 0)) {
      const __m256i wide = _mm256_load_si256(reinterpret_cast<const __m256i*>(book.has_wide[cls]));
      const Counts high_counts(mask, _mm512_zextsi256_si512(wide), constants);
      if (read) {
        wide_block(bits, values, mask, counts, high_counts, pairs, constants, quant, out);
        *out = dcs[i];
      }
      values += high_counts.all;
    } else if (read) {
      narrow_block<kByteQuant>(bits, values, mask, counts, pairs, constants, quant, out);
      *out = dcs[i];
    }
    values += counts.all;
  }
  position = {masks, values};
}

}  // namespace

std::uint64_t mask_bits_avx512(const Codebook& book, const std::uint8_t* classes, int n) {
  alignas(64) std::uint8_t lengths[64];
  look_up(book.mask_bits, classes, n, lengths);
  const __m512i eighths = _mm512_sad_epu8(_mm512_load_si512(lengths), _mm512_setzero_si512());
  return static_cast<u64>(_mm512_reduce_add_epi64(eighths));
}

std::uint64_t expand_avx512(const ExpandJob& job) {
  const Constants constants;
  Position position{0, job.mask_bits};
  for (int c = 0; c < 3; ++c) {
    const Quant quant(job.quant->value[c]);
    if (job.quant->bytes[c])
      expand_component<true>(job, job.first[c], job.last[c], quant, constants, position);
    else
      expand_component<false>(job, job.first[c], job.last[c], quant, constants, position);
  }
  return position.values;
}

std::uint64_t dc_differences_avx512(const Codebook& book, const std::uint8_t* classes, int n,
                                    const std::uint8_t* bits, std::uint64_t position,
                                    std::int16_t* diff, std::uint64_t& escapes) {
  return differences(book, classes, n, bits, position, diff, escapes);
}

void sum_avx512(std::int16_t* dc, std::int32_t n, std::uint16_t start) { sum_up(dc, n, start); }

}  // namespace fastio
