// Nearly all values fit in bytes; the caller corrects the others. A block is packed to 64 bytes
// with saturation and brought to the wanted order by byte shuffles. Sign masks of the bytes are its
// bit planes.
#include "block_encoder_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

inline std::uint64_t sign_mask(__m256i low, __m256i high) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// Looks up 16 bytes, which both halves of `bytes` have, by their indices, of which the first is
// `first`. Other indices give 0.
inline __m256i sixteen(__m256i bytes, __m256i indices, int first) {
  // Sets bit 7 of all indices but 16, and keeps the low bits of those.
  const __m256i from =
      _mm256_adds_epu8(_mm256_xor_si256(indices, _mm256_set1_epi8(static_cast<char>(first))),
                       _mm256_set1_epi8(0x70));
  return _mm256_shuffle_epi8(bytes, from);
}

// Packs 32 values to bytes, with saturation.
inline __m256i pack(const std::int16_t* from) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi16(load(from), load(from + 16)), 0xD8);
}

// Returns the bits that values need. magnitude: their magnitudes less one.
inline __m256i widths(__m256i magnitude) {
  const __m256i low_bits = _mm256_set1_epi8(15);
  const __m256i of_low =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5));
  const __m256i of_high =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 6, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9));
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), low_bits);
  return _mm256_max_epu8(_mm256_shuffle_epi8(of_low, _mm256_and_si256(magnitude, low_bits)),
                         _mm256_shuffle_epi8(of_high, high));
}

template <int kCount>
inline int search(const ClassCosts& costs, std::uint64_t positions, const std::uint8_t* width,
                  std::uint64_t* best) {
  constexpr int kRegisters = 2 * kCount;
  __m256i sum[kRegisters];
  for (int i = 0; i < kRegisters; ++i) sum[i] = load(costs.mask + 32 * i);
  for (; positions; positions &= positions - 1) {
    const auto z = _tzcnt_u64(positions);
    const std::uint8_t* row = costs.value[z][width[z]];
    for (int i = 0; i < kRegisters; ++i) sum[i] = _mm256_adds_epu8(sum[i], load(row + 32 * i));
  }
  __m256i least = sum[0];
  for (int i = 1; i < kRegisters; ++i) least = _mm256_min_epu8(least, sum[i]);
  __m128i half = _mm_min_epu8(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
  half = _mm_min_epu8(half, _mm_srli_epi16(half, 8));  // the low byte of each 16 bits
  half = _mm_minpos_epu16(_mm_and_si128(half, _mm_set1_epi16(255)));
  const int result = _mm_extract_epi16(half, 0);
  least = _mm256_set1_epi8(static_cast<char>(result));
  for (int g = 0; g < kCount; ++g)
    best[g] =
        sign_mask(_mm256_cmpeq_epi8(sum[2 * g], least), _mm256_cmpeq_epi8(sum[2 * g + 1], least));
  for (int g = kCount; g < kGroups; ++g) best[g] = 0;
  return result;
}

}  // namespace

std::uint64_t take_apart_avx2(const std::int16_t* block, const std::uint8_t* order,
                              BlockBits& out) {
  const __m256i top = pack(block), bottom = pack(block + 32);
  const __m256i rows[4] = {_mm256_permute2x128_si256(top, top, 0x00),
                           _mm256_permute2x128_si256(top, top, 0x11),
                           _mm256_permute2x128_si256(bottom, bottom, 0x00),
                           _mm256_permute2x128_si256(bottom, bottom, 0x11)};
  __m256i value[2], magnitude[2], large[2];
  const __m256i zero = _mm256_setzero_si256();
  for (int h = 0; h < 2; ++h) {
    value[h] = zero;
    const __m256i indices = load(order + 32 * h);
    for (int from = 0; from < 4; ++from)
      value[h] = _mm256_or_si256(value[h], sixteen(rows[from], indices, 16 * from));
    const __m256i absolute = _mm256_abs_epi8(value[h]);  // of -128: 128, unsigned
    magnitude[h] = _mm256_sub_epi8(absolute, _mm256_set1_epi8(1));
    large[h] = _mm256_cmpeq_epi8(_mm256_max_epu8(absolute, _mm256_set1_epi8(127)), absolute);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.width + 32 * h), widths(magnitude[h]));
  }
  const std::uint64_t mask =
      ~sign_mask(_mm256_cmpeq_epi8(value[0], zero), _mm256_cmpeq_epi8(value[1], zero)) &
      ~std::uint64_t{1};
  out.mask = mask;
  out.half = 0;
  out.plane[0] = sign_mask(value[0], value[1]) & mask;
  for (int j = 1; j <= 8; ++j)
    out.plane[j] =
        sign_mask(_mm256_slli_epi16(magnitude[0], 8 - j), _mm256_slli_epi16(magnitude[1], 8 - j)) &
        mask;
  for (int j = 9; j < kPlanes; ++j) out.plane[j] = 0;
  return sign_mask(large[0], large[1]) & mask;
}

int search_avx2(const ClassCosts& costs, std::uint64_t positions, const std::uint8_t* width,
                int groups, std::uint64_t* best) {
  switch (groups) {
    case 1:
      return search<1>(costs, positions, width, best);
    case 2:
      return search<2>(costs, positions, width, best);
    case 3:
      return search<3>(costs, positions, width, best);
    default:
      return search<4>(costs, positions, width, best);
  }
}

void put_values_avx2(const Codebook& codebook, const BlockBits* blocks, const std::uint8_t* classes,
                     int count, BitWriter& writer) {
  BitWriter to = writer;  // a local copy, because its stores might alias `writer`
  for (int i = 0; i < count; ++i) {
    const int planes = codebook.planes[classes[i]];
    for (int j = 0; j < planes; ++j) {
      const std::uint64_t kept = blocks[i].mask & plane_ranks(codebook, classes[i], j);
      if (!kept) break;
      to.put(_pext_u64(blocks[i].plane[j], kept), static_cast<int>(_mm_popcnt_u64(kept)));
    }
  }
  writer = to;
}

}  // namespace fastio
