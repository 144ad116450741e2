// Column pass: a table look-up widens the pairs of taps of 4 outputs from 16 bytes; the two
// products of a pair are added at the end. Row pass: 32 outputs at a time. High halves of products
// come from vqdmulh, which doubles products, shifted right by 1. It saturates only for -32768 *
// -32768, which does not occur.
#include <arm_neon.h>

#include "planar_dispatch.h"
#include "planar_kernels.h"
#include "planar_taps.h"
#include "resample.h"

namespace fastio {
namespace {

constexpr int kBlock = 2 * kPlanarLanes;
constexpr int kBaseLanes = 4;
constexpr int kParts = kPlanarLanes / kBaseLanes;  // of a group

constexpr PlanarTapLayout kLayout = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                     kBaseLanes};

void taps_neon(const PlanarTapSpec& spec, PlanarTaps* taps) { compute_taps(spec, kLayout, taps); }

// The sums of products of the samples of pairs by their weights, for 4 outputs. The sums of first
// and second samples are adjacent lanes.
struct Products {
  int32x4_t low, high;
};

inline Products multiply(uint8x16_t pairs, int16x8_t weights) {
  const int16x8_t samples = vreinterpretq_s16_u8(pairs);
  return {vmull_s16(vget_low_s16(samples), vget_low_s16(weights)),
          vmull_high_s16(samples, weights)};
}

inline Products add_products(Products sums, uint8x16_t pairs, int16x8_t weights) {
  const int16x8_t samples = vreinterpretq_s16_u8(pairs);
  return {vmlal_s16(sums.low, vget_low_s16(samples), vget_low_s16(weights)),
          vmlal_high_s16(sums.high, samples, weights)};
}

inline int16x8_t load_weights(const PlanarWords& words, int part) {
  return vreinterpretq_s16_s32(vld1q_s32(words.lane + kBaseLanes * part));
}

// Rounds the sums of 8 outputs and centres them.
inline int16x8_t finish(const Products& first, const Products& second) {
  static_assert(kPlanarColumnBits == 14);
  const int16x4_t low = vrshrn_n_s32(vpaddq_s32(first.low, first.high), 7);
  const int16x8_t both = vrshrn_high_n_s32(low, vpaddq_s32(second.low, second.high), 7);
  return vsubq_s16(both, vdupq_n_s16(128 << (kPlanarColumnBits - 7)));
}

// Resamples a group of outputs. kPairs: the number of pairs of taps if it is known, else 0.
template <int kPairs>
inline void sum_group(const PlanarTaps& t, std::int32_t g, const std::uint8_t* const* src,
                      std::int16_t* out, std::size_t row_words) {
  const std::int32_t pairs = kPairs ? kPairs : t.pairs;
  const uint8x16_t high_bytes = vreinterpretq_u8_u16(vdupq_n_u16(0x8000));
  const uint8x16_t two = vreinterpretq_u8_u16(vdupq_n_u16(2));
  const std::int32_t* base = t.base + g * kParts;
  const PlanarWords* weights = t.weights + static_cast<std::ptrdiff_t>(g) * pairs;
  for (int part = 0; part < kParts; part += 2) {
    uint8x16_t index[2];
    uint8x16_t bytes[2][kPlanarRows];
    Products sums[2][kPlanarRows];
    for (int h = 0; h < 2; ++h) {
      index[h] = vorrq_u8(
          vreinterpretq_u8_s32(vld1q_s32(t.index[g].lane + kBaseLanes * (part + h))), high_bytes);
      const int16x8_t w = load_weights(weights[0], part + h);
      for (int j = 0; j < kPlanarRows; ++j) {
        bytes[h][j] = vld1q_u8(src[j] + base[part + h]);
        sums[h][j] = multiply(vqtbl1q_u8(bytes[h][j], index[h]), w);
      }
    }
    for (std::int32_t p = 1; p < pairs; ++p) {
      for (int h = 0; h < 2; ++h) {
        index[h] = vaddq_u8(index[h], two);
        const int16x8_t w = load_weights(weights[p], part + h);
        for (int j = 0; j < kPlanarRows; ++j)
          sums[h][j] = add_products(sums[h][j], vqtbl1q_u8(bytes[h][j], index[h]), w);
      }
    }
    for (int j = 0; j < kPlanarRows; ++j)
      vst1q_s16(out + j * row_words + kBaseLanes * part, finish(sums[0][j], sums[1][j]));
  }
}

// Loads pairs of taps p .. p + 3 of 4 lanes, transposed: pair[k] has pair p + k of lane l in dword
// l. at: the first sample of pair p of each lane.
inline void transpose_pairs(const std::uint8_t* src, const std::int32_t* at, uint8x16_t* pair) {
  uint32x4_t lanes[4];
  for (int l = 0; l < 4; ++l) lanes[l] = vreinterpretq_u32_u16(vmovl_u8(vld1_u8(src + at[l])));
  const uint64x2_t low_01 = vreinterpretq_u64_u32(vzip1q_u32(lanes[0], lanes[1]));
  const uint64x2_t high_01 = vreinterpretq_u64_u32(vzip2q_u32(lanes[0], lanes[1]));
  const uint64x2_t low_23 = vreinterpretq_u64_u32(vzip1q_u32(lanes[2], lanes[3]));
  const uint64x2_t high_23 = vreinterpretq_u64_u32(vzip2q_u32(lanes[2], lanes[3]));
  pair[0] = vreinterpretq_u8_u64(vzip1q_u64(low_01, low_23));
  pair[1] = vreinterpretq_u8_u64(vzip2q_u64(low_01, low_23));
  pair[2] = vreinterpretq_u8_u64(vzip1q_u64(high_01, high_23));
  pair[3] = vreinterpretq_u8_u64(vzip2q_u64(high_01, high_23));
}

// Computes the sums of 4 outputs whose samples are farther apart: loads 8 samples of each at a
// time. Pairs past the row's last sample read padding, and have a weight of 0.
inline Products sum_far(const PlanarTaps& t, const PlanarWords* weights, std::int32_t group,
                        int part, const std::uint8_t* src) {
  static_assert(kReadPad >= 8);
  const std::int32_t* start = t.start + group * kPlanarLanes + kBaseLanes * part;
  const std::int32_t last = t.last - t.first;
  Products sums = {vdupq_n_s32(0), vdupq_n_s32(0)};
  for (std::int32_t p = 0; p < t.pairs; p += 4) {
    std::int32_t at[kBaseLanes];
    for (int l = 0; l < kBaseLanes; ++l) at[l] = at_most(start[l] - t.first + 2 * p, last);
    uint8x16_t pair[4];
    transpose_pairs(src, at, pair);
    for (std::int32_t k = 0; k < 4 && p + k < t.pairs; ++k)
      sums = add_products(sums, pair[k], load_weights(weights[p + k], part));
  }
  return sums;
}

template <int kPairs>
void columns_near(const PlanarTaps& taps, const std::uint8_t* const* src, PlanarMiddle* dst,
                  std::size_t blocks) {
  const PlanarTaps t = taps;  // a copy that stores cannot alias
  for (std::int32_t g = 0; g < t.groups; ++g)
    sum_group<kPairs>(t, g, src, dst->lane + g * kPlanarLanes, blocks * kBlock);
}

void columns_far(const PlanarTaps& t, const std::uint8_t* const* src, PlanarMiddle* dst,
                 std::size_t blocks) {
  for (std::int32_t g = 0; g < t.groups; ++g) {
    const PlanarWords* weights = t.weights + static_cast<std::ptrdiff_t>(g) * t.pairs;
    for (int j = 0; j < kPlanarRows; ++j) {
      std::int16_t* out = dst->lane + j * blocks * kBlock + g * kPlanarLanes;
      for (int part = 0; part < kParts; part += 2)
        vst1q_s16(out + kBaseLanes * part, finish(sum_far(t, weights, g, part, src[j]),
                                                  sum_far(t, weights, g, part + 1, src[j])));
    }
  }
}

void columns_neon(const PlanarTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
                  std::int32_t rows, PlanarMiddle* dst, std::size_t blocks) {
  using Kernel = void(const PlanarTaps&, const std::uint8_t* const*, PlanarMiddle*, std::size_t);
  static constexpr Kernel* kKernels[] = {columns_near<0>, columns_near<1>, columns_near<2>,
                                         columns_near<3>, columns_near<4>};
  Kernel* kernel = kKernels[taps.pairs <= 4 ? taps.pairs : 0];
  if (taps.span > 16) kernel = columns_far;
  const std::uint8_t* at[kPlanarRows];
  for (std::int32_t j = 0; j < kPlanarRows; ++j) at[j] = src + at_most(j, rows - 1) * src_stride;
  kernel(taps, at, dst, blocks);
}

constexpr int kRegisters = kBlock / 8;

// The sums of a block of outputs.
struct Sums {
  int16x8_t lanes[kRegisters];
};

// Weights and factors are lanes of registers: multiplying by a lane needs no instruction to load
// it.

// Returns the high half of x times lane k of factors.
template <int k>
inline int16x8_t scaled(int16x8_t x, int16x8_t factors) {
  return vshrq_n_s16(vqdmulhq_laneq_s16(x, factors, k), 1);
}

// sum + scaled(x, factors)
template <int k>
inline int16x8_t add_scaled(int16x8_t sum, int16x8_t x, int16x8_t factors) {
  return vsraq_n_s16(sum, vqdmulhq_laneq_s16(x, factors, k), 1);
}

// The inputs of a row from one plane. kCount: the number of taps if it is known, else 0. If it is
// known, the weights are lanes of known_weights.
template <int kCount>
struct PlaneRow {
  static_assert(kUniformTaps <= 8);
  static constexpr int kKept = kCount > 0 ? kCount : kMaxHighHalves;
  const std::int16_t* rows[kKept];
  std::int16_t weights[kCount > 0 ? 8 : kMaxHighHalves] = {};
  int16x8_t known_weights, init;
  std::int32_t count;

