// Expansion with bdep, the pdep of SVE2. It moves the bits of a plane to their positions in a
// 64-bit word, which is then expanded to 16 lanes at a time, whatever the length of SVE's vectors.
#include <arm_sve.h>

#include "expand_lanes.h"

namespace fastio {
namespace {

// pdep of one 64-bit word.
inline u64 deposit(u64 bits, u64 plane) {
  return svlastb_u64(svptrue_pat_b64(SV_VL1), svbdep_n_u64(svdup_n_u64(bits), plane));
}

// Expands 64 bits to the lanes of kParts registers.
template <int kParts>
struct Spread {
  uint8x16_t from[kParts], each;

  Spread() {
    static constexpr std::uint8_t kEach[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                               1, 2, 4, 8, 16, 32, 64, 128};
    static constexpr std::uint8_t kFrom[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    each = vld1q_u8(kEach);
    from[0] = vld1q_u8(kFrom);
    for (int part = 1; part < kParts; ++part) from[part] = vaddq_u8(from[part - 1], vdupq_n_u8(2));
  }

  // Returns register `part`: all ones where a bit is set.
  uint8x16_t lanes(u64 bits, int part) const {
    return vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u64(vdupq_n_u64(bits)), from[part]), each);
  }
};

// Sets the bits of `bytes` from planes [first, end), the lowest bit first. Returns the position
// after them.
template <int kParts>
inline u64 read_planes(const Codebook& book, int cls, int first, int end, const std::uint8_t* bits,
                       u64 position, u64 mask, const Spread<kParts>& spread, uint8x16_t* bytes) {
  int j = first;
  for (; j < end; ++j) {
    const u64 plane = mask & plane_of(book, cls, j);
    if (!plane) break;
    const u64 set = deposit(bits_at<kParts == 4>(bits, position), plane);
    position += count(plane);
    // Shift each plane in at the top; they are shifted down below.
    for (int part = 0; part < kParts; ++part)
      bytes[part] = vsriq_n_u8(spread.lanes(set, part), bytes[part], 1);
  }
  const int8x16_t down = vdupq_n_s8(static_cast<std::int8_t>(j - first - 8));
  for (int part = 0; part < kParts; ++part) bytes[part] = vshlq_u8(bytes[part], down);
  return position;
}

template <int kParts, bool kWide>
u64 read_block(const Codebook& book, const std::uint8_t* bits, int cls, u64 position, u64 mask,
               unsigned n, const std::int16_t* quant, std::int16_t* out) {
  const Spread<kParts> spread;
  const u64 signs = deposit(bits_at<kParts == 4>(bits, position), mask);
  position += n;
  Values<kParts> values;
  for (int part = 0; part < kParts; ++part) values.low[part] = values.high[part] = vdupq_n_u8(0);
  // Read magnitudes minus 1.
  position = read_planes(book, cls, 1, kWide ? 9 : 8, bits, position, mask, spread, values.low);
  if (kWide && mask & plane_of(book, cls, 8))
    position = read_planes(book, cls, 9, kPlanes, bits, position, mask, spread, values.high);
  // Convert them to values: -m is ~(m - 1).
  for (int part = 0; part < kParts; ++part) {
    const uint8x16_t negative = spread.lanes(signs, part), has = spread.lanes(mask, part);
    const uint8x16_t low = veorq_u8(values.low[part], negative);
    values.low[part] = vaddq_u8(low, vsubq_u8(negative, has));
    if constexpr (kWide) {
      const uint8x16_t carry = vbicq_u8(vandq_u8(vceqzq_u8(values.low[part]), has), negative);
      values.high[part] = vsubq_u8(veorq_u8(values.high[part], negative), carry);
    }
  }
  for (int i = 0; i < 64; i += 16)
    store_sixteen<kParts, kWide>(values, vld1q_u8(book.rank[cls] + i), quant + i, out + i);
  return position;
}

}  // namespace

std::uint64_t expand_sve2(const ExpandJob& job) {
  static constexpr BlockKernels kKernels = {
      {read_block<1, false>, read_block<2, false>, read_block<3, false>, read_block<4, false>},
      {read_block<1, true>, read_block<2, true>, read_block<3, true>, read_block<4, true>}};
  // Lanes are positions here, so the last position that has a value determines the registers.
  return expand_blocks(job, kKernels, [](u64 mask, unsigned) {
    return (63 - static_cast<unsigned>(__builtin_clzll(mask))) / 16;
  });
}

}  // namespace fastio
