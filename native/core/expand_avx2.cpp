// Expansion with AVX2 and BMI2: pdep moves the bits of each plane to their ranks.
#include "expand_walk.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or an intrinsic: see CMakeLists.txt.

// Expands the low 32 bits to 32 byte lanes: all ones where a bit is set.
[[gnu::always_inline]] inline __m256i lanes_of(u64 bits) {
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i each = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i all = _mm256_set1_epi32(static_cast<int>(static_cast<std::uint32_t>(bits)));
  return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(all, spread), each), each);
}

// Returns the bytes that come from 16 ranks: the low (which = 0) or high half of `lanes`. from: a
// part of Codebook::shuffle.
[[gnu::always_inline]] inline __m256i quarter(__m256i lanes, int which, const std::uint8_t* from) {
  const __m256i both = which ? _mm256_permute2x128_si256(lanes, lanes, 0x11)
                             : _mm256_permute2x128_si256(lanes, lanes, 0);
  return _mm256_shuffle_epi8(both, _mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
}

// Stores 16 coefficients from natural index n on, and 16 from n + 32 on. pairs: a value of each in
// turns, as bytes. kByteQuant: no value of `quant` exceeds 255.
template <bool kByteQuant>
[[gnu::always_inline]] inline void store_pairs(__m256i pairs, const std::int16_t* quant, int n,
                                               std::int16_t* out) {
  const auto load = [](const std::int16_t* from) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
  };
  const __m256i even = load(quant + n), odd = load(quant + n + 32);
  __m256i first, second;
  if constexpr (kByteQuant) {  // sums of two products of bytes, one of which is 0
    first = _mm256_maddubs_epi16(even, pairs);
    second = _mm256_maddubs_epi16(_mm256_slli_epi16(odd, 8), pairs);
  } else {
    first = _mm256_mullo_epi16(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8), even);
    second = _mm256_mullo_epi16(_mm256_srai_epi16(pairs, 8), odd);
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(out + n), first);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out + n + 32), second);
}

// Stores a block in natural order, dequantised. first, second: its bytes by rank; `second` is only
// used if `both` is true. shuffle: Codebook::shuffle.
template <bool kByteQuant>
[[gnu::always_inline]] inline void store_block(__m256i first, __m256i second, bool both,
                                               const std::uint8_t (*shuffle)[64],
                                               const std::int16_t* quant, std::int16_t* out) {
  __m256i half[2];
  for (int h = 0; h < 2; ++h) {
    half[h] = _mm256_or_si256(quarter(first, 0, shuffle[0] + 32 * h),
                              quarter(first, 1, shuffle[1] + 32 * h));
    if (both)
      half[h] = _mm256_or_si256(half[h], _mm256_or_si256(quarter(second, 0, shuffle[2] + 32 * h),
                                                         quarter(second, 1, shuffle[3] + 32 * h)));
  }
  for (int h = 0; h < 2; ++h) store_pairs<kByteQuant>(half[h], quant, 16 * h, out);
}

// The low 8 planes of a block with values wider than 8 bits.
struct LowPlanes {
  alignas(32) std::uint8_t magnitude[64];  // of these planes alone, at most 128
  u64 negative, most;                      // ranks of negative values, and of magnitudes of 128
};

