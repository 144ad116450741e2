#include "cpu_features.h"

#ifdef FASTIO_X86

#include <cpuid.h>

#include <cstdint>

namespace fastio {
namespace {

enum Register { kEbx, kEcx };
// The register states that the operating system must save, as bits of XCR0.
enum Saved : std::uint32_t { kSse = 0x2, kYmm = 0x6, kZmm = 0xe6 };

// The bit of CPUID that reports a feature (Intel's manual, volume 2, CPUID; AMD's volume 3,
// appendix E), and the registers that must be saved.
struct Place {
  unsigned leaf;
  Register in;
  unsigned bit;
  Saved saved;
};

Place place_of(CpuFeature feature) {
  switch (feature) {
    case CpuFeature::popcnt:
      return {1, kEcx, 23, kSse};
    case CpuFeature::pclmul:
      return {1, kEcx, 1, kSse};
    case CpuFeature::sse42:
      return {1, kEcx, 20, kSse};
    case CpuFeature::fma:
      return {1, kEcx, 12, kYmm};
    case CpuFeature::f16c:
      return {1, kEcx, 29, kYmm};
    case CpuFeature::lzcnt:
      return {0x80000001, kEcx, 5, kSse};
    case CpuFeature::bmi:
      return {7, kEbx, 3, kSse};
    case CpuFeature::bmi2:
      return {7, kEbx, 8, kSse};
    case CpuFeature::avx2:
      return {7, kEbx, 5, kYmm};
    case CpuFeature::avx512f:
      return {7, kEbx, 16, kZmm};
    case CpuFeature::avx512dq:
      return {7, kEbx, 17, kZmm};
    case CpuFeature::avx512bw:
      return {7, kEbx, 30, kZmm};
    case CpuFeature::avx512vl:
      return {7, kEbx, 31, kZmm};
    case CpuFeature::avx512vbmi:
      return {7, kEcx, 1, kZmm};
    case CpuFeature::avx512vbmi2:
      return {7, kEcx, 6, kZmm};
    case CpuFeature::avx512vnni:
      return {7, kEcx, 11, kZmm};
    case CpuFeature::avx512bitalg:
      return {7, kEcx, 12, kZmm};
    case CpuFeature::avx512vpopcntdq:
      return {7, kEcx, 14, kZmm};
    case CpuFeature::gfni:
      return {7, kEcx, 8, kSse};
    case CpuFeature::vpclmulqdq:
      return {7, kEcx, 10, kYmm};
  }
  __builtin_unreachable();
}

// Returns XCR0: the register states that the operating system saves. Without OSXSAVE there is no
// such register, and only those of SSE are saved.
std::uint32_t saved_registers() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return kSse;
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

bool cpu_supports(CpuFeature feature) {
  const Place place = place_of(feature);
  if ((saved_registers() & place.saved) != place.saved) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(place.leaf, 0, &a, &b, &c, &d)) return false;
  const unsigned found = place.in == kEbx ? b : c;
  return found >> place.bit & 1;
}

}  // namespace fastio

#endif
