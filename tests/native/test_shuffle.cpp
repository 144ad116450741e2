#include "core/shuffle.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include "core/cpu.h"

using namespace fastio;

namespace {

// Whether the values are [0, n), each once.
bool is_bijection(std::vector<std::uint64_t> values) {
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != i) return false;
  return true;
}

template <typename Order>
std::vector<std::uint64_t> all(const Order& order, std::uint64_t n) {
  std::vector<std::uint64_t> values(n);
  for (std::uint64_t i = 0; i < n; ++i) values[i] = order(i);
  return values;
}

}  // namespace

TEST_CASE("every size up to 1100 is permuted, and inverted") {
  for (std::uint64_t n = 1; n <= 1100; ++n) {
    const Permutation order(n, n * 77);
    const auto values = all(order, n);
    CAPTURE(n);
    REQUIRE(is_bijection(values));
    for (std::uint64_t i = 0; i < n; ++i) REQUIRE(order.invert(values[i]) == i);
  }
}

TEST_CASE("sizes around every power of two are permuted, and inverted") {
  std::mt19937_64 rng(1);
  for (int bit = 8; bit <= 48; ++bit) {
    for (const std::int64_t off : {-1, 0, 1}) {
      const std::uint64_t n = (1ull << bit) + static_cast<std::uint64_t>(off);
      if (n > kMaxRows) continue;
      const Permutation order(n, rng());
      CAPTURE(n);
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t position = i == 0 ? 0 : i == 1 ? n - 1 : rng() % n;
        const std::uint64_t value = order(position);
        REQUIRE(value < n);
        REQUIRE(order.invert(value) == position);
        REQUIRE(order(order.invert(position)) == position);
      }
    }
  }
}

TEST_CASE("keys of all bits matter") {
  for (int bit = 0; bit < 64; ++bit) {
    CHECK(all(Permutation(1000, 1ull << bit), 1000) != all(Permutation(1000, 0), 1000));
    CHECK(mix_key(1ull << bit, 0) != mix_key(0, 0));
    CHECK(mix_key(0, 1ull << bit) != mix_key(0, 0));
  }
}

