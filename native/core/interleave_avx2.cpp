// Transposes eight columns of 4 bytes to records, with AVX2: eight rows at a time.
#include "interleave.h"
#include "intrinsics.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;

inline __attribute__((always_inline)) __m256i load(const Byte* in) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in));
}

inline __attribute__((always_inline)) void store(Byte* out, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), values);
}

// Writes rows [row, row + 8).
inline __attribute__((always_inline)) void eight_rows(const Byte* const* columns, std::size_t row,
                                                      Byte* out, std::size_t stride) {
  __m256i pair[8], four[8];
  for (int c = 0; c < 8; c += 2) {
    const __m256i a = load(columns[c] + 4 * row), b = load(columns[c + 1] + 4 * row);
    pair[c] = _mm256_unpacklo_epi32(a, b);
    pair[c + 1] = _mm256_unpackhi_epi32(a, b);
  }
  for (int c = 0; c < 8; c += 4)
    for (int i = 0; i < 2; ++i) {
      four[c + 2 * i] = _mm256_unpacklo_epi64(pair[c + i], pair[c + 2 + i]);
      four[c + 2 * i + 1] = _mm256_unpackhi_epi64(pair[c + i], pair[c + 2 + i]);
    }
  for (int i = 0; i < 4; ++i) {
    store(out + (row + i) * stride, _mm256_permute2x128_si256(four[i], four[i + 4], 0x20));
    store(out + (row + i + 4) * stride, _mm256_permute2x128_si256(four[i], four[i + 4], 0x31));
  }
}

}  // namespace

void transpose8_avx2(const Byte* const* columns, std::size_t n, Byte* out, std::size_t stride) {
  std::size_t row = 0;
  for (; row + 8 <= n; row += 8) eight_rows(columns, row, out, stride);
  const Byte* rest[8];
  for (int c = 0; c < 8; ++c) rest[c] = columns[c] + 4 * row;
  transpose8_portable(rest, n - row, out + row * stride, stride);
}

}  // namespace fastio
