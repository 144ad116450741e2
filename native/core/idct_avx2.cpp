// Transforms two blocks at a time, one in each 128-bit lane. The steps are those of idct_quads.h,
// with the instructions of AVX2.
#include "idct_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Pairs of coefficients 0 and 4, 1 and 5, and so on, of four vectors (columns or rows) of each
// block.
struct Pairs {
  __m256i p04, p15, p26, p37;
};

inline __m256i weights(IdctPair pair) {
  return _mm256_set1_epi32(static_cast<std::uint16_t>(pair.low) | pair.high * 65536);
}

inline __m256i multiply(__m256i pairs, IdctPair pair) {
  return _mm256_madd_epi16(pairs, weights(pair));
}

// Loads the pairs of rows k and k + 4 of two blocks, in the four columns from `column` on.
inline __m256i load_pairs(const std::int16_t* blocks, int k, int column) {
  const auto* at = reinterpret_cast<const __m128i*>(blocks + 16 * k + 2 * column);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_load_si128(at)), _mm_load_si128(at + 8),
                                 1);
}

// Loads the pairs of the left four columns of two blocks (column = 0), or of the right four (4).
inline Pairs load_half(const std::int16_t* blocks, int column) {
  return {load_pairs(blocks, 0, column), load_pairs(blocks, 1, column),
          load_pairs(blocks, 2, column), load_pairs(blocks, 3, column)};
}

inline void transform8(const Pairs& x, __m256i bias, __m256i (&out)[8]) {
  const __m256i t0 = _mm256_add_epi32(multiply(x.p04, kIdct8Even04[0]), bias);
  const __m256i t1 = _mm256_add_epi32(multiply(x.p04, kIdct8Even04[1]), bias);
  const __m256i t2 = multiply(x.p26, kIdct8Even26[0]);
  const __m256i t3 = multiply(x.p26, kIdct8Even26[1]);
  const __m256i even[4] = {_mm256_add_epi32(t0, t2), _mm256_add_epi32(t1, t3),
                           _mm256_sub_epi32(t1, t3), _mm256_sub_epi32(t0, t2)};
  for (int k = 0; k < 4; ++k) {
    const __m256i odd =
        _mm256_add_epi32(multiply(x.p15, kIdct8Odd15[k]), multiply(x.p37, kIdct8Odd37[k]));
    out[k] = _mm256_add_epi32(even[k], odd);
    out[7 - k] = _mm256_sub_epi32(even[k], odd);
  }
}

inline void transform4(const Pairs& x, __m256i bias, __m256i (&out)[4]) {
  const __m256i t0 = _mm256_add_epi32(multiply(x.p04, kIdct4Even04), bias);
  const __m256i t2 = multiply(x.p26, kIdct4Even26);
  const __m256i even[2] = {_mm256_add_epi32(t0, t2), _mm256_sub_epi32(t0, t2)};
  for (int k = 0; k < 2; ++k) {
    const __m256i odd =
        _mm256_add_epi32(multiply(x.p15, kIdct4Odd15[k]), multiply(x.p37, kIdct4Odd37[k]));
    out[k] = _mm256_add_epi32(even[k], odd);
    out[3 - k] = _mm256_sub_epi32(even[k], odd);
  }
}

inline void transform2(const Pairs& x, __m256i bias, __m256i (&out)[2]) {
  const __m256i even = _mm256_sub_epi32(bias, multiply(x.p04, kIdct2MinusEven04));
  const __m256i odd = _mm256_add_epi32(multiply(x.p15, kIdct2Odd15), multiply(x.p37, kIdct2Odd37));
  out[0] = _mm256_add_epi32(even, odd);
  out[1] = _mm256_sub_epi32(even, odd);
}

// Drops the low bits of the columns' outputs. Each result dword has a word of column k (from
// `left`) and one of column k + 4.
template <int kShift>
inline __m256i pack_columns(__m256i left, __m256i right) {
  return _mm256_blend_epi16(_mm256_srli_epi32(left, kShift), _mm256_slli_epi32(right, 16 - kShift),
                            0xaa);
}

// Transposes 4 x 4 dwords in each lane.
inline Pairs transpose(__m256i v0, __m256i v1, __m256i v2, __m256i v3) {
  const __m256i a = _mm256_unpacklo_epi32(v0, v1), b = _mm256_unpackhi_epi32(v0, v1);
  const __m256i c = _mm256_unpacklo_epi32(v2, v3), d = _mm256_unpackhi_epi32(v2, v3);
  return {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
          _mm256_unpackhi_epi64(b, d)};
}

// Drops the low bits of the rows' outputs. Each result dword has two samples, not yet clamped.
template <int kShift>
inline __m256i pack_rows(__m256i left, __m256i right) {
  return _mm256_srai_epi16(_mm256_blend_epi16(_mm256_srli_epi32(left, 16), right, 0xaa),
                           kShift - 16);
}

inline void store8(std::uint8_t* to, __m128i bytes) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
}

