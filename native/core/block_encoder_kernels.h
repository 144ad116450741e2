// Between block_encoder.cpp and the kernels of each instruction set: plain data and functions (see
// resample_kernels.h for why). All give equal results.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "codebook.h"

namespace fastio {

inline constexpr int kEscapeWidth = 13;  // the width of DC differences that need an escape
inline constexpr int kGroupLanes = 64;
inline constexpr int kGroups = kClasses / kGroupLanes;

// What each class makes of a value at a zigzag position, in bits beyond what the best class makes
// of it: sums of these order the classes of a block, and are small. Lanes are classes by falling L,
// so that those that reach far enough for a block are the first ones.
struct ClassCosts {
  alignas(64) std::uint8_t mask[kClasses];  // of each lane: L
  // 255: the class cannot have such a value.
  alignas(64) std::uint8_t value[64][kEscapeWidth + 1][kClasses];  // position, width, lane
  std::uint8_t lane_class[kClasses];
  std::uint8_t groups[64];  // how many groups of lanes reach each position
};

// A block taken apart, in zigzag order.
struct BlockBits {
  std::uint64_t mask;            // positions 1 to 63 that are not zero, as bits
  std::uint64_t half;            // those where |v| is 128
  std::uint64_t plane[kPlanes];  // [0]: the signs; [j]: bit j - 1 of |v| - 1; 0 outside the mask
  // Bits that a value needs, where the mask says so; [0] is the DC difference's.
  alignas(64) std::uint8_t width[64];
};

// Writes bits from the lowest up. The bytes reach 8 further than the bits.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* to) : to_(to) {}

  // The low `count` bits of `bits`, 0 to 64; the others must be 0.
  [[gnu::always_inline]] inline void put(std::uint64_t bits, int count) {
    word_ |= bits << filled_;
    filled_ += count;
    if (filled_ < 64) return;
    store();
    to_ += 8;
    filled_ -= 64;
    word_ = filled_ ? bits >> (count - filled_) : 0;
  }

  // Behind the last byte, which zeros fill up.
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
  int filled_ = 0;  // bits of word_, at most 63
};

// Takes apart the AC coefficients of a block in natural order. What it gives is the positions whose
// magnitude is 127 or more, of which the signs are right and width, half and other planes are not.
using TakeApartKernel = std::uint64_t(const std::int16_t* block, BlockBits& out);

// Sums the costs of the first `groups` groups of lanes, over `positions`. Gives the least sum, or
// 255 if that is 255 or more, and as bits of `best` the lanes that have it.
using SearchKernel = int(const ClassCosts& costs, std::uint64_t positions,
                         const std::uint8_t* width, int groups, std::uint64_t* best);

// Writes the values of the blocks, plane by plane.
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

// Positions of which class `c` keeps bit `j`.
[[gnu::always_inline]] inline std::uint64_t plane_positions(const Codebook& codebook, int c,
                                                            int j) {
  return j < 8 ? codebook.has[c][j] : codebook.has_wide[c][j - 8];
}

}  // namespace fastio
