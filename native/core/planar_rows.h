// The row pass with AVX-512, compiled twice. A register holds 32 outputs, in the order in which the
// column pass of each kind writes them.
#pragma once

#include "intrinsics.h"
#include "planar_dispatch.h"
#include "planar_kernels.h"
#include "planar_taps.h"

namespace fastio {
namespace {

constexpr int kBlock = 2 * kPlanarLanes;

// The inputs of a row from one plane. kCount: the number of taps if it is known, else 0.
template <int kCount>
struct PlaneRow {
  static constexpr int kKept = kCount > 0 ? kCount : kMaxHighHalves;
  const std::int16_t* rows[kKept];
  __m512i weights[kKept];
  __m512i init;
  std::int32_t count;
  explicit PlaneRow(const PlanarRow& row)
      : init(_mm512_set1_epi16(row.init)), count(kCount > 0 ? kCount : row.count) {
    for (std::int32_t k = 0; k < count; ++k) {
      rows[k] = row.rows[k];
      weights[k] = _mm512_set1_epi32(row.weights[k * kPlanarLanes]);
    }
  }
  // Returns the sums of columns [x, x + kBlock).
  __m512i sum(std::int32_t x) const {
    __m512i sum = init;
    for (std::int32_t k = 0; k < (kCount > 0 ? kCount : count); ++k) {
      sum = _mm512_sub_epi16(sum, _mm512_mulhi_epi16(_mm512_load_si512(rows[k] + x), weights[k]));
    }
    return sum;
  }
};

inline __m512i scaled(__m512i sum, int factor) {
  return _mm512_mulhi_epi16(sum, _mm512_set1_epi16(static_cast<std::int16_t>(factor)));
}

// Converts Y, Cb, Cr to R, G, B.
inline void convert(__m512i* planes) {
  const __m512i y = planes[0], b = planes[1], r = planes[2];
  const __m512i blue = _mm512_sub_epi16(_mm512_add_epi16(b, b), scaled(b, kBlueOfCbLess));
  const __m512i green =
      _mm512_sub_epi16(_mm512_add_epi16(scaled(b, kGreenOfCb), r), scaled(r, kGreenOfCrLess));
  planes[0] = _mm512_adds_epi16(y, _mm512_add_epi16(r, scaled(r, kRedOfCr)));
  planes[1] = _mm512_subs_epi16(y, green);
  planes[2] = _mm512_adds_epi16(y, blue);
}

// Converts R, G, B to Y.
inline __m512i luma(const __m512i* planes) {
  const __m512i g = planes[1];
  return _mm512_add_epi16(_mm512_add_epi16(scaled(planes[0], kLumaOfRed),
                                           _mm512_sub_epi16(g, scaled(g, kLumaOfGreenLess))),
                          scaled(planes[2], kLumaOfBlue));
}

// Converts two registers of sums to bytes. Each 128-bit quarter has 8 of `a`, then 8 of `b`.
inline __m512i to_bytes(__m512i a, __m512i b, __m128i bits) {
  return _mm512_packus_epi16(_mm512_sra_epi16(a, bits), _mm512_sra_epi16(b, bits));
}

inline __mmask64 first_bytes(std::int32_t count) {
  if (count <= 0) return 0;
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}

#ifdef __AVX512VBMI__

// The quarter that holds each output 0 .. 31 of two packed groups, and its position among 8 there.
constexpr int packed_quarter(int output) { return output % kPlanarLanes / 4; }
constexpr int packed_place(int output) { return output / kPlanarLanes * 4 + output % 4; }

// pixel, third: the byte permutation that makes 32 pixels from to_bytes() of the first two channels
// and to_bytes() of the third one, and a mask of the bytes that are of the third. values: the
// permutation that separates the 32 values of two channels.
struct alignas(64) PixelIndex {
  std::uint8_t pixel[128], values[64];
  std::uint64_t third[2];
  constexpr PixelIndex() : pixel(), values(), third() {
    for (int k = 0; k < 96; ++k) {
      const int place = packed_quarter(k / 3) * 16 + packed_place(k / 3);
      pixel[k] = static_cast<std::uint8_t>(place + (k % 3 == 1 ? 8 : 0));
      if (k % 3 == 2) third[k / 64] |= std::uint64_t{1} << k % 64;
    }
    for (int k = 0; k < 32; ++k) {
      values[k] = static_cast<std::uint8_t>(packed_quarter(k) * 16 + packed_place(k));
      values[32 + k] = static_cast<std::uint8_t>(values[k] + 8);
    }
  }
};
constexpr PixelIndex kIndex;

// Stores `count` of 32 pixels, 96 bytes.
inline void store_pixels(const __m512i* sums, __m128i bits, std::int32_t count, std::uint8_t* dst) {
  const __m512i two = to_bytes(sums[0], sums[1], bits), third = to_bytes(sums[2], sums[2], bits);
  const auto pixels = [&](int part) {
    const __m512i index = _mm512_load_si512(kIndex.pixel + 64 * part);
    return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(index, two), kIndex.third[part],
                                        index, third);
  };
  if (count == kBlock) {
    _mm512_storeu_si512(dst, pixels(0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 64), _mm512_castsi512_si256(pixels(1)));
  } else {
    _mm512_mask_storeu_epi8(dst, first_bytes(3 * count), pixels(0));
    _mm512_mask_storeu_epi8(dst + 64, first_bytes(3 * count - 64), pixels(1));
  }
}

// Returns 32 values of each of two channels, those of the second one in the upper half.
inline __m512i values(__m512i a, __m512i b, __m128i bits) {
  return _mm512_permutexvar_epi8(_mm512_load_si512(kIndex.values), to_bytes(a, b, bits));
}

#else  // outputs are in order

// Byte shuffles that make the 8 pixels (24 bytes) of a quarter from [8 of R, 8 of G] and
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
constexpr PixelShuffles kShuffles;

inline __m512i in_each_quarter(const std::uint8_t* from) {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}

template <int kQuarter>
inline void store_quarter(__m512i first, __m512i rest, std::int32_t count, std::uint8_t* dst) {
  const __m128i low = _mm512_extracti32x4_epi32(first, kQuarter);
  const __m128i high = _mm512_extracti32x4_epi32(rest, kQuarter);
  dst += 24 * kQuarter;
  count = 3 * (count - 8 * kQuarter);
  _mm_mask_storeu_epi8(dst, static_cast<__mmask16>(first_bytes(count)), low);
  _mm_mask_storeu_epi8(dst + 16, static_cast<__mmask16>(first_bytes(count - 16) & 0xff), high);
}

// Stores `count` of 32 pixels, 96 bytes.
inline void store_pixels(const __m512i* sums, __m128i bits, std::int32_t count, std::uint8_t* dst) {
  const __m512i two = to_bytes(sums[0], sums[1], bits), third = to_bytes(sums[2], sums[2], bits);
  const auto pixels = [&](int part) {
    return _mm512_or_si512(_mm512_shuffle_epi8(two, in_each_quarter(kShuffles.red_green[part])),
                           _mm512_shuffle_epi8(third, in_each_quarter(kShuffles.blue[part])));
  };
  const __m512i first = pixels(0), rest = pixels(1);
  store_quarter<0>(first, rest, count, dst);
  store_quarter<1>(first, rest, count, dst);
  store_quarter<2>(first, rest, count, dst);
  store_quarter<3>(first, rest, count, dst);
}

// Returns 32 values of each of two channels, those of the second one in the upper half.
inline __m512i values(__m512i a, __m512i b, __m128i bits) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), to_bytes(a, b, bits));
}

