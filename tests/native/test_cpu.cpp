#include "core/cpu.h"

#include <doctest/doctest.h>

using namespace fastio;

TEST_CASE("the best level is used until another is forced, and never a better one") {
  CHECK(simd_active() == simd_best());
  simd_force(Simd::portable);
  CHECK(simd_active() == Simd::portable);
  simd_force(Simd::avx512);
  CHECK(simd_active() == simd_best());
}

#ifdef FASTIO_X86
TEST_CASE("AVX-512 and AVX2 are found where the compiler's runtime finds them") {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) CHECK(simd_best() == Simd::portable);
  if (!__builtin_cpu_supports("avx512vbmi")) CHECK(simd_best() < Simd::avx512);
  if (!__builtin_cpu_supports("bmi2")) CHECK_FALSE(fast_pdep());
}
#endif
