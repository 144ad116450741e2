#include "cpu.h"

#include <algorithm>
#include <atomic>

#ifdef FASTIO_X86
#include <cpuid.h>
#endif

namespace fastio {
namespace {

#ifdef FASTIO_X86

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
Simd detect_simd() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("popcnt");
  // F16C and LZCNT have no name here in older compilers; they are bits of CPUID leaves 1 and
  // 0x80000001.
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  const bool lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
  if (!avx2 || !f16c || !lzcnt) return Simd::portable;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vnni") &&
                      __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul");
  return avx512 ? Simd::avx512 : Simd::avx2;
}

// AMD families before 19h (Zen 3) and Hygon's copies of Zen 1 run pdep as microcode.
bool detect_fast_pdep() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("bmi2")) return false;
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
