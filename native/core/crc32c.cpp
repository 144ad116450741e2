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

// The instruction has a latency of three cycles and a throughput of one per cycle, so three parts
// are processed in parallel and their CRCs combined (Gopal and others, "Fast CRC computation for
// iSCSI polynomial using CRC32 instruction", Intel 2011). A part has at most kPartWords words of 8
// bytes. Fewer than kLeastBytes bytes are processed faster as one part.
constexpr std::size_t kPartWords = 128;
constexpr std::size_t kLeastBytes = 96;

// words[n]: x^(64 n - 33) modulo the polynomial, bit-reflected: the factor that advances a state
// by n words. The exponent is 33 less than 64 n, because a carry-less product of two reflected
// 32-bit numbers, read as a reflected 64-bit number, has an extra factor x, and the CRC instruction
// multiplies by x^32.
struct Advance {
  std::uint32_t words[2 * kPartWords + 1];
};
constexpr Advance make_advance() {
  Advance advance{};
  std::uint32_t value = 1;  // x^31
  for (std::size_t n = 1; n <= 2 * kPartWords; ++n) {
    advance.words[n] = value;
    for (int i = 0; i < 64; ++i) value = value >> 1 ^ (value & 1 ? kCrc32cPolynomial : 0);
  }
  return advance;
}
constexpr Advance kAdvance = make_advance();

std::uint64_t word_at(const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

[[gnu::target("sse4.2,crc32,pclmul")]] std::uint32_t update_sse42(std::uint32_t state,
                                                                  const std::uint8_t* data,
                                                                  std::size_t size) {
  std::uint64_t wide = state;
  while (size >= kLeastBytes) {
    const std::size_t words = size < 24 * kPartWords ? size / 24 : kPartWords, part = 8 * words;
    std::uint64_t b = 0, c = 0;
    for (const std::uint8_t* const end = data + part; data < end; data += 8) {
      wide = _mm_crc32_u64(wide, word_at(data));
      b = _mm_crc32_u64(b, word_at(data + part));
      c = _mm_crc32_u64(c, word_at(data + 2 * part));
    }
    const __m128i states = _mm_set_epi64x(static_cast<long long>(b), static_cast<long long>(wide));
    const __m128i by = _mm_set_epi64x(kAdvance.words[words], kAdvance.words[2 * words]);
    const __m128i advanced = _mm_xor_si128(_mm_clmulepi64_si128(states, by, 0x00),
                                           _mm_clmulepi64_si128(states, by, 0x11));
    wide = c ^ _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(advanced)));
    data += 2 * part;
    size -= 3 * part;
  }
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
