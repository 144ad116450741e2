// The inverse transforms with AVX-512, compiled twice: with VBMI and VNNI they need fewer
// instructions.
//
// Four blocks are transformed at a time, one in each 128-bit lane. Registers hold pairs: dwords of
// coefficients k and k + 4. The results of the column pass are packed so that they are the pairs of
// the row pass.
//
// Separate code for groups whose rows (or rows and columns) 4..7 are zeros, a third of the groups
// of photos, was not faster: detection and mispredicted branches cost what it saves.
#pragma once

#include "idct_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Pairs of coefficients 0 and 4, 1 and 5, and so on, of four vectors (columns or rows) of each
// block.
struct Pairs {
  __m512i p04, p15, p26, p37;
};

inline __m512i weights(IdctPair pair) {
  return _mm512_set1_epi32(static_cast<std::uint16_t>(pair.low) | pair.high * 65536);
}

inline __m512i negated(IdctPair pair) {
  return _mm512_set1_epi32(static_cast<std::uint16_t>(-pair.low) | -pair.high * 65536);
}

inline __m512i multiply(__m512i pairs, __m512i w) { return _mm512_madd_epi16(pairs, w); }

inline __m512i multiply_add(__m512i sum, __m512i pairs, __m512i w) {
#ifdef __AVX512VNNI__
  return _mm512_dpwssd_epi32(sum, pairs, w);
#else
  return _mm512_add_epi32(sum, multiply(pairs, w));
#endif
}

inline __m512i load_two(const std::int16_t* a, const std::int16_t* b) {
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(a))),
      _mm256_load_si256(reinterpret_cast<const __m256i*>(b)), 1);
}

// Loads the pairs of rows k and k + 4 of four blocks: those of the left four columns to `left`, and
// those of the right four to `right`.
inline void load_pairs(const std::int16_t* blocks, int k, __m512i& left, __m512i& right) {
  const std::int16_t* at = blocks + 16 * k;
  const __m512i first = load_two(at, at + 64);
  const __m512i second = load_two(at + 128, at + 192);
  left = _mm512_shuffle_i64x2(first, second, 0x88);
  right = _mm512_shuffle_i64x2(first, second, 0xdd);
}

inline void load_blocks(const std::int16_t* blocks, Pairs& left, Pairs& right) {
  load_pairs(blocks, 0, left.p04, right.p04);
  load_pairs(blocks, 1, left.p15, right.p15);
  load_pairs(blocks, 2, left.p26, right.p26);
  load_pairs(blocks, 3, left.p37, right.p37);
}

inline void transform8(const Pairs& x, __m512i bias, __m512i (&out)[8]) {
  const __m512i t0 = multiply_add(bias, x.p04, weights(kIdct8Even04[0]));
  const __m512i t1 = multiply_add(bias, x.p04, weights(kIdct8Even04[1]));
  const __m512i even[4] = {multiply_add(t0, x.p26, weights(kIdct8Even26[0])),
                           multiply_add(t1, x.p26, weights(kIdct8Even26[1])),
                           multiply_add(t1, x.p26, negated(kIdct8Even26[1])),
                           multiply_add(t0, x.p26, negated(kIdct8Even26[0]))};
  for (int k = 0; k < 4; ++k) {
    const __m512i odd =
        multiply_add(multiply(x.p15, weights(kIdct8Odd15[k])), x.p37, weights(kIdct8Odd37[k]));
    out[k] = _mm512_add_epi32(even[k], odd);
    out[7 - k] = _mm512_sub_epi32(even[k], odd);
  }
}

inline void transform4(const Pairs& x, __m512i bias, __m512i (&out)[4]) {
  const __m512i t0 = multiply_add(bias, x.p04, weights(kIdct4Even04));
  const __m512i even[2] = {multiply_add(t0, x.p26, weights(kIdct4Even26)),
                           multiply_add(t0, x.p26, negated(kIdct4Even26))};
  for (int k = 0; k < 2; ++k) {
    const __m512i odd =
        multiply_add(multiply(x.p15, weights(kIdct4Odd15[k])), x.p37, weights(kIdct4Odd37[k]));
    out[k] = _mm512_add_epi32(even[k], odd);
    out[3 - k] = _mm512_sub_epi32(even[k], odd);
  }
}

inline void transform2(const Pairs& x, __m512i bias, __m512i (&out)[2]) {
  const __m512i even = _mm512_sub_epi32(bias, multiply(x.p04, weights(kIdct2MinusEven04)));
  const __m512i odd =
      multiply_add(multiply(x.p15, weights(kIdct2Odd15)), x.p37, weights(kIdct2Odd37));
  out[0] = _mm512_add_epi32(even, odd);
  out[1] = _mm512_sub_epi32(even, odd);
}

