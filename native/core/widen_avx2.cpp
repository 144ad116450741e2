// Widening with AVX2: writes four registers of 32 bytes at a time.
#include "intrinsics.h"
#include "widen.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;

inline __attribute__((always_inline)) __m128i load16(const Byte* in) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
}

inline __attribute__((always_inline)) __m128i load8(const Byte* in) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
}

inline __attribute__((always_inline)) __m128i load4(const Byte* in) {
  int bits;
  __builtin_memcpy(&bits, in, sizeof bits);
  return _mm_cvtsi32_si128(bits);
}

inline __attribute__((always_inline)) void store(Byte* out, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), values);
}

// Returns a register of numbers, widened from the bytes at `in`.
template <int from, int to>
inline __attribute__((always_inline)) __m256i widened(const Byte* in) {
  if constexpr (to == 4 && from == 1) return _mm256_cvtepu8_epi32(load8(in));
  if constexpr (to == 4 && from == 2) return _mm256_cvtepu16_epi32(load16(in));
  if constexpr (to == 8 && from == 1) return _mm256_cvtepu8_epi64(load4(in));
  if constexpr (to == 8 && from == 2) return _mm256_cvtepu16_epi64(load8(in));
  if constexpr (to == 8 && from == 4) return _mm256_cvtepu32_epi64(load16(in));
}

// The prefetch distances, in bytes, for reads and for writes. Writes need one too: a store to a
// line that is not cached takes as long as a load.
constexpr std::size_t kReadAhead = 512, kWriteAhead = 1024;

template <int from, int to>
void run(const Byte* in, std::size_t count, Byte* out) {
  constexpr std::size_t kPer = 32 / to;  // numbers per register
  std::size_t i = 0;
  for (; i + 4 * kPer <= count; i += 4 * kPer) {
    __builtin_prefetch(in + i * from + kReadAhead);
    __builtin_prefetch(out + i * to + kWriteAhead, 1);
    __builtin_prefetch(out + i * to + kWriteAhead + 64, 1);
    const __m256i a = widened<from, to>(in + i * from);
    const __m256i b = widened<from, to>(in + (i + kPer) * from);
    const __m256i c = widened<from, to>(in + (i + 2 * kPer) * from);
    const __m256i d = widened<from, to>(in + (i + 3 * kPer) * from);
    store(out + i * to, a);
    store(out + (i + kPer) * to, b);
    store(out + (i + 2 * kPer) * to, c);
    store(out + (i + 3 * kPer) * to, d);
  }
  for (; i + kPer <= count; i += kPer) store(out + i * to, widened<from, to>(in + i * from));
  widen_portable(in + i * from, count - i, from, to, out + i * to);
}

}  // namespace

void widen_avx2(const Byte* in, std::size_t count, int from, int to, Byte* out) {
  if (from == to) return widen_portable(in, count, from, to, out);
  if (to == 4) {
    if (from == 1) run<1, 4>(in, count, out);
    if (from == 2) run<2, 4>(in, count, out);
  } else {
    if (from == 1) run<1, 8>(in, count, out);
    if (from == 2) run<2, 8>(in, count, out);
    if (from == 4) run<4, 8>(in, count, out);
  }
}

}  // namespace fastio
