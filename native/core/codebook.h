// The codebook of the block codec: 256 classes of blocks. A class has L, the last zigzag index at
// which a block may have coefficients, and W, the bit width of the value at each index.
//
// One codebook serves a whole dataset and is stored in its manifest as 256 records of 65 bytes: L,
// then W[0] to W[63]. docs/block_record.md has the rules.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.h"

namespace fastio {

inline constexpr int kClasses = 256;
inline constexpr int kPlanes = 12;  // the most bits of a value, its sign included
inline constexpr std::size_t kCodebookBytes = std::size_t{kClasses} * 65;

// Maps zigzag indices to natural order (row * 8 + column; ITU-T T.81, figure 5), and back.
extern const std::uint8_t kZigzag[64];
extern const std::uint8_t kZigzagInverse[64];

// Immutable once parsed, so threads may share it. Plain data in the layout that kernels read. A
// class is wide if it has an AC value of more than 8 bits.
struct Codebook {
  // has[c][j]: the indices z >= 1 with W[z] > j, as bits; has_wide[c][j]: those with W[z] > 8 + j.
  // Separate arrays, so that a class that is not wide takes one cache line.
  alignas(64) std::uint64_t has[kClasses][8];
  alignas(64) std::uint64_t has_wide[kClasses][kPlanes - 8];
  alignas(64) std::uint8_t mask_bits[kClasses];  // L
  alignas(64) std::uint8_t dc_bits[kClasses];    // W[0]
  // The DC difference that marks an escape: -2^(W[0] - 1). If W[0] is 0, it is 1, which no
  // difference equals.
  alignas(64) std::int16_t dc_escape[kClasses];
  alignas(64) std::uint8_t planes[kClasses];     // the largest W[z] with z >= 1
  alignas(64) std::uint8_t width[kClasses][64];  // W

  // Parses kCodebookBytes bytes, and checks every one. Returns Code::corrupt, with the class and
  // the reason, if they are not valid.
  Status parse(const std::uint8_t* bytes, std::size_t size);
};

}  // namespace fastio
