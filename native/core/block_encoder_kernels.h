// The interface between block_encoder.cpp and the kernels of each instruction set: plain data and
// functions (see resample_kernels.h for why). All kernels give equal results.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "codebook.h"

namespace fastio {

inline constexpr int kEscapeWidth = 13;  // the width of DC differences that need an escape
inline constexpr int kGroupLanes = 64;   // classes whose costs are summed together
inline constexpr int kGroups = kClasses / kGroupLanes;

// The cost of each value in each class: the bits that it takes in excess of those in the best class
// for this value. Sums of these numbers order the classes for a block, and mostly fit in bytes.
// Each lane is a class. Lanes are sorted by descending L, so that the classes that can represent a
// block are the first ones.
struct ClassCosts {
  alignas(64) std::uint8_t mask[kClasses];  // L of each lane
  // 255: the class cannot represent such a value.
  alignas(64) std::uint8_t value[64][kEscapeWidth + 1][kClasses];  // position, width, lane
  std::uint8_t lane_class[kClasses];
  std::uint8_t groups[64];  // the number of groups of lanes with an L of at least each position
};

// A block split into bit planes. Bit i of a word belongs to position i of an order: the zigzag
// order, or the ranks of a class (see codebook.h).
struct BlockBits {
  std::uint64_t mask;            // positions 1 to 63 that are not zero
  std::uint64_t half;            // positions where |v| is 128
  std::uint64_t plane[kPlanes];  // [0]: the signs; [j]: bit j - 1 of |v| - 1; 0 outside the mask
  // The bits that each value of the mask needs; [0]: those of the DC difference.
  alignas(64) std::uint8_t width[64];
};

// Writes an LSB-first bit stream. The memory must have 8 bytes more than the bits need.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* to) : to_(to) {}

  // Appends the low `count` bits of `bits`, 0 to 64; the others must be 0.
  [[gnu::always_inline]] inline void put(std::uint64_t bits, int count) {
    word_ |= bits << filled_;
    filled_ += count;
    if (filled_ < 64) return;
    store();
    to_ += 8;
    filled_ -= 64;
    word_ = filled_ ? bits >> (count - filled_) : 0;
  }

  // Fills the last byte with zeros, and returns the end of the stream.
  [[gnu::always_inline]] inline std::uint8_t* finish() {
    store();
    return to_ + (filled_ + 7) / 8;
  }

 private:
  [[gnu::always_inline]] inline void store() {
    for (int i = 0; i < 8; ++i) to_[i] = static_cast<std::uint8_t>(word_ >> (8 * i));
  }

  std::uint8_t* to_;
  std::uint64_t word_ = 0;
  int filled_ = 0;  // bits in word_, at most 63
};

// Splits the AC coefficients of a block in natural order into bit planes. order: the natural index
// of each position; that of the DC is the first one. Returns the positions with a magnitude of 127
// or more: for these, only `mask` and the signs are correct, and the caller sets the other planes,
// `half` and `width`.
using TakeApartKernel = std::uint64_t(const std::int16_t* block, const std::uint8_t* order,
                                      BlockBits& out);

// Sums the costs over `positions` in the first `groups` groups of lanes. Returns the least sum, or
// 255 if it is 255 or more. Sets `best` to the lanes that have the least sum, as bits.
using SearchKernel = int(const ClassCosts& costs, std::uint64_t positions,
                         const std::uint8_t* width, int groups, std::uint64_t* best);

// Writes the values of `count` blocks, whose bits are ordered by rank, block by block and plane by
// plane.
using PutValuesKernel = void(const Codebook& codebook, const BlockBits* blocks,
                             const std::uint8_t* classes, int count, BitWriter& to);

TakeApartKernel take_apart_portable;
SearchKernel search_portable;
PutValuesKernel put_values_portable;

#ifdef FASTIO_X86
TakeApartKernel take_apart_avx2;
SearchKernel search_avx2;
PutValuesKernel put_values_avx2;  // by pext, which some processors do slowly: see kPdep
TakeApartKernel take_apart_avx512;
SearchKernel search_avx512;
#endif

// Returns the ranks for which class `c` has a bit in plane `j`.
[[gnu::always_inline]] inline std::uint64_t plane_ranks(const Codebook& codebook, int c, int j) {
  return j < 8 ? codebook.has[c][j] : codebook.has_wide[c][j - 8];
}

}  // namespace fastio
