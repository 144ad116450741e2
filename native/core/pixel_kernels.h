// The interface between the pixel operations and the kernels of each instruction set: plain
// functions on planes of bytes.
//
// All levels run the same loops (pixel_loops.h), compiled for each level. They use integer
// arithmetic, so all give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kFractionBits = 7;  // fractional bits of samples in 16 bits

// The map of a byte to (byte - low) * unit * factor / 65536 - less + more, with kFractionBits
// fractional bits. Each difference is at least 0, and no step exceeds 16 bits. The result is
// truncated, and clamped to a byte.
struct PixelScale {
  std::uint8_t low = 0;
  std::uint16_t unit = 1 << 8, factor = 1 << 15, less = 0, more = 0;
};

// pixel * own +- (mean of its eight neighbours) * around + more. Both factors are at most 2, in
// units of 1 / (1 << 15). `subtract` chooses the sign; `more` has kFractionBits fractional bits.
struct PixelSharpen {
  std::uint16_t own = 0, around = 0, more = 0;
  bool subtract = false;
};

// A symmetric filter of words. Its result at i is bias + the sum over k < count of the high half of
// (low[k][i] + high[k][i]) * weight[k]. low[0] equals high[0].
struct PixelTaps {
  const std::uint16_t *const *low, *const *high, *weight;
  int count;
  std::uint16_t bias;
};

// Maps pixels of the result of a warp to points of the image. The arithmetic is that of torch's
// grid_sample, step by step, so that a point half-way between two pixels goes to the same one.
//
// For the pixel with the numbers (i, j), x = i + begin_x and y = j + begin_y. Then
// x' = m0 x + m1 y + m2 is the distance from the middle of the image in halves of its width, and
// (x' + 1) * half_x - 1 / 2 is the column of the point. y' and its row are computed alike, from m3,
// m4 and m5. If the map is projective, x' is (m0 x + m1 y + m2) / (m6 x + m7 y + 1) - 1.
//
// The image lies in a frame of pixels, each of the bytes r, g, b and 255. The frame has one more
// pixel before each row and column, and two after it (the last one of a row is the first one of the
// next row). These pixels are 0; for nearest interpolation they have the value that is used outside
// of the image.
struct PixelMap {
  float m[8];
  bool projective;
  float begin_x, begin_y, half_x, half_y;
  std::int32_t width, height;  // of the image and the result
  const std::uint32_t* frame;
  std::int32_t stride;  // of the frame's rows
  bool filled;          // for bilinear interpolation: the outside of the image is `fill`
  std::uint64_t fill;   // four words of kFractionBits, the last one 0
};

// Memory for a row of a warp: n items in each array, where n is a multiple of kWarpPixels.
struct WarpRow {
  std::int32_t* at;
  std::int16_t *right, *down;
  std::uint64_t *top, *bottom;
};
inline constexpr std::int32_t kWarpPixels = 16;

// The kernels of an instruction set. "Truncated" means that fractional bits are dropped.
struct PixelKernels {
  void (*scale)(std::uint8_t* p, std::size_t n, const PixelScale& how);
  // p[i] = (p[i] >= threshold ? p[i] ^ invert : p[i]) & mask.
  void (*bits)(std::uint8_t* p, std::size_t n, std::uint8_t threshold, std::uint8_t invert,
               std::uint8_t mask);
  // p[i] = table[p[i]].
  void (*look_up)(std::uint8_t* p, std::size_t n, const std::uint8_t* table);
  // The least and the greatest of n >= 1 bytes.
  void (*extremes)(const std::uint8_t* p, std::size_t n, std::uint8_t* low, std::uint8_t* high);
  // Computes the luma of planes r, g and b, truncated; returns its sum over all pixels. y may be
  // null, or one of the planes.
  std::uint64_t (*gray)(const std::uint8_t* r, const std::uint8_t* g, const std::uint8_t* b,
                        std::size_t n, std::uint8_t* y);
  // Replaces every v by v * own + luma * of_gray (or minus, if `subtract`), truncated and clamped
  // to a byte. The factors are in units of 1 / (1 << 15), and their sum is at most 2.
  void (*saturate)(std::uint8_t* r, std::uint8_t* g, std::uint8_t* b, std::size_t n,
                   std::uint16_t own, std::uint16_t of_gray, bool subtract);
  // mix_in: sum[i] += weight * p[i]. mixed: converts such sums, which are at least 0, to bytes,
  // truncated.
  void (*mix_in)(float* sum, const std::uint8_t* p, std::size_t n, float weight);
  void (*mixed)(const float* sum, std::size_t n, std::uint8_t* out);
  // Reverses n bytes.
  void (*mirror)(std::uint8_t* p, std::size_t n);
  // Rotates hues by turn / 8192 sixths of the circle, less than 6 of them.
  void (*turn_hue)(std::uint8_t* r, std::uint8_t* g, std::uint8_t* b, std::size_t n,
                   std::uint16_t turn);
  // Writes the sharpened row `here`, except its first and last pixel, to `out`. `above` and `below`
  // are the neighbouring rows, all of `width` bytes. `sums` is scratch memory for `width` words.
  void (*sharpen)(const std::uint8_t* above, const std::uint8_t* here, const std::uint8_t* below,
                  std::size_t width, const PixelSharpen& how, std::uint16_t* sums,
                  std::uint8_t* out);
  // Computes the sums of taps at n positions, to `words`, or truncated to `bytes`; the other one is
  // null. A position may be computed twice, so the output must not overlap taps.low and taps.high.
  void (*weigh)(const PixelTaps& taps, std::size_t n, std::uint16_t* words, std::uint8_t* bytes);
  // Converts bytes to words with kFractionBits fractional bits.
  void (*widen)(const std::uint8_t* p, std::size_t n, std::uint16_t* out);
  // frame_row combines three planes to pixels of a frame; split_row writes pixels to planes, only
  // to the first one if g is null.
  void (*frame_row)(const std::uint8_t* r, const std::uint8_t* g, const std::uint8_t* b,
                    std::size_t n, std::uint32_t* out);
  void (*split_row)(const std::uint32_t* pixels, std::size_t n, std::uint8_t* r, std::uint8_t* g,
                    std::uint8_t* b);
  // Write the first n pixels of a row: from the nearest pixel of the image, or interpolated
  // bilinearly between four.
  void (*nearest_row)(const PixelMap& map, std::int32_t row, std::int32_t n, const WarpRow& scratch,
                      std::uint32_t* out);
  void (*between_row)(const PixelMap& map, std::int32_t row, std::int32_t n, const WarpRow& scratch,
                      std::uint32_t* out);
};

// Returns the kernels of the instruction set in use.
const PixelKernels& pixel_kernels();

extern const PixelKernels kPixelPortable;
#ifdef FASTIO_X86
extern const PixelKernels kPixelAvx2;
extern const PixelKernels kPixelAvx512;
#endif

}  // namespace fastio
