// Expansion without pdep, which ARM has only in SVE2. Values are decoded in stream order, 16 in a
// register, and moved to their positions once, by table look-ups:
// - The mask, eight positions at a time, gives the list of positions that have values, and for each
//   position the number of its value.
// - Looking up the list in the class's widths gives the width of each value.
// - Plane j has one bit for each value of more than j bits. Prefix sums over these values give the
//   bit of each value.
// - Looking up the numbers, in the order of places, in the values gives the block.
#include <arm_neon.h>

#include "expand_lanes.h"

namespace fastio {
namespace {

// An entry for each value of a mask's byte: the positions that are set; the rank of each position
// among these (kAbsent if it is not set); and what to add to both for the next byte.
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

template <int kHalf>
inline void store_half(uint64x2_t halves, std::uint8_t* to) {
  vst1q_lane_u64(reinterpret_cast<std::uint64_t*>(to), halves, kHalf);
}

// The positions of a block's values, from its mask.
struct Places {
  alignas(16) std::uint8_t list[64 + 32];  // the positions with values, then kAbsent
  alignas(16) std::uint8_t numbers[64];    // the number of each position's value; >= kAbsent: none

  explicit Places(u64 mask) {
    const uint8x16_t absent = vdupq_n_u8(kAbsent);
    for (int i = 0; i < 64; i += 16) vst1q_u8(numbers + i, absent);
    uint8x16_t from = vdupq_n_u8(0);
    std::uint8_t *to = list, *number = numbers;
    for (u64 left = mask; left; left >>= 8, number += 8) {
      const MaskByte& entry = kMaskBytes.of[left & 255];
      const uint64x2_t both = vreinterpretq_u64_u8(vaddq_u8(vld1q_u8(entry.positions), from));
      store_half<0>(both, to);
      store_half<1>(both, number);
      from = vaddq_u8(from, vld1q_u8(entry.eights));
      to += entry.counts[0];
    }
    vst1q_u8(to, absent);
    vst1q_u8(to + 16, absent);
  }
};

// Prefix sums: each lane becomes the sum of all lanes up to it, modulo 256.
inline uint8x16_t running_sums(uint8x16_t lanes) {
  const uint8x16_t zero = vdupq_n_u8(0);
  lanes = vaddq_u8(lanes, vextq_u8(zero, lanes, 15));
  lanes = vaddq_u8(lanes, vextq_u8(zero, lanes, 14));
  lanes = vaddq_u8(lanes, vextq_u8(zero, lanes, 12));
  return vaddq_u8(lanes, vextq_u8(zero, lanes, 8));
}

// The values of a block while its planes are read, in stream order: magnitudes minus 1.
template <int kParts>
struct Reading {
  Values<kParts> values;
  uint8x16_t widths[kParts];
  unsigned widest[kParts];  // the largest width in each register
  u64 position;
};

// Shifts plane j into `bytes` of the first kActive registers, from the top.
template <int kActive, int kParts>
inline void add_plane(const std::uint8_t* bits, unsigned j, uint8x16_t* bytes,
                      Reading<kParts>& reading) {
  const uint8x16_t width = vdupq_n_u8(static_cast<std::uint8_t>(j));
  u64 word = bits57(bits, reading.position);
  for (int part = 0; part < kActive; ++part) {
    if (part == 3) word = bits57(bits, reading.position);
    const uint8x16_t has = vcgtq_u8(reading.widths[part], width);
    const uint8x16_t sums = running_sums(has);
    const uint8x16_t set = vqtbl1q_u8(lanes_of(word), vmvnq_u8(sums));
    bytes[part] = vsriq_n_u8(vandq_u8(set, has), bytes[part], 1);
    const std::int64_t less = vgetq_lane_s8(vreinterpretq_s8_u8(sums), 15);
    if (part + 1 < kActive) word >>= -less;
    reading.position -= static_cast<u64>(less);
  }
}

// Moves the bits of planes [first, j), which were shifted in from the top, to the bottom.
inline uint8x16_t shifted_down(uint8x16_t bytes, unsigned first, unsigned j) {
  return vshlq_u8(bytes, vdupq_n_s8(static_cast<std::int8_t>(j - first - 8)));
}

// Adds planes [j, kEnd) to `bytes`, whose first plane is kFirst. Skips the last register for planes
// that have no bits in it: values at the end of a block are seldom wide.
template <int kActive, int kFirst, int kEnd, int kParts>
inline void add_planes(const Codebook& book, const std::uint8_t* bits, int cls, u64 mask,
                       unsigned j, uint8x16_t* bytes, Reading<kParts>& reading) {
  for (; j < kEnd && mask & plane_of(book, cls, static_cast<int>(j)); ++j) {
    if constexpr (kActive > 1) {
      if (reading.widest[kActive - 1] <= j) {
        bytes[kActive - 1] = shifted_down(bytes[kActive - 1], kFirst, j);
        return add_planes<kActive - 1, kFirst, kEnd>(book, bits, cls, mask, j, bytes, reading);
      }
    }
    add_plane<kActive>(bits, j, bytes, reading);
  }
  for (int part = 0; part < kActive; ++part) bytes[part] = shifted_down(bytes[part], kFirst, j);
}

// Decodes the values of a block in stream order. Returns the position after them. kWide: the class
// has values wider than 8 bits, so all values have 16 bits.
template <int kParts, bool kWide>
inline u64 read_values(const Codebook& book, const std::uint8_t* bits, int cls, u64 position,
                       u64 mask, unsigned n, const Places& places, Values<kParts>& values) {
  const uint8x16x4_t width_of = load_four(book.rank_width[cls]);
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
  add_planes<kParts, 1, kWide ? 9 : 8>(book, bits, cls, mask, 1, reading.values.low, reading);
  if constexpr (kWide)
    add_planes<kParts, 9, kPlanes>(book, bits, cls, mask, 9, reading.values.high, reading);
  // Convert magnitudes minus 1 to values: -m is ~(m - 1).
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

template <int kParts, bool kWide>
inline void store_block(const Values<kParts>& values, const Places& places,
                        const std::uint8_t* rank, const std::int16_t* quant, std::int16_t* out) {
  const uint8x16x4_t numbers = load_four(places.numbers);
  for (int i = 0; i < 64; i += 16) {
    const uint8x16_t number = vqtbl4q_u8(numbers, vld1q_u8(rank + i));
    store_sixteen<kParts, kWide>(values, number, quant + i, out + i);
  }
}

template <int kParts, bool kWide>
u64 read_block(const Codebook& book, const std::uint8_t* bits, int cls, u64 position, u64 mask,
               unsigned n, const std::int16_t* quant, std::int16_t* out) {
  const Places places(mask);
  Values<kParts> values;
  position = read_values<kParts, kWide>(book, bits, cls, position, mask, n, places, values);
  store_block<kParts, kWide>(values, places, book.rank[cls], quant, out);
  return position;
}

// A table of 256 bytes.
struct WidthTables {
  uint8x16x4_t part[4];

  explicit WidthTables(const std::uint8_t* bytes)
      : part{load_four(bytes), load_four(bytes + 64), load_four(bytes + 128),
             load_four(bytes + 192)} {}

  uint8x16_t of(uint8x16_t classes) const {
    uint8x16_t found = vqtbl4q_u8(part[0], classes);
    found = vqtbx4q_u8(found, part[1], vsubq_u8(classes, vdupq_n_u8(64)));
    found = vqtbx4q_u8(found, part[2], vsubq_u8(classes, vdupq_n_u8(128)));
    return vqtbx4q_u8(found, part[3], vsubq_u8(classes, vdupq_n_u8(192)));
  }
};

// Stores eight differences. low: 16 bits from the first byte of each difference on; next: the 8
// bits after those. up: the shift that moves the sign to bit 15; down: the shift back from there.
inline void store_differences(uint16x8_t low, uint16x8_t next, int16x8_t up, int16x8_t down,
                              std::int16_t* diff, int16x8_t& any) {
  const uint16x8_t first = vshlq_u16(low, up);
  const uint16x8_t second = vshlq_u16(next, vaddq_s16(up, vdupq_n_s16(16)));
  const int16x8_t value = vshlq_s16(vreinterpretq_s16_u16(vorrq_u16(first, second)), down);
  const int16x8_t escape = vshlq_s16(vdupq_n_s16(INT16_MIN), down);
  any = vorrq_s16(any, vreinterpretq_s16_u16(vceqq_s16(value, escape)));
  vst1q_s16(diff, value);
}

// Decodes 16 DC differences of these widths, which take at most 27 bytes. Returns the position
// after them. Sets lanes of `any` to -1 for escapes: the lowest number of each width.
inline u64 sixteen_differences(uint8x16_t widths, const std::uint8_t* bits, u64 position,
                               std::int16_t* diff, int16x8_t& any) {
  const uint8x16_t ends = running_sums(widths);
  const uint8x16_t starts =
      vaddq_u8(vsubq_u8(ends, widths), vdupq_n_u8(static_cast<std::uint8_t>(position & 7)));
  const std::uint8_t* const from = bits + (position >> 3);
  const uint8x16x2_t window = {{vld1q_u8(from), vld1q_u8(from + 16)}};
  const uint8x16_t byte = vshrq_n_u8(starts, 3);
  const uint8x16_t first = vqtbl2q_u8(window, byte);
  const uint8x16_t second = vqtbl2q_u8(window, vaddq_u8(byte, vdupq_n_u8(1)));
  const uint8x16_t third = vqtbl2q_u8(window, vaddq_u8(byte, vdupq_n_u8(2)));
  // A difference of width 0 is shifted out completely if its bit offset is taken as 0.
  const uint8x16_t bit = vandq_u8(vandq_u8(starts, vdupq_n_u8(7)), vtstq_u8(widths, widths));
  const int8x16_t down = vreinterpretq_s8_u8(vsubq_u8(widths, vdupq_n_u8(16)));
  const int8x16_t up = vsubq_s8(vnegq_s8(down), vreinterpretq_s8_u8(bit));
  store_differences(vreinterpretq_u16_u8(vzip1q_u8(first, second)), vmovl_u8(vget_low_u8(third)),
                    vmovl_s8(vget_low_s8(up)), vmovl_s8(vget_low_s8(down)), diff, any);
  store_differences(vreinterpretq_u16_u8(vzip2q_u8(first, second)), vmovl_high_u8(third),
                    vmovl_high_s8(up), vmovl_high_s8(down), diff + 8, any);
  return position + vgetq_lane_u8(ends, 15);
}

}  // namespace

std::uint64_t expand_neon(const ExpandJob& job) {
  static constexpr BlockKernels kKernels = {
      {read_block<1, false>, read_block<2, false>, read_block<3, false>, read_block<4, false>},
      {read_block<1, true>, read_block<2, true>, read_block<3, true>, read_block<4, true>}};
  return expand_blocks(job, kKernels, [](u64, unsigned n) { return (n - 1) / 16; });
}

u64 dc_differences_neon(const Codebook& book, const std::uint8_t* classes, int n,
                        const std::uint8_t* bits, u64 position, std::int16_t* diff,
                        std::uint64_t& escapes) {
  const WidthTables widths(book.dc_bits);
  int16x8_t any = vdupq_n_s16(0);
  int i = 0;
  for (; i + 16 <= n; i += 16)
    position = sixteen_differences(widths.of(vld1q_u8(classes + i)), bits, position, diff + i, any);
  u64 rest = 0;
  position = dc_differences_portable(book, classes + i, n - i, bits, position, diff + i, rest);
  escapes = (vmaxvq_u16(vreinterpretq_u16_s16(any)) | rest) != 0 ? ~u64{0} : 0;
  return position;
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