  explicit PlaneRow(const PlanarRow& row) : init(vdupq_n_s16(row.init)), count(row.count) {
    for (std::int32_t k = 0; k < (kCount > 0 ? kCount : count); ++k) {
      rows[k] = row.rows[k];
      weights[k] = static_cast<std::int16_t>(row.weights[k * kPlanarLanes]);
    }
    known_weights = vld1q_s16(weights);
  }

  // Sums taps k and later ones of columns [x, x + kBlock).
  template <int k>
  void add(std::int32_t x, Sums& sums) const {
    const std::int16_t* samples = rows[k] + x;
    for (int r = 0; r < kRegisters; ++r) {
      const int16x8_t column = vld1q_s16(samples + 8 * r);
      sums.lanes[r] = k == 0 ? scaled<k>(column, known_weights)
                             : add_scaled<k>(sums.lanes[r], column, known_weights);
    }
    if constexpr (k + 1 < kCount) add<k + 1>(x, sums);
  }

  void add_all(std::int32_t x, Sums& sums) const {
    for (int16x8_t& lanes : sums.lanes) lanes = vdupq_n_s16(0);
    for (std::int32_t k = 0; k < count; ++k)
      for (int r = 0; r < kRegisters; ++r)
        sums.lanes[r] = vsraq_n_s16(sums.lanes[r],
                                    vqdmulhq_n_s16(vld1q_s16(rows[k] + x + 8 * r), weights[k]), 1);
  }

