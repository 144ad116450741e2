#include "core/crc32.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

using namespace fastio;

TEST_CASE("crc32 gives the published check value") {
  const std::uint8_t digits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
  CHECK(crc32(digits, sizeof digits) == 0xCBF43926u);
  CHECK(crc32(nullptr, 0) == 0u);
}

TEST_CASE("crc32 of any length is that of its bits one by one") {
  std::mt19937 rng(1);
  for (std::size_t size = 0; size < 100; ++size) {
    std::vector<std::uint8_t> bytes(size);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(rng());
    std::uint32_t state = ~0u;
    for (const std::uint8_t byte : bytes) {
      state ^= byte;
      for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0xEDB88320u : 0u);
    }
    CHECK(crc32(bytes.data(), size) == ~state);
  }
}
