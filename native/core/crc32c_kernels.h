// The kernels of crc32c.cpp and crc32.cpp, as plain functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr std::uint32_t kCrc32cPolynomial = 0x82F63B78u;  // reflected

// Returns the state after `size` more bytes. Complements it neither before nor after.
using UpdateKernel = std::uint32_t(std::uint32_t state, const std::uint8_t* data, std::size_t size);

#ifdef FASTIO_X86
UpdateKernel crc32c_update_avx512;
#endif
#ifdef FASTIO_ARM64
UpdateKernel crc32c_update_neon;
UpdateKernel crc32_update_neon;
#endif

}  // namespace fastio
