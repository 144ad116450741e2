// The codebook of the block codec: 256 classes of blocks. A class has L, the last zigzag index at
// which a block may have coefficients, and W, the bit width of the value at each index.
//
// Masks and planes of a block have the positions in the order of its class: by descending W, and by
// ascending zigzag index where W is equal. The number of a position in this order is its rank. So
// the positions that have a bit in a plane are the first ones of the class, and the bits of a plane
// belong to the first values of a block, which SIMD needs no pdep for.
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
  // has[c][j]: the ranks >= 1 with more than j bits, as bits; has_wide[c][j]: those with more than
  // 8 + j. Separate arrays, so that a class that is not wide takes one cache line.
  alignas(64) std::uint64_t has[kClasses][8];
  alignas(64) std::uint64_t has_wide[kClasses][kPlanes - 8];
  alignas(64) std::uint8_t mask_bits[kClasses];  // L
  alignas(64) std::uint8_t dc_bits[kClasses];    // W[0]
  // The DC difference that marks an escape: -2^(W[0] - 1). If W[0] is 0, it is 1, which no
  // difference equals.
  alignas(64) std::int16_t dc_escape[kClasses];
  alignas(64) std::uint8_t planes[kClasses];          // the largest W[z] with z >= 1
  alignas(64) std::uint8_t width[kClasses][64];       // W, by zigzag index
  alignas(64) std::uint8_t rank_width[kClasses][64];  // W, by rank

  // natural[c][r]: the natural index of rank r; rank[c][n]: the rank of natural index n. Rank 0 is
  // the DC, and ranks above L are the zigzag indices above L.
  alignas(64) std::uint8_t natural[kClasses][64];
  alignas(64) std::uint8_t rank[kClasses][64];
  // The ranks of natural indices n and n + 32, for n = 0 to 31: the order of bytes that are
  // multiplied to words.
  alignas(64) std::uint8_t rank_pairs[kClasses][64];
  // shuffle[c][q][i]: rank_pairs[c][i] less 16 q, or 0x80 if it is not one of the 16 ranks from 16
  // q on: the byte shuffles that bring a quarter of the ranks to that order.
  alignas(64) std::uint8_t shuffle[kClasses][4][64];

  // Parses kCodebookBytes bytes, and checks every one. Returns Code::corrupt, with the class and
  // the reason, if they are not valid.
  Status parse(const std::uint8_t* bytes, std::size_t size);

 private:
  // Computes the ranks of class c, and what follows from them.
  void rank_positions(int c);
};

}  // namespace fastio
