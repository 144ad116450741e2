#include "cpu.h"

#include <algorithm>
#include <atomic>

#include "cpu_features.h"

#ifdef FASTIO_X86
#include <cpuid.h>
#endif

namespace fastio {
namespace {

#ifdef FASTIO_X86

Simd detect_simd() {
  const bool avx2 = cpu_supports(CpuFeature::avx2) && cpu_supports(CpuFeature::bmi) &&
                    cpu_supports(CpuFeature::bmi2) && cpu_supports(CpuFeature::fma) &&
                    cpu_supports(CpuFeature::popcnt) && cpu_supports(CpuFeature::f16c) &&
                    cpu_supports(CpuFeature::lzcnt);
  if (!avx2) return Simd::portable;
  const bool avx512 = cpu_supports(CpuFeature::avx512f) && cpu_supports(CpuFeature::avx512bw) &&
                      cpu_supports(CpuFeature::avx512vl) && cpu_supports(CpuFeature::avx512dq) &&
                      cpu_supports(CpuFeature::avx512vbmi) &&
                      cpu_supports(CpuFeature::avx512vnni) &&
                      cpu_supports(CpuFeature::vpclmulqdq) && cpu_supports(CpuFeature::pclmul);
  return avx512 ? Simd::avx512 : Simd::avx2;
}

// AMD families before 19h (Zen 3) and Hygon's copies of Zen 1 run pdep as microcode.
bool detect_fast_pdep() {
  if (!cpu_supports(CpuFeature::bmi2)) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAuthenticAmd = 0x68747541, kHygonGenuine = 0x6f677948;  // first 4 letters
  if (b == kHygonGenuine) return false;
  if (b != kAuthenticAmd) return true;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const unsigned family = ((a >> 8) & 15) + ((a >> 20) & 255);
  return family >= 0x19;
}

#else

Simd detect_simd() { return Simd::portable; }
bool detect_fast_pdep() { return false; }

#endif

std::atomic<int>& active() {
  static std::atomic<int> level{static_cast<int>(simd_best())};
  return level;
}

}  // namespace

Simd simd_best() {
  static const Simd best = detect_simd();
  return best;
}

Simd simd_active() { return static_cast<Simd>(active().load(std::memory_order_relaxed)); }

void simd_force(Simd level) {
  active().store(std::min(static_cast<int>(level), static_cast<int>(simd_best())),
                 std::memory_order_relaxed);
}

bool fast_pdep() {
  static const bool fast = detect_fast_pdep();
  return fast;
}

}  // namespace fastio
