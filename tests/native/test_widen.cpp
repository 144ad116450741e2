#include "core/widen.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

using namespace fastio;

TEST_CASE("numbers count up, or stay, alike on every instruction set") {
  for (const int bytes : {4, 8})
    for (const bool counts : {false, true})
      for (const std::int64_t first : {0ll, -100ll, 7ll, (1ll << 31) - 40})
        for (const std::size_t count : {0u, 1u, 3u, 4u, 7u, 8u, 15u, 16u, 17u, 33u, 300u}) {
          const auto width = static_cast<std::size_t>(bytes);
          // Not aligned, and nothing is written around it.
          std::vector<std::uint8_t> expected(1 + count * width + 5, 0x5a), got;
          for (std::size_t i = 0; i < count; ++i) {
            const std::int64_t value = first + (counts ? static_cast<std::int64_t>(i) : 0);
            std::memcpy(expected.data() + 1 + i * width, &value, width);
          }
          for (auto* kernel : {&put, &put_portable}) {
            got.assign(expected.size(), 0x5a);
            kernel(got.data() + 1, count, bytes, first, counts);
            CHECK(got == expected);
          }
        }
}
