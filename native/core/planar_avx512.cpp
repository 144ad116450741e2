// Column pass: one byte permutation (VBMI) fetches the pairs of taps of 16 outputs, and its zero
// mask widens them to 16 bits; one vpdpwssd multiplies and adds them. Row pass: 32 outputs per
// register, in the order that packing two groups' sums gives; the last permutation restores the
// order.
#include "intrinsics.h"
#include "planar_kernels.h"
#include "planar_rows.h"
#include "planar_taps.h"

namespace fastio {
namespace {

constexpr PlanarTapLayout kLayout = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                     kPlanarLanes};

void taps_avx512(const PlanarTapSpec& spec, PlanarTaps* taps) { compute_taps(spec, kLayout, taps); }

// The samples of a group, in kLoads registers. If two registers are not enough, kLoads is 0, and
// each pair of taps is gathered.
template <int kLoads>
struct Samples {
  __m512i low, high;
  void load(const std::uint8_t* from) {
    low = _mm512_loadu_si512(from);
    if constexpr (kLoads == 2) high = _mm512_loadu_si512(from + 64);
  }
  __m512i pairs(__m512i index) const {
    constexpr __mmask64 kLowBytes = 0x5555555555555555;
    if constexpr (kLoads == 2) {
      return _mm512_maskz_permutex2var_epi8(kLowBytes, low, index, high);
    } else {
      return _mm512_maskz_permutexvar_epi8(kLowBytes, index, low);
    }
  }
};

// Computes the sums of a group of outputs for kPlanarRows rows.
template <int kLoads, int kPairs, bool kLoad>
inline void sum_group(const PlanarTaps& t, std::int32_t g, const std::uint8_t* const* src,
                      Samples<kLoads>* samples, __m512i* sums) {
  const std::int32_t pairs = kPairs ? kPairs : t.pairs;
  const __m512i two = _mm512_set1_epi32(0x00020002);
  std::ptrdiff_t base = t.base[g];
  __m512i index = _mm512_load_si512(t.index + g);
  if constexpr (kLoads == 2) {  // the second load must not pass the last sample: move both
    const std::ptrdiff_t latest = t.last - t.first - 64;
    if (base > latest) {
      index = _mm512_add_epi8(index, _mm512_set1_epi8(static_cast<char>(base - latest)));
      base = latest;
    }
  }
  const PlanarWords* weights = t.weights + static_cast<std::ptrdiff_t>(g) * pairs;
  for (int j = 0; j < kPlanarRows; ++j) {
    if (kLoad) samples[j].load(src[j] + base);
    sums[j] = _mm512_set1_epi32(64 - (128 << kPlanarColumnBits));
  }
  for (std::int32_t p = 0; p < pairs; ++p) {
    const __m512i w = _mm512_load_si512(weights + p);
    for (int j = 0; j < kPlanarRows; ++j) {
      sums[j] = _mm512_dpwssd_epi32(sums[j], samples[j].pairs(index), w);
    }
    index = _mm512_add_epi8(index, two);
  }
}

// Like sum_group(), with gathers. Pairs past the row's last sample read that one, and have a weight
// of 0.
inline void sum_group_far(const PlanarTaps& t, std::int32_t g, const std::uint8_t* const* src,
                          __m512i* sums) {
  const __m512i first =
      _mm512_sub_epi32(_mm512_loadu_si512(t.start + g * kPlanarLanes), _mm512_set1_epi32(t.first));
  const __m512i last = _mm512_set1_epi32(t.last - t.first - 1);
  const __m512i widen = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
  const PlanarWords* weights = t.weights + static_cast<std::ptrdiff_t>(g) * t.pairs;
  for (int j = 0; j < kPlanarRows; ++j) {
    sums[j] = _mm512_set1_epi32(64 - (128 << kPlanarColumnBits));
    for (std::int32_t p = 0; p < t.pairs; ++p) {
      const __m512i at = _mm512_min_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(2 * p)), last);
      const __m512i bytes = _mm512_i32gather_epi32(at, src[j], 1);
      sums[j] = _mm512_dpwssd_epi32(sums[j], _mm512_shuffle_epi8(bytes, widen),
                                    _mm512_load_si512(weights + p));
    }
  }
}

template <int kLoads, int kPairs, bool kShared>
void columns_of_rows(const PlanarTaps& taps, const std::uint8_t* const* rows, PlanarMiddle* dst,
                     std::size_t blocks) {
  const std::uint8_t* const src[kPlanarRows] = {rows[0], rows[1], rows[2], rows[3]};
  const PlanarTaps t = taps;  // a copy that stores cannot alias
  for (std::int32_t g = 0; g < t.groups; g += 2, ++dst) {
    const std::int32_t next = g + 1 < t.groups ? g + 1 : g;
    __m512i even[kPlanarRows], odd[kPlanarRows];
    if constexpr (kLoads == 0) {
      sum_group_far(t, g, src, even);
      sum_group_far(t, next, src, odd);
    } else {
      Samples<kLoads> samples[kPlanarRows];
      sum_group<kLoads, kPairs, true>(t, g, src, samples, even);
      sum_group<kLoads, kPairs, !kShared>(t, next, src, samples, odd);
    }
    for (int j = 0; j < kPlanarRows; ++j) {
      _mm512_store_si512(
          dst + static_cast<std::size_t>(j) * blocks,
          _mm512_packs_epi32(_mm512_srai_epi32(even[j], 7), _mm512_srai_epi32(odd[j], 7)));
    }
  }
}

void columns_avx512(const PlanarTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
                    std::int32_t rows, PlanarMiddle* dst, std::size_t blocks) {
  using Kernel = void(const PlanarTaps&, const std::uint8_t* const*, PlanarMiddle*, std::size_t);
  static constexpr Kernel* kKernels[2][5] = {
      {columns_of_rows<1, 0, false>, columns_of_rows<1, 1, false>, columns_of_rows<1, 2, false>,
       columns_of_rows<1, 3, false>, columns_of_rows<1, 4, false>},
      {columns_of_rows<1, 0, true>, columns_of_rows<1, 1, true>, columns_of_rows<1, 2, true>,
       columns_of_rows<1, 3, true>, columns_of_rows<1, 4, true>}};
  const std::uint8_t* at[kPlanarRows];
  for (std::int32_t j = 0; j < kPlanarRows; ++j) at[j] = src + at_most(j, rows - 1) * src_stride;
  if (taps.span > 128) {
    columns_of_rows<0, 0, false>(taps, at, dst, blocks);
  } else if (taps.span > 64) {
    columns_of_rows<2, 0, false>(taps, at, dst, blocks);
  } else {
    kKernels[taps.shared][taps.pairs <= 4 ? taps.pairs : 0](taps, at, dst, blocks);
  }
}

}  // namespace

const PlanarKernels kPlanarAvx512 = {taps_avx512, columns_avx512, make_row<Rows>};

}  // namespace fastio
