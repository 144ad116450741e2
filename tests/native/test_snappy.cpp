#include "core/snappy.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "snappy_streams.h"

using namespace fastio;
using pages::Bytes;
using snappy::random_stream;
using snappy::reference;

namespace {

// With memory of exactly the promised sizes.
bool decompress(const Bytes& in, std::size_t size, Bytes& out) {
  const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[in.size()]);
  if (!in.empty()) std::memcpy(exact.get(), in.data(), in.size());
  out.assign(size + kSnappySlack, 0);
  const bool sound = snappy_decompress(exact.get(), in.size(), out.data(), size);
  out.resize(size);
  return sound;
}

}  // namespace

TEST_CASE("Snappy of literals and copies of all kinds is decompressed") {
  std::mt19937 rng(1);
  for (int round = 0; round < 2000; ++round) {
    std::size_t size;
    const Bytes in = random_stream(rng, size);
    Bytes expected, got;
    REQUIRE(reference(in, size, expected));
    REQUIRE(decompress(in, size, got));
    REQUIRE(got == expected);
  }
}

TEST_CASE("damaged Snappy is refused, or is what the format says it is") {
  std::mt19937 rng(2);
  for (int round = 0; round < 20000; ++round) {
    std::size_t size;
    Bytes in = random_stream(rng, size), expected, got;
    if (rng() % 4 == 0) in.resize(rng() % (in.size() + 1));
    for (std::size_t flips = rng() % 3; flips-- && !in.empty();)
      in[rng() % in.size()] ^= static_cast<std::uint8_t>(1u << rng() % 8);
    const bool sound = reference(in, size, expected);
    REQUIRE(decompress(in, size, got) == sound);
    if (sound) REQUIRE(got == expected);
  }
}
