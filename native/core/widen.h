// Kernels: numbers of 8, 16 or 32 bits without a sign to 32 or 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// from, to: bytes of a number: from 1, 2 or 4, to 4 or 8, to > from or both 4. Neither side need be
// aligned. Reads and writes nothing beyond `count` numbers.
void widen(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);

// The kernels, for tests; arguments as above.
void widen_portable(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);
void widen_avx2(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);

}  // namespace fastio
