#include "codebook.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "idct.h"

namespace fastio {

const std::uint8_t kZigzag[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                  35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                  58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

const std::uint8_t kZigzagInverse[64] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
    41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
    46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63};

namespace {

Status wrong(int number, const std::string& what) {
  return Status::error(Code::corrupt, "codebook: class " + std::to_string(number) + " " + what);
}

}  // namespace

Status Codebook::parse(const std::uint8_t* bytes, std::size_t size) {
  if (size != kCodebookBytes)
    return Status::error(Code::corrupt, "codebook: " + std::to_string(size) + " bytes, expected " +
                                            std::to_string(kCodebookBytes));
  std::memset(has, 0, sizeof(has));
  std::memset(has_wide, 0, sizeof(has_wide));
  std::memset(has_words, 0, sizeof(has_words));
  for (int c = 0; c < kClasses; ++c) {
    const std::uint8_t* record = bytes + c * 65;
    const int last = record[0];
    if (last > 63) return wrong(c, "ends at position " + std::to_string(last));
    if (record[1] > kPlanes) return wrong(c, "gives the DC " + std::to_string(record[1]) + " bits");
    mask_bits[c] = record[0];
    dc_bits[c] = record[1];
    dc_escape[c] = static_cast<std::int16_t>(record[1] ? -(1 << (record[1] - 1)) : 1);
    planes[c] = 0;
    std::memcpy(width[c], record + 1, 64);
    for (int z = 1; z < 64; ++z) {
      const int bits = record[1 + z];
      if (z <= last ? bits < 1 || bits > kPlanes : bits != 0)
        return wrong(c, "gives position " + std::to_string(z) + " " + std::to_string(bits) +
                            " bits, and ends at position " + std::to_string(last));
      planes[c] = std::max(planes[c], record[1 + z]);
    }
    rank_positions(c);
  }
  if (mask_bits[0] != 63 || *std::min_element(width[0], width[0] + 64) != kPlanes)
    return wrong(0, "does not hold every block");
  return Status::okay();
}

void Codebook::rank_positions(int c) {
  std::uint8_t order[64];
  std::iota(order, order + 64, std::uint8_t{0});
  std::stable_sort(order + 1, order + 1 + mask_bits[c],
                   [&](std::uint8_t a, std::uint8_t b) { return width[c][a] > width[c][b]; });
  for (std::uint8_t r = 0; r < 64; ++r) {
    natural[c][r] = kZigzag[order[r]];
    place[c][r] = static_cast<std::uint8_t>(idct_place(natural[c][r]));
    rank[c][place[c][r]] = r;
    rank_width[c][r] = width[c][order[r]];
    for (int j = 0; r > 0 && j < width[c][order[r]]; ++j)
      (j < 8 ? has[c][j] : has_wide[c][j - 8]) |= std::uint64_t{1} << r;
  }
  for (int j = 0; j < 8; ++j) has_words[c][j / 4] |= (has[c][j] & 0xffff) << (j % 4 * 16);
  for (int i = 0; i < 64; ++i) {
    const std::uint8_t r = rank[c][i / 2 + i % 2 * 32];
    rank_pairs[c][i] = r;
    const int byte = avx2_byte(c, r);
    for (int q = 0; q < 4; ++q)
      shuffle[c][q][i] = static_cast<std::uint8_t>(byte / 16 == q ? byte % 16 : 0x80);
  }
}

}  // namespace fastio
