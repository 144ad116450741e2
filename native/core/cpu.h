// Which instruction sets the kernels may use, found out once a process.
//
// Every kernel has a portable path and may have faster ones; all paths of a kernel give equal
// bytes, so the choice is about speed alone. All functions are thread-safe and cost one load.
#pragma once

namespace fastio {

// Ordered: a processor that can do one level can do all levels below it.
enum class Simd : int {
  portable = 0,
  avx2 = 1,    // AVX2, BMI2, FMA and F16C
  avx512 = 2,  // avx2 and AVX-512 F, BW, VL, DQ, VBMI, VNNI and VPCLMULQDQ
};

// The highest level that this processor and its operating system support.
Simd simd_best();

// The level that kernels use: simd_best(), unless simd_force() said otherwise.
Simd simd_active();

// Makes kernels use `level`, or simd_best() where that is lower. For tests and benchmarks. It holds
// for the whole process, for calls that begin after it returns.
void simd_force(Simd level);

// False where pdep and pext take hundreds of cycles (no BMI2; AMD before Zen 3), so that codecs
// built on them should take their portable path whatever simd_active() says.
bool fast_pdep();

}  // namespace fastio