  // Returns the sums of columns [x, x + kBlock). Adds up the products, then subtracts their sum.
  Sums sum(std::int32_t x) const {
    Sums sums;
    if constexpr (kCount > 0)
      add<0>(x, sums);
    else
      add_all(x, sums);
    for (int16x8_t& lanes : sums.lanes) lanes = vsubq_s16(init, lanes);
    return sums;
  }
};

constexpr std::int16_t kFactors[8] = {kRedOfCr,   kBlueOfCbLess,    kGreenOfCb, kGreenOfCrLess,
                                      kLumaOfRed, kLumaOfGreenLess, kLumaOfBlue};

// Converts Y, Cb, Cr to R, G, B.
inline void convert(int16x8_t factors, Sums* planes) {
  for (int i = 0; i < kRegisters; ++i) {
    const int16x8_t y = planes[0].lanes[i], b = planes[1].lanes[i], r = planes[2].lanes[i];
    const int16x8_t blue = vsubq_s16(vaddq_s16(b, b), scaled<1>(b, factors));
    const int16x8_t green = vsubq_s16(add_scaled<2>(r, b, factors), scaled<3>(r, factors));
    planes[0].lanes[i] = vqaddq_s16(y, add_scaled<0>(r, r, factors));
    planes[1].lanes[i] = vqsubq_s16(y, green);
    planes[2].lanes[i] = vqaddq_s16(y, blue);
  }
}

// Converts R, G, B to Y.
inline void to_luma(int16x8_t factors, Sums* planes) {
  for (int i = 0; i < kRegisters; ++i) {
    const int16x8_t g = planes[1].lanes[i];
    const int16x8_t two =
        add_scaled<4>(vsubq_s16(g, scaled<5>(g, factors)), planes[0].lanes[i], factors);
    planes[0].lanes[i] = add_scaled<6>(two, planes[2].lanes[i], factors);
  }
}

struct Bytes {
  uint8x16_t half[2];
};

// kBits: the sums' fractional bits.
template <int kBits>
inline Bytes to_bytes(const Sums& sums) {
  Bytes bytes;
  for (int h = 0; h < 2; ++h)
    bytes.half[h] =
        vqshrun_high_n_s16(vqshrun_n_s16(sums.lanes[2 * h], kBits), sums.lanes[2 * h + 1], kBits);
  return bytes;
}

inline void store_one(const Bytes& bytes, std::uint8_t* dst) {
  vst1q_u8(dst, bytes.half[0]);
  vst1q_u8(dst + 16, bytes.half[1]);
}

// Stores three channels in rows that are `plane` bytes apart, or as pixels if `plane` is 0.
inline void store_three(const Bytes& a, const Bytes& b, const Bytes& c, std::uint8_t* dst,
                        std::ptrdiff_t plane) {
  if (plane == 0) {
    for (int h = 0; h < 2; ++h) {
      const uint8x16x3_t pixels = {{a.half[h], b.half[h], c.half[h]}};
      vst3q_u8(dst + 48 * h, pixels);
    }
  } else {
    store_one(a, dst);
    store_one(b, dst + plane);
    store_one(c, dst + 2 * plane);
  }
}

// Computes a row; see PlanarRowKernel. kFirst, kOthers: the kCount of PlaneRow, for component 0 and
// for the others.
template <PlanarOutput kOutput, int kBits, int kFirst, int kOthers>
void row_of(const PlanarRow* planes, int, std::int32_t outputs, std::uint8_t* dst,
            std::ptrdiff_t plane) {
  constexpr bool kOnePlane = kOutput == PlanarOutput::gray || kOutput == PlanarOutput::gray_three;
  constexpr bool kOneChannel = kOutput == PlanarOutput::gray || kOutput == PlanarOutput::rgb_luma;
  constexpr int kChannels = kOneChannel ? 1 : 3;
  const PlaneRow<kFirst> first_plane(planes[0]);
  const PlaneRow<kOthers> second_plane(planes[kOnePlane ? 0 : 1]);
  const PlaneRow<kOthers> third_plane(planes[kOnePlane ? 0 : 2]);
  const int16x8_t factors = vld1q_s16(kFactors);
  const std::ptrdiff_t pixel = kOneChannel || plane != 0 ? 1 : kChannels;  // bytes to the next one
  // A row narrower than a block is computed in `narrow`. In others, the last block overlaps the one
  // before it.
  std::uint8_t narrow[kBlock * kChannels];
  const bool is_narrow = outputs < kBlock;
  std::uint8_t* const to = is_narrow ? narrow : dst;
  const std::ptrdiff_t next_plane = is_narrow && plane != 0 ? kBlock : plane;
  const std::int32_t last = outputs - kBlock;
  for (std::int32_t x = 0;; x = at_most(x + kBlock, last)) {
    Sums sums[3];
    sums[0] = first_plane.sum(x);
    if constexpr (!kOnePlane) {
      sums[1] = second_plane.sum(x);
      sums[2] = third_plane.sum(x);
    }
    if constexpr (kOutput == PlanarOutput::ycbcr) convert(factors, sums);
    if constexpr (kOutput == PlanarOutput::rgb_luma) to_luma(factors, sums);
    std::uint8_t* const at = to + x * pixel;
    const Bytes first = to_bytes<kBits>(sums[0]);
    if constexpr (kOneChannel) {
      store_one(first, at);
    } else {
      const Bytes second = kOnePlane ? first : to_bytes<kBits>(sums[kOnePlane ? 0 : 1]);
      const Bytes third = kOnePlane ? first : to_bytes<kBits>(sums[kOnePlane ? 0 : 2]);
      store_three(first, second, third, at, next_plane);
    }
    if (x >= last) break;
  }
  for (int c = 0; is_narrow && c < kChannels / pixel; ++c)
    memcpy(dst + c * plane, narrow + c * kBlock, static_cast<std::size_t>(outputs * pixel));
}

// kBits: the sums' fractional bits: 6, or, rarely, 5 if a weight exceeds 1.
template <int kBits>
struct Rows {
  template <PlanarOutput kOutput, int kFirst, int kOthers>
  static constexpr auto of = row_of < kOutput,
                        kBits, kBits == 6 ? kFirst : 0, kBits == 6 ? kOthers : 0 > ;
};

void row_neon(PlanarOutput output, const PlanarRow* planes, int bits, std::int32_t outputs,
              std::uint8_t* dst, std::ptrdiff_t plane) {
  const auto row = bits == 6 ? make_row<Rows<6>> : make_row<Rows<5>>;
  row(output, planes, bits, outputs, dst, plane);
}

}  // namespace

const PlanarKernels kPlanarNeon = {taps_neon, columns_neon, row_neon};

}  // namespace fastio
