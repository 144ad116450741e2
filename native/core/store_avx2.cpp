// Splitting pixels and converting them to floats, with AVX2.
#include <cstring>

#include "intrinsics.h"
#include "store_kernels.h"

namespace fastio {
namespace {

inline __m128i load(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

inline void store(std::uint8_t* to, __m128i bytes) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

inline __m256i load_halves(const std::uint8_t* low, const std::uint8_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load(low)), load(high), 1);
}

// In 16 RGB pixels in three pieces of 16 bytes, no two bytes of a channel have the same position in
// their pieces, so blends of the pieces collect the channel. For each channel: masks of the bytes
// that come from the second and third piece, and the position of each pixel's byte.
struct alignas(16) RgbGather {
  std::uint8_t second[3][16], third[3][16], index[3][16];
  constexpr RgbGather() : second(), third(), index() {
    for (int channel = 0; channel < 3; ++channel) {
      for (int pixel = 0; pixel < 16; ++pixel) {
        const int at = 3 * pixel + channel, place = at % 16;
        index[channel][pixel] = static_cast<std::uint8_t>(place);
        second[channel][place] = at / 16 == 1 ? 0xFF : 0;
        third[channel][place] = at / 16 == 2 ? 0xFF : 0;
      }
    }
  }
};
constexpr RgbGather kRgbGather;

inline __m256i both_halves(const std::uint8_t* from) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}

// Splits 32 pixels at a time, 16 in each half of a register. Returns the number of pixels that were
// split.
std::size_t split3(const std::uint8_t* src, std::size_t pixels, std::uint8_t* const* planes) {
  std::size_t i = 0;
  for (; i + 32 <= pixels; i += 32) {
    __m256i piece[3];
    for (int k = 0; k < 3; ++k) {
      const std::uint8_t* from = src + 3 * i + 16 * k;
      piece[k] = load_halves(from, from + 48);
    }
    for (int c = 0; c < 3; ++c) {
      const __m256i two = _mm256_blendv_epi8(piece[0], piece[1], both_halves(kRgbGather.second[c]));
      const __m256i all = _mm256_blendv_epi8(two, piece[2], both_halves(kRgbGather.third[c]));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(planes[c] + i),
                          _mm256_shuffle_epi8(all, both_halves(kRgbGather.index[c])));
    }
  }
  return i;
}

std::size_t split4(const std::uint8_t* src, std::size_t pixels, std::uint8_t* const* planes) {
  const __m128i by_channel = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  std::size_t i = 0;
  for (; i + 16 <= pixels; i += 16) {
    __m128i p[4];
    for (int k = 0; k < 4; ++k) p[k] = _mm_shuffle_epi8(load(src + 4 * i + 16 * k), by_channel);
    const __m128i low0 = _mm_unpacklo_epi32(p[0], p[1]), low1 = _mm_unpacklo_epi32(p[2], p[3]);
    const __m128i high0 = _mm_unpackhi_epi32(p[0], p[1]), high1 = _mm_unpackhi_epi32(p[2], p[3]);
    store(planes[0] + i, _mm_unpacklo_epi64(low0, low1));
    store(planes[1] + i, _mm_unpackhi_epi64(low0, low1));
    store(planes[2] + i, _mm_unpacklo_epi64(high0, high1));
    store(planes[3] + i, _mm_unpackhi_epi64(high0, high1));
  }
  return i;
}

}  // namespace

void split_avx2(const std::uint8_t* src, std::size_t pixels, int channels,
                std::uint8_t* const* planes) {
  const std::size_t done =
      channels == 3 ? split3(src, pixels, planes) : split4(src, pixels, planes);
  std::uint8_t* rest[4] = {};
  for (int c = 0; c < channels; ++c) rest[c] = planes[c] + done;
  split_portable(src + done * channels, pixels - done, channels, rest);
}

void scale_avx2(const std::uint8_t* src, std::size_t count, int channels, const ScaleSpec& spec,
                float* dst) {
  // 24 values are whole pixels of 1, 3 or 4 channels, so the factors repeat after 3 registers.
  constexpr int kPeriod = 24;
  alignas(32) float scales[kPeriod], biases[kPeriod];
  for (int i = 0, c = 0; i < kPeriod; ++i, c = c + 1 < channels ? c + 1 : 0) {
    scales[i] = spec.scale[c];
    biases[i] = spec.bias[c];
  }
  const auto convert = [&](const std::uint8_t* from, int k) {
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(v), _mm256_load_ps(scales + 8 * k),
                           _mm256_load_ps(biases + 8 * k));
  };
  std::size_t i = 0;
  for (; i + kPeriod <= count; i += kPeriod) {
    for (int k = 0; k < 3; ++k) _mm256_storeu_ps(dst + i + 8 * k, convert(src + i + 8 * k, k));
  }
  if (i < count) {
    std::uint8_t bytes[kPeriod] = {};
    alignas(32) float floats[kPeriod];
    std::memcpy(bytes, src + i, count - i);
    for (int k = 0; k < 3; ++k) _mm256_store_ps(floats + 8 * k, convert(bytes + 8 * k, k));
    std::memcpy(dst + i, floats, (count - i) * sizeof(float));
  }
}

}  // namespace fastio
