// Antialiased separable resampling of interleaved uint8 images of 1, 3 or 4 channels, like Pillow's
// Image.resize: the same filters, with one pass per axis, each rounded to uint8. Pillow's weights
// have 22 bits and these have 16, so a few values differ by one level; nearest is exact.
//
// Resampler resamples whole images. Its parts can be used separately, to resample rows as they are
// decoded:
//
//   make_taps(x_axis, &x);  make_taps(y_axis, &y);     // the weights of source samples
//   plan.build(x, channels);                           // lays x out for the kernel
//   horizontal(plan, source at (y.first, x.first), ..., y.last - y.first, middle, ...);
//   vertical(y, middle, ..., slot, ...);
//
// Only source columns [x.first, x.last) and rows [y.first, y.last) are used.
//
// Thread-safety: AxisTaps, HorizontalPlan and Resampler are one thread's scratch, which allocates
// nothing once it has grown, and throws std::bad_alloc if it cannot grow. The functions are pure.
// All SIMD paths give equal bytes.
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

// horizontal() may read this many bytes past the last byte that it needs of a source row, so the
// last row of a source must be followed by as many readable bytes, whose values do not matter.
inline constexpr std::size_t kReadPad = 64;

// The longest axis, in samples: JPEG's limit. Up to this size, sums of weights and samples fit.
inline constexpr std::int32_t kMaxAxis = 65535;

// The resampling of one axis: `in` source samples are resampled to `out` outputs, of which those in
// the window [window_begin, window_begin + window_size) are computed, in reverse order if `mirror`.
// For a crop, `in` is the crop's size, and the filter reads nothing outside of it.
//
// If the source was decoded at a reduced size, the crop's edges fall between samples. Then only
// [box_begin, box_begin + box_size) of [0, in) is resampled, like Pillow's `box`; the filter also
// reads samples around the box, within [0, in). A box_size of 0 means the rest of the axis.
struct AxisSpec {
  std::int32_t in = 1;   // 1 .. kMaxAxis
  std::int32_t out = 1;  // 1 .. kMaxAxis
  std::int32_t window_begin = 0;
  std::int32_t window_size = 0;  // 0 means all: out - window_begin
  Filter filter = Filter::bilinear;
  bool antialias = true;  // widen the filter when shrinking; nearest never does
  bool mirror = false;
  double box_begin = 0;
  double box_size = 0;
};

// The weights of an axis. Output i of the window is
//   clamp((sum over k < count[i] of weights[i * pitch + k] * sample[start[i] + k] + half) >> shift)
// with half = 1 << (shift - 1). Filled by make_taps(), read-only afterwards.
struct AxisTaps {
  std::int32_t outputs = 0;          // the window's size
  std::int32_t first = 0, last = 0;  // every tap lies in source samples [first, last)
  std::int32_t max_count = 0;        // the most taps of an output, 1 .. last - first
  std::int32_t pitch = 0;            // weights per output, even; those past its count are 0
  int shift = 0;                     // 15 .. 22, or 14 if a weight exceeds 1
  bool identity = false;             // output i is sample first + i
  std::vector<std::int32_t> start;   // (outputs,) source sample of the first tap
  std::vector<std::int32_t> count;   // (outputs,) at least 1; a lone tap copies its sample
  // (outputs, pitch) Each row sums to 1 << shift, except that a single tap of 32768 is stored as
  // 32767, which still copies every sample exactly.
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

// Horizontal taps, laid out for the kernel that simd_active() allows when build() is called.
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

// Whether Pillow (13.0 and later) does the vertical pass first: if the height shrinks by more than
// twice as many samples as the width. The order affects the rounding: about one value in five
// differs by one level. (Before 13.0, the horizontal pass was always first.)
bool vertical_first(const AxisSpec& x, const AxisSpec& y);

// Does both passes in Pillow's order, and skips those that change nothing.
class Resampler {
 public:
  // x: the columns, y: the rows; channels: 1, 3 or 4.
  void prepare(const AxisSpec& x, const AxisSpec& y, int channels);

  // After prepare(): the source rows [y().first, y().last) and columns [x().first, x().last) that
  // run() needs, and the size of its result.
  const AxisTaps& x() const { return x_; }
  const AxisTaps& y() const { return y_; }

  // src: the pixel at (y().first, x().first); kReadPad readable bytes must follow the last pixel.
  // dst: y().outputs rows of x().outputs pixels; nothing is written past a row's end. Strides are
  // in bytes. The channels of dst are interleaved if `plane` is 0, else `plane` bytes apart.
  void run(const std::uint8_t* src, std::ptrdiff_t src_stride, std::uint8_t* dst,
           std::ptrdiff_t dst_stride, std::ptrdiff_t plane = 0);

 private:
  // The destination of the last pass.
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
