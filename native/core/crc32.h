// CRC-32 of gzip and of Parquet pages (RFC 1952; polynomial 0xEDB88320, reflected). Pure and
// thread-safe. All paths give equal results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// Returns the checksum of data[0, size); crc32("123456789") is 0xCBF43926.
std::uint32_t crc32(const std::uint8_t* data, std::size_t size);

}  // namespace fastio
