#include "core/cpu.h"

#include <doctest/doctest.h>

#include <string>

using namespace fastio;

TEST_CASE("all features are used until others are forced, and never one that is not there") {
  CHECK(simd_active() == simd_best());
  simd_force(Simd::portable);
  CHECK(simd_active() == Simd::portable);
  simd_force({~0u});
  CHECK(simd_active() == simd_best());
}

TEST_CASE("the first kernel is chosen whose needs are met") {
  constexpr Choice<int> kChoices[] = {{kAvx512, 3}, {kAvx2 | kPdep, 2}, {kAvx2, 1}, {0, 0}};
  for (const SimdLevel& level : simd_levels()) {
    simd_force(level.features);
    CHECK(choose(kChoices) == (level.features.has(kAvx512) ? 3
                               : level.features.has(kAvx2) ? 2
                                                           : 0));
  }
  simd_force({kAvx2});
  CHECK(choose(kChoices) == (simd_best().has(kAvx2) ? 1 : 0));
  simd_force(simd_best());
}

TEST_CASE("a level is named by the features that a set has, whatever else it has") {
  CHECK(std::string(simd_levels().front().name) == "portable");
  CHECK(std::string(simd_name(Simd::avx512bw)) == "avx512bw");
  CHECK(std::string(simd_name({Simd::avx2.features | kAvx512})) == "avx2");
  CHECK(std::string(simd_name({kAvx512})) == "portable");
}

#ifdef FASTIO_X86
TEST_CASE("AVX-512 and AVX2 are found where the compiler's runtime finds them") {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) CHECK(simd_best() == Simd::portable);
  if (!__builtin_cpu_supports("avx512bw")) CHECK_FALSE(simd_best().has(kAvx512bw));
  if (!__builtin_cpu_supports("avx512vbmi")) CHECK_FALSE(simd_best().has(kAvx512));
  if (!__builtin_cpu_supports("bmi2")) CHECK_FALSE(simd_best().has(kPdep));
}
#endif
