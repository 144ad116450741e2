#include "cpu.h"

#include <atomic>

#include "cpu_features.h"

#ifdef FASTIO_X86
#include <cpuid.h>
#endif
#ifdef FASTIO_ARM64
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace fastio {
namespace {

constexpr SimdLevel kLevels[] = {
    {"portable", Simd::portable}, {"avx2", Simd::avx2}, {"avx512bw", Simd::avx512bw},
    {"avx512", Simd::avx512},     {"neon", Simd::neon}, {"sve2", Simd::sve2},
};

#ifdef FASTIO_X86

// Registers EBX of CPUID's leaf 0: the first four letters of the manufacturer's name.
constexpr unsigned kAuthenticAmd = 0x68747541, kHygonGenuine = 0x6f677948,
                   kGenuineIntel = 0x756e6547;

unsigned manufacturer() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) ? b : 0;
}

// AMD families before 19h (Zen 3) and Hygon's copies of Zen 1 run pdep as microcode.
bool has_fast_pdep() {
  const unsigned made_by = manufacturer();
  if (made_by != kAuthenticAmd) return made_by != 0 && made_by != kHygonGenuine;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const unsigned family = ((a >> 8) & 15) + ((a >> 20) & 255);
  return family >= 0x19;
}

Simd detect() {
  const bool avx2 = cpu_supports(CpuFeature::avx2) && cpu_supports(CpuFeature::bmi) &&
                    cpu_supports(CpuFeature::bmi2) && cpu_supports(CpuFeature::fma) &&
                    cpu_supports(CpuFeature::popcnt) && cpu_supports(CpuFeature::f16c) &&
                    cpu_supports(CpuFeature::lzcnt) && cpu_supports(CpuFeature::pclmul);
  if (!avx2) return Simd::portable;
  unsigned features = kAvx2;
  if (has_fast_pdep()) features |= kPdep;
  if (!cpu_supports(CpuFeature::avx512f) || !cpu_supports(CpuFeature::avx512bw) ||
      !cpu_supports(CpuFeature::avx512vl) || !cpu_supports(CpuFeature::avx512dq))
    return {features};
  features |= kAvx512bw;
  if (cpu_supports(CpuFeature::avx512vbmi) && cpu_supports(CpuFeature::avx512vbmi2) &&
      cpu_supports(CpuFeature::avx512vnni) && cpu_supports(CpuFeature::avx512bitalg) &&
      cpu_supports(CpuFeature::avx512vpopcntdq) && cpu_supports(CpuFeature::gfni) &&
      cpu_supports(CpuFeature::vpclmulqdq))
    features |= kAvx512;
  return {features};
}

#elif defined(FASTIO_ARM64)

// NEON is part of the architecture; the CRC instructions are from ARMv8.1 on.
Simd detect() {
  if (!(getauxval(AT_HWCAP) & HWCAP_CRC32)) return Simd::portable;
  return getauxval(AT_HWCAP2) & HWCAP2_SVEBITPERM ? Simd::sve2 : Simd::neon;
}

#else

Simd detect() { return Simd::portable; }

#endif

std::atomic<unsigned>& active() {
  static std::atomic<unsigned> features{simd_best().features};
  return features;
}

}  // namespace

Simd simd_best() {
  static const Simd best = detect();
  return best;
}

Simd simd_active() { return {active().load(std::memory_order_relaxed)}; }

void simd_force(Simd features) {
  active().store(features.features & simd_best().features, std::memory_order_relaxed);
}

bool prefetch_writes() {
#ifdef FASTIO_X86
  static const bool faster = manufacturer() == kGenuineIntel;
  return faster;
#else
  return false;
#endif
}

std::vector<SimdLevel> simd_levels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel& level : kLevels)
    if (simd_best().has(level.features.features)) levels.push_back(level);
  return levels;
}

const char* simd_name(Simd simd) {
  const char* name = kLevels[0].name;
  for (const SimdLevel& level : kLevels)
    if (simd.has(level.features.features)) name = level.name;
  return name;
}

}  // namespace fastio
