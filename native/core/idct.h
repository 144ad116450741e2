// The inverse cosine transform of dequantised JPEG blocks to 8-bit samples, at full and at reduced
// size: libjpeg-turbo's results bit for bit (islow, and jidctred.c for the reduced sizes).
//
// That holds while no value between the two passes, four times a sample or so, leaves 16 bits: for
// every block that an encoder makes of samples, with eight times as much to spare. Past that each
// path still gives the same bytes: values between the passes wrap to 16 bits, sums to 32.
// All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kIdctSlack = 32;  // bytes

// `count` >= 1 consecutive blocks of 64 coefficients, rows of horizontal frequencies, dequantised,
// 64-byte aligned, become `size` (8, 4 or 2) rows of count * size samples, side by side, `stride`
// bytes apart. May read 3 blocks past the last and write kIdctSlack bytes past the end of each row:
// the caller has room for both, and a stride (of either sign) that keeps rows and slack apart.
void idct(int size, const std::int16_t* blocks, int count, std::uint8_t* out,
          std::ptrdiff_t stride);

// Size 1: a sample a block, its mean, from its dequantised DC coefficient alone. Reads and writes
// exactly count.
void idct_dc(const std::int16_t* dc, int count, std::uint8_t* out);

}  // namespace fastio
