// Widens unsigned numbers of 8, 16 or 32 bits to 32 or 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// Widens `count` numbers. from, to: the bytes of a number: 1, 2 or 4, and 4 or 8, where to > from
// or both are 4. Pointers need not be aligned. Reads and writes nothing beyond `count` numbers.
void widen(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);

// The kernels, for tests; arguments as above.
void widen_portable(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);
void widen_avx2(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);

}  // namespace fastio
