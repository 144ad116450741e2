// The kernels of shuffle.h: a Feistel network for many values at once, portable and with AVX2.
// Plain pointers and numbers only (see native/README.md, Instruction sets).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// A bijection on [0, 2**(low bits + high bits)), with 8 to 48 bits in total.
struct Feistel {
  static constexpr int kRounds = 8;
  int low_bits;
  std::uint32_t low_mask, high_mask;
  std::uint32_t keys[kRounds];
};

// The values that a kernel processes at once: counts must be multiples of it.
inline constexpr std::size_t kFeistelGroup = 32;

// Enciphers `count` values in place, or deciphers them.
void feistel_portable(const Feistel& network, bool backwards, std::uint64_t* values,
                      std::size_t count);
void feistel_avx2(const Feistel& network, bool backwards, std::uint64_t* values, std::size_t count);

// Computes the rows of positions [first, first + count), where first + count <= n <= 2**32:
// enciphers each value until it is below n (cycle walking).
void feistel_range_avx2(const Feistel& network, std::uint64_t n, std::uint64_t first,
                        std::size_t count, std::int64_t* rows);

}  // namespace fastio