// Decodes the low 8 planes of a block and stores its values as if there were no more. Returns the
// position after these planes. low: if not null, set to what wide_block() needs.
template <bool kDense, bool kByteQuant>
[[gnu::always_inline]] inline u64 read_block(const Codebook& book, int cls,
                                             const std::uint8_t* bits, u64 position, u64 mask,
                                             LowPlanes* low, const std::int16_t* quant,
                                             std::int16_t* out) {
  const u64* const has = book.has[cls];
  const u64 negative = _pdep_u64(bits_at<kDense>(bits, position), mask);
  position += count(mask);
  const bool both = mask >> 32;
  const __m256i zero = _mm256_setzero_si256();
  __m256i first = _mm256_sub_epi8(zero, lanes_of(mask)), second = zero;
  if (both) second = _mm256_sub_epi8(zero, lanes_of(mask >> 32));
  for (int j = 1; j < 8; ++j) {
    const u64 plane = mask & has[j];
    if (!plane) break;
    const u64 set = _pdep_u64(bits_at<kDense>(bits, position), plane);
    position += count(plane);
    const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << (j - 1)));
    first = _mm256_add_epi8(first, _mm256_and_si256(lanes_of(set), bit));
    if (set >> 32) second = _mm256_add_epi8(second, _mm256_and_si256(lanes_of(set >> 32), bit));
  }
  if (low) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(low->magnitude), first);
    _mm256_store_si256(reinterpret_cast<__m256i*>(low->magnitude + 32), second);
    low->negative = negative;
    low->most = static_cast<std::uint32_t>(_mm256_movemask_epi8(first)) |
                u64{static_cast<std::uint32_t>(_mm256_movemask_epi8(second))} << 32;
  }
  const __m256i minus = lanes_of(negative);
  first = _mm256_sub_epi8(_mm256_xor_si256(first, minus), minus);
  if (both) {
    const __m256i rest = lanes_of(negative >> 32);
    second = _mm256_sub_epi8(_mm256_xor_si256(second, rest), rest);
  }
  store_block<kByteQuant>(first, second, both, book.shuffle[cls], quant, out);
  return position;
}

// Writes a block of a class with values wider than 8 bits. Corrects the few that are wider one by
// one.
template <bool kDense, bool kByteQuant>
[[gnu::noinline]] u64 wide_block(const Codebook& book, int cls, const std::uint8_t* bits,
                                 u64 position, u64 mask, const std::int16_t* quant,
                                 std::int16_t* out) {
  LowPlanes low;
  position = read_block<kDense, kByteQuant>(book, cls, bits, position, mask, &low, quant, out);
  const u64* const has_wide = book.has_wide[cls];
  const int end = mask & has_wide[2] ? kPlanes - 8 : 2;  // hardly any block has more than 10 bits
  u64 planes[kPlanes - 8], too_wide = 0;
  for (int j = 0; j < end; ++j) {
    const u64 plane = mask & has_wide[j];
    planes[j] = _pdep_u64(bits_at<kDense>(bits, position), plane);
    position += count(plane);
    too_wide |= planes[j];
  }
  // +128 has 8 bits too, but does not fit a signed byte.
  for (u64 left = too_wide | low.most; left; left &= left - 1) {
    const auto r = static_cast<unsigned>(__builtin_ctzll(left));
    std::uint32_t magnitude = low.magnitude[r];
    for (int j = 0; j < end; ++j)
      magnitude += static_cast<std::uint32_t>(planes[j] >> r & 1) << (j + 7);
    const std::uint32_t value = low.negative >> r & 1 ? 0u - magnitude : magnitude;
    const int natural = book.natural[cls][r];
    out[natural] = static_cast<std::int16_t>(
        value * static_cast<std::uint32_t>(static_cast<std::int32_t>(quant[natural])));
  }
  return position;
}

template <bool kDense, bool kByteQuant>
[[gnu::noinline]] u64 dense_block(const Codebook& book, int cls, const std::uint8_t* bits,
                                  u64 position, u64 mask, const std::int16_t* quant,
                                  std::int16_t* out) {
  return read_block<kDense, kByteQuant>(book, cls, bits, position, mask, nullptr, quant, out);
}

// Returns the number of bits of a block's values.
[[gnu::always_inline]] inline u64 value_bits(u64 mask, const u64* has, const u64* has_wide) {
  u64 bits = count(mask) + count(mask & has[1]) + count(mask & has[2]) + count(mask & has[3]);
  if (mask & has[4]) {
    for (int j = 4; j < 8; ++j) bits += count(mask & has[j]);
    for (int j = 0; j < kPlanes - 8; ++j) bits += count(mask & has_wide[j]);
  }
  return bits;
}