TEST_CASE("pairs that follow each other are as often as chance has them") {
  constexpr std::uint64_t kRows = 100'000;
  int neighbours = 0, ascending = 0;
  const auto values = all(Permutation(kRows, 42), kRows);
  for (std::size_t i = 1; i < values.size(); ++i) {
    neighbours += values[i] == values[i - 1] + 1;
    ascending += values[i] > values[i - 1];
  }
  CHECK(neighbours < 10);  // 1 expected
  CHECK(std::abs(ascending - 50'000) < 1000);
}

TEST_CASE("places in small orders are evenly taken") {
  constexpr int kKeys = 40'000;
  for (const std::uint64_t n : {2, 3, 5}) {
    std::vector<int> first(n);
    for (int key = 0; key < kKeys; ++key) ++first[Permutation(n, mix_key(9, key))(0)];
    for (const int count : first) CHECK(std::abs(count - kKeys / static_cast<int>(n)) < kKeys / 40);
  }
}

TEST_CASE("the window order is a bijection that keeps blocks within their windows") {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 600; ++round) {
    const std::uint64_t n = 1 + rng() % 700;
    const std::uint64_t block = 1 + rng() % (round % 3 == 0 ? 900 : 20);
    const std::uint64_t window = 1 + rng() % (round % 5 == 0 ? 900 : 8);
    const WindowPermutation order(n, block, window, rng());
    const auto values = all(order, n);
    CAPTURE(n);
    CAPTURE(block);
    CAPTURE(window);
    REQUIRE(is_bijection(values));
    // A block's rows come within one stretch of window * block rows.
    const std::uint64_t blocks = (n - 1) / block + 1;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> seen(blocks, {n, 0});
    for (std::uint64_t i = 0; i < n; ++i) {
      auto& [first, last] = seen[values[i] / block];
      first = std::min(first, i);
      last = std::max(last, i);
    }
    for (std::uint64_t b = 0; b < blocks; ++b) {
      const auto span = order.window_of(b);
      REQUIRE(seen[b].second - seen[b].first < window * block);
      REQUIRE(span.begin <= seen[b].first);
      REQUIRE(seen[b].second < span.end);
      REQUIRE(span.end <= n);
    }
    for (std::uint64_t i = 0; i < n; ++i) REQUIRE(order.invert(values[i]) == i);
  }
}

TEST_CASE("window orders of the largest sizes stay in range") {
  std::mt19937_64 rng(3);
  for (const std::uint64_t n : {1ull << 48, (1ull << 48) - 1, (1ull << 32) + 1, 1ull << 32}) {
    for (const std::uint64_t block : {1ull, 1000ull, 1ull << 32, ~0ull}) {
      for (const std::uint64_t window : {1ull, 64ull, 1ull << 40, ~0ull}) {
        const WindowPermutation order(n, block, window, rng());
        CAPTURE(n);
        CAPTURE(block);
        CAPTURE(window);
        for (int i = 0; i < 50; ++i) {
          const std::uint64_t position = i == 0 ? 0 : i == 1 ? n - 1 : rng() % n;
          REQUIRE(order(position) < n);
          REQUIRE(order.invert(order(position)) == position);
          const auto span = order.window_of(order(position) / block);
          REQUIRE(span.begin <= position);
          REQUIRE(position < span.end);
        }
      }
    }
  }
}

TEST_CASE("arrays are what single positions are, whatever the instruction set") {
  std::mt19937_64 rng(4);
  for (const Simd level : {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon}) {
    simd_force(level);
    for (const std::uint64_t n : {1ull, 2ull, 100ull, 256ull, 257ull, 1ull << 32, 1ull << 48}) {
      for (const std::size_t count : {0u, 1u, 3u, 4u, 15u, 16u, 17u, 511u, 512u, 513u, 1500u}) {
        const Permutation order(n, 7);
        const WindowPermutation windowed(n, 8, 3, 7);
        std::vector<std::int64_t> positions(count), rows(count), back(count);
        for (auto& position : positions) position = static_cast<std::int64_t>(rng() % n);
        CAPTURE(n);
        CAPTURE(count);
        permute(n, 7, positions.data(), count, rows.data());
        for (std::size_t i = 0; i < count; ++i)
          REQUIRE(static_cast<std::uint64_t>(rows[i]) ==
                  order(static_cast<std::uint64_t>(positions[i])));
        permute_inverse(n, 7, rows.data(), count, back.data());
        REQUIRE(back == positions);
        permute_window(n, 8, 3, 7, positions.data(), count, rows.data());
        for (std::size_t i = 0; i < count; ++i)
          REQUIRE(static_cast<std::uint64_t>(rows[i]) ==
                  windowed(static_cast<std::uint64_t>(positions[i])));
        permute_window_inverse(n, 8, 3, 7, rows.data(), count, back.data());
        REQUIRE(back == positions);
      }
    }
  }
  simd_force(simd_best());
  permute(1, 7, nullptr, 0, nullptr);
}

TEST_CASE("an array may be permuted in place") {
  std::vector<std::int64_t> values = {5, 0, 99, 5};
  permute(100, 7, values.data(), values.size(), values.data());
  permute_inverse(100, 7, values.data(), values.size(), values.data());
  CHECK(values == std::vector<std::int64_t>{5, 0, 99, 5});
}

TEST_CASE("consecutive positions are what single ones are, whatever the instruction set") {
  for (const Simd level : {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon}) {
    simd_force(level);
    for (const std::uint64_t n : {1ull, 2ull, 129ull, 256ull, 257ull, 70000ull, (1ull << 32) - 1,
                                  1ull << 32, (1ull << 32) + 1, 1ull << 48}) {
      for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 31u, 33u, 2047u, 2048u, 2049u, 5000u}) {
        if (count > n) continue;
        CAPTURE(n);
        CAPTURE(count);
        const Permutation order(n, 9);
        const WindowPermutation windowed(n, 8, 3, 9);
        for (const std::uint64_t first : {std::uint64_t{0}, (n - count) / 2, n - count}) {
          // Nothing is written behind the last.
          std::vector<std::int64_t> rows(count + 8, -1);
          // The first place that differs: an assertion for each of 2.5 million takes a second.
          const auto wrong = [&](const auto& at) {
            std::size_t i = 0;
            while (i < count && static_cast<std::uint64_t>(rows[i]) == at(first + i)) ++i;
            return i;
          };
          permute_range(n, 9, first, count, rows.data());
          REQUIRE(wrong(order) == count);
          REQUIRE(std::count(rows.begin() + static_cast<std::ptrdiff_t>(count), rows.end(), -1) ==
                  8);
          permute_window_range(n, 8, 3, 9, first, count, rows.data());
          REQUIRE(wrong(windowed) == count);
        }
      }
    }
  }
  simd_force(simd_best());
}
