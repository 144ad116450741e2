// Column pass: in each half of a register, a byte shuffle widens the pairs of taps of 4 outputs
// from 16 bytes; pmaddwd multiplies and adds them. The lanes of a group are ordered so that packing
// its sums brings them in order. Row pass: 16 outputs per register.
#include "intrinsics.h"
#include "planar_dispatch.h"
#include "planar_kernels.h"
#include "planar_taps.h"
#include "resample.h"

namespace fastio {
namespace {

constexpr int kBlock = kPlanarLanes;
constexpr int kBaseLanes = 4;

constexpr PlanarTapLayout kLayout = {{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15},
                                     kBaseLanes};

void taps_avx2(const PlanarTapSpec& spec, PlanarTaps* taps) { compute_taps(spec, kLayout, taps); }

inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

inline __m256i load_halves(const std::uint8_t* low, const std::uint8_t* high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

// Computes the sums of half a group of outputs, for kPlanarRows rows. The samples of each 4 outputs
// must lie within 16 bytes. base: where they are, for two times 4 outputs.
template <int kPairs>
inline void sum_half(std::int32_t pairs, const std::int32_t* base, const std::int32_t* first,
                     const std::int32_t* weights, const std::uint8_t* const* src, __m256i* sums) {
  const __m256i two = _mm256_set1_epi16(2);
  __m256i index =
      _mm256_or_si256(load(first), _mm256_set1_epi16(static_cast<std::int16_t>(0x8000)));
  const std::ptrdiff_t low = base[0], high = base[1];
  __m256i samples[kPlanarRows];
  for (int j = 0; j < kPlanarRows; ++j) {
    samples[j] = load_halves(src[j] + low, src[j] + high);
    sums[j] = _mm256_set1_epi32(64 - (128 << kPlanarColumnBits));
  }
  for (std::int32_t p = 0; p < (kPairs ? kPairs : pairs); ++p) {
    const __m256i weight = load(weights + p * kPlanarLanes);
    for (int j = 0; j < kPlanarRows; ++j) {
      const __m256i pair = _mm256_shuffle_epi8(samples[j], index);
      sums[j] = _mm256_add_epi32(sums[j], _mm256_madd_epi16(pair, weight));
    }
    index = _mm256_add_epi16(index, two);
  }
}

// Loads pairs of taps p .. p + 3 of 8 lanes, transposed: pair[k] has pair p + k of lane l in dword
// l. at: the first sample of pair p of each lane.
inline void transpose_pairs(const std::uint8_t* src, const std::int32_t* at, __m256i* pair) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i lanes[4];
  for (int i = 0; i < 4; ++i) {
    lanes[i] = _mm256_unpacklo_epi8(load_halves(src + at[i], src + at[i + 4]), zero);
  }
  const __m256i low_01 = _mm256_unpacklo_epi32(lanes[0], lanes[1]);
  const __m256i high_01 = _mm256_unpackhi_epi32(lanes[0], lanes[1]);
  const __m256i low_23 = _mm256_unpacklo_epi32(lanes[2], lanes[3]);
  const __m256i high_23 = _mm256_unpackhi_epi32(lanes[2], lanes[3]);
  pair[0] = _mm256_unpacklo_epi64(low_01, low_23);
  pair[1] = _mm256_unpackhi_epi64(low_01, low_23);
  pair[2] = _mm256_unpacklo_epi64(high_01, high_23);
  pair[3] = _mm256_unpackhi_epi64(high_01, high_23);
}

// Computes the sums of 8 lanes whose samples are farther apart: loads 8 samples of each lane at a
// time, lane by lane. Gathers are slow on many processors, and ten times slower with the microcode
// mitigation. Pairs past the row's last sample read padding, and have a weight of 0.
inline __m256i sum_far(const PlanarTaps& t, const PlanarWords* weights, std::int32_t group,
                       int lane, const std::uint8_t* src) {
  static_assert(kReadPad >= 16);
  const std::int32_t* start = t.start + group * kPlanarLanes + lane;
  const std::int32_t last = t.last - t.first;
  __m256i sum = _mm256_set1_epi32(64 - (128 << kPlanarColumnBits));
  for (std::int32_t p = 0; p < t.pairs; p += 4) {
    std::int32_t at[8];
    for (int l = 0; l < 8; ++l) at[l] = at_most(start[l] - t.first + 2 * p, last);
    __m256i pair[4];
    transpose_pairs(src, at, pair);
    for (std::int32_t k = 0; k < 4 && p + k < t.pairs; ++k) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pair[k], load(weights[p + k].lane + lane)));
    }
  }
  return sum;
}

