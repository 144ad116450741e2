// Reads bits of a tile's LSB-first stream, for the kernels of expansion.
#pragma once

#include <cstdint>

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or built in: see CMakeLists.txt.

using u64 = std::uint64_t;

[[gnu::always_inline]] inline u64 load64(const std::uint8_t* p) {
  u64 word;
  __builtin_memcpy(&word, p, 8);
  return word;
}

// Returns at least 57 bits from `position` on.
[[gnu::always_inline]] inline u64 bits57(const std::uint8_t* bits, u64 position) {
  return load64(bits + (position >> 3)) >> (position & 7);
}

// Returns 64 bits from `position` on.
[[gnu::always_inline]] inline u64 bits64(const std::uint8_t* bits, u64 position) {
  const u64 next = bits[(position >> 3) + 8];
  const unsigned shift = position & 7;
  return load64(bits + (position >> 3)) >> shift | (next << 1) << (63 - shift);
}

// Returns the bits of a plane from `position` on. kDense: the mask has more than 57 positions, so a
// plane may have more bits than bits57() returns.
template <bool kDense>
[[gnu::always_inline]] inline u64 bits_at(const std::uint8_t* bits, u64 position) {
  return kDense ? bits64(bits, position) : bits57(bits, position);
}

[[gnu::always_inline]] inline unsigned count(u64 mask) {
  return static_cast<unsigned>(__builtin_popcountll(mask));
}

}  // namespace
}  // namespace fastio