#endif

inline void store_values(__m256i values, std::int32_t count, std::uint8_t* dst) {
  if (count == kBlock) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), values);
  } else {
    _mm256_mask_storeu_epi8(dst, static_cast<__mmask32>(first_bytes(count)), values);
  }
}

// Stores `count` of 32 values of each channel, `plane` bytes apart.
inline void store_planes(const __m512i* sums, __m128i bits, std::int32_t count, std::uint8_t* dst,
                         std::ptrdiff_t plane) {
  const __m512i two = values(sums[0], sums[1], bits), third = values(sums[2], sums[2], bits);
  store_values(_mm512_castsi512_si256(two), count, dst);
  store_values(_mm512_extracti64x4_epi64(two, 1), count, dst + plane);
  store_values(_mm512_castsi512_si256(third), count, dst + 2 * plane);
}

// Computes a row; see PlanarRowKernel. kFirst, kOthers: the kCount of PlaneRow, for component 0 and
// for the others.
template <PlanarOutput kOutput, int kFirst, int kOthers>
void row_of(const PlanarRow* planes, int bits, std::int32_t outputs, std::uint8_t* dst,
            std::ptrdiff_t plane) {
  constexpr bool kOnePlane = kOutput == PlanarOutput::gray || kOutput == PlanarOutput::gray_three;
  constexpr bool kOneChannel = kOutput == PlanarOutput::gray || kOutput == PlanarOutput::rgb_luma;
  const PlaneRow<kFirst> first(planes[0]);
  const PlaneRow<kOthers> second(planes[kOnePlane ? 0 : 1]), third(planes[kOnePlane ? 0 : 2]);
  const __m128i shift = _mm_cvtsi32_si128(bits);
  const std::ptrdiff_t pixel = kOneChannel || plane != 0 ? 1 : 3;  // bytes to the next one
  for (std::int32_t x = 0; x < outputs; x += kBlock, dst += kBlock * pixel) {
    const std::int32_t count = at_most(outputs - x, kBlock);
    __m512i sums[3];
    sums[0] = first.sum(x);
    if constexpr (!kOnePlane) {
      sums[1] = second.sum(x);
      sums[2] = third.sum(x);
    } else {
      sums[1] = sums[2] = sums[0];
    }
    if constexpr (kOutput == PlanarOutput::ycbcr) convert(sums);
    if constexpr (kOutput == PlanarOutput::rgb_luma) sums[0] = luma(sums);
    if constexpr (kOneChannel) {
      store_values(_mm512_castsi512_si256(values(sums[0], sums[0], shift)), count, dst);
    } else if (plane == 0) {
      store_pixels(sums, shift, count, dst);
    } else {
      store_planes(sums, shift, count, dst, plane);
    }
  }
}

struct Rows {
  template <PlanarOutput kOutput, int kFirst, int kOthers>
  static constexpr auto of = row_of<kOutput, kFirst, kOthers>;
};

}  // namespace
}  // namespace fastio