// Drops the low bits of the columns' outputs. Each result dword has a word of column k (of `left`)
// and one of column k + 4.
template <int kShift>
inline __m512i pack_columns(__m512i left, __m512i right) {
#ifdef __AVX512VBMI__
  // The bit offsets in a quadword from which vpmultishiftqb takes bytes 2 and 3 of each dword.
  constexpr long long kFrom = static_cast<long long>(kShift) * 0x0001000000010000 +
                              static_cast<long long>(kShift + 8) * 0x0100000001000000 +
                              0x2020000000000000;
  constexpr __mmask64 kHighWords = 0xcccccccccccccccc;
  return _mm512_mask_multishift_epi64_epi8(_mm512_srli_epi32(left, kShift), kHighWords,
                                           _mm512_set1_epi64(kFrom), right);
#else
  constexpr __mmask32 kHighWords = 0xaaaaaaaa;
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(left, kShift), kHighWords,
                               _mm512_slli_epi32(right, 16 - kShift));
#endif
}

// Transposes 4 x 4 dwords in each lane.
inline Pairs transpose(__m512i v0, __m512i v1, __m512i v2, __m512i v3) {
  const __m512i a = _mm512_unpacklo_epi32(v0, v1), b = _mm512_unpackhi_epi32(v0, v1);
  const __m512i c = _mm512_unpacklo_epi32(v2, v3), d = _mm512_unpackhi_epi32(v2, v3);
  return {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
          _mm512_unpackhi_epi64(b, d)};
}

// Drops the low bits of the rows' outputs. Each result dword has two samples, not yet clamped.
template <int kShift>
inline __m512i pack_rows(__m512i left, __m512i right) {
  constexpr __mmask64 kLowWords = 0x3333333333333333;
  const __m512i upper = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
  const __m512i words = _mm512_mask_shuffle_epi8(right, kLowWords, left, upper);
  return _mm512_srai_epi16(words, kShift - 16);
}

// The permutation of packus's bytes to the order of the output. Pairs of bytes stay together, so
// that without VBMI words can be permuted.
struct alignas(64) ByteIndex {
  std::uint8_t from[64];
  std::uint16_t pair[32];
  constexpr void set_pairs() {
    for (int i = 0; i < 32; ++i) pair[i] = from[2 * i] / 2;
  }
};

// Size 8: rows `first` and first + 1 of four rows of 32 bytes. Two registers are permuted: one has
// the left four samples of each block's rows, the other the right four. A lane has two columns of
// four rows, then the next two.
constexpr ByteIndex two_rows_of_8(int first) {
  ByteIndex index{};
  for (int i = 0; i < 64; ++i) {
    const int row = first + i / 32, block = i / 8 % 4, half = i / 4 % 2, column = i % 4;
    index.from[i] =
        static_cast<std::uint8_t>(64 * half + 16 * block + 8 * (column / 2) + 2 * row + column % 2);
  }
  index.set_pairs();
  return index;
}

// Size 4: four rows of 16 bytes.
constexpr ByteIndex four_rows_of_4() {
  ByteIndex index{};
  for (int i = 0; i < 64; ++i) {
    const int row = i / 16, block = i / 4 % 4, column = i % 4;
    index.from[i] = static_cast<std::uint8_t>(16 * block + 8 * (column / 2) + 2 * row + column % 2);
  }
  index.set_pairs();
  return index;
}

// Size 2: two rows of 16 bytes, twice. A lane has two rows of block b, then of block b + 4.
constexpr ByteIndex two_rows_of_2() {
  ByteIndex index{};
  for (int i = 0; i < 64; ++i) {
    const int row = i / 16 % 2, block = i / 2 % 8, column = i % 2;
    index.from[i] =
        static_cast<std::uint8_t>(16 * (block % 4) + 4 * (block / 4) + 2 * row + column);
  }
  index.set_pairs();
  return index;
}

constexpr ByteIndex kTwoRowsOf8[2] = {two_rows_of_8(0), two_rows_of_8(2)};
constexpr ByteIndex kFourRowsOf4 = four_rows_of_4();
constexpr ByteIndex kTwoRowsOf2 = two_rows_of_2();

#ifdef __AVX512VBMI__
inline __m512i load_index(const ByteIndex& index) { return _mm512_load_si512(index.from); }
inline __m512i permuted(__m512i index, __m512i bytes) {
  return _mm512_permutexvar_epi8(index, bytes);
}
inline __m512i permuted(__m512i index, __m512i left, __m512i right) {
  return _mm512_permutex2var_epi8(left, index, right);
}
#else
inline __m512i load_index(const ByteIndex& index) { return _mm512_load_si512(index.pair); }
inline __m512i permuted(__m512i index, __m512i bytes) {
  return _mm512_permutexvar_epi16(index, bytes);
}
inline __m512i permuted(__m512i index, __m512i left, __m512i right) {
  return _mm512_permutex2var_epi16(left, index, right);
}
#endif

