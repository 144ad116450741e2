// Splitting pixels and converting them to floats, with NEON.
#include <arm_neon.h>

#include "store_kernels.h"

namespace fastio {

void split_neon(const std::uint8_t* src, std::size_t pixels, int channels,
                std::uint8_t* const* planes) {
  std::size_t i = 0;
  for (; i + 16 <= pixels && channels == 3; i += 16) {
    const uint8x16x3_t pixel = vld3q_u8(src + 3 * i);
    for (int c = 0; c < 3; ++c) vst1q_u8(planes[c] + i, pixel.val[c]);
  }
  for (; i + 16 <= pixels && channels == 4; i += 16) {
    const uint8x16x4_t pixel = vld4q_u8(src + 4 * i);
    for (int c = 0; c < 4; ++c) vst1q_u8(planes[c] + i, pixel.val[c]);
  }
  std::uint8_t* rest[4] = {};
  for (int c = 0; c < channels; ++c) rest[c] = planes[c] + i;
  split_portable(src + i * static_cast<std::size_t>(channels), pixels - i, channels, rest);
}

void scale_neon(const std::uint8_t* src, std::size_t count, int channels, const ScaleSpec& spec,
                float* dst) {
  // 48 values are whole pixels of 1, 3 or 4 channels; factors repeat after 12.
  constexpr int kPeriod = 12, kStep = 48;
  float32x4_t scale[3], bias[3];
  float scales[kPeriod], biases[kPeriod];
  for (int i = 0, c = 0; i < kPeriod; ++i, c = c + 1 < channels ? c + 1 : 0) {
    scales[i] = spec.scale[c];
    biases[i] = spec.bias[c];
  }
  for (int k = 0; k < 3; ++k) {
    scale[k] = vld1q_f32(scales + 4 * k);
    bias[k] = vld1q_f32(biases + 4 * k);
  }
  const auto convert = [&](uint16x4_t words, int k) {
    return vfmaq_f32(bias[k % 3], vcvtq_f32_u32(vmovl_u16(words)), scale[k % 3]);
  };
  const auto step = [&](const std::uint8_t* from, float* to) {
    for (int k = 0; k < kStep / 4; k += 4) {
      const uint8x16_t bytes = vld1q_u8(from + 4 * k);
      const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
      vst1q_f32(to + 4 * k, convert(vget_low_u16(low), k));
      vst1q_f32(to + 4 * k + 4, convert(vget_high_u16(low), k + 1));
      vst1q_f32(to + 4 * k + 8, convert(vget_low_u16(high), k + 2));
      vst1q_f32(to + 4 * k + 12, convert(vget_high_u16(high), k + 3));
    }
  };
  std::size_t i = 0;
  for (; i + kStep <= count; i += kStep) step(src + i, dst + i);
  if (i < count) {
    std::uint8_t bytes[kStep] = {};
    float floats[kStep];
    __builtin_memcpy(bytes, src + i, count - i);
    step(bytes, floats);
    __builtin_memcpy(dst + i, floats, (count - i) * sizeof(float));
  }
}

}  // namespace fastio
