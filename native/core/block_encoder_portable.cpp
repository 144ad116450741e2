#include <algorithm>
#include <bit>

#include "block_encoder_kernels.h"

namespace fastio {
namespace {

// 8 x 8 bits: bit j of byte i becomes bit i of byte j (Hacker's Delight, section 7-3).
std::uint64_t transpose(std::uint64_t x) {
  std::uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
  return x ^ t ^ (t << 28);
}

// The bits of `bits` that `mask` has, from the lowest up.
std::uint64_t extract(std::uint64_t bits, std::uint64_t mask) {
  std::uint64_t out = 0;
  for (int i = 0; mask; mask &= mask - 1, ++i) out |= (bits >> std::countr_zero(mask) & 1) << i;
  return out;
}

}  // namespace

std::uint64_t take_apart_portable(const std::int16_t* block, BlockBits& out) {
  std::uint64_t planes[8] = {}, mask = 0, signs = 0, large = 0;
  for (int first = 0; first < 64; first += 8) {
    std::uint64_t magnitudes = 0;
    for (int i = 0; i < 8; ++i) {
      const int z = first + i, value = block[kZigzag[z]];
      if (value == 0 || z == 0) continue;
      const int magnitude = std::min(value < 0 ? -value : value, 127) - 1;
      magnitudes |= static_cast<std::uint64_t>(magnitude) << (8 * i);
      mask |= std::uint64_t{1} << z;
      signs |= std::uint64_t{value < 0} << z;
      large |= std::uint64_t{magnitude == 126} << z;
      out.width[z] = static_cast<std::uint8_t>(1 + std::bit_width(unsigned(magnitude)));
    }
    const std::uint64_t bits = transpose(magnitudes);
    for (int j = 0; j < 8; ++j) planes[j] |= (bits >> (8 * j) & 255) << first;
  }
  out.mask = mask;
  out.half = 0;
  out.plane[0] = signs;
  for (int j = 1; j < kPlanes; ++j) out.plane[j] = j <= 8 ? planes[j - 1] : 0;
  return large;
}

int search_portable(const ClassCosts& costs, std::uint64_t positions, const std::uint8_t* width,
                    int groups, std::uint64_t* best) {
  std::uint8_t sum[kClasses];
  const int lanes = groups * kGroupLanes;
  std::memcpy(sum, costs.mask, static_cast<std::size_t>(lanes));
  for (; positions; positions &= positions - 1) {
    const int z = std::countr_zero(positions);
    const std::uint8_t* row = costs.value[z][width[z]];
    for (int i = 0; i < lanes; ++i) {
      const auto wrapped = static_cast<std::uint8_t>(sum[i] + row[i]);
      sum[i] = static_cast<std::uint8_t>(wrapped < row[i] ? 255 : wrapped);
    }
  }
  const std::uint8_t least = *std::min_element(sum, sum + lanes);
  for (int g = 0; g < kGroups; ++g) {
    best[g] = 0;
    for (int i = 0; g < groups && i < kGroupLanes; ++i)
      best[g] |= std::uint64_t{sum[g * kGroupLanes + i] == least} << i;
  }
  return least;
}

void put_values_portable(const Codebook& codebook, const BlockBits* blocks,
                         const std::uint8_t* classes, int count, BitWriter& to) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < codebook.planes[classes[i]]; ++j) {
      const std::uint64_t kept = blocks[i].mask & plane_positions(codebook, classes[i], j);
      to.put(extract(blocks[i].plane[j], kept), std::popcount(kept));
    }
  }
}

}  // namespace fastio