inline void store16(std::uint8_t* to, __m128i bytes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

inline void store32(std::uint8_t* to, __m256i bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

// The row pass of size 8, for four rows of each block.
inline void finish8(const Pairs& x, std::uint8_t* out, std::ptrdiff_t stride) {
  constexpr int kShift = kIdct8.rows;
  __m512i o[8];
  transform8(x, _mm512_set1_epi32(idct_bias_rows(kIdct8)), o);
  const __m512i left =
      _mm512_packus_epi16(pack_rows<kShift>(o[0], o[1]), pack_rows<kShift>(o[2], o[3]));
  const __m512i right =
      _mm512_packus_epi16(pack_rows<kShift>(o[4], o[5]), pack_rows<kShift>(o[6], o[7]));
  for (int i = 0; i < 2; ++i) {
    const __m512i index = load_index(kTwoRowsOf8[i]);
    const __m512i rows = permuted(index, left, right);
    store32(out + 2 * i * stride, _mm512_castsi512_si256(rows));
    store32(out + (2 * i + 1) * stride, _mm512_extracti64x4_epi64(rows, 1));
  }
}

// The column pass of size 2.
inline void columns2(const std::int16_t* blocks, __m512i (&rows)[2]) {
  Pairs in_left, in_right;
  load_blocks(blocks, in_left, in_right);
  const __m512i bias = _mm512_set1_epi32(idct_bias_columns(kIdct2));
  __m512i left[2], right[2];
  transform2(in_left, bias, left);
  transform2(in_right, bias, right);
  for (int k = 0; k < 2; ++k) rows[k] = pack_columns<kIdct2.columns>(left[k], right[k]);
}

inline void transform_blocks8(const std::int16_t* blocks, int count, std::uint8_t* out,
                              std::ptrdiff_t stride) {
  const __m512i bias = _mm512_set1_epi32(idct_bias_columns(kIdct8));
  for (int b = 0; b < count; b += 4, blocks += 4 * 64, out += 4 * 8) {
    Pairs in_left, in_right;
    load_blocks(blocks, in_left, in_right);
    __m512i left[8], right[8], rows[8];
    transform8(in_left, bias, left);
    transform8(in_right, bias, right);
    for (int k = 0; k < 8; ++k) rows[k] = pack_columns<kIdct8.columns>(left[k], right[k]);
    finish8(transpose(rows[0], rows[1], rows[2], rows[3]), out, stride);
    finish8(transpose(rows[4], rows[5], rows[6], rows[7]), out + 4 * stride, stride);
  }
}

inline void transform_blocks4(const std::int16_t* blocks, int count, std::uint8_t* out,
                              std::ptrdiff_t stride) {
  const __m512i bias_columns = _mm512_set1_epi32(idct_bias_columns(kIdct4));
  const __m512i bias_rows = _mm512_set1_epi32(idct_bias_rows(kIdct4));
  constexpr int kShift = kIdct4.rows;
  const __m512i index = load_index(kFourRowsOf4);
  for (int b = 0; b < count; b += 4, blocks += 4 * 64, out += 4 * 4) {
    Pairs in_left, in_right;
    load_blocks(blocks, in_left, in_right);
    __m512i left[4], right[4], rows[4], o[4];
    transform4(in_left, bias_columns, left);
    transform4(in_right, bias_columns, right);
    for (int k = 0; k < 4; ++k) rows[k] = pack_columns<kIdct4.columns>(left[k], right[k]);
    transform4(transpose(rows[0], rows[1], rows[2], rows[3]), bias_rows, o);
    const __m512i samples = permuted(
        index, _mm512_packus_epi16(pack_rows<kShift>(o[0], o[1]), pack_rows<kShift>(o[2], o[3])));
    store16(out, _mm512_castsi512_si128(samples));
    store16(out + stride, _mm512_extracti32x4_epi32(samples, 1));
    store16(out + 2 * stride, _mm512_extracti32x4_epi32(samples, 2));
    store16(out + 3 * stride, _mm512_extracti32x4_epi32(samples, 3));
  }
}

// Transforms eight blocks at a time: the two rows of four blocks would fill only half of the
// registers in the row pass.
inline void transform_blocks2(const std::int16_t* blocks, int count, std::uint8_t* out,
                              std::ptrdiff_t stride) {
  const __m512i bias = _mm512_set1_epi32(idct_bias_rows(kIdct2));
  const __m512i index = load_index(kTwoRowsOf2);
  for (int b = 0; b < count; b += 8, blocks += 8 * 64, out += 8 * 2) {
    __m512i first[2], second[2], o[2];
    columns2(blocks, first);
    columns2(b + 4 < count ? blocks + 4 * 64 : blocks, second);
    transform2(transpose(first[0], first[1], second[0], second[1]), bias, o);
    const __m512i words = pack_rows<kIdct2.rows>(o[0], o[1]);
    const __m512i samples = permuted(index, _mm512_packus_epi16(words, words));
    store16(out, _mm512_castsi512_si128(samples));
    store16(out + stride, _mm512_extracti32x4_epi32(samples, 1));
  }
}

}  // namespace
}  // namespace fastio
