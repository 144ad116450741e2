// Splitting pixels with AVX-512.
#include "intrinsics.h"
#include "store_kernels.h"

namespace fastio {
namespace {

// As in the AVX2 kernel: in 64 RGB pixels in three registers, no two bytes of a channel have the
// same position.
struct alignas(64) RgbGather {
  std::uint8_t index[3][64];
  std::uint64_t second[3], third[3];
  constexpr RgbGather() : index(), second(), third() {
    for (int channel = 0; channel < 3; ++channel) {
      for (int pixel = 0; pixel < 64; ++pixel) {
        const int at = 3 * pixel + channel, place = at % 64;
        index[channel][pixel] = static_cast<std::uint8_t>(place);
        if (at / 64 == 1) second[channel] |= std::uint64_t{1} << place;
        if (at / 64 == 2) third[channel] |= std::uint64_t{1} << place;
      }
    }
  }
};
constexpr RgbGather kRgbGather;

}  // namespace

void split_avx512(const std::uint8_t* src, std::size_t pixels, int channels,
                  std::uint8_t* const* planes) {
  if (channels != 3) return split_avx2(src, pixels, channels, planes);
  for (std::size_t i = 0; i < pixels; i += 64) {
    const std::size_t left = pixels - i;
    const auto first = [](std::size_t count) {
      return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
    };
    const auto load = [&](std::size_t from) {
      const std::size_t bytes = 3 * left > from ? 3 * left - from : 0;
      return _mm512_maskz_loadu_epi8(first(bytes), src + 3 * i + from);
    };
    const __m512i a = load(0), b = load(64), c = load(128);
    for (int k = 0; k < 3; ++k) {
      const __m512i two = _mm512_mask_blend_epi8(kRgbGather.second[k], a, b);
      const __m512i plane =
          _mm512_permutexvar_epi8(_mm512_load_si512(kRgbGather.index[k]),
                                  _mm512_mask_blend_epi8(kRgbGather.third[k], two, c));
      _mm512_mask_storeu_epi8(planes[k] + i, first(left), plane);
    }
  }
}

}  // namespace fastio
