// CRC-32C (Castagnoli; RFC 3720, appendix B.4), the checksum of every stored image: it is what
// makes a flipped bit an error with a name instead of a strange picture. About 5 us for 110 KB with
// the processor's instruction for it. Pure and thread-safe; equal on every path.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// The checksum of data[0, size); crc32c("123456789") is 0xE3069283.
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size);

}  // namespace fastio
