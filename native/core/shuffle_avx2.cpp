// The Feistel network with AVX2: 32 values at once, whose halves are in eight registers.
#include <algorithm>
#include <array>

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

// Eight values: value i is in 32-bit lane 2 * i, and value i + 4 in lane 2 * i + 1.
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

// For each set of lanes, as bits: the lanes' numbers in ascending order. The rest is arbitrary.
constexpr auto kCompress = [] {
  std::array<std::array<std::uint32_t, 8>, 256> table{};
  for (std::size_t set = 0; set < table.size(); ++set)
    for (std::uint32_t lane = 0, at = 0; lane < 8; ++lane)
      if (set >> lane & 1) table[set][at++] = lane;
  return table;
}();

inline __attribute__((always_inline)) __m256i lanes_of(unsigned set) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kCompress[set].data()));
}

// Eight values of 32 bits. The high halves need no mask as long as no bits are above them.
struct Narrow {
  __m256i low, high;
};

inline __attribute__((always_inline)) void mix(Narrow& x, const Feistel& network, int round,
                                               __m256i low_mask, __m256i high_mask) {
  x.high = _mm256_xor_si256(x.high, mixed(x.low, network.keys[round], high_mask));
  x.low = _mm256_xor_si256(x.low, mixed(x.high, network.keys[round + 1], low_mask));
}

constexpr std::size_t kNarrow = 32;  // values of 32 bits that are enciphered at once

// Enciphers four times eight values.
inline __attribute__((always_inline)) void encipher(const Feistel& network, __m256i (&x)[4]) {
  const __m128i low_bits = _mm_cvtsi32_si128(network.low_bits);
  const __m256i low_mask = _mm256_set1_epi32(static_cast<int>(network.low_mask));
  const __m256i high_mask = _mm256_set1_epi32(static_cast<int>(network.high_mask));
  Narrow halves[4];
  for (int i = 0; i < 4; ++i)
    halves[i] = {_mm256_and_si256(x[i], low_mask), _mm256_srl_epi32(x[i], low_bits)};
  for (int i = 0; i < Feistel::kRounds; i += 2) {
    mix(halves[0], network, i, low_mask, high_mask);
    mix(halves[1], network, i, low_mask, high_mask);
    mix(halves[2], network, i, low_mask, high_mask);
    mix(halves[3], network, i, low_mask, high_mask);
  }
  for (int i = 0; i < 4; ++i)
    x[i] = _mm256_or_si256(_mm256_sll_epi32(halves[i].high, low_bits), halves[i].low);
}

// Values outside of [0, n), which have to be enciphered again, and their positions. There is room
// for a vector after the last one.
struct Walking {
  static constexpr std::size_t kMost = 2048;
  std::uint32_t values[kMost + kNarrow], places[kMost + kNarrow];
  std::size_t count = 0;

  // Appends those of the first `lanes` lanes that are n or more. last: n - 1.
  void take(__m256i x, __m256i at, __m256i last, std::size_t lanes) {
    const __m256i inside = _mm256_cmpeq_epi32(_mm256_min_epu32(x, last), x);  // x <= n - 1
    const unsigned all = lanes < 8 ? (1u << lanes) - 1 : 0xFF;
    const unsigned set =
        ~static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(inside))) & all;
    const __m256i order = lanes_of(set);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + count),
                        _mm256_permutevar8x32_epi32(x, order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + count),
                        _mm256_permutevar8x32_epi32(at, order));
    count += static_cast<std::size_t>(__builtin_popcount(set));
  }
};

// Enciphers the walking values until all are in [0, n).
void walk_on(const Feistel& network, __m256i last, Walking& walking, std::int64_t* rows) {
  while (walking.count > 0) {
    const std::size_t left = walking.count;
    walking.count = 0;
    for (std::size_t i = 0; i < left; i += kNarrow) {
      __m256i x[4];
      for (std::size_t j = 0; j < 4; ++j)
        x[j] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(walking.values + i + 8 * j));
      encipher(network, x);
      for (std::size_t j = 0; j < 4 && i + 8 * j < left; ++j) {
        const std::size_t begin = i + 8 * j, lanes = std::min<std::size_t>(8, left - begin);
        const __m256i at =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(walking.places + begin));
        alignas(32) std::uint32_t now[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(now), x[j]);
        for (std::size_t lane = 0; lane < lanes; ++lane)
          rows[walking.places[begin + lane]] = now[lane];  // overwritten later if outside
        walking.take(x[j], at, last, lanes);
      }
    }
  }
}

}  // namespace

void feistel_range_avx2(const Feistel& network, std::uint64_t n, std::uint64_t first,
                        std::size_t count, std::int64_t* rows) {
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i last = _mm256_set1_epi32(static_cast<int>(static_cast<std::uint32_t>(n - 1)));
  Walking walking{};
  for (std::size_t done = 0; done < count; done += Walking::kMost, rows += Walking::kMost) {
    const std::size_t now = std::min(Walking::kMost, count - done);
    for (std::size_t i = 0; i < now; i += kNarrow) {
      __m256i x[4];
      for (std::size_t j = 0; j < 4; ++j) {
        const auto begin = static_cast<std::uint32_t>(first + done + i + 8 * j);
        x[j] = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(begin)), iota);
      }
      encipher(network, x);
      for (std::size_t j = 0; j < 4 && i + 8 * j < now; ++j) {
        const std::size_t begin = i + 8 * j, lanes = std::min<std::size_t>(8, now - begin);
        if (lanes == 8) {
          auto* const to = reinterpret_cast<__m256i*>(rows + begin);
          _mm256_storeu_si256(to, _mm256_cvtepu32_epi64(_mm256_castsi256_si128(x[j])));
          _mm256_storeu_si256(to + 1, _mm256_cvtepu32_epi64(_mm256_extracti128_si256(x[j], 1)));
        } else {
          alignas(32) std::uint32_t values[8];
          _mm256_store_si256(reinterpret_cast<__m256i*>(values), x[j]);
          for (std::size_t lane = 0; lane < lanes; ++lane) rows[begin + lane] = values[lane];
        }
        const auto place = static_cast<int>(begin);
        walking.take(x[j], _mm256_add_epi32(_mm256_set1_epi32(place), iota), last, lanes);
      }
    }
    walk_on(network, last, walking, rows);
  }
}

void feistel_avx2(const Feistel& network, bool backwards, std::uint64_t* values,
                  std::size_t count) {
  const __m128i low_bits = _mm_cvtsi32_si128(network.low_bits);
  const __m256i low_mask = _mm256_set1_epi32(static_cast<int>(network.low_mask));
  const __m256i high_mask = _mm256_set1_epi32(static_cast<int>(network.high_mask));
  const std::uint32_t* keys = network.keys;
  // Process four groups of eight at a time, to hide the latency of a round, mainly that of its
  // multiplications.
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
