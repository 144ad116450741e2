// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A draw is a pure function of its key and counter, so an
// augmentation depends on (seed, epoch, row, step of the transform) and on nothing else: not on
// the thread, the batch, the rank or what was drawn before.
#pragma once

#include <array>
#include <cstdint>

namespace fastio {

// A counter, or the four random words for it.
using Philox = std::array<std::uint32_t, 4>;

inline Philox philox(std::uint64_t key, Philox counter) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * counter[0];
    const std::uint64_t p1 = 0xCD9E8D57ull * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// Maps a random word to a number that is uniform in [lo, hi).
inline double uniform(std::uint32_t bits, double lo, double hi) {
  return lo + (hi - lo) * (static_cast<double>(bits) * 0x1p-32);
}

// Maps a random word to an integer that is uniform in [0, n), n >= 1. The bias is below n / 2**32.
inline std::int32_t below(std::uint32_t bits, std::int32_t n) {
  return static_cast<std::int32_t>(
      (static_cast<std::uint64_t>(bits) * static_cast<std::uint32_t>(n)) >> 32);
}

}  // namespace fastio
