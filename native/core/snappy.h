// Snappy's raw format (github.com/google/snappy, format_description.txt), of bytes not trusted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// Bytes behind the output that snappy_decompress() may write, whatever the input is.
inline constexpr std::size_t kSnappySlack = 64;

// The most bytes that `size` bytes can stand for: a copy of 64 bytes takes three.
inline constexpr std::size_t snappy_most(std::size_t size) { return 32 * size; }

// Decompresses all of `in`, which must give exactly `out_size` bytes; false: it is damaged.
// Reads nothing beyond `in`; writes kSnappySlack bytes beyond `out` at most.
bool snappy_decompress(const std::uint8_t* in, std::size_t size, std::uint8_t* out,
                       std::size_t out_size);

}  // namespace fastio
