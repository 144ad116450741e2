#include "crc32c.h"

#include <array>
#include <cstring>

#include "cpu.h"
#include "crc32c_kernels.h"
#ifdef FASTIO_X86
#include "intrinsics.h"
#endif

namespace fastio {
namespace {

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

// table[k][b]: the state after byte b and k zeros, from state 0 ("slicing by eight", Kounavis and
// Berry, ISCC 2005).
constexpr Table make_table() {
  Table table{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t state = b;
    for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? kCrc32cPolynomial : 0);
    table[0][b] = state;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::uint32_t b = 0; b < 256; ++b)
      table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
  return table;
}

constexpr Table kTable = make_table();

std::uint32_t update_portable(std::uint32_t state, const std::uint8_t* data, std::size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint32_t byte = data[i] ^ (i < 4 ? state >> (8 * i) & 255 : 0);
      next ^= kTable[7 - i][byte];
    }
    state = next;
  }
  for (; size > 0; ++data, --size) state = state >> 8 ^ kTable[0][(state ^ *data) & 255];
  return state;
}

#ifdef FASTIO_X86

// The instruction has a latency of three cycles and a throughput of one per cycle, so three blocks
// are processed in parallel and their CRCs combined (Gopal and others, "Fast CRC computation for
// iSCSI polynomial using CRC32 instruction", Intel 2011). The bytes of such a block:
constexpr std::size_t kBlock = 1024;

// Computes the state after kBlock zero bytes, with a table for each byte of the state.
class ZeroBlock {
 public:
  ZeroBlock() {
    static constexpr std::uint8_t kZeros[kBlock] = {};
    for (std::size_t k = 0; k < 4; ++k)
      for (std::uint32_t b = 0; b < 256; ++b)
        after_[k][b] = update_portable(b << (8 * k), kZeros, kBlock);
  }
  std::uint32_t operator()(std::uint32_t state) const {
    return after_[0][state & 255] ^ after_[1][state >> 8 & 255] ^ after_[2][state >> 16 & 255] ^
           after_[3][state >> 24];
  }

 private:
  std::uint32_t after_[4][256];
};

std::uint64_t word_at(const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

[[gnu::target("sse4.2,crc32")]] std::uint32_t update_sse42(std::uint32_t state,
                                                           const std::uint8_t* data,
                                                           std::size_t size) {
  static const ZeroBlock zero_block;
  for (; size >= 3 * kBlock; data += 3 * kBlock, size -= 3 * kBlock) {
    std::uint64_t a = state, b = 0, c = 0;
    for (std::size_t i = 0; i < kBlock; i += 8) {
      a = _mm_crc32_u64(a, word_at(data + i));
      b = _mm_crc32_u64(b, word_at(data + kBlock + i));
      c = _mm_crc32_u64(c, word_at(data + 2 * kBlock + i));
    }
    state = zero_block(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    state = zero_block(state) ^ static_cast<std::uint32_t>(c);
  }
  std::uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, word_at(data));
  state = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, *data);
  return state;
}

#endif

}  // namespace

std::uint32_t crc32c(const std::uint8_t* data, std::size_t size) {
  static constexpr Choice<UpdateKernel*> kChoices[] = {
#ifdef FASTIO_X86
      {kAvx512, crc32c_update_avx512},
      {kAvx2, update_sse42},
#endif
#ifdef FASTIO_ARM64
      {kNeon, crc32c_update_neon},
#endif
      {0, update_portable}};
  return ~choose(kChoices)(~0u, data, size);
}

}  // namespace fastio
