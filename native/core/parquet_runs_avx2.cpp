// parquet_runs.h with AVX2: eight bit-packed numbers, or eight bits of nulls, at a time.
#include "intrinsics.h"
#include "parquet_runs.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;

// The largest width of numbers that lie within four bytes, at any bit offset.
constexpr int kMostBitsInFour = 25;

inline __attribute__((always_inline)) __m256i load(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

inline __attribute__((always_inline)) void store(void* at, __m256i value) {
  _mm256_storeu_si256(static_cast<__m256i*>(at), value);
}

inline __attribute__((always_inline)) __m256i both(const Byte* low, const Byte* high) {
  return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high),
                             reinterpret_cast<const __m128i*>(low));
}

inline __attribute__((always_inline)) std::uint32_t greatest(__m256i values) {
  alignas(32) std::uint32_t all[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(all), values);
  std::uint32_t most = 0;
  for (const std::uint32_t value : all) most = value > most ? value : most;
  return most;
}

// Returns for each lane the index of the value that it takes: 0, 1, ... in the lanes in which the
// mask of eight bits has ones.
inline __attribute__((always_inline)) __m256i lanes(unsigned mask) {
  const std::uint64_t chosen =
      _pdep_u64(0x0706050403020100, _pdep_u64(mask, 0x0101010101010101) * 255);
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(chosen)));
}

// Returns all ones in the lanes whose bit is set.
inline __attribute__((always_inline)) __m256i ones(unsigned mask) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit), bit);
}

}  // namespace

std::uint32_t unpack_avx2(const Byte* in, const Byte* end, int bits, std::size_t count,
                          std::uint32_t* out) {
  if (bits < 1 || bits > kMostBitsInFour) return unpack_portable(in, end, bits, count, out);
  // Each half of a register has four numbers; those of the second half begin at bit 4 * bits.
  const auto step = static_cast<std::size_t>(bits);
  const std::size_t second = step / 2;
  alignas(32) Byte bytes[32];
  alignas(32) std::uint32_t shifts[8];
  for (std::size_t i = 0; i < 8; ++i) {
    const std::size_t bit = i * step - (i < 4 ? 0 : second * 8);
    for (std::size_t k = 0; k < 4; ++k) bytes[4 * i + k] = static_cast<Byte>(bit / 8 + k);
    shifts[i] = static_cast<std::uint32_t>(bit % 8);
  }
  const __m256i shuffle = load(bytes), shift = load(shifts);
  const __m256i mask = _mm256_set1_epi32(static_cast<int>((1u << bits) - 1));
  __m256i most = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 8 <= count && static_cast<std::size_t>(end - in) >= second + 16; i += 8, in += step) {
    const __m256i four = _mm256_shuffle_epi8(both(in, in + second), shuffle);
    const __m256i values = _mm256_and_si256(_mm256_srlv_epi32(four, shift), mask);
    store(out + i, values);
    most = _mm256_max_epu32(most, values);
  }
  const std::uint32_t last = unpack_portable(in, end, bits, count - i, out + i);
  const std::uint32_t first = greatest(most);
  return first > last ? first : last;
}

void spread_avx2(const Byte* bits, std::size_t count, std::size_t valid, int width, Byte* out) {
  if (width != 4) return spread_portable(bits, count, valid, width, out);
  // From the end, eight at a time: all values still to be read are before the eight that are
  // written.
  std::size_t left = valid, at = count;
  while (at % 8 && at > left) {
    --at;
    std::uint32_t value = 0;
    if (bits[at / 8] >> at % 8 & 1) __builtin_memcpy(&value, out + 4 * --left, 4);
    __builtin_memcpy(out + 4 * at, &value, 4);
  }
  while (at > left && at % 8 == 0) {
    at -= 8;
    const unsigned mask = bits[at / 8];
    left -= static_cast<std::size_t>(__builtin_popcount(mask));
    const __m256i values = _mm256_permutevar8x32_epi32(load(out + 4 * left), lanes(mask));
    store(out + 4 * at, _mm256_and_si256(values, ones(mask)));
  }
}

}  // namespace fastio
