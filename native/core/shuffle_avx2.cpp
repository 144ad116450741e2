// The Feistel network with AVX2: 32 values at once, their halves in eight registers.
#include "intrinsics.h"
#include "shuffle_kernels.h"

namespace fastio {
namespace {

// round_function() of shuffle.cpp.
inline __attribute__((always_inline)) __m256i mixed(__m256i x, std::uint32_t key, __m256i mask) {
  x = _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int>(key)));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x9E3779B1u)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x21F0AAADu)));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  return _mm256_and_si256(x, mask);
}

// Eight values: value i in the 32-bit lane 2 i, value i + 4 in lane 2 i + 1.
struct Halves {
  __m256i low, high;
};

inline __attribute__((always_inline)) Halves load(const std::uint64_t* values, __m128i low_bits,
                                                  __m256i low_mask) {
  constexpr int kOddLanes = 0xAA;
  const auto* from = reinterpret_cast<const __m256i*>(values);
  const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
  const __m256i low = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), kOddLanes);
  const __m256i high =
      _mm256_blend_epi32(_mm256_srl_epi64(a, low_bits),
                         _mm256_slli_epi64(_mm256_srl_epi64(b, low_bits), 32), kOddLanes);
  return {_mm256_and_si256(low, low_mask), high};
}

inline __attribute__((always_inline)) void store(const Halves& halves, __m128i low_bits,
                                                 std::uint64_t* values) {
  const __m256i even = _mm256_set1_epi64x(0xFFFFFFFF);
  auto* to = reinterpret_cast<__m256i*>(values);
  const __m256i a = _mm256_sll_epi64(_mm256_and_si256(halves.high, even), low_bits);
  const __m256i b = _mm256_sll_epi64(_mm256_srli_epi64(halves.high, 32), low_bits);
  _mm256_storeu_si256(to, _mm256_or_si256(a, _mm256_and_si256(halves.low, even)));
  _mm256_storeu_si256(to + 1, _mm256_or_si256(b, _mm256_srli_epi64(halves.low, 32)));
}

inline __attribute__((always_inline)) void mix_high(Halves& x, std::uint32_t key, __m256i mask) {
  x.high = _mm256_xor_si256(x.high, mixed(x.low, key, mask));
}

inline __attribute__((always_inline)) void mix_low(Halves& x, std::uint32_t key, __m256i mask) {
  x.low = _mm256_xor_si256(x.low, mixed(x.high, key, mask));
}

}  // namespace

void feistel_avx2(const Feistel& network, bool backwards, std::uint64_t* values,
                  std::size_t count) {
  const __m128i low_bits = _mm_cvtsi32_si128(network.low_bits);
  const __m256i low_mask = _mm256_set1_epi32(static_cast<int>(network.low_mask));
  const __m256i high_mask = _mm256_set1_epi32(static_cast<int>(network.high_mask));
  const std::uint32_t* keys = network.keys;
  // Four groups of eight at a time: a round waits for the one before it, its multiplications above
  // all.
  for (std::size_t i = 0; i < count; i += kFeistelGroup) {
    Halves a = load(values + i, low_bits, low_mask), b = load(values + i + 8, low_bits, low_mask);
    Halves c = load(values + i + 16, low_bits, low_mask);
    Halves d = load(values + i + 24, low_bits, low_mask);
    if (!backwards) {
      for (int round = 0; round < Feistel::kRounds; round += 2) {
        mix_high(a, keys[round], high_mask);
        mix_high(b, keys[round], high_mask);
        mix_high(c, keys[round], high_mask);
        mix_high(d, keys[round], high_mask);
        mix_low(a, keys[round + 1], low_mask);
        mix_low(b, keys[round + 1], low_mask);
        mix_low(c, keys[round + 1], low_mask);
        mix_low(d, keys[round + 1], low_mask);
      }
    } else {
      for (int round = Feistel::kRounds - 2; round >= 0; round -= 2) {
        mix_low(a, keys[round + 1], low_mask);
        mix_low(b, keys[round + 1], low_mask);
        mix_low(c, keys[round + 1], low_mask);
        mix_low(d, keys[round + 1], low_mask);
        mix_high(a, keys[round], high_mask);
        mix_high(b, keys[round], high_mask);
        mix_high(c, keys[round], high_mask);
        mix_high(d, keys[round], high_mask);
      }
    }
    store(a, low_bits, values + i);
    store(b, low_bits, values + i + 8);
    store(c, low_bits, values + i + 16);
    store(d, low_bits, values + i + 24);
  }
}

}  // namespace fastio
