#include "core/parquet_runs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "parquet_pages.h"

using namespace fastio;
using pages::Bytes;

namespace {

std::vector<std::uint32_t> numbers(std::mt19937& rng, std::size_t count, int bits) {
  std::vector<std::uint32_t> found(count);
  for (auto& number : found) number = bits ? rng() >> (32 - bits) : 0;
  return found;
}

// The same bytes with nothing behind them.
std::unique_ptr<std::uint8_t[]> exactly(const std::uint8_t* data, std::size_t size) {
  std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[size]);
  if (size) std::memcpy(out.get(), data, size);
  return out;
}

}  // namespace

TEST_CASE("numbers of every width are unpacked alike on every instruction set") {
  std::mt19937 rng(1);
  for (int bits = 0; bits <= 32; ++bits)
    for (const std::size_t count : {1u, 7u, 8u, 9u, 63u, 64u, 500u}) {
      const auto expected = numbers(rng, count, bits);
      const Bytes run = pages::packed(expected, bits);
      const std::size_t head = pages::varint((count + 7) / 8 << 1 | 1).size();
      // The last group may be cut short.
      const std::size_t size = (count * static_cast<std::size_t>(bits) + 7) / 8;
      const auto in = exactly(run.data() + head, size);
      for (auto* kernel : {&unpack, &unpack_portable}) {
        std::vector<std::uint32_t> got(count, 77);
        const auto most = kernel(in.get(), in.get() + size, bits, count, got.data());
        CHECK(got == expected);
        CHECK(most == *std::max_element(expected.begin(), expected.end()));
      }
    }
}

TEST_CASE("values are looked up by runs of both kinds") {
  std::mt19937 rng(2);
  for (const int bits : {0, 1, 3, 8, 13, 17, 26}) {
    const std::size_t entries = bits ? std::min<std::size_t>(std::size_t{1} << bits, 5000) : 1;
    std::vector<std::uint64_t> dictionary(entries), expected;
    for (auto& value : dictionary) value = std::uint64_t{rng()} << 32 | rng();
    Bytes in;
    for (int run = 0; run < 20; ++run) {
      std::vector<std::uint32_t> some(8 * (1 + rng() % 300));
      for (auto& index : some) index = static_cast<std::uint32_t>(rng() % entries);
      if (rng() % 2) {
        some.assign(1 + rng() % 50, some[0]);
        pages::append(in, pages::run_of(some[0], some.size(), bits));
      } else {
        pages::append(in, pages::packed(some, bits));
      }
      for (const auto index : some) expected.push_back(dictionary[index]);
    }
    std::vector<std::uint64_t> got(expected.size());
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(dictionary.data());
    auto* out = reinterpret_cast<std::uint8_t*>(got.data());
    const auto* end = in.data() + in.size();
    REQUIRE(look_up(in.data(), end, bits, got.size(), bytes, entries, 8, out));
    CHECK(got == expected);
    CHECK_FALSE(look_up(in.data(), end, bits, got.size(), bytes, entries - 1, 8, out));
    CHECK_FALSE(look_up(in.data(), end - 1, bits, got.size() + 1, bytes, entries, 8, out));
  }
}

TEST_CASE("runs that promise nothing, or end before, are damaged") {
  Run run;
  const auto next = [&run](const Bytes& in, int bits, std::size_t count) {
    const auto exact = exactly(in.data(), in.size());
    return Runs(exact.get(), exact.get() + in.size(), bits, count).next(run);
  };
  CHECK_FALSE(next({}, 1, 1));
  CHECK_FALSE(next({0}, 1, 1));                                   // a run of no number
  CHECK_FALSE(next({1}, 1, 1));                                   // no group
  CHECK_FALSE(next({2}, 1, 1));                                   // its value is missing
  CHECK_FALSE(next({3}, 1, 1));                                   // its group is missing
  CHECK_FALSE(next({0x80, 0x80}, 1, 1));                          // its head does not end
  CHECK_FALSE(next({0x82, 0x80, 0x80, 0x80, 0x80, 0, 1}, 1, 1));  // nor here
  CHECK_FALSE(next({5, 0xFF}, 1, 16));                            // half of its groups
  CHECK_FALSE(next({5, 0xFF}, 1, 8));                             // nor if the others are enough
  CHECK_FALSE(next({0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 1}, 1, 8));     // more groups than anybody wants
  CHECK_FALSE(next({5, 1, 2, 3, 4}, 4, 8));                       // its second group is missing
  CHECK(next({5, 1, 2, 3, 4, 5}, 4, 10));                         // it ends after the last number
  CHECK(run.count == 10);
}

TEST_CASE("nulls are made room for in place, alike on every instruction set") {
  std::mt19937 rng(3);
  for (const int width : {4, 8})
    for (int round = 0; round < 300; ++round) {
      const std::size_t count = 1 + rng() % 200, size = count * static_cast<std::size_t>(width);
      const unsigned density = rng() % 5;
      Bytes bits((count + 7) / 8, 0xFF), dense(size), expected(size, 0);
      std::size_t valid = 0;
      for (auto& byte : dense) byte = static_cast<std::uint8_t>(rng());
      for (std::size_t i = 0; i < count; ++i) {
        if (rng() % 4 >= density) {
          bits[i / 8] &= static_cast<std::uint8_t>(~(1u << i % 8));
          continue;
        }
        const auto from = static_cast<std::ptrdiff_t>(valid++ * static_cast<std::size_t>(width));
        std::copy_n(
            dense.begin() + from, width,
            expected.begin() + static_cast<std::ptrdiff_t>(i * static_cast<std::size_t>(width)));
      }
      for (auto* kernel : {&spread, &spread_portable}) {
        const auto got = exactly(dense.data(), size);
        kernel(bits.data(), count, valid, width, got.get());
        REQUIRE(Bytes(got.get(), got.get() + size) == expected);
      }
    }
}
