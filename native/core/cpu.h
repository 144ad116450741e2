// Which instruction sets the kernels may use, found out once a process.
//
// Every kernel has a portable path and may have faster ones; all paths of a kernel give equal
// bytes, so the choice is about speed alone. A family of kernels is a table of choices, the fastest
// first, each with what it needs; choose() takes the first that the active set meets. All functions
// are thread-safe and cost one load.
#pragma once

#include <cstddef>
#include <vector>

namespace fastio {

// What a kernel may need, as bits. Files named *_avx2.cpp, *_avx512bw.cpp and *_avx512.cpp are
// compiled for kAvx2, kAvx512bw and kAvx512 (CMakeLists.txt), of which each includes those before;
// files named *_neon.cpp for kNeon.
enum Feature : unsigned {
  kAvx2 = 1,      // AVX2, BMI1, BMI2, FMA, F16C, LZCNT and POPCNT
  kPdep = 2,      // pdep and pext are not microcode: BMI2, but for AMD before Zen 3
  kAvx512bw = 4,  // AVX-512 F, BW, VL and DQ: Skylake-X, Cascade Lake
  kAvx512 = 8,    // and VBMI, VNNI and VPCLMULQDQ: Ice Lake, Zen 4
  kNeon = 16,     // 64-bit ARM with NEON and the CRC instructions
};

// A set of features.
struct Simd {
  unsigned features = 0;

  constexpr bool has(unsigned needs) const { return (features & needs) == needs; }
  friend constexpr bool operator==(Simd, Simd) = default;

  // Those of the main kinds of processors.
  static const Simd portable, avx2, avx512bw, avx512, neon;
};
inline constexpr Simd Simd::portable{};
inline constexpr Simd Simd::avx2{kAvx2 | kPdep};
inline constexpr Simd Simd::avx512bw{Simd::avx2.features | kAvx512bw};
inline constexpr Simd Simd::avx512{Simd::avx512bw.features | kAvx512};
inline constexpr Simd Simd::neon{kNeon};

// All that this processor and its operating system support.
Simd simd_best();

// What kernels use: simd_best(), unless simd_force() said otherwise.
Simd simd_active();

// Makes kernels use those of `features` that the processor has. For tests and benchmarks. It holds
// for the whole process, for calls that begin after it returns.
void simd_force(Simd features);

// The main kinds, portable first, of which this processor has all features; as users see them.
struct SimdLevel {
  const char* name;
  Simd features;
};
std::vector<SimdLevel> simd_levels();

// The last of them whose features `simd` has: "portable", "avx2", ...
const char* simd_name(Simd simd);

// One of a family's kernels.
template <typename Kernel>
struct Choice {
  unsigned needs;
  Kernel kernel;
};

// The first of `choices` whose needs the active features meet. The last one needs nothing.
template <typename Kernel, std::size_t count>
const Kernel& choose(const Choice<Kernel> (&choices)[count]) {
  const Simd active = simd_active();
  std::size_t i = 0;
  while (i + 1 < count && !active.has(choices[i].needs)) ++i;
  return choices[i].kernel;
}

}  // namespace fastio
