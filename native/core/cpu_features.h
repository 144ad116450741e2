// The features that an x86 processor and its operating system support, read with CPUID.
//
// The compilers' __builtin_cpu_supports depends on their run-time library. That of zig, with which
// wheels are built, reports no features, and older ones do not know some of the names.
#pragma once

#ifdef FASTIO_X86

namespace fastio {

enum class CpuFeature {
  popcnt,
  pclmul,
  sse42,
  fma,
  f16c,
  lzcnt,
  bmi,
  bmi2,
  avx2,
  avx512f,
  avx512dq,
  avx512bw,
  avx512vl,
  avx512vbmi,
  avx512vbmi2,
  avx512vnni,
  avx512bitalg,
  avx512vpopcntdq,
  gfni,
  vpclmulqdq,
};

// True if the processor has the feature and the operating system saves the registers that its
// instructions use. Executes CPUID, which is slow: keep the result.
bool cpu_supports(CpuFeature feature);

}  // namespace fastio

#endif