template <int kPairs, bool kFar>
void columns_of_rows(const PlanarTaps& taps, const std::uint8_t* const* rows, PlanarMiddle* dst,
                     std::size_t blocks) {
  const std::uint8_t* const src[kPlanarRows] = {rows[0], rows[1], rows[2], rows[3]};
  const PlanarTaps t = taps;  // a copy that stores cannot alias
  for (std::int32_t g = 0; g < t.groups; ++g) {
    const PlanarWords* weights = t.weights + static_cast<std::ptrdiff_t>(g) * t.pairs;
    __m256i low[kPlanarRows], high[kPlanarRows];  // lanes 0 to 7 and 8 to 15
    if constexpr (kFar) {
      for (int j = 0; j < kPlanarRows; ++j) {
        low[j] = sum_far(t, weights, g, 0, src[j]);
        high[j] = sum_far(t, weights, g, 8, src[j]);
      }
    } else {
      const std::int32_t *base = t.base + g * (kPlanarLanes / kBaseLanes), *first = t.index[g].lane;
      sum_half<kPairs>(t.pairs, base, first, weights->lane, src, low);
      sum_half<kPairs>(t.pairs, base + 2, first + 8, weights->lane + 8, src, high);
    }
    PlanarMiddle* out = dst + g / 2;
    for (int j = 0; j < kPlanarRows; ++j, out += blocks) {
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(out->lane + g % 2 * kPlanarLanes),
          _mm256_packs_epi32(_mm256_srai_epi32(low[j], 7), _mm256_srai_epi32(high[j], 7)));
    }
  }
}

void columns_avx2(const PlanarTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
                  std::int32_t rows, PlanarMiddle* dst, std::size_t blocks) {
  using Kernel = void(const PlanarTaps&, const std::uint8_t* const*, PlanarMiddle*, std::size_t);
  static constexpr Kernel* kKernels[] = {columns_of_rows<0, false>, columns_of_rows<1, false>,
                                         columns_of_rows<2, false>, columns_of_rows<3, false>,
                                         columns_of_rows<4, false>};
  Kernel* kernel = kKernels[taps.pairs <= 4 ? taps.pairs : 0];
  if (taps.span > 16) kernel = columns_of_rows<0, true>;
  const std::uint8_t* at[kPlanarRows];
  for (std::int32_t j = 0; j < kPlanarRows; ++j) at[j] = src + at_most(j, rows - 1) * src_stride;
  kernel(taps, at, dst, blocks);
}

// The inputs of a row from one plane. kCount: the number of taps if it is known, else 0.
template <int kCount>
struct PlaneRow {
  static constexpr int kKept = kCount > 0 ? kCount : kMaxHighHalves;
  const std::int16_t* rows[kKept];
  __m256i weights[kKept];
  __m256i init;
  std::int32_t count;
  explicit PlaneRow(const PlanarRow& row)
      : init(_mm256_set1_epi16(row.init)), count(kCount > 0 ? kCount : row.count) {
    for (std::int32_t k = 0; k < count; ++k) {
      rows[k] = row.rows[k];
      weights[k] = _mm256_set1_epi32(row.weights[k * kPlanarLanes]);
    }
  }
  // Returns the sums of columns [x, x + kBlock).
  __m256i sum(std::int32_t x) const {
    __m256i sum = init;
    for (std::int32_t k = 0; k < (kCount > 0 ? kCount : count); ++k) {
      sum = _mm256_sub_epi16(sum, _mm256_mulhi_epi16(load(rows[k] + x), weights[k]));
    }
    return sum;
  }
};

inline __m256i scaled(__m256i sum, int factor) {
  return _mm256_mulhi_epi16(sum, _mm256_set1_epi16(static_cast<std::int16_t>(factor)));
}

// Converts Y, Cb, Cr to R, G, B.
inline void convert(__m256i* planes) {
  const __m256i y = planes[0], b = planes[1], r = planes[2];
  const __m256i blue = _mm256_sub_epi16(_mm256_add_epi16(b, b), scaled(b, kBlueOfCbLess));
  const __m256i green =
      _mm256_sub_epi16(_mm256_add_epi16(scaled(b, kGreenOfCb), r), scaled(r, kGreenOfCrLess));
  planes[0] = _mm256_adds_epi16(y, _mm256_add_epi16(r, scaled(r, kRedOfCr)));
  planes[1] = _mm256_subs_epi16(y, green);
  planes[2] = _mm256_adds_epi16(y, blue);
}

// Converts R, G, B to Y.
inline __m256i luma(const __m256i* planes) {
  const __m256i g = planes[1];
  return _mm256_add_epi16(_mm256_add_epi16(scaled(planes[0], kLumaOfRed),
                                           _mm256_sub_epi16(g, scaled(g, kLumaOfGreenLess))),
                          scaled(planes[2], kLumaOfBlue));
}

// Converts two registers of sums to bytes. Each 128-bit half has 8 of `a`, then 8 of `b`.
inline __m256i to_bytes(__m256i a, __m256i b, __m128i bits) {
  return _mm256_packus_epi16(_mm256_sra_epi16(a, bits), _mm256_sra_epi16(b, bits));
}

