// Antialiased separable resampling of interleaved uint8 images of 1, 3 or 4 channels, as Pillow's
// Image.resize does it: the same filters, one pass an axis, each rounded to uint8. Pillow holds
// weights with 22 bits, these kernels with 16, so that now and then a value differs by one level;
// nearest is exact.
//
// Resampler does all of that for one image after another. Its parts can be used alone, where rows
// are to be resampled as they are decoded:
//
//   make_taps(x_axis, &x);  make_taps(y_axis, &y);     // which source samples weigh how much
//   plan.build(x, channels);                           // x, laid out for the kernel
//   horizontal(plan, source at (y.first, x.first), ..., y.last - y.first, middle, ...);
//   vertical(y, middle, ..., slot, ...);
//
// Only source columns [x.first, x.last) and rows [y.first, y.last) are used.
//
// Thread-safety: AxisTaps, HorizontalPlan and Resampler are one thread's scratch, which allocates
// nothing once it has grown (and throws std::bad_alloc where it cannot grow); the functions are
// pure. All SIMD paths give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "resample_kernels.h"

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
// filter does read around the box, within [0, in)). box_size 0 stands for the rest of the axis.
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
  std::int32_t outputs = 0;          // the window's size
  std::int32_t first = 0, last = 0;  // every tap lies in source samples [first, last)
  std::int32_t max_count = 0;        // the most taps of an output, 1 .. last - first
  std::int32_t pitch = 0;            // weights an output, even; those past its count are 0
  int shift = 0;                     // 15 .. 22, or 14 where a weight exceeds 1
  bool identity = false;             // output i is sample first + i: nothing to compute
  std::vector<std::int32_t> start;   // (outputs,) source sample of the first tap
  std::vector<std::int32_t> count;   // (outputs,) at least 1; a lone tap copies its sample
  // (outputs, pitch) Each row sums to 1 << shift, save that a lone tap which would be 32768 is
  // 32767 (it still copies every sample).
  std::vector<std::int16_t> weights;

  struct Scratch {
    std::vector<float> offset, weights;
    std::vector<double> normalise, running;
    std::vector<std::int32_t> given;
  };
  Scratch scratch;  // make_taps()'s working space
  void reserve();   // sizes the vectors for outputs and pitch
};

// Computes the taps of `spec`, whose fields must be within their ranges: 0 <= window_begin,
// window_begin + window_size <= out, 0 <= box_begin, box_begin + box_size <= in. Takes about a
// microsecond for 100 outputs.
void make_taps(const AxisSpec& spec, AxisTaps* taps);

// The horizontal taps laid out for the kernel that simd_active() names at the time of build().
class HorizontalPlan {
 public:
  HorizontalPlan() = default;
  HorizontalPlan(HorizontalPlan&&) = default;
  HorizontalPlan& operator=(HorizontalPlan&&) = default;

  // channels: 1, 3 or 4. `taps` is not needed afterwards.
  void build(const AxisTaps& taps, int channels);

  std::int32_t outputs() const { return tables_.outputs; }
  int channels() const { return tables_.channels; }

 private:
  friend void horizontal(const HorizontalPlan&, const std::uint8_t*, std::ptrdiff_t, std::int32_t,
                         std::uint8_t*, std::ptrdiff_t);
  void build_windows(const AxisTaps& taps, std::int32_t tap_multiple);
  bool place_groups();
  void fill_groups();

  bool identity_ = false;
  HorizontalKernel* kernel_ = nullptr;
  HorizontalTables tables_{};  // points into the vectors
  std::vector<std::int32_t> offset_;
  std::vector<std::int16_t> weights_;
  std::vector<std::int32_t> group_output_, group_base_;
  std::vector<LaneIndex> group_index_;
  std::vector<LaneWeights> group_weights_;
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

// Whether Pillow (13.0 and later) resamples the columns first: where the height shrinks by more
// than twice as many samples as the width does. The order shows in the rounding: about one value in
// five differs by one level. (Before 13.0, rows always came first.)
bool vertical_first(const AxisSpec& x, const AxisSpec& y);

// Both passes in Pillow's order, leaving out the ones that change nothing.
class Resampler {
 public:
  // x: the columns, y: the rows; channels: 1, 3 or 4.
  void prepare(const AxisSpec& x, const AxisSpec& y, int channels);

  // After prepare(): the source rows [y().first, y().last) and columns [x().first, x().last) that
  // run() needs, and the size of its result.
  const AxisTaps& x() const { return x_; }
  const AxisTaps& y() const { return y_; }

  // src: the pixel at (y().first, x().first), with kReadPad readable bytes after the last. dst:
  // y().outputs rows of x().outputs pixels, nothing written past a row's end. Strides in bytes.
  // Channels are interleaved, or where `plane` is not 0 so many bytes apart.
  void run(const std::uint8_t* src, std::ptrdiff_t src_stride, std::uint8_t* dst,
           std::ptrdiff_t dst_stride, std::ptrdiff_t plane = 0);

 private:
  // Where the last pass writes to.
  struct Target {
    std::uint8_t* first;
    std::ptrdiff_t stride, plane;
  };
  void split_rows(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t first,
                  std::int32_t count, const Target& target);
  void last_horizontal(const std::uint8_t* src, std::ptrdiff_t src_stride, const Target& target);
  void last_vertical(const std::uint8_t* src, std::ptrdiff_t src_stride, const Target& target);
  void run_horizontal_first(const std::uint8_t* src, std::ptrdiff_t src_stride,
                            const Target& target);
  void run_vertical_first(const std::uint8_t* src, std::ptrdiff_t src_stride, const Target& target);

  AxisTaps x_, y_;
  HorizontalPlan plan_;
  bool vertical_first_ = false;
  std::vector<std::uint8_t> middle_, rows_;
};

}  // namespace fastio
