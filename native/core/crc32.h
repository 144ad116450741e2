// CRC-32 as gzip and Parquet pages have it (RFC 1952; polynomial 0xEDB88320, reflected).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// The checksum of data[0, size); crc32("123456789") is 0xCBF43926.
std::uint32_t crc32(const std::uint8_t* data, std::size_t size);

}  // namespace fastio
