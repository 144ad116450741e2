// The codebook of the block codec: 256 classes of block, each of which says up to which zigzag
// position a block may have coefficients and how many bits the value at each position takes.
//
// One codebook serves a whole dataset and lies in its manifest: 256 records of 65 bytes, L and then
// W[0] to W[63]. docs/block_record.md, has the rules.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.h"

namespace fastio {

inline constexpr int kClasses = 256;
inline constexpr int kPlanes = 12;  // the most bits of a value, its sign included
inline constexpr std::size_t kCodebookBytes = std::size_t{kClasses} * 65;

// Zigzag position to natural order (row * 8 + column), ITU-T T.81 figure 5; and back.
extern const std::uint8_t kZigzag[64];
extern const std::uint8_t kZigzagInverse[64];

// Immutable once parsed, so threads may share it. Plain data in the layout that kernels read.
struct Codebook {
  // has[c][j]: the positions z >= 1 with W[z] > j, as bits; has_wide[c][j]: those with W[z] > 8 +
  // j. Apart, so that a class without wide values is one cache line.
  alignas(64) std::uint64_t has[kClasses][8];
  alignas(64) std::uint64_t has_wide[kClasses][kPlanes - 8];
  alignas(64) std::uint8_t mask_bits[kClasses];  // L
  alignas(64) std::uint8_t dc_bits[kClasses];    // W[0]
  alignas(64) std::int16_t dc_escape[kClasses];  // -2^(W[0] - 1); where W[0] is 0, 1: never met
  alignas(64) std::uint8_t planes[kClasses];     // the widest W[z], z >= 1; more than 8: wide
  alignas(64) std::uint8_t width[kClasses][64];  // W

  // From kCodebookBytes bytes, every one of which is checked. Code::corrupt names what is wrong.
  Status parse(const std::uint8_t* bytes, std::size_t size);
};

}  // namespace fastio
