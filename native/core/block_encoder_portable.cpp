// The portable kernels of the block encoder.
#include <algorithm>
#include <bit>

#include "block_encoder_kernels.h"

namespace fastio {
namespace {

// Transposes 8 x 8 bits: bit j of byte i becomes bit i of byte j (Hacker's Delight, section 7-3).
std::uint64_t transpose(std::uint64_t x) {
  std::uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
  return x ^ t ^ (t << 28);
}

// Gathers the bits of `bits` at the positions of `mask` in the lowest bits, like pext.
std::uint64_t extract(std::uint64_t bits, std::uint64_t mask) {
  std::uint64_t out = 0;
  for (int i = 0; mask; mask &= mask - 1, ++i) out |= (bits >> std::countr_zero(mask) & 1) << i;
  return out;
}

// The compiler's vector extension, for any processor: arrays would not be kept in registers.
constexpr int kVectorLanes = 16;
using Lanes [[gnu::vector_size(kVectorLanes)]] = std::uint8_t;

// Returns the lanes that equal `value`, as bits.
std::uint32_t equal_lanes(Lanes lanes, std::uint8_t value) {
  const auto equal = lanes == value;
  std::uint64_t halves[2];
  std::memcpy(halves, &equal, sizeof halves);
  std::uint32_t bits = 0;
  for (int i = 0; (halves[0] | halves[1]) && i < kVectorLanes; ++i)
    bits |= static_cast<std::uint32_t>(equal[i] & 1) << i;
  return bits;
}

}  // namespace

std::uint64_t take_apart_portable(const std::int16_t* block, const std::uint8_t* order,
                                  BlockBits& out) {
  std::uint64_t planes[8] = {}, mask = 0, signs = 0, large = 0;
  for (int first = 0; first < 64; first += 8) {
    std::uint64_t magnitudes = 0;
    for (int i = 0; i < 8; ++i) {
      const int z = first + i, value = block[order[z]];
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
  constexpr int kVectors = kGroupLanes / kVectorLanes;
  Lanes sums[kGroups][kVectors];
  Lanes leasts = Lanes{} - 1;
  for (int g = 0; g < groups; ++g) {
    Lanes sum[kVectors];
    std::memcpy(sum, costs.mask + g * kGroupLanes, sizeof sum);
    for (std::uint64_t left = positions; left; left &= left - 1) {
      const int z = std::countr_zero(left);
      Lanes row[kVectors];
      std::memcpy(row, costs.value[z][width[z]] + g * kGroupLanes, sizeof row);
      for (int i = 0; i < kVectors; ++i) {
        sum[i] += row[i];
        sum[i] |= reinterpret_cast<Lanes>(sum[i] < row[i]);  // saturates to 255 on overflow
      }
    }
    std::memcpy(sums[g], sum, sizeof sum);
    for (int i = 0; i < kVectors; ++i) leasts = sum[i] < leasts ? sum[i] : leasts;
  }
  std::uint8_t least = 255;
  for (int i = 0; i < kVectorLanes; ++i) least = std::min<std::uint8_t>(least, leasts[i]);
  for (int g = 0; g < kGroups; ++g) {
    best[g] = 0;
    for (int i = 0; g < groups && i < kVectors; ++i)
      best[g] |= std::uint64_t{equal_lanes(sums[g][i], least)} << (i * kVectorLanes);
  }
  return least;
}

void put_values_portable(const Codebook& codebook, const BlockBits* blocks,
                         const std::uint8_t* classes, int count, BitWriter& to) {
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < codebook.planes[classes[i]]; ++j) {
      const std::uint64_t kept = blocks[i].mask & plane_ranks(codebook, classes[i], j);
      to.put(extract(blocks[i].plane[j], kept), std::popcount(kept));
    }
  }
}

}  // namespace fastio
