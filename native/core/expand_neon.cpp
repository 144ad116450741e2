// ARM has pdep only in SVE2. Here, values are decoded in the order of the block's bits, 16 in a
// register, and moved to their places once, with table look-ups. The mask, eight positions at a
// time, gives a list of the positions that have values, and for each position the number of its
// value. Looking up the list in the widths of the class gives the width of each value. Plane j has
// one bit for each value with more than j bits, and running counts of these values say which bit
// belongs to which value. Looking up the numbers, in natural order, in the values gives the block.
#include <arm_neon.h>

#include "expand_bits.h"
#include "expand_kernels.h"

namespace fastio {
namespace {

// For one byte of a mask: the positions that are set; the number of each position among them
// (positions that are not set: out of the range of every table); and the starts for the next byte.
struct MaskByte {
  std::uint8_t positions[8], numbers[8];
  std::uint8_t eights[8], counts[8];
};
struct MaskBytes {
  alignas(16) MaskByte of[256];
};
constexpr std::uint8_t kAbsent = 0x80;
constexpr MaskBytes make_mask_bytes() {
  MaskBytes table{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    MaskByte& entry = table.of[bits];
    std::uint8_t n = 0;
    for (std::uint8_t i = 0; i < 8; ++i) {
      entry.numbers[i] = kAbsent;
      if (!(bits >> i & 1)) continue;
      entry.positions[n] = i;
      entry.numbers[i] = n++;
    }
    for (int i = 0; i < 8; ++i) {
      entry.eights[i] = 8;
      entry.counts[i] = n;
    }
  }
  return table;
}
constexpr MaskBytes kMaskBytes = make_mask_bytes();

inline uint8x16x4_t load_four(const std::uint8_t* from) {
  return {{vld1q_u8(from), vld1q_u8(from + 16), vld1q_u8(from + 32), vld1q_u8(from + 48)}};
}

// What a block's mask says.
struct Places {
  alignas(16) std::uint8_t list[64 + 32];  // the positions with values, then kAbsent
  alignas(16) std::uint8_t numbers[64];    // of each position's value, or from kAbsent on

