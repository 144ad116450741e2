// The instruction sets that kernels may use, determined once per process.
//
// Every kernel has a portable path and may have faster ones. All paths of a kernel give equal
// bytes, so the choice affects only the speed. The kernels of a family are listed in a table, the
// fastest first, each with the features that it needs; choose() returns the first kernel whose
// needs are met. All functions are thread-safe and cost one load.
#pragma once

#include <cstddef>
#include <vector>

namespace fastio {

// The features that a kernel may need, as bits. CMakeLists.txt compiles files named *_avx2.cpp,
// *_avx512bw.cpp and *_avx512.cpp for kAvx2, kAvx512bw and kAvx512, each of which includes those
// before it, files named *_neon.cpp for kNeon, and files named *_sve2.cpp for kNeon and kBdep.
enum Feature : unsigned {
  kAvx2 = 1,      // AVX2, BMI1, BMI2, FMA, F16C, LZCNT, POPCNT and PCLMULQDQ
  kPdep = 2,      // pdep and pext are not microcode: BMI2, but for AMD before Zen 3
  kAvx512bw = 4,  // AVX-512 F, BW, VL and DQ: Skylake-X, Cascade Lake
  kAvx512 = 8,    // and VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ, GFNI and VPCLMULQDQ: Ice Lake, Zen 4
  kNeon = 16,     // 64-bit ARM with NEON and the CRC instructions
  kBdep = 32,     // SVE2 with the bit permutations: bdep, which is ARM's pdep
};

// A set of features.
struct Simd {
  unsigned features = 0;

  constexpr bool has(unsigned needs) const { return (features & needs) == needs; }
  friend constexpr bool operator==(Simd, Simd) = default;

  // The usual sets: portable has no features.
  static const Simd portable, avx2, avx512bw, avx512, neon, sve2;
};
inline constexpr Simd Simd::portable{};
inline constexpr Simd Simd::avx2{kAvx2 | kPdep};
inline constexpr Simd Simd::avx512bw{Simd::avx2.features | kAvx512bw};
inline constexpr Simd Simd::avx512{Simd::avx512bw.features | kAvx512};
inline constexpr Simd Simd::neon{kNeon};
inline constexpr Simd Simd::sve2{Simd::neon.features | kBdep};

// All features that this processor and its operating system support.
Simd simd_best();

// The features that kernels use now: simd_best(), unless simd_force() has set others.
Simd simd_active();

// Restricts kernels to those of `features` that the processor has. For tests and benchmarks.
// Applies to the whole process, and to calls that begin after it returns.
void simd_force(Simd features);

// Whether long runs of memory beyond the caches are written faster if their lines are prefetched
// for writing. True for Intel's processors: a core of a Xeon (AVX-512) then writes the fields of
// tokens at 17 to 19 GB/s instead of 11 to 15. On AMD's Zen 4, prefetching halved the rate of
// batches larger than the last-level cache. Independent of simd_force().
bool prefetch_writes();

// A usual set of features, with the name that users see.
struct SimdLevel {
  const char* name;
  Simd features;
};
// The levels whose features this processor has, portable first.
std::vector<SimdLevel> simd_levels();

// The name of the last level whose features `simd` has: "portable", "avx2", ...
const char* simd_name(Simd simd);

// One kernel of a family, and the features that it needs.
template <typename Kernel>
struct Choice {
  unsigned needs;
  Kernel kernel;
};

// Returns the first kernel of `choices` whose needs the active features meet. The last one must
// need nothing.
template <typename Kernel, std::size_t count>
const Kernel& choose(const Choice<Kernel> (&choices)[count]) {
  const Simd active = simd_active();
  std::size_t i = 0;
  while (i + 1 < count && !active.has(choices[i].needs)) ++i;
  return choices[i].kernel;
}

}  // namespace fastio