// Byte shuffles that make the 8 pixels (24 bytes) of a half from [8 of R, 8 of G] and
// [8 of B, ...]: [0] for the first 16 bytes, [1] for the other 8.
struct alignas(16) PixelShuffles {
  std::uint8_t red_green[2][16], blue[2][16];
  constexpr PixelShuffles() : red_green(), blue() {
    for (int k = 0; k < 32; ++k) {
      const int pixel = k / 3, channel = k % 3;
      const bool real = k < 24;
      red_green[k / 16][k % 16] =
          static_cast<std::uint8_t>(real && channel < 2 ? 8 * channel + pixel : 0x80);
      blue[k / 16][k % 16] = static_cast<std::uint8_t>(real && channel == 2 ? pixel : 0x80);
    }
  }
};

inline __m256i both_halves(const std::uint8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}

// Stores 16 pixels, 48 bytes.
inline void store_pixels(const __m256i* sums, __m128i bits, std::uint8_t* dst) {
  static constexpr PixelShuffles shuffles;
  const __m256i red_green = to_bytes(sums[0], sums[1], bits);
  const __m256i blue = to_bytes(sums[2], sums[2], bits);
  const auto pixels = [&](int part) {
    return _mm256_or_si256(_mm256_shuffle_epi8(red_green, both_halves(shuffles.red_green[part])),
                           _mm256_shuffle_epi8(blue, both_halves(shuffles.blue[part])));
  };
  const __m256i first = pixels(0), rest = pixels(1);
  const auto at = [&](int offset) { return reinterpret_cast<__m128i*>(dst + offset); };
  _mm_storeu_si128(at(0), _mm256_castsi256_si128(first));
  _mm_storel_epi64(at(16), _mm256_castsi256_si128(rest));
  _mm_storeu_si128(at(24), _mm256_extracti128_si256(first, 1));
  _mm_storel_epi64(at(40), _mm256_extracti128_si256(rest, 1));
}

inline void store_gray(__m256i sums, __m128i bits, std::uint8_t* dst) {
  const __m256i bytes = _mm256_permute4x64_epi64(to_bytes(sums, sums, bits), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), _mm256_castsi256_si128(bytes));
}

// Stores 16 values of each channel, `plane` bytes apart.
inline void store_planes(const __m256i* sums, __m128i bits, std::uint8_t* dst,
                         std::ptrdiff_t plane) {
  const __m256i two = _mm256_permute4x64_epi64(to_bytes(sums[0], sums[1], bits), 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), _mm256_castsi256_si128(two));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + plane), _mm256_extracti128_si256(two, 1));
  store_gray(sums[2], bits, dst + 2 * plane);
}

// Computes a row; see PlanarRowKernel. kFirst, kOthers: the kCount of PlaneRow, for component 0 and
// for the others.
template <PlanarOutput kOutput, int kFirst, int kOthers>
void row_of(const PlanarRow* planes, int bits, std::int32_t outputs, std::uint8_t* dst,
            std::ptrdiff_t plane) {
  constexpr bool kOnePlane = kOutput == PlanarOutput::gray || kOutput == PlanarOutput::gray_three;
  constexpr bool kOneChannel = kOutput == PlanarOutput::gray || kOutput == PlanarOutput::rgb_luma;
  constexpr int kChannels = kOneChannel ? 1 : 3;
  const __m128i shift = _mm_cvtsi32_si128(bits);
  const PlaneRow<kFirst> first(planes[0]);
  const PlaneRow<kOthers> second(planes[kOnePlane ? 0 : 1]), third(planes[kOnePlane ? 0 : 2]);
  alignas(32) std::uint8_t last[kBlock * kChannels];
  const std::ptrdiff_t pixel = kOneChannel || plane != 0 ? 1 : kChannels;  // bytes to the next one
  for (std::int32_t x = 0; x < outputs; x += kBlock, dst += kBlock * pixel) {
    const std::int32_t count = at_most(outputs - x, kBlock);
    __m256i sums[3];
    sums[0] = first.sum(x);
    if constexpr (!kOnePlane) {
      sums[1] = second.sum(x);
      sums[2] = third.sum(x);
    } else {
      sums[1] = sums[2] = sums[0];
    }
    if constexpr (kOutput == PlanarOutput::ycbcr) convert(sums);
    if constexpr (kOutput == PlanarOutput::rgb_luma) sums[0] = luma(sums);
    const bool whole = count == kBlock;
    std::uint8_t* const to = whole ? dst : last;
    if constexpr (kOneChannel) {
      store_gray(sums[0], shift, to);
    } else if (plane == 0) {
      store_pixels(sums, shift, to);
    } else {
      store_planes(sums, shift, to, whole ? plane : kBlock);
    }
    for (int c = 0; !whole && c < kChannels / pixel; ++c) {
      memcpy(dst + c * plane, last + c * kBlock, static_cast<std::size_t>(count * pixel));
    }
  }
}

struct Rows {
  template <PlanarOutput kOutput, int kFirst, int kOthers>
  static constexpr auto of = row_of<kOutput, kFirst, kOthers>;
};

}  // namespace

const PlanarKernels kPlanarAvx2 = {taps_avx2, columns_avx2, make_row<Rows>};

}  // namespace fastio
