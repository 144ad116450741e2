// CRC-32C (Castagnoli; RFC 3720, appendix B.4), the checksum of every stored image: a flipped bit
// is reported as an error, instead of giving wrong pixels. Takes about 5 us for 110 KB with the
// processor's instruction. Pure and thread-safe. All paths give equal results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// Returns the checksum of data[0, size); crc32c("123456789") is 0xE3069283.
std::uint32_t crc32c(const std::uint8_t* data, std::size_t size);

}  // namespace fastio
