#include "core/crc32c.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "core/cpu.h"

using namespace fastio;

TEST_CASE("crc32c gives the published check value") {
  const std::uint8_t digits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  for (const Simd level : {Simd::portable, Simd::avx2, simd_best()}) {
    simd_force(level);
    CHECK(crc32c(digits, sizeof digits) == 0xE3069283u);
    CHECK(crc32c(nullptr, 0) == 0u);
  }
  simd_force(simd_best());
}

TEST_CASE("all paths of crc32c agree for every length and alignment") {
  std::mt19937 rng(1);
  std::vector<std::uint8_t> bytes(10000);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(rng());
  for (std::size_t size = 0; size + 8 < bytes.size(); size += size < 3300 ? 1 : 173) {
    // A vector of its own, so that the sanitizers see a read past the end.
    const std::vector<std::uint8_t> exact(
        bytes.begin() + static_cast<std::ptrdiff_t>(size % 8),
        bytes.begin() + static_cast<std::ptrdiff_t>(size % 8 + size));
    simd_force(simd_best());
    const std::uint32_t best = crc32c(exact.data(), size);
    for (const Simd level : {Simd::portable, Simd::avx2}) {
      simd_force(level);
      CHECK(crc32c(exact.data(), size) == best);
    }
  }
  simd_force(simd_best());
}