template <bool kByteQuant>
struct Blocks {
  const Codebook& book;
  const std::uint8_t* bits;
  const std::int16_t* quant;

  [[gnu::always_inline]] void begin(const std::int16_t* of_component) { quant = of_component; }
  [[gnu::always_inline]] u64 skip(int cls, u64 mask) const {
    return value_bits(mask, book.has[cls], book.has_wide[cls]);
  }
  [[gnu::always_inline]] u64 read(int cls, u64 mask, u64 position, std::int16_t* out) const {
    const bool dense = count(mask) > 57;
    if (__builtin_expect(book.planes[cls] > 8, 0))
      return dense ? wide_block<true, kByteQuant>(book, cls, bits, position, mask, quant, out)
                   : wide_block<false, kByteQuant>(book, cls, bits, position, mask, quant, out);
    if (__builtin_expect(dense, 0))
      return dense_block<true, kByteQuant>(book, cls, bits, position, mask, quant, out);
    return read_block<false, kByteQuant>(book, cls, bits, position, mask, nullptr, quant, out);
  }
};

}  // namespace

std::uint64_t expand_avx2(const ExpandJob& job) {
  const bool* bytes = job.quant->bytes;
  if (bytes[0] && bytes[1] && bytes[2])
    return walk_blocks(job, Blocks<true>{*job.book, job.bits, nullptr});
  return walk_blocks(job, Blocks<false>{*job.book, job.bits, nullptr});
}

std::uint64_t dc_differences_avx2(const Codebook& book, const std::uint8_t* classes, int n,
                                  const std::uint8_t* bits, std::uint64_t position,
                                  std::int16_t* diff, bool& escapes) {
  bool any = false;
  for (int i = 0; i < n; ++i) {
    const unsigned width = book.dc_bits[classes[i]];
    // Two shifts, because a width of 0 would need a shift by 64, which is undefined.
    const u64 top = bits57(bits, position) << (63 - width) << 1;
    diff[i] = static_cast<std::int16_t>(static_cast<std::int64_t>(top) >> (63 - width) >> 1);
    position += width;
    any |= diff[i] == book.dc_escape[classes[i]];
  }
  escapes |= any;
  return position;
}

void sum_avx2(std::int16_t* dc, std::int32_t n, std::uint16_t start) {
  // The last sum of the lower lane is added to the upper lane, and the last sum of all is carried
  // to the next 16.
  const __m256i last_of_lower =
      _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 14, 15, 14,
                       15, 14, 15, 14, 15, 14, 15, 14, 15, 14, 15, 14, 15);
  const __m256i last = _mm256_set1_epi16(15 << 8 | 14);
  __m256i carry = _mm256_set1_epi16(static_cast<short>(start));
  std::int32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    auto* p = reinterpret_cast<__m256i*>(dc + i);
    __m256i sums = _mm256_loadu_si256(p);
    sums = _mm256_add_epi16(sums, _mm256_slli_si256(sums, 2));
    sums = _mm256_add_epi16(sums, _mm256_slli_si256(sums, 4));
    sums = _mm256_add_epi16(sums, _mm256_slli_si256(sums, 8));
    const __m256i lower = _mm256_permute2x128_si256(sums, sums, 0x00);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi8(lower, last_of_lower));
    sums = _mm256_add_epi16(sums, carry);
    _mm256_storeu_si256(p, sums);
    carry = _mm256_shuffle_epi8(_mm256_permute2x128_si256(sums, sums, 0x11), last);
  }
  std::uint32_t sum = static_cast<std::uint16_t>(_mm256_extract_epi16(carry, 0));
  for (; i < n; ++i) {
    sum += static_cast<std::uint32_t>(dc[i]);
    dc[i] = static_cast<std::int16_t>(sum);
  }
}

}  // namespace fastio
