// The code that expansion with NEON and with SVE2 shares.
#pragma once

#include <arm_neon.h>

#include "expand_walk.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace: see CMakeLists.txt.

inline uint8x16x4_t load_four(const std::uint8_t* from) {
  return {{vld1q_u8(from), vld1q_u8(from + 16), vld1q_u8(from + 32), vld1q_u8(from + 48)}};
}

// Expands 16 bits to 16 lanes: all ones where a bit is set.
inline uint8x16_t lanes_of(u64 bits) {
  static constexpr std::uint8_t kSpread[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  static constexpr std::uint8_t kEach[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                             1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t all = vreinterpretq_u8_u64(vdupq_n_u64(bits));
  return vtstq_u8(vqtbl1q_u8(all, vld1q_u8(kSpread)), vld1q_u8(kEach));
}

// The values of a block, 16 in each of kParts registers: their low and high bytes.
template <int kParts>
struct Values {
  uint8x16_t low[kParts], high[kParts];
};

// Returns the positions at which class `cls` has values of more than j bits.
inline u64 plane_of(const Codebook& book, int cls, int j) {
  return j < 8 ? book.has[cls][j] : book.has_wide[cls][j - 8];
}

// Looks up bytes in a table of kParts registers. Returns 0 for indices out of range.
template <int kParts>
inline uint8x16_t look_up(const uint8x16_t (&table)[kParts], uint8x16_t index) {
  if constexpr (kParts == 1)
    return vqtbl1q_u8(table[0], index);
  else if constexpr (kParts == 2)
    return vqtbl2q_u8({{table[0], table[1]}}, index);
  else if constexpr (kParts == 3)
    return vqtbl3q_u8({{table[0], table[1], table[2]}}, index);
  else
    return vqtbl4q_u8({{table[0], table[1], table[2], table[3]}}, index);
}

// Stores 16 coefficients: the values with these numbers, and 0 where a number is out of range.
template <int kParts, bool kWide>
inline void store_sixteen(const Values<kParts>& values, uint8x16_t number,
                          const std::int16_t* quant, std::int16_t* out) {
  const uint8x16_t low = look_up(values.low, number);
  int16x8_t first, second;
  if constexpr (kWide) {
    const uint8x16_t high = look_up(values.high, number);
    first = vreinterpretq_s16_u8(vzip1q_u8(low, high));
    second = vreinterpretq_s16_u8(vzip2q_u8(low, high));
  } else {
    first = vmovl_s8(vreinterpret_s8_u8(vget_low_u8(low)));
    second = vmovl_high_s8(vreinterpretq_s8_u8(low));
  }
  // Both are loaded here, because the compiler must assume that the first store changes `quant`.
  const int16x8_t first_quant = vld1q_s16(quant), second_quant = vld1q_s16(quant + 8);
  vst1q_s16(out, vmulq_s16(first, first_quant));
  vst1q_s16(out + 8, vmulq_s16(second, second_quant));
}

// Returns the number of bits of a block's values.
inline u64 value_bits(const Codebook& book, int cls, u64 mask) {
  const uint8x16_t all = vreinterpretq_u8_u64(vdupq_n_u64(mask));
  const auto ones = [&](const u64* planes) {
    return vcntq_u8(vandq_u8(all, vreinterpretq_u8_u64(vld1q_u64(planes))));
  };
  uint8x16_t sums = ones(book.has[cls]);
  for (int j = 2; j < 8; j += 2) sums = vaddq_u8(sums, ones(book.has[cls] + j));
  if (book.planes[cls] > 8)
    sums = vaddq_u8(sums, vaddq_u8(ones(book.has_wide[cls]), ones(book.has_wide[cls] + 2)));
  return vaddlvq_u8(sums);
}

// Writes a block of n values, at least one. Returns the position after its values.
using BlockKernel = u64(const Codebook& book, const std::uint8_t* bits, int cls, u64 position,
                        u64 mask, unsigned n, const std::int16_t* quant, std::int16_t* out);
// Kernels for classes with values of at most 8 bits, and for others; each for 1 to 4 registers.
using BlockKernels = BlockKernel* [2][4];

// The kernel of walk_blocks(). registers_of: a function of a mask and the number of its values,
// which returns the number of registers that the values take, minus 1.
template <typename RegistersOf>
struct Blocks {
  const Codebook& book;
  const std::uint8_t* bits;
  const std::int16_t* quant;
  const BlockKernels& kernels;
  RegistersOf registers_of;

  void begin(const std::int16_t* of_component) { quant = of_component; }
  u64 skip(int cls, u64 mask) const { return value_bits(book, cls, mask); }
  u64 read(int cls, u64 mask, u64 position, std::int16_t* out) const {
    if (!mask) {
      for (int k = 0; k < 64; k += 8) vst1q_s16(out + k, vdupq_n_s16(0));
      return position;
    }
    const unsigned n = count(mask);
    BlockKernel* const kernel = kernels[book.planes[cls] > 8][registers_of(mask, n)];
    return kernel(book, bits, cls, position, mask, n, quant, out);
  }
};

template <typename RegistersOf>
inline u64 expand_blocks(const ExpandJob& job, const BlockKernels& kernels,
                         RegistersOf registers_of) {
  return walk_blocks(job, Blocks<RegistersOf>{*job.book, job.bits, nullptr, kernels, registers_of});
}

}  // namespace
}  // namespace fastio
