// Operations on registers of bytes and words, under the same names for all instruction sets. The
// loops of pixel_loops.h, filter_loops.h and warp_loops.h use them. The file of each instruction
// set includes this header; the unnamed namespace gives each one functions of its own. Without
// FASTIO_X86 there are no registers.

#pragma once

#include <cstddef>
#include <cstdint>

#include "pixel_kernels.h"

#ifdef FASTIO_X86
#include "intrinsics.h"
#endif

namespace fastio {
namespace {

using std::int16_t;
using std::int32_t;
using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

// Returns the high half of a product, for which all instruction sets have an instruction.
inline uint16_t high_half(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>((static_cast<uint32_t>(a) * static_cast<uint32_t>(b)) >> 16);
}

inline uint8_t to_byte(uint16_t v) {  // v has kFractionBits fractional bits, which are dropped
  v = static_cast<uint16_t>(v >> kFractionBits);
  return static_cast<uint8_t>(v < 255 ? v : 255);
}

#ifdef FASTIO_X86
#if defined(__AVX512BW__)
#define FASTIO_LANES(name) _mm512_##name
using Lanes = __m512i;
inline Lanes load(const void* from) { return _mm512_loadu_si512(from); }
inline void store(void* to, Lanes v) { _mm512_storeu_si512(to, v); }
inline Lanes zeros() { return _mm512_setzero_si512(); }
inline Lanes bits_of(Lanes a, Lanes mask) { return _mm512_and_si512(a, mask); }
inline Lanes all_quads(uint64_t v) { return _mm512_set1_epi64(static_cast<long long>(v)); }
inline Lanes even_dwords(Lanes a, Lanes b) {
  return _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
inline Lanes odd_dwords(Lanes a, Lanes b) {
  return _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}
inline Lanes fraction(Lanes a, Lanes b) { return _mm512_mulhrs_epi16(a, b); }
inline Lanes four_each(const int16_t* from) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const Lanes order =
      _mm512_set_epi32(0x0f0e0f0e, 0x0f0e0f0e, 0x0d0c0d0c, 0x0d0c0d0c, 0x0b0a0b0a, 0x0b0a0b0a,
                       0x09080908, 0x09080908, 0x07060706, 0x07060706, 0x05040504, 0x05040504,
                       0x03020302, 0x03020302, 0x01000100, 0x01000100);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(words), order);
}
inline Lanes mirrored_bytes(Lanes v) {
  const Lanes in_lanes =
      _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  const Lanes turned = _mm512_shuffle_epi8(v, in_lanes);
  return _mm512_shuffle_i64x2(turned, turned, 0x1b);
}
inline Lanes words_at(const uint8_t* from) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_bytes(uint8_t* to, Lanes words) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtusepi16_epi8(words));
}
inline Lanes in_order(Lanes v) {
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), v);
}
#elif defined(__AVX2__)
#define FASTIO_LANES(name) _mm256_##name
using Lanes = __m256i;
inline Lanes load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store(void* to, Lanes v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline Lanes zeros() { return _mm256_setzero_si256(); }
inline Lanes bits_of(Lanes a, Lanes mask) { return _mm256_and_si256(a, mask); }
inline Lanes all_quads(uint64_t v) { return _mm256_set1_epi64x(static_cast<long long>(v)); }
inline Lanes even_dwords(Lanes a, Lanes b) {
  return _mm256_castps_si256(
      _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}
inline Lanes odd_dwords(Lanes a, Lanes b) {
  return _mm256_castps_si256(
      _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
}
inline Lanes fraction(Lanes a, Lanes b) { return _mm256_mulhrs_epi16(a, b); }
inline Lanes four_each(const int16_t* from) {
  const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const Lanes order = _mm256_set_epi32(0x07060706, 0x07060706, 0x05040504, 0x05040504, 0x03020302,
                                       0x03020302, 0x01000100, 0x01000100);
  return _mm256_shuffle_epi8(_mm256_broadcastq_epi64(words), order);
}
inline Lanes in_order(Lanes v) { return _mm256_permute4x64_epi64(v, 0xd8); }
inline Lanes mirrored_bytes(Lanes v) {
  const Lanes in_lanes = _mm256_broadcastsi128_si256(
      _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, in_lanes), 0x4e);
}
inline Lanes words_at(const uint8_t* from) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_bytes(uint8_t* to, Lanes words) {
  const Lanes bytes = in_order(_mm256_packus_epi16(words, words));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
}
#else
#define FASTIO_LANES(name) _mm_##name
using Lanes = __m128i;
inline Lanes load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline void store(void* to, Lanes v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }
inline Lanes zeros() { return _mm_setzero_si128(); }
inline Lanes bits_of(Lanes a, Lanes mask) { return _mm_and_si128(a, mask); }
inline Lanes all_quads(uint64_t v) { return _mm_set1_epi64x(static_cast<long long>(v)); }
inline Lanes even_dwords(Lanes a, Lanes b) {
  return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88));
}
inline Lanes odd_dwords(Lanes a, Lanes b) {
  return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0xdd));
}
// a * b / (1 << 15) of signed words, rounded; _mm_mulhrs_epi16 came with SSSE3.
inline Lanes fraction(Lanes a, Lanes b) {
  const Lanes low = _mm_mullo_epi16(a, b), high = _mm_mulhi_epi16(a, b);
  const Lanes up = _mm_and_si128(_mm_srli_epi16(low, 14), _mm_set1_epi16(1));
  return _mm_add_epi16(_mm_add_epi16(_mm_slli_epi16(high, 1), _mm_srli_epi16(low, 15)), up);
}
// Loads one word per pixel (of four words) that fits into Lanes, and repeats each four times.
inline Lanes four_each(const int16_t* from) {
  int32_t both;
  __builtin_memcpy(&both, from, sizeof(both));
  const Lanes words = _mm_cvtsi32_si128(both), twice = _mm_unpacklo_epi16(words, words);
  return _mm_unpacklo_epi32(twice, twice);
}
// Restores the order of dwords after even_dwords or odd_dwords, and to_bytes.
inline Lanes in_order(Lanes v) { return v; }
// Reverses the bytes of a register.
inline Lanes mirrored_bytes(Lanes v) {
  v = _mm_or_si128(_mm_slli_epi16(v, 8), _mm_srli_epi16(v, 8));
  v = _mm_shufflehi_epi16(_mm_shufflelo_epi16(v, 0x1b), 0x1b);
  return _mm_shuffle_epi32(v, 0x4e);
}
// words_at loads one byte per word of Lanes. store_bytes stores words below 1 << 15 as bytes;
// values above 255 become 255.
inline Lanes words_at(const uint8_t* from) {
  return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), zeros());
}
inline void store_bytes(uint8_t* to, Lanes words) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}
#endif

