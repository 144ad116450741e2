// Decompresses Snappy's raw format (github.com/google/snappy, format_description.txt). The bytes
// are not trusted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// The bytes after the output that snappy_decompress() may write.
inline constexpr std::size_t kSnappySlack = 64;

// Returns an upper bound of the decompressed size of `size` bytes: a copy of 64 bytes takes three.
inline constexpr std::size_t snappy_most(std::size_t size) { return 32 * size; }

// Decompresses all of `in`, which must give exactly `out_size` bytes. Returns false if the input is
// damaged. Reads nothing beyond `in`, and writes at most kSnappySlack bytes beyond `out`.
bool snappy_decompress(const std::uint8_t* in, std::size_t size, std::uint8_t* out,
                       std::size_t out_size);

}  // namespace fastio
