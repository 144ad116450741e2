// Antialiased separable resampling of interleaved uint8 images of 1, 3 or 4 channels, as Pillow's
// Image.resize does it: the same filters, a horizontal pass and then a vertical one, each rounded
// to uint8. Pillow holds weights with 22 bits, these kernels with 16, so that now and then a value
// differs by one level; nearest is exact.
//
// One image takes four steps, none of which allocates once the buffers have grown:
//
//   make_taps(x_axis, &x);  make_taps(y_axis, &y);     // which source samples weigh how much
//   plan.build(x, channels);                           // x, laid out for the kernel
//   horizontal(plan, source at (y.first, x.first), ..., y.last - y.first, middle, ...);
//   vertical(y, middle, ..., slot, ...);
//
// Only source columns [x.first, x.last) and rows [y.first, y.last) are used. Rows may be given to
// horizontal() in stripes, as they are decoded. A pass whose taps are `identity` may be left out
// (the other pass then reads the source, or writes the slot, itself); if it is not, it copies.
//
// Thread-safety: AxisTaps and HorizontalPlan are one thread's scratch; the functions are pure. All
// SIMD paths give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu.h"

namespace fastio {

enum class Filter : std::uint8_t {
  nearest,   // the sample that the output's centre falls in
  bilinear,  // triangle, support 1
  bicubic,   // Keys' cubic with a = -0.5, support 2
};

// horizontal() may read this many bytes past the last byte it needs of a source row (their values
// do not matter). So the last row, or the only row, of a source must be followed by as many.
inline constexpr std::size_t kReadPad = 64;

// The longest axis: JPEG's limit. Sums of weights and samples are proven to fit up to here.
inline constexpr std::int32_t kMaxAxis = 65535;

// What becomes of one axis: `in` source samples are resampled to `out` outputs, of which those in
// the window [window_begin, window_begin + window_size) are wanted, in reverse order if `mirror`.
// A crop is an axis of its own: `in` is its size, and the filter reads nothing outside.
//
// Where the source was decoded at a reduced size, the crop's edges fall between samples: then
// [box_begin, box_begin + box_size) of [0, in) is what is resampled, as Pillow's `box` does it (the
// filter does read around the box, within [0, in)). box_size 0 stands for the whole axis.
struct AxisSpec {
  std::int32_t in = 1;   // 1 .. kMaxAxis
  std::int32_t out = 1;  // 1 .. kMaxAxis
  std::int32_t window_begin = 0;
  std::int32_t window_size = 0;  // 0 stands for all: out - window_begin
  Filter filter = Filter::bilinear;
  bool antialias = true;  // widen the filter when shrinking; nearest never does
  bool mirror = false;
  double box_begin = 0;
  double box_size = 0;
};

// The filter of an axis as numbers. Output i of the window is
//   clamp((sum over k < count[i] of weights[i * pitch + k] * sample[start[i] + k] + half) >> shift)
// with half = 1 << (shift - 1). Filled by make_taps(), read-only afterwards.
struct AxisTaps {
  std::int32_t outputs = 0;           // the window's size
  std::int32_t first = 0, last = 0;   // every tap lies in source samples [first, last)
  std::int32_t max_count = 0;         // the most taps of an output, 1 .. last - first
  std::int32_t pitch = 0;             // weights an output, taps past its count being 0
  int shift = 0;                      // 15 .. 22 (14 for weights over 1): weights have 16 bits
  bool identity = false;              // output i is sample first + i: nothing to compute
  std::vector<std::int32_t> start;    // (outputs,) source sample of the first tap, >= first
  std::vector<std::int32_t> count;    // (outputs,) at least 1
  std::vector<std::int16_t> weights;  // (outputs, pitch); each row sums to 1 << shift, save that
                                      // a lone tap that cannot hold 1 << 15 has 32767 (v stays v)
};

// Computes the taps of `spec`, whose fields must be within their ranges: 0 <= window_begin,
// window_begin + window_size <= out, 0 <= box_begin, box_begin + box_size <= in. Takes about a
// microsecond for 100 outputs.
void make_taps(const AxisSpec& spec, AxisTaps* taps);

// The horizontal taps laid out for the kernel that simd_active() named at the time.
class HorizontalPlan {
 public:
  // channels: 1, 3 or 4. `taps` is not needed afterwards.
  void build(const AxisTaps& taps, int channels);

  std::int32_t outputs() const { return outputs_; }
  int channels() const { return channels_; }

 private:
  friend void horizontal(const HorizontalPlan&, const std::uint8_t*, std::ptrdiff_t, std::int32_t,
                         std::uint8_t*, std::ptrdiff_t);
  void build_groups(int extra_taps);

  Simd simd_ = Simd::portable;
  std::int32_t outputs_ = 0;
  int channels_ = 0;
  bool identity_ = false;
  int shift_ = 0;
};

// Resamples `rows` rows (0 is allowed). src: sample taps.first of the first row; dst: outputs() *
// channels() bytes a row, none written past them. Strides are in bytes, may be negative, and are at
// least a row's bytes in size. src and dst must not overlap. See kReadPad for what is read.
void horizontal(const HorizontalPlan& plan, const std::uint8_t* src, std::ptrdiff_t src_stride,
                std::int32_t rows, std::uint8_t* dst, std::ptrdiff_t dst_stride);

// Resamples columns of rows of `row_bytes` bytes (any number of interleaved channels). src: row
// taps.first; dst: taps.outputs rows. Reads and writes exactly row_bytes of each row. Strides as
// for horizontal(). src and dst must not overlap.
void vertical(const AxisTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
              std::size_t row_bytes, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace fastio
