// Folds 256 bytes at a time by carry-less multiplication (Gopal and others, "Fast CRC computation
// for generic polynomials using PCLMULQDQ instruction", Intel 2009). The processor's CRC-32C
// instruction computes the CRC of the 16 bytes that remain.
#include "crc32c_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or an intrinsic: see CMakeLists.txt.

// Returns x^power modulo the polynomial, as the upper half of a reflected 64-bit number.
constexpr std::uint64_t power_of_x(int power) {
  std::uint32_t value = 0x80000000u;
  for (int i = 0; i < power; ++i) value = value >> 1 ^ (value & 1 ? kCrc32cPolynomial : 0);
  return static_cast<std::uint64_t>(value) << 32;
}

// The factors that advance 128 bits by `distance` bits. The product of two reflected 64-bit numbers
// is shifted by one bit, which the - 1 compensates.
struct Fold {
  std::uint64_t low, high;
};
constexpr Fold fold_by(int distance) {
  return {power_of_x(distance + 64 - 1), power_of_x(distance - 1)};
}
constexpr Fold kBy2048 = fold_by(2048), kBy1536 = fold_by(1536), kBy1024 = fold_by(1024),
               kBy512 = fold_by(512), kBy384 = fold_by(384), kBy256 = fold_by(256),
               kBy128 = fold_by(128);

[[gnu::always_inline]] inline __m512i load(const std::uint8_t* p) { return _mm512_loadu_si512(p); }

[[gnu::always_inline]] inline __m512i everywhere(const Fold& fold) {
  return _mm512_broadcast_i32x4(
      _mm_set_epi64x(static_cast<long long>(fold.high), static_cast<long long>(fold.low)));
}

// Returns `ahead`, advanced by the factors `by`, xor `to`.
[[gnu::always_inline]] inline __m512i folded(__m512i ahead, __m512i by, __m512i to) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(ahead, by, 0x00),
                                   _mm512_clmulepi64_epi128(ahead, by, 0x11), to, kXorOfThree);
}

[[gnu::always_inline]] inline __m128i folded(__m128i ahead, const Fold& fold, __m128i to) {
  const __m128i by =
      _mm_set_epi64x(static_cast<long long>(fold.high), static_cast<long long>(fold.low));
  return _mm_xor_si128(
      _mm_xor_si128(_mm_clmulepi64_si128(ahead, by, 0x00), _mm_clmulepi64_si128(ahead, by, 0x11)),
      to);
}

[[gnu::always_inline]] inline std::uint64_t word_at(const std::uint8_t* p) {
  std::uint64_t word;
  __builtin_memcpy(&word, p, 8);
  return word;
}

}  // namespace

std::uint32_t crc32c_update_avx512(std::uint32_t state, const std::uint8_t* data,
                                   std::size_t size) {
  if (size >= 64) {
    __m512i sum = _mm512_xor_si512(
        load(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
    if (size >= 256) {
      __m512i a = sum, b = load(data + 64), c = load(data + 128), d = load(data + 192);
      const __m512i by = everywhere(kBy2048);
      for (data += 256, size -= 256; size >= 256; data += 256, size -= 256) {
        a = folded(a, by, load(data));
        b = folded(b, by, load(data + 64));
        c = folded(c, by, load(data + 128));
        d = folded(d, by, load(data + 192));
      }
      d = folded(c, everywhere(kBy512), d);
      d = folded(b, everywhere(kBy1024), d);
      sum = folded(a, everywhere(kBy1536), d);
    } else {
      data += 64;
      size -= 64;
    }
    const __m512i by = everywhere(kBy512);
    for (; size >= 64; data += 64, size -= 64) sum = folded(sum, by, load(data));
    __m128i last = _mm512_extracti32x4_epi32(sum, 3);
    last = folded(_mm512_extracti32x4_epi32(sum, 2), kBy128, last);
    last = folded(_mm512_extracti32x4_epi32(sum, 1), kBy256, last);
    last = folded(_mm512_castsi512_si128(sum), kBy384, last);
    const auto low = static_cast<std::uint64_t>(_mm_cvtsi128_si64(last));
    const auto high = static_cast<std::uint64_t>(_mm_extract_epi64(last, 1));
    state = static_cast<std::uint32_t>(_mm_crc32_u64(_mm_crc32_u64(0, low), high));
  }
  std::uint64_t wide = state;
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, word_at(data));
  state = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, *data);
  return state;
}

}  // namespace fastio