inline Lanes all_words(uint16_t v) { return FASTIO_LANES(set1_epi16)(static_cast<short>(v)); }
inline Lanes all_bytes(uint8_t v) { return FASTIO_LANES(set1_epi8)(static_cast<char>(v)); }
inline Lanes add(Lanes a, Lanes b) { return FASTIO_LANES(add_epi16)(a, b); }
inline Lanes minus(Lanes a, Lanes b) { return FASTIO_LANES(sub_epi16)(a, b); }
// Saturating differences of unsigned words and bytes: at least 0.
inline Lanes less(Lanes a, Lanes b) { return FASTIO_LANES(subs_epu16)(a, b); }
inline Lanes less_bytes(Lanes a, Lanes b) { return FASTIO_LANES(subs_epu8)(a, b); }
inline Lanes product(Lanes a, Lanes b) { return FASTIO_LANES(mullo_epi16)(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return FASTIO_LANES(mulhi_epu16)(a, b); }
template <int Bits>
Lanes left_by(Lanes v) {
  return FASTIO_LANES(slli_epi16)(v, Bits);
}
template <int Bits>
Lanes right_by(Lanes v) {
  return FASTIO_LANES(srli_epi16)(v, Bits);
}
// The bytes of the first and the last half of each 128 bits, each << 8 as a word.
inline Lanes first_words(Lanes v) { return FASTIO_LANES(unpacklo_epi8)(zeros(), v); }
inline Lanes last_words(Lanes v) { return FASTIO_LANES(unpackhi_epi8)(zeros(), v); }
// Converts words with `Bits` fractional bits, which are dropped, to bytes.
template <int Bits = kFractionBits>
Lanes to_bytes(Lanes a, Lanes b) {
  return FASTIO_LANES(packus_epi16)(right_by<Bits>(a), right_by<Bits>(b));
}
// The last word of each group of four, repeated four times.
inline Lanes fourth_words(Lanes v) {
  return FASTIO_LANES(shufflehi_epi16)(FASTIO_LANES(shufflelo_epi16)(v, 0xff), 0xff);
}
// Sums of eight bytes each as quads, and the addition of such sums.
inline Lanes byte_sums(Lanes v) { return FASTIO_LANES(sad_epu8)(v, zeros()); }
inline Lanes add_quads(Lanes a, Lanes b) { return FASTIO_LANES(add_epi64)(a, b); }
constexpr size_t kBytes = sizeof(Lanes), kWords = kBytes / 2;
#endif

}  // namespace
}  // namespace fastio
