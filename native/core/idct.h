// The inverse DCT of dequantised JPEG blocks to 8-bit samples, at full and at reduced size. The
// results equal those of libjpeg-turbo bit for bit (islow, and jidctred.c for the reduced sizes).
//
// This holds as long as all values between the two passes fit in 16 bits. They are about four times
// as large as samples, so blocks that an encoder computed from samples use an eighth of the range.
// For other blocks, all paths still give equal bytes: values between the passes wrap to 16 bits,
// and sums wrap to 32. All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kIdctSlack = 32;  // bytes after each row that idct() may write

// Returns the place of a coefficient in the order that idct() reads, from its index in natural
// order (row * 8 + column). In this order, coefficients of rows k and k + 4 alternate, because
// vector instructions multiply such pairs and add the products.
constexpr int idct_place(int natural) { return natural % 32 * 2 + natural / 32; }

// Transforms `count` >= 1 consecutive blocks to `size` (8, 4 or 2) rows of count * size samples,
// `stride` bytes apart. blocks: 64 dequantised coefficients each, in the order of idct_place(),
// 64-byte aligned. May read 3 blocks past the last one, and write kIdctSlack bytes past the end of
// each row: the caller must have room for both, and a stride (of either sign) that keeps rows and
// slack apart.
void idct(int size, const std::int16_t* blocks, int count, std::uint8_t* out,
          std::ptrdiff_t stride);

// Transforms `count` blocks to one sample each, the block's mean, from their dequantised DCs. Reads
// and writes exactly `count` elements.
void idct_dc(const std::int16_t* dc, int count, std::uint8_t* out);

}  // namespace fastio
