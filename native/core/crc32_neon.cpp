// ARMv8's CRC instructions. An instruction for eight bytes has a latency of two cycles on Arm's
// server cores (see their Software Optimization Guides). Four bytes per cycle are as fast as
// memory, so parallel streams are not needed.
#include <arm_acle.h>

#include "crc32c_kernels.h"

namespace fastio {
namespace {

inline std::uint64_t word_at(const std::uint8_t* data) {
  std::uint64_t word;
  __builtin_memcpy(&word, data, sizeof word);
  return word;
}

}  // namespace

std::uint32_t crc32c_update_neon(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
  for (; size >= 32; data += 32, size -= 32) {
    for (int i = 0; i < 32; i += 8) state = __crc32cd(state, word_at(data + i));
  }
  for (; size >= 8; data += 8, size -= 8) state = __crc32cd(state, word_at(data));
  for (; size > 0; ++data, --size) state = __crc32cb(state, *data);
  return state;
}

std::uint32_t crc32_update_neon(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
  for (; size >= 32; data += 32, size -= 32) {
    for (int i = 0; i < 32; i += 8) state = __crc32d(state, word_at(data + i));
  }
  for (; size >= 8; data += 8, size -= 8) state = __crc32d(state, word_at(data));
  for (; size > 0; ++data, --size) state = __crc32b(state, *data);
  return state;
}

}  // namespace fastio
