// The fields of tokens with AVX2: eight tokens at a time.
#include <algorithm>

#include "intrinsics.h"
#include "token_fields.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;
constexpr std::size_t kTokens = 8;

// The prefetch distance for writes, in bytes.
constexpr std::size_t kWriteAhead = 1024;

template <typename T>
constexpr std::size_t kVectors = kTokens * sizeof(T) / 32;

// Eight numbers. If they have 8 bytes, the second vector has the last four.
template <typename T>
struct Numbers {
  __m256i vector[kVectors<T>];

  void store(Byte* out) const {
    for (std::size_t i = 0; i < kVectors<T>; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * i), vector[i]);
  }
  void add(const Numbers& step) {
    for (std::size_t i = 0; i < kVectors<T>; ++i)
      vector[i] = sizeof(T) == 8 ? _mm256_add_epi64(vector[i], step.vector[i])
                                 : _mm256_add_epi32(vector[i], step.vector[i]);
  }
};

template <typename T>
Numbers<T> all(std::int64_t value) {
  Numbers<T> numbers;
  for (__m256i& vector : numbers.vector)
    vector =
        sizeof(T) == 8 ? _mm256_set1_epi64x(value) : _mm256_set1_epi32(static_cast<int>(value));
  return numbers;
}

template <typename T>
Numbers<T> from_zero() {
  if constexpr (sizeof(T) == 8)
    return {{_mm256_setr_epi64x(0, 1, 2, 3), _mm256_setr_epi64x(4, 5, 6, 7)}};
  else
    return {{_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}};
}

inline __m128i load16(const Byte* in) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
}

inline __m128i load8(const Byte* in) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
}

template <typename T, int from>
Numbers<T> widened(const Byte* in) {
  if constexpr (sizeof(T) == 4) {
    if constexpr (from == 1) return {{_mm256_cvtepu8_epi32(load8(in))}};
    if constexpr (from == 2) return {{_mm256_cvtepu16_epi32(load16(in))}};
    if constexpr (from == 4) return {{_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in))}};
  } else if constexpr (from == 4) {
    return {{_mm256_cvtepu32_epi64(load16(in)), _mm256_cvtepu32_epi64(load16(in + 16))}};
  } else {
    const __m128i eight = from == 1 ? load8(in) : load16(in);
    const __m128i last = _mm_srli_si128(eight, 4 * from);
    if constexpr (from == 1)
      return {{_mm256_cvtepu8_epi64(eight), _mm256_cvtepu8_epi64(last)}};
    else
      return {{_mm256_cvtepu16_epi64(eight), _mm256_cvtepu16_epi64(last)}};
  }
}

template <typename T, int from, bool prefetch>
std::size_t put_as(const TokenPart& part, const TokenFields& out) {
  const auto [inputs, targets, positions, documents, mask] = out;
  const std::size_t count = (targets ? std::min(part.known, part.count) : part.count) / kTokens;
  const Numbers<T> step = all<T>(kTokens), document = all<T>(part.document), one = all<T>(1);
  Numbers<T> position = from_zero<T>();
  const Byte* in = part.tokens;
  for (std::size_t i = 0, at = 0; i < count; ++i, at += kTokens * sizeof(T), in += kTokens * from) {
    if constexpr (prefetch)
      for (Byte* const field : out)
        if (field) __builtin_prefetch(field + at + kWriteAhead, 1);
    if (inputs) widened<T, from>(in).store(inputs + at);
    if (targets) widened<T, from>(in + from).store(targets + at);
    if (positions) position.store(positions + at);
    if (documents) document.store(documents + at);
    if (mask) one.store(mask + at);
    position.add(step);
  }
  return count * kTokens;
}

template <typename T, bool prefetch>
std::size_t put_to(const TokenPart& part, const TokenFields& out) {
  if (part.from == 1) return put_as<T, 1, prefetch>(part, out);
  if (part.from == 2) return put_as<T, 2, prefetch>(part, out);
  return put_as<T, 4, prefetch>(part, out);
}

template <bool prefetch>
std::size_t put(const TokenPart& part, const TokenFields& out) {
  return part.to == 8 ? put_to<std::int64_t, prefetch>(part, out)
                      : put_to<std::int32_t, prefetch>(part, out);
}

}  // namespace

std::size_t put_part_avx2(const TokenPart& part, const TokenFields& out, bool prefetch) {
  return prefetch ? put<true>(part, out) : put<false>(part, out);
}

}  // namespace fastio
