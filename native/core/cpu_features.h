// What an x86 processor and its operating system support, asked of the processor.
//
// The compilers' own __builtin_cpu_supports reads what their run-time library found out: zig's
// library, with which wheels are made, finds nothing out, and older ones lack some of the names.
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
  avx512vnni,
  gfni,
  vpclmulqdq,
};

// True where the processor has the feature, and the operating system saves the registers that its
// instructions use. Executes CPUID: keep the answer.
bool cpu_supports(CpuFeature feature);

}  // namespace fastio

#endif
