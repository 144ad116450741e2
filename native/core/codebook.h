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

  // natural[c][r]: the natural index of rank r; place[c][r]: its idct_place(); rank[c][p]: the rank
  // of place p. Rank 0 is the DC, and ranks above L are the zigzag indices above L.
  alignas(64) std::uint8_t natural[kClasses][64];
  alignas(64) std::uint8_t place[kClasses][64];
  alignas(64) std::uint8_t rank[kClasses][64];
  // The ranks of places p and p + 32, for p = 0 to 31: the order of bytes that are multiplied to
  // words.
  alignas(64) std::uint8_t rank_pairs[kClasses][64];
  // The byte shuffles that bring a quarter of a block's bytes to the order of rank_pairs: if byte
  // b of the block has the rank rank_pairs[c][i], shuffle[c][b / 16][i] is b % 16; elsewhere it is
  // 0x80. The block's bytes have the order of avx2_byte().
  alignas(64) std::uint8_t shuffle[kClasses][4][64];
  // has_words[c][k]: the low 16 bits of has[c][4 k] to has[c][4 k + 3], the first one lowest.
  alignas(64) std::uint64_t has_words[kClasses][2];

  // Whether class c has no values wider than 8 bits, and none at ranks above 15.
  bool is_small(int c) const { return mask_bits[c] < 16 && planes[c] <= 8; }
  // Returns the byte of rank r among the bytes of a block of class c in expand_avx2.cpp: rank order
  // for small classes, else what transposing 8 planes of 64 bits gives.
  int avx2_byte(int c, int r) const { return is_small(c) ? r : transposed_byte(r); }
  [[gnu::always_inline]] static constexpr int transposed_byte(int r) {
    return r % 2 * 32 + r % 8 / 2 * 8 + r / 8;
  }

  // Parses kCodebookBytes bytes, and checks every one. Returns Code::corrupt, with the class and
  // the reason, if they are not valid.
  Status parse(const std::uint8_t* bytes, std::size_t size);

 private:
  // Computes the ranks of class c, and what follows from them.
  void rank_positions(int c);
};

}  // namespace fastio
