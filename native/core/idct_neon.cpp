// Transforms a block at a time: a register holds a row of eight coefficients, and products by a
// weight widen to 32 bits in two halves. Most blocks have values only in their first rows and
// columns, so size 8 skips rows that are zero, and in the column pass also the last four columns.
#include <arm_neon.h>

#include "idct_kernels.h"

namespace fastio {
namespace {

// 32-bit sums of eight vectors, the first four and the last four.
struct Sums {
  int32x4_t low, high;
};

inline Sums add(Sums a, Sums b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline Sums subtract(Sums a, Sums b) {
  return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
}

inline Sums times(int16x8_t x, std::int16_t weight) {
  return {vmull_n_s16(vget_low_s16(x), weight), vmull_high_n_s16(x, weight)};
}

inline Sums add_times(Sums sums, int16x8_t x, std::int16_t weight) {
  return {vmlal_n_s16(sums.low, vget_low_s16(x), weight), vmlal_high_n_s16(sums.high, x, weight)};
}

// The same for four vectors: those of the column pass if the last four columns are zero.
inline int32x4_t add(int32x4_t a, int32x4_t b) { return vaddq_s32(a, b); }
inline int32x4_t subtract(int32x4_t a, int32x4_t b) { return vsubq_s32(a, b); }
inline int32x4_t scaled13(int16x4_t x) { return vshll_n_s16(x, 13); }
inline Sums scaled13(int16x8_t x) {
  return {vshll_n_s16(vget_low_s16(x), 13), vshll_high_n_s16(x, 13)};
}

// Computes an output and its mirror image from the even and the odd part: the 32-bit sums, or, in
// the row pass, which drops more than 16 bits, their high halves.
template <typename T>
inline void put_both(T even, T odd, T& sum, T& difference) {
  sum = add(even, odd);
  difference = subtract(even, odd);
}
inline void put_both(Sums even, Sums odd, int16x8_t& sum, int16x8_t& difference) {
  sum = vaddhn_high_s32(vaddhn_s32(even.low, odd.low), even.high, odd.high);
  difference = vsubhn_high_s32(vsubhn_s32(even.low, odd.low), even.high, odd.high);
}

// The products of coefficients k and k + 4 by a pair of weights, summed.
inline Sums times(int16x8_t low, int16x8_t high, IdctPair pair) {
  return add_times(times(low, pair.low), high, pair.high);
}

// The weights of size 8, in registers: multiplying by a lane needs no instruction to load a weight.
constexpr std::int16_t kWeights8[16] = {10703,  4433, -10704, 11363, 6437,  9633,
                                        -11362, 2261, 2260,   -2259, -6436, -11363};
struct Weights8 {
  int16x8_t first, second;
};
consteval int lane_of(std::int16_t weight) {
  int lane = 0;
  while (kWeights8[lane] != weight) ++lane;
  return lane;
}

template <std::int16_t kWeight>
inline Sums times(int16x8_t x, const Weights8& weights) {
  constexpr int kLane = lane_of(kWeight);
  const int16x8_t w = kLane < 8 ? weights.first : weights.second;
  return {vmull_laneq_s16(vget_low_s16(x), w, kLane % 8), vmull_high_laneq_s16(x, w, kLane % 8)};
}

template <std::int16_t kWeight>
inline int32x4_t times(int16x4_t x, const Weights8& weights) {
  constexpr int kLane = lane_of(kWeight);
  return vmull_laneq_s16(x, kLane < 8 ? weights.first : weights.second, kLane % 8);
}

template <std::int16_t kWeight>
inline Sums add_times(Sums sums, int16x8_t x, const Weights8& weights) {
  constexpr int kLane = lane_of(kWeight);
  const int16x8_t w = kLane < 8 ? weights.first : weights.second;
  return {vmlal_laneq_s16(sums.low, vget_low_s16(x), w, kLane % 8),
          vmlal_high_laneq_s16(sums.high, x, w, kLane % 8)};
}

template <std::int16_t kWeight>
inline int32x4_t add_times(int32x4_t sums, int16x4_t x, const Weights8& weights) {
  constexpr int kLane = lane_of(kWeight);
  return vmlal_laneq_s16(sums, x, kLane < 8 ? weights.first : weights.second, kLane % 8);
}

// Computes outputs k and 7 - k from kRows coefficients.
template <int k, int kRows, typename Part, typename Row, typename Out>
inline void combine8(Part even, const Row* x, const Weights8& weights, Out (&out)[8]) {
  Part odd = times<kIdct8Odd15[k].low>(x[1], weights);
  if constexpr (kRows > 4) odd = add_times<kIdct8Odd15[k].high>(odd, x[5], weights);
  odd = add_times<kIdct8Odd37[k].low>(odd, x[3], weights);
  if constexpr (kRows > 4) odd = add_times<kIdct8Odd37[k].high>(odd, x[7], weights);
  put_both(even, odd, out[k], out[7 - k]);
}

inline Sums odd_part(const int16x8_t (&x)[8], IdctPair pair15, IdctPair pair37) {
  const Sums sums = times(x[1], x[5], pair15);
  return add_times(add_times(sums, x[3], pair37.low), x[7], pair37.high);
}

// Adds kBias, for the row pass. The column pass has 0, because its results are rounded when they
// are narrowed.
template <std::int32_t kBias>
inline Sums biased(Sums sums) {
  if constexpr (kBias == 0) return sums;
  const int32x4_t bias = vdupq_n_s32(kBias);
  return add(sums, {bias, bias});
}
template <std::int32_t kBias>
inline int32x4_t biased(int32x4_t sums) {
  static_assert(kBias == 0);
  return sums;
}

// One pass of size 8, from the first kRows coefficients (4 or 8). The others are zero.
template <std::int32_t kBias, int kRows, typename Row, typename Out>
inline void transform8(const Row* x, const Weights8& weights, Out (&out)[8]) {
  static_assert(kIdct8Even04[0].low == 8192 && kIdct8Even04[0].high == 8192 &&
                kIdct8Even04[1].low == 8192 && kIdct8Even04[1].high == -8192);
  using Part = decltype(scaled13(x[0]));
  Part t0 = biased<kBias>(scaled13(x[0])), t1 = t0;
  Part t2 = times<kIdct8Even26[0].low>(x[2], weights);
  Part t3 = times<kIdct8Even26[1].low>(x[2], weights);
  if constexpr (kRows > 4) {
    const Part fourth = scaled13(x[4]);
    t1 = subtract(t0, fourth);
    t0 = add(t0, fourth);
    t2 = add_times<kIdct8Even26[0].high>(t2, x[6], weights);
    t3 = add_times<kIdct8Even26[1].high>(t3, x[6], weights);
  }
  combine8<0, kRows>(add(t0, t2), x, weights, out);
  combine8<1, kRows>(add(t1, t3), x, weights, out);
  combine8<2, kRows>(subtract(t1, t3), x, weights, out);
  combine8<3, kRows>(subtract(t0, t2), x, weights, out);
}

template <std::int32_t kBias>
inline void transform4(const int16x8_t (&x)[8], Sums (&out)[4]) {
  const Sums t0 = biased<kBias>(times(x[0], kIdct4Even04.low));
  const Sums t2 = times(x[2], x[6], kIdct4Even26);
  const Sums even[2] = {add(t0, t2), subtract(t0, t2)};
  for (int k = 0; k < 2; ++k) {
    const Sums odd = odd_part(x, kIdct4Odd15[k], kIdct4Odd37[k]);
    out[k] = add(even[k], odd);
    out[3 - k] = subtract(even[k], odd);
  }
}

inline void load_rows(const std::int16_t* block, int16x8_t (&x)[8]) {
  for (int k = 0; k < 4; ++k) {
    const int16x8x2_t rows = vld2q_s16(block + 16 * k);
    x[k] = rows.val[0];
    x[k + 4] = rows.val[1];
  }
}

// Rounds the columns' outputs and drops their low bits.
template <int kShift>
inline int16x8_t narrow(Sums sums) {
  return vrshrn_high_n_s32(vrshrn_n_s32(sums.low, kShift), sums.high, kShift);
}

inline int32x4_t dwords(int16x8_t x) { return vreinterpretq_s32_s16(x); }
inline int64x2_t qwords(int32x4_t x) { return vreinterpretq_s64_s32(x); }

inline void transpose(int16x8_t (&x)[8]) {
  int32x4_t pairs[8], fours[8];
  for (int k = 0; k < 8; k += 2) {
    pairs[k] = dwords(vtrn1q_s16(x[k], x[k + 1]));
    pairs[k + 1] = dwords(vtrn2q_s16(x[k], x[k + 1]));
  }
  for (int k = 0; k < 8; k += 4) {
    for (int i = 0; i < 2; ++i) {
      fours[k + i] = vtrn1q_s32(pairs[k + i], pairs[k + i + 2]);
      fours[k + i + 2] = vtrn2q_s32(pairs[k + i], pairs[k + i + 2]);
    }
  }
  for (int k = 0; k < 4; ++k) {
    x[k] = vreinterpretq_s16_s64(vtrn1q_s64(qwords(fours[k]), qwords(fours[k + 4])));
    x[k + 4] = vreinterpretq_s16_s64(vtrn2q_s64(qwords(fours[k]), qwords(fours[k + 4])));
  }
}

// Stores eight columns of eight samples, the high halves of sums, as rows of bytes.
inline void store_rows(const int16x8_t (&columns)[8], std::uint8_t* out, std::ptrdiff_t stride) {
  constexpr int kShift = kIdct8.rows - 16;
  uint8x16_t column[4];  // k and k + 4
  for (int k = 0; k < 4; ++k)
    column[k] = vqshrun_high_n_s16(vqshrun_n_s16(columns[k], kShift), columns[k + 4], kShift);
  // Columns 0 and 2 of rows 0 to 7, then columns 4 and 6; 1 and 3, then 5 and 7.
  const uint8x16_t even_low = vzip1q_u8(column[0], column[2]);
  const uint8x16_t even_high = vzip2q_u8(column[0], column[2]);
  const uint8x16_t odd_low = vzip1q_u8(column[1], column[3]);
  const uint8x16_t odd_high = vzip2q_u8(column[1], column[3]);
  // Four columns of four rows.
  const uint32x4_t left[2] = {vreinterpretq_u32_u8(vzip1q_u8(even_low, odd_low)),
                              vreinterpretq_u32_u8(vzip2q_u8(even_low, odd_low))};
  const uint32x4_t right[2] = {vreinterpretq_u32_u8(vzip1q_u8(even_high, odd_high)),
                               vreinterpretq_u32_u8(vzip2q_u8(even_high, odd_high))};
  for (int half = 0; half < 2; ++half, out += 4 * stride) {
    const uint8x16_t two = vreinterpretq_u8_u32(vzip1q_u32(left[half], right[half]));
    const uint8x16_t next = vreinterpretq_u8_u32(vzip2q_u32(left[half], right[half]));
    vst1_u8(out, vget_low_u8(two));
    vst1_u8(out + stride, vget_high_u8(two));
    vst1_u8(out + 2 * stride, vget_low_u8(next));
    vst1_u8(out + 3 * stride, vget_high_u8(next));
  }
}

// Stores the outputs of size 4, columns of four samples in the low halves of `sums`, as rows of
// bytes.
inline void store_rows4(const Sums (&sums)[4], std::uint8_t* out, std::ptrdiff_t stride) {
  constexpr int kShift = kIdct4.rows - 16;
  const int16x8_t left = vcombine_s16(vshrn_n_s32(sums[0].low, 16), vshrn_n_s32(sums[1].low, 16));
  const int16x8_t right = vcombine_s16(vshrn_n_s32(sums[2].low, 16), vshrn_n_s32(sums[3].low, 16));
  const uint8x16_t columns = vqshrun_high_n_s16(vqshrun_n_s16(left, kShift), right, kShift);
  static constexpr std::uint8_t kTranspose[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                  2, 6, 10, 14, 3, 7, 11, 15};
  const uint32x4_t rows = vreinterpretq_u32_u8(vqtbl1q_u8(columns, vld1q_u8(kTranspose)));
  const std::uint32_t row[4] = {vgetq_lane_u32(rows, 0), vgetq_lane_u32(rows, 1),
                                vgetq_lane_u32(rows, 2), vgetq_lane_u32(rows, 3)};
  for (int y = 0; y < 4; ++y) __builtin_memcpy(out + y * stride, row + y, 4);
}

// The column pass of size 2.
inline void columns2(const std::int16_t* block, int16x8_t (&rows)[2]) {
  int16x8_t x[8];
  load_rows(block, x);
  static_assert(kIdct2MinusEven04.low == -32768);
  const Sums even = {vshll_n_s16(vget_low_s16(x[0]), 15), vshll_high_n_s16(x[0], 15)};
  const Sums odd = odd_part(x, kIdct2Odd15, kIdct2Odd37);
  rows[0] = narrow<kIdct2.columns>(add(even, odd));
  rows[1] = narrow<kIdct2.columns>(subtract(even, odd));
}

inline std::uint8_t sample2(std::uint32_t sum) {
  const std::int32_t value = static_cast<std::int32_t>(sum) >> kIdct2.rows;
  return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

// The row pass of size 2, for one row.
inline void row2(int16x8_t x, std::uint8_t* out) {
  static constexpr std::int16_t kOdd[8] = {0, kIdct2Odd15.low,  0, kIdct2Odd37.low,
                                           0, kIdct2Odd15.high, 0, kIdct2Odd37.high};
  const int16x8_t weights = vld1q_s16(kOdd);
  const int32x4_t products =
      vmlal_high_s16(vmull_s16(vget_low_s16(x), vget_low_s16(weights)), x, weights);
  const auto odd = static_cast<std::uint32_t>(vaddvq_s32(products));
  const auto first = static_cast<std::uint32_t>(std::int32_t{vgetq_lane_s16(x, 0)});
  const std::uint32_t even = static_cast<std::uint32_t>(idct_bias_rows(kIdct2)) + (first << 15);
  out[0] = sample2(even + odd);
  out[1] = sample2(even - odd);
}

// Transforms a block at size 8 whose last four columns, and all rows after the first kRows, are
// zero. The outputs of this function and of transform_all() are the high halves of columns.
template <int kRows>
inline void transform_low(const int16x8_t (&x)[8], const Weights8& weights, int16x8_t (&out)[8]) {
  int16x4_t columns[kRows];
  for (int k = 0; k < kRows; ++k) columns[k] = vget_low_s16(x[k]);
  int32x4_t sums[8];
  transform8<0, kRows>(columns, weights, sums);
  int16x8_t row[4];  // k and k + 4
  for (int k = 0; k < 4; ++k)
    row[k] = vrshrn_high_n_s32(vrshrn_n_s32(sums[k], kIdct8.columns), sums[k + 4], kIdct8.columns);
  const int32x4_t even[2] = {dwords(vtrn1q_s16(row[0], row[1])),
                             dwords(vtrn1q_s16(row[2], row[3]))};
  const int32x4_t odd[2] = {dwords(vtrn2q_s16(row[0], row[1])), dwords(vtrn2q_s16(row[2], row[3]))};
  const int16x8_t across[4] = {vreinterpretq_s16_s32(vtrn1q_s32(even[0], even[1])),
                               vreinterpretq_s16_s32(vtrn1q_s32(odd[0], odd[1])),
                               vreinterpretq_s16_s32(vtrn2q_s32(even[0], even[1])),
                               vreinterpretq_s16_s32(vtrn2q_s32(odd[0], odd[1]))};
  transform8<idct_bias_rows(kIdct8), 4>(across, weights, out);
}

// Transforms a block at size 8 whose rows after the first kRows are zero.
template <int kRows>
inline void transform_all(int16x8_t (&x)[8], const Weights8& weights, int16x8_t (&out)[8]) {
  Sums sums[8];
  transform8<0, kRows>(x, weights, sums);
  for (int k = 0; k < 8; ++k) x[k] = narrow<kIdct8.columns>(sums[k]);
  transpose(x);
  transform8<idct_bias_rows(kIdct8), 8>(x, weights, out);
}

// Whether any row of a range has nonzero values in columns 0 to 3, and in columns 4 to 7.
struct Halves {
  std::uint64_t low, high;

  explicit Halves(int16x8_t any)
      : low(vgetq_lane_u64(vreinterpretq_u64_s16(any), 0)),
        high(vgetq_lane_u64(vreinterpretq_u64_s16(any), 1)) {}
};

inline int16x8_t any_of(int16x8_t a, int16x8_t b, int16x8_t c, int16x8_t d) {
  return vorrq_s16(vorrq_s16(a, b), vorrq_s16(c, d));
}

// Stores a block at size 8 that has only a DC, which the column pass multiplies by four.
inline void store_flat(std::int16_t dc, std::uint8_t* out, std::ptrdiff_t stride) {
  const auto column = static_cast<std::int16_t>(dc * 4);
  const std::int32_t level = (column * 8192 + idct_bias_rows(kIdct8)) >> kIdct8.rows;
  const int low = level < 0 ? 0 : level;
  const uint8x8_t row = vdup_n_u8(static_cast<std::uint8_t>(low > 255 ? 255 : low));
  for (int y = 0; y < 8; ++y) vst1_u8(out + y * stride, row);
}

}  // namespace

void idct8_neon(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  const Weights8 weights = {vld1q_s16(kWeights8), vld1q_s16(kWeights8 + 8)};
  for (int b = 0; b < count; ++b, blocks += 64, out += 8) {
    int16x8_t x[8], columns[8];
    load_rows(blocks, x);
    const int16x8_t last_rows = any_of(x[4], x[5], x[6], x[7]);
    const int16x8_t but_dc = any_of(vsetq_lane_s16(0, x[0], 0), x[1], x[2], x[3]);
    const Halves any(vorrq_s16(but_dc, last_rows)), last(last_rows);
    if (any.high) {
      if (last.low | last.high)
        transform_all<8>(x, weights, columns);
      else
        transform_all<4>(x, weights, columns);
    } else if (last.low) {
      transform_low<8>(x, weights, columns);
    } else if (any.low) {
      transform_low<4>(x, weights, columns);
    } else {
      store_flat(blocks[0], out, stride);
      continue;
    }
    store_rows(columns, out, stride);
  }
}

void idct4_neon(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  const int16x8_t zero = vdupq_n_s16(0);
  for (int b = 0; b < count; ++b, blocks += 64, out += 4) {
    int16x8_t x[8];
    Sums sums[4];
    load_rows(blocks, x);
    transform4<0>(x, sums);
    for (int k = 0; k < 4; ++k) x[k] = narrow<kIdct4.columns>(sums[k]);
    for (int k = 4; k < 8; ++k) x[k] = zero;
    transpose(x);
    transform4<idct_bias_rows(kIdct4)>(x, sums);
    store_rows4(sums, out, stride);
  }
}

void idct2_neon(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  for (int b = 0; b < count; ++b, blocks += 64, out += 2) {
    int16x8_t rows[2];
    columns2(blocks, rows);
    row2(rows[0], out);
    row2(rows[1], out + stride);
  }
}

}  // namespace fastio