  explicit Places(u64 mask) {
    const uint8x16_t absent = vdupq_n_u8(kAbsent);
    for (int i = 0; i < 64; i += 16) vst1q_u8(numbers + i, absent);
    uint8x16_t from = vdupq_n_u8(0);
    std::uint8_t *to = list, *number = numbers;
    for (u64 left = mask; left; left >>= 8, number += 8) {
      const MaskByte& entry = kMaskBytes.of[left & 255];
      const uint8x16_t both = vaddq_u8(vld1q_u8(entry.positions), from);
      vst1_u8(to, vget_low_u8(both));
      vst1_u8(number, vget_high_u8(both));
      from = vaddq_u8(from, vld1q_u8(entry.eights));
      to += entry.counts[0];
    }
    vst1q_u8(to, absent);
    vst1q_u8(to + 16, absent);
  }
};

// 16 bits to 16 lanes, all ones where a bit is set.
inline uint8x16_t lanes_of(u64 bits) {
  static constexpr std::uint8_t kSpread[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  static constexpr std::uint8_t kEach[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                             1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t all = vreinterpretq_u8_u64(vdupq_n_u64(bits));
  return vtstq_u8(vqtbl1q_u8(all, vld1q_u8(kSpread)), vld1q_u8(kEach));
}

// Of lanes that are -1 or 0, their sums up to, and including, each.
inline uint8x16_t running_sums(uint8x16_t lanes) {
  const uint8x16_t zero = vdupq_n_u8(0);
  lanes = vaddq_u8(lanes, vextq_u8(zero, lanes, 15));
  lanes = vaddq_u8(lanes, vextq_u8(zero, lanes, 14));
  lanes = vaddq_u8(lanes, vextq_u8(zero, lanes, 12));
  return vaddq_u8(lanes, vextq_u8(zero, lanes, 8));
}

// The values of a block, in the order of its bits: kParts registers of 16.
template <int kParts>
struct Values {
  uint8x16_t low[kParts], high[kParts];
};

// The positions of class `cls` with values of more than j bits.
inline u64 plane_of(const Codebook& book, int cls, int j) {
  return j < 8 ? book.has[cls][j] : book.has_wide[cls][j - 8];
}

// The values of a block as it is read, in the order of its bits: magnitudes less 1.
template <int kParts>
struct Reading {
  Values<kParts> values;
  uint8x16_t widths[kParts];
  unsigned widest[kParts];  // of a register's values
  u64 position;
};

// Adds plane j to `bytes` of the first kActive registers, as `bit`.
template <int kActive, int kParts>
inline void add_plane(const std::uint8_t* bits, unsigned j, uint8x16_t bit, uint8x16_t* bytes,
                      Reading<kParts>& reading) {
  const uint8x16_t width = vdupq_n_u8(static_cast<std::uint8_t>(j));
  u64 word = bits57(bits, reading.position);
  for (int part = 0; part < kActive; ++part) {
    if (part == 3) word = bits57(bits, reading.position);
    const uint8x16_t has = vcgtq_u8(reading.widths[part], width);
    const uint8x16_t sums = running_sums(has);
    const uint8x16_t set = vqtbl1q_u8(lanes_of(word), vmvnq_u8(sums));
    bytes[part] = vorrq_u8(bytes[part], vandq_u8(vandq_u8(set, has), bit));
    const int ones = -vgetq_lane_s8(vreinterpretq_s8_u8(sums), 15);
    word >>= ones;
    reading.position += static_cast<unsigned>(ones);
  }
}

// Adds planes j to kEnd - 1, the first of them as `bit`. Later values are seldom wide: planes
// without bits in the last register leave it out.
template <int kActive, int kEnd, int kParts>
inline void add_planes(const Codebook& book, const std::uint8_t* bits, int cls, u64 mask,
                       unsigned j, uint8x16_t bit, uint8x16_t* bytes, Reading<kParts>& reading) {
  for (; j < kEnd && mask & plane_of(book, cls, static_cast<int>(j)); ++j) {
    if constexpr (kActive > 1)
      if (reading.widest[kActive - 1] <= j)
        return add_planes<kActive - 1, kEnd>(book, bits, cls, mask, j, bit, bytes, reading);
    add_plane<kActive>(bits, j, bit, bytes, reading);
    bit = vshlq_n_u8(bit, 1);
  }
}

// kWide: of a class with values wider than 8 bits, which are 16 bits throughout.
template <int kParts, bool kWide>
inline u64 read_values(const Codebook& book, const std::uint8_t* bits, int cls, u64 position,
                       u64 mask, unsigned n, const Places& places, Values<kParts>& values) {
  const uint8x16x4_t width_of = load_four(book.width[cls]);
  Reading<kParts> reading;
  uint8x16_t negative[kParts];
  for (unsigned part = 0; part < kParts; ++part) {
    reading.widths[part] = vqtbl4q_u8(width_of, vld1q_u8(places.list + 16 * part));
    reading.widest[part] = part ? vmaxvq_u8(reading.widths[part]) : kPlanes;
    negative[part] = lanes_of(bits57(bits, position + 16 * part));
    reading.values.low[part] = reading.values.high[part] = vdupq_n_u8(0);
  }
  reading.position = position + n;
  const uint8x16_t one = vdupq_n_u8(1);
  add_planes<kParts, kWide ? 9 : 8>(book, bits, cls, mask, 1, one, reading.values.low, reading);
  if constexpr (kWide)
    add_planes<kParts, kPlanes>(book, bits, cls, mask, 9, one, reading.values.high, reading);
  // Magnitudes to values: -m is ~(m - 1).
  for (int part = 0; part < kParts; ++part) {
    const uint8x16_t low = veorq_u8(reading.values.low[part], negative[part]);
    values.low[part] = vaddq_u8(low, vaddq_u8(one, negative[part]));
    if constexpr (kWide) {
      const uint8x16_t carry = vbicq_u8(vceqzq_u8(values.low[part]), negative[part]);
      values.high[part] = vsubq_u8(veorq_u8(reading.values.high[part], negative[part]), carry);
    }
  }
  return reading.position;
}

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

template <int kParts, bool kWide>
inline void store_block(const Values<kParts>& values, const Places& places,
                        const std::int16_t* quant, std::int16_t* out) {
  const uint8x16x4_t numbers = load_four(places.numbers);
  for (int i = 0; i < 64; i += 16) {
    const uint8x16_t number = vqtbl4q_u8(numbers, vld1q_u8(kZigzagInverse + i));
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
    vst1q_s16(out + i, vmulq_s16(first, vld1q_s16(quant + i)));
    vst1q_s16(out + i + 8, vmulq_s16(second, vld1q_s16(quant + i + 8)));
  }
}

template <int kParts, bool kWide>
u64 read_block(const Codebook& book, const std::uint8_t* bits, int cls, u64 position, u64 mask,
               unsigned n, const std::int16_t* quant, std::int16_t* out) {
  const Places places(mask);
  Values<kParts> values;
  position = read_values<kParts, kWide>(book, bits, cls, position, mask, n, places, values);
  store_block<kParts, kWide>(values, places, quant, out);
  return position;
}

using BlockKernel = u64(const Codebook& book, const std::uint8_t* bits, int cls, u64 position,
                        u64 mask, unsigned n, const std::int16_t* quant, std::int16_t* out);

// The bits that a block's values take.
inline u64 value_bits(u64 mask, const u64* has, const u64* has_wide) {
  const uint8x16_t all = vreinterpretq_u8_u64(vdupq_n_u64(mask));
  const auto ones = [&](const u64* planes) {
    return vcntq_u8(vandq_u8(all, vreinterpretq_u8_u64(vld1q_u64(planes))));
  };
  uint8x16_t sums = vaddq_u8(ones(has_wide), ones(has_wide + 2));
  for (int j = 0; j < 8; j += 2) sums = vaddq_u8(sums, ones(has + j));
  return vaddlvq_u8(sums);
}

}  // namespace

std::uint64_t expand_neon(const ExpandJob& job) {
  static constexpr BlockKernel* kKernels[2][4] = {
      {read_block<1, false>, read_block<2, false>, read_block<3, false>, read_block<4, false>},
      {read_block<1, true>, read_block<2, true>, read_block<3, true>, read_block<4, true>}};
  // Copies, since stores to `out` might change what a reference refers to.
  const Codebook& book = *job.book;
  const std::uint8_t *const bits = job.bits, *const classes = job.classes;
  const u64 wanted = job.wanted, end = job.end;
  std::int16_t* const blocks = job.out;
  u64 masks = 0, values = job.mask_bits;
  for (int c = 0; c < 3; ++c) {
    const std::int16_t* quant = job.quant->value[c];
    for (int i = job.first[c], last = job.last[c]; i < last; ++i) {
      const int cls = classes[i];
      const unsigned length = book.mask_bits[cls];
      const u64 mask = (bits64(bits, masks) & ((u64{1} << length) - 1)) << 1;
      masks += length;
      std::int16_t* const out = blocks + 64 * i;
      if (!(wanted >> i & 1)) {
        values += value_bits(mask, book.has[cls], book.has_wide[cls]);
      } else if (!mask) {
        for (int k = 0; k < 64; k += 8) vst1q_s16(out + k, vdupq_n_s16(0));
      } else {
        const unsigned n = count(mask);
        BlockKernel* const kernel = kKernels[book.planes[cls] > 8][(n - 1) / 16];
        values = kernel(book, bits, cls, values, mask, n, quant, out);
      }
      if (values > end) return values;
    }
  }
  return values;
}

void sum_neon(std::int16_t* dc, std::int32_t n, std::uint16_t start) {
  const uint16x8_t zero = vdupq_n_u16(0);
  uint16x8_t carry = vdupq_n_u16(start);
  std::int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    uint16x8_t sums = vreinterpretq_u16_s16(vld1q_s16(dc + i));
    sums = vaddq_u16(sums, vextq_u16(zero, sums, 7));
    sums = vaddq_u16(sums, vextq_u16(zero, sums, 6));
    sums = vaddq_u16(sums, vextq_u16(zero, sums, 4));
    sums = vaddq_u16(sums, carry);
    vst1q_s16(dc + i, vreinterpretq_s16_u16(sums));
    carry = vdupq_laneq_u16(sums, 7);
  }
  sum_portable(dc + i, n - i, vgetq_lane_u16(carry, 0));
}

}  // namespace fastio
