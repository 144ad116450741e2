// Kernels: numbers of 8, 16 or 32 bits without a sign to 32 or 64 bits, and numbers that count up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// from, to: bytes of a number: from 1, 2 or 4, to 4 or 8, to > from or both 4. Neither side need be
// aligned. Reads and writes nothing beyond `count` numbers.
void widen(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);

// Puts `count` numbers of 4 or 8 bytes: first, first + 1, ... where `counts`, else `first` again
// and again.
void put(std::uint8_t* out, std::size_t count, int bytes, std::int64_t first, bool counts);

// The kernels, for tests; arguments as above.
void widen_portable(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);
void widen_avx2(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out);
void put_portable(std::uint8_t* out, std::size_t count, int bytes, std::int64_t first, bool counts);
void put_avx2(std::uint8_t* out, std::size_t count, int bytes, std::int64_t first, bool counts);

}  // namespace fastio
