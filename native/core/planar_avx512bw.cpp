// Column pass: as with AVX2, with the same taps and order of lanes, but a whole group per register.
// Row pass: 32 outputs per register, in order.
#include "intrinsics.h"
#include "planar_kernels.h"
#include "planar_rows.h"
#include "planar_taps.h"

namespace fastio {
namespace {

constexpr int kBaseLanes = 4;

constexpr PlanarTapLayout kLayout = {{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15},
                                     kBaseLanes};

void taps_avx512bw(const PlanarTapSpec& spec, PlanarTaps* taps) {
  compute_taps(spec, kLayout, taps);
}

inline __m128i load16(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// Loads 16 bytes from each of four positions.
inline __m512i load_quarters(const std::uint8_t* src, const std::int32_t* base) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(src + base[0])),
                                              load16(src + base[1]), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(src + base[2])),
                                               load16(src + base[3]), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Computes the sums of a group of outputs for kPlanarRows rows.
template <int kPairs>
inline void sum_group(const PlanarTaps& t, std::int32_t g, const std::uint8_t* const* src,
                      __m512i* sums) {
  const std::int32_t pairs = kPairs ? kPairs : t.pairs;
  const __m512i two = _mm512_set1_epi16(2);
  const std::int32_t* base = t.base + g * (kPlanarLanes / kBaseLanes);
  __m512i index = _mm512_or_si512(_mm512_load_si512(t.index + g),
                                  _mm512_set1_epi16(static_cast<std::int16_t>(0x8000)));
  const PlanarWords* weights = t.weights + static_cast<std::ptrdiff_t>(g) * pairs;
  __m512i samples[kPlanarRows];
  for (int j = 0; j < kPlanarRows; ++j) {
    samples[j] = load_quarters(src[j], base);
    sums[j] = _mm512_set1_epi32(64 - (128 << kPlanarColumnBits));
  }
  for (std::int32_t p = 0; p < pairs; ++p) {
    const __m512i w = _mm512_load_si512(weights + p);
    for (int j = 0; j < kPlanarRows; ++j)
      sums[j] =
          _mm512_add_epi32(sums[j], _mm512_madd_epi16(_mm512_shuffle_epi8(samples[j], index), w));
    index = _mm512_add_epi16(index, two);
  }
}

template <int kPairs>
void columns_of_rows(const PlanarTaps& taps, const std::uint8_t* const* rows, PlanarMiddle* dst,
                     std::size_t blocks) {
  const std::uint8_t* const src[kPlanarRows] = {rows[0], rows[1], rows[2], rows[3]};
  const PlanarTaps t = taps;  // a copy that stores cannot alias
  const __m512i in_order = _mm512_setr_epi64(0, 4, 2, 6, 1, 5, 3, 7);
  for (std::int32_t g = 0; g < t.groups; g += 2, ++dst) {
    __m512i even[kPlanarRows], odd[kPlanarRows];
    sum_group<kPairs>(t, g, src, even);
    sum_group<kPairs>(t, g + 1 < t.groups ? g + 1 : g, src, odd);
    for (int j = 0; j < kPlanarRows; ++j) {
      const __m512i packed =
          _mm512_packs_epi32(_mm512_srai_epi32(even[j], 7), _mm512_srai_epi32(odd[j], 7));
      _mm512_store_si512(dst + static_cast<std::size_t>(j) * blocks,
                         _mm512_permutexvar_epi64(in_order, packed));
    }
  }
}

void columns_avx512bw(const PlanarTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
                      std::int32_t rows, PlanarMiddle* dst, std::size_t blocks) {
  using Kernel = void(const PlanarTaps&, const std::uint8_t* const*, PlanarMiddle*, std::size_t);
  static constexpr Kernel* kKernels[] = {columns_of_rows<0>, columns_of_rows<1>, columns_of_rows<2>,
                                         columns_of_rows<3>, columns_of_rows<4>};
  if (taps.span > 16) return kPlanarAvx2.columns(taps, src, src_stride, rows, dst, blocks);
  const std::uint8_t* at[kPlanarRows];
  for (std::int32_t j = 0; j < kPlanarRows; ++j) at[j] = src + at_most(j, rows - 1) * src_stride;
  kKernels[taps.pairs <= 4 ? taps.pairs : 0](taps, at, dst, blocks);
}

}  // namespace

const PlanarKernels kPlanarAvx512bw = {taps_avx512bw, columns_avx512bw, make_row<Rows>};

}  // namespace fastio