inline void store16(std::uint8_t* to, __m128i bytes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

// The row pass of size 8, for four rows of each block.
inline void finish8(const Pairs& x, std::uint8_t* out, std::ptrdiff_t stride) {
  constexpr int kShift = kIdct8.rows;
  __m256i o[8];
  transform8(x, _mm256_set1_epi32(idct_bias_rows(kIdct8)), o);
  // Words of two samples: those of columns 0 and 1 in the low half of a lane, 2 and 3 in the high
  // half.
  const __m256i left =
      _mm256_packus_epi16(pack_rows<kShift>(o[0], o[1]), pack_rows<kShift>(o[2], o[3]));
  const __m256i right =
      _mm256_packus_epi16(pack_rows<kShift>(o[4], o[5]), pack_rows<kShift>(o[6], o[7]));
  const __m256i outer = _mm256_unpacklo_epi16(left, right);  // columns 0, 1, 4, 5
  const __m256i inner = _mm256_unpackhi_epi16(left, right);  // columns 2, 3, 6, 7
  const __m256i rows[2] = {_mm256_unpacklo_epi16(outer, inner),
                           _mm256_unpackhi_epi16(outer, inner)};
  for (int i = 0; i < 2; ++i) {
    const __m256i by_row = _mm256_permute4x64_epi64(rows[i], 0xd8);
    store16(out + 2 * i * stride, _mm256_castsi256_si128(by_row));
    store16(out + (2 * i + 1) * stride, _mm256_extracti128_si256(by_row, 1));
  }
}

// The column pass of size 2.
inline void columns2(const std::int16_t* blocks, __m256i (&rows)[2]) {
  const __m256i bias = _mm256_set1_epi32(idct_bias_columns(kIdct2));
  __m256i left[2], right[2];
  transform2(load_half(blocks, 0), bias, left);
  transform2(load_half(blocks, 4), bias, right);
  for (int k = 0; k < 2; ++k) rows[k] = pack_columns<kIdct2.columns>(left[k], right[k]);
}

}  // namespace

void idct8_avx2(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  const __m256i bias = _mm256_set1_epi32(idct_bias_columns(kIdct8));
  for (int b = 0; b < count; b += 2, blocks += 2 * 64, out += 2 * 8) {
    __m256i left[8], right[8], rows[8];
    transform8(load_half(blocks, 0), bias, left);
    transform8(load_half(blocks, 4), bias, right);
    for (int k = 0; k < 8; ++k) rows[k] = pack_columns<kIdct8.columns>(left[k], right[k]);
    finish8(transpose(rows[0], rows[1], rows[2], rows[3]), out, stride);
    finish8(transpose(rows[4], rows[5], rows[6], rows[7]), out + 4 * stride, stride);
  }
}

void idct4_avx2(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  const __m256i bias_columns = _mm256_set1_epi32(idct_bias_columns(kIdct4));
  const __m256i bias_rows = _mm256_set1_epi32(idct_bias_rows(kIdct4));
  constexpr int kShift = kIdct4.rows;
  // by_row turns two columns of four rows and the next two into rows of four samples; by_block puts
  // the rows of both blocks side by side.
  const __m256i by_row = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  const __m256i by_block = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int b = 0; b < count; b += 2, blocks += 2 * 64, out += 2 * 4) {
    __m256i left[4], right[4], rows[4], o[4];
    transform4(load_half(blocks, 0), bias_columns, left);
    transform4(load_half(blocks, 4), bias_columns, right);
    for (int k = 0; k < 4; ++k) rows[k] = pack_columns<kIdct4.columns>(left[k], right[k]);
    transform4(transpose(rows[0], rows[1], rows[2], rows[3]), bias_rows, o);
    const __m256i packed =
        _mm256_packus_epi16(pack_rows<kShift>(o[0], o[1]), pack_rows<kShift>(o[2], o[3]));
    const __m256i samples =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(packed, by_row), by_block);
    const __m128i upper = _mm256_castsi256_si128(samples);
    const __m128i lower = _mm256_extracti128_si256(samples, 1);
    store8(out, upper);
    store8(out + stride, _mm_unpackhi_epi64(upper, upper));
    store8(out + 2 * stride, lower);
    store8(out + 3 * stride, _mm_unpackhi_epi64(lower, lower));
  }
}

// Transforms four blocks at a time: the two rows of two blocks would fill only half of the
// registers in the row pass.
void idct2_avx2(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  const __m256i bias = _mm256_set1_epi32(idct_bias_rows(kIdct2));
  const __m256i by_row = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1));
  for (int b = 0; b < count; b += 4, blocks += 4 * 64, out += 4 * 2) {
    __m256i first[2], second[2], o[2];
    columns2(blocks, first);
    columns2(blocks + 2 * 64, second);
    transform2(transpose(first[0], first[1], second[0], second[1]), bias, o);
    const __m256i words = pack_rows<kIdct2.rows>(o[0], o[1]);
    // After the shuffle, lane b has the rows 0 and 1 of block b, then those of block b + 2.
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words, words), by_row);
    const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
    const __m128i samples = _mm_unpacklo_epi16(even, odd);
    store8(out, samples);
    store8(out + stride, _mm_unpackhi_epi64(samples, samples));
  }
}

}  // namespace fastio
