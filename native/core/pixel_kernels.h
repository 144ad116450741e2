// Between pixel.cpp and the kernels of each instruction set: plain functions on planes of
// bytes.
//
// All levels run the same loops (pixel_loops.h), compiled for each of them. Their arithmetic is in
// integers, so that all give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kFractionBits = 7;  // of samples in 16 bits

// byte -> (byte - low) * unit * factor / 65536 - less + more, in kFractionBits; what falls below 0
// on the way is 0. Then clamped to a byte, cut off. No step exceeds 16 bits.
struct PixelScale {
  std::uint8_t low = 0;
  std::uint16_t unit = 1 << 8, factor = 1 << 15, less = 0, more = 0;
};

// Where pixels of the result of a warp lie in the image: (x, y) in pixels from the middle to
// (m0 x + m1 y + m2, m3 x + m4 y + m5) / (m6 x + m7 y + 1).
struct PixelMap {
  float m[8];
  float half_x, half_y;        // from the first pixel to the middle
  std::int32_t width, height;  // of the image and the result
  std::int32_t outside;        // the place of pixels that are not in the image
};

struct PixelKernels {
  void (*scale)(std::uint8_t* p, std::size_t n, const PixelScale& how);
  // p[i] = p[i] * a + q[i] * b (or less, if `subtract`), clamped to a byte, cut off; a and b, at
  // most 2, are in 1 << 15ths, and a + b is at most 2.
  void (*blend)(std::uint8_t* p, const std::uint8_t* q, std::size_t n, std::uint16_t a,
                std::uint16_t b, bool subtract);
  // p[i] = (p[i] >= threshold ? p[i] ^ invert : p[i]) & mask.
  void (*bits)(std::uint8_t* p, std::size_t n, std::uint8_t threshold, std::uint8_t invert,
               std::uint8_t mask);
  // p[i] = table[p[i]].
  void (*look_up)(std::uint8_t* p, std::size_t n, const std::uint8_t* table);
  // The least and the greatest of n >= 1 bytes.
  void (*extremes)(const std::uint8_t* p, std::size_t n, std::uint8_t* low, std::uint8_t* high);
  // Luma of planes r, g and b, cut off; returns the sum of it. y may be null, or one of the planes.
  std::uint64_t (*gray)(const std::uint8_t* r, const std::uint8_t* g, const std::uint8_t* b,
                        std::size_t n, std::uint8_t* y);
  // Turns hues by turn / 8192 sixths of the circle, less than 6 of them.
  void (*turn_hue)(std::uint8_t* r, std::uint8_t* g, std::uint8_t* b, std::size_t n,
                   std::uint16_t turn);
  // A row's pixels with their neighbours in three rows of `width` bytes, weighed as torchvision's
  // adjust_sharpness does; not its first and last.
  void (*near_means)(const std::uint8_t* above, const std::uint8_t* here, const std::uint8_t* below,
                     std::size_t width, std::uint8_t* out);
  // out[i] = the sum over k < taps of the high half of (low[k][i] + high[k][i]) * weight[k].
  void (*weigh)(const std::uint16_t* const* low, const std::uint16_t* const* high,
                const std::uint16_t* weight, int taps, std::size_t n, std::uint16_t bias,
                std::uint16_t* out);
  // Bytes to numbers of kFractionBits fractional bits, and back, rounded.
  void (*widen)(const std::uint8_t* p, std::size_t n, std::uint16_t* out);
  void (*narrow)(const std::uint16_t* p, std::size_t n, std::uint8_t* out);
  // Of the first `count` pixels of a row the places of the nearest pixels of the image.
  void (*nearest_places)(const PixelMap& map, std::int32_t row, std::int32_t count,
                         std::int32_t* at);
};

// Those of the instruction set in use.
const PixelKernels& pixel_kernels();

extern const PixelKernels kPixelPortable;
#ifdef FASTIO_X86
extern const PixelKernels kPixelAvx2;
extern const PixelKernels kPixelAvx512;
#endif

}  // namespace fastio
