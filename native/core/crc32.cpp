// Slicing by eight: eight bytes at a time with eight tables (Kounavis and Berry, "A Systematic
// Approach to Building High Performance, Software-Based, CRC Generators", ISCC 2005).
#include "crc32.h"

#include <array>

#include "cpu.h"
#include "crc32c_kernels.h"

namespace fastio {
namespace {

using Table = std::array<std::uint32_t, 256>;

constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0xEDB88320u : 0u);
    tables[0][byte] = state;
  }
  for (std::size_t t = 1; t < 8; ++t)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[t][byte] = tables[t - 1][byte] >> 8 ^ tables[0][tables[t - 1][byte] & 255];
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

std::uint32_t update_portable(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 4; ++i)
      next ^= kTables[7 - i][(state >> 8 * i & 255) ^ data[i]] ^ kTables[3 - i][data[4 + i]];
    state = next;
  }
  for (; size; ++data, --size) state = state >> 8 ^ kTables[0][(state & 255) ^ *data];
  return state;
}

}  // namespace

std::uint32_t crc32(const std::uint8_t* data, std::size_t size) {
  static constexpr Choice<UpdateKernel*> kChoices[] = {
#ifdef FASTIO_ARM64
      {kNeon, crc32_update_neon},
#endif
      {0, update_portable}};
  return ~choose(kChoices)(~0u, data, size);
}

}  // namespace fastio
