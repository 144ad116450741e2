#include "resample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu.h"
#include "store.h"

namespace fastio {
namespace {

constexpr int kMaxShift = 22;  // 255 << 22 plus the overshoot of bicubic fits in 32 bits
constexpr std::int32_t kMaxWeight = 32767;
constexpr std::int32_t kLanes = 16;  // output values of a group, see LaneIndex

constexpr std::int32_t round_up(std::int32_t value, std::int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns 1 - |x|, or 0 if that is negative. Has no branch, so that compilers vectorise loops.
inline float triangle(float x) {
  const float y = 1.0f - std::abs(x);
  return 0.5f * (y + std::abs(y));
}

// Keys, "Cubic convolution interpolation for digital image processing" (1981), a = -1/2.
inline float cubic(float x) {
  x = std::min(std::abs(x), 2.0f);
  const float near = (1.5f * x - 2.5f) * x * x + 1.0f;
  const float far = ((-0.5f * x + 2.5f) * x - 4.0f) * x + 2.0f;
  return x < 1.0f ? near : far;
}

// The numbers that follow from an AxisSpec.
struct Geometry {
  std::int32_t window_size;
  double box_size;
  double scale;         // source samples per output
  double filter_scale;  // by how much the filter is wider than its definition
  double support;       // half of the filter's width, in source samples
};

Geometry resolve(const AxisSpec& spec) {
  Geometry g;
  g.window_size = spec.window_size ? spec.window_size : spec.out - spec.window_begin;
  g.box_size = spec.box_size != 0 ? spec.box_size : spec.in - spec.box_begin;
  g.scale = g.box_size / spec.out;
  g.filter_scale = spec.antialias ? std::max(1.0, g.scale) : 1.0;
  g.support = (spec.filter == Filter::bicubic ? 2.0 : 1.0) * g.filter_scale;
  return g;
}

// Computes the start and count of each output's taps. scratch.offset: the distance from the
// output's centre to the first tap's.
void place_taps(const AxisSpec& spec, const Geometry& g, AxisTaps* taps) {
  const std::int32_t n = taps->outputs, in = spec.in;
  std::int32_t* start = taps->start.data();
  std::int32_t* count = taps->count.data();
  float* offset = taps->scratch.offset.data();
  const double origin = spec.box_begin + (spec.window_begin + 0.5) * g.scale;
  for (std::int32_t i = 0; i < n; ++i) {
    const double center = origin + (spec.mirror ? n - 1 - i : i) * g.scale;
    const std::int32_t begin = std::max(0, static_cast<std::int32_t>(center - g.support + 0.5));
    const std::int32_t end = std::min(in, static_cast<std::int32_t>(center + g.support + 0.5));
    offset[i] = static_cast<float>(begin + 0.5 - center);
    start[i] = begin;
    count[i] = end - begin;
  }
}

// Adds up the centres as Pillow does, so that the same sample is chosen if a centre falls on the
// border of two.
void place_nearest(const AxisSpec& spec, const Geometry& g, AxisTaps* taps) {
  const std::int32_t n = taps->outputs;
  double center = spec.box_begin + 0.5 * g.scale;
  for (std::int32_t i = 0; i < spec.window_begin; ++i) center += g.scale;
  for (std::int32_t i = 0; i < n; ++i, center += g.scale) {
    const std::int32_t to = spec.mirror ? n - 1 - i : i;
    taps->start[to] = std::min(static_cast<std::int32_t>(center), spec.in - 1);
    taps->count[to] = 1;
    taps->scratch.offset[to] = 0;
  }
}

// Computes the filter's values, and the factors that make each output's sum 1. Here and below,
// inner loops run over the outputs, one tap after another, so that compilers vectorise them.
template <float (*kFilter)(float)>
void weigh_taps(const Geometry& g, AxisTaps* taps) {
  const std::int32_t n = taps->outputs;
  const float step = static_cast<float>(1.0 / g.filter_scale);
  const std::int32_t* count = taps->count.data();
  const float* offset = taps->scratch.offset.data();
  double* normalise = taps->scratch.normalise.data();
  std::fill(normalise, normalise + n, 0.0);
  for (std::int32_t k = 0; k < taps->pitch; ++k) {
    float* weight = &taps->scratch.weights[static_cast<std::size_t>(k) * n];
    const float at = static_cast<float>(k);
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t inside = (k - count[i]) >> 31;  // all ones, or 0 past the count
      const float value = kFilter((offset[i] + at) * step);
      weight[i] = std::bit_cast<float>(std::bit_cast<std::int32_t>(value) & inside);
      normalise[i] += weight[i];
    }
  }
  for (std::int32_t i = 0; i < n; ++i) normalise[i] = 1.0 / normalise[i];
}

// Returns the largest shift with which all weights fit in 16 bits.
int choose_shift(const AxisTaps& taps) {
  const std::int32_t n = taps.outputs;
  std::int32_t bits = 0;  // positive floats order like their bits, which are compared faster
  for (std::int32_t k = 0; k < taps.pitch; ++k) {
    const float* weight = &taps.scratch.weights[static_cast<std::size_t>(k) * n];
    for (std::int32_t i = 0; i < n; ++i) {
      const float value = weight[i] * static_cast<float>(taps.scratch.normalise[i]);
      bits = std::max(bits, std::bit_cast<std::int32_t>(value));
    }
  }
  const auto largest = std::bit_cast<float>(bits);
  // A weight of 1 may exceed the maximum by one: its neighbour takes the rest (see spill_full). Any
  // other weight may be increased by 1 when running sums are rounded.
  const auto fits = [&](int shift) {
    const int most = shift == 15 ? kMaxWeight + 1 : kMaxWeight - 1;
    return largest * static_cast<float>(1 << shift) <= static_cast<float>(most);
  };
  int shift = kMaxShift;
  while (!fits(shift)) --shift;
  return shift;
}

// Rounds the running sums of an output's weights instead of the weights. Their total is then exact,
// and rounding errors affect only differences between neighbouring samples.
void round_weights(AxisTaps* taps) {
  constexpr std::int32_t kBias = 1 << 23;  // makes truncation round down below zero too
  const std::int32_t n = taps->outputs, pitch = taps->pitch;
  const double* normalise = taps->scratch.normalise.data();
  double* running = taps->scratch.running.data();
  std::int32_t* given = taps->scratch.given.data();
  const double unit = 1 << taps->shift;
  std::fill(running, running + n, kBias + 0.5);
  std::fill(given, given + n, kBias);
  for (std::int32_t k = 0; k < pitch; ++k) {
    const float* weight = &taps->scratch.weights[static_cast<std::size_t>(k) * n];
    std::int16_t* rounded = &taps->weights[k];
    for (std::int32_t i = 0; i < n; ++i) {
      running[i] += weight[i] * (normalise[i] * unit);
      const std::int32_t until = static_cast<std::int32_t>(running[i]);
      const std::int32_t exact = until - given[i];
      given[i] = until;
      rounded[static_cast<std::size_t>(i) * pitch] =
          static_cast<std::int16_t>(exact < kMaxWeight ? exact : kMaxWeight);
    }
  }
}

// Removes zero weights at both ends.
void trim(std::int16_t* weights, std::int32_t* start, std::int32_t* count) {
  while (*count > 1 && weights[*count - 1] == 0) --*count;
  std::int32_t zeros = 0;
  while (zeros < *count - 1 && weights[zeros] == 0) ++zeros;
  if (zeros == 0) return;
  std::memmove(weights, weights + zeros, (*count - zeros) * sizeof *weights);
  std::fill(weights + *count - zeros, weights + *count, std::int16_t{0});
  *start += zeros;
  *count -= zeros;
}

// Adds to a neighbour what a weight of 1, which is limited to kMaxWeight, lacks.
void spill_full(std::int16_t* weights, std::int32_t count, std::int32_t total) {
  std::int16_t* const end = weights + count;
  std::int16_t* const full = std::find(weights, end, std::int16_t{kMaxWeight});
  if (full == end || count == 1) return;
  std::int16_t& neighbour = full + 1 < end ? full[1] : full[-1];
  neighbour = static_cast<std::int16_t>(neighbour + total - std::accumulate(weights, end, 0));
}

// Sets first, last, max_count and identity.
void measure_taps(AxisTaps* taps) {
  std::int32_t first = taps->start[0], last = 0, max_count = 1;
  for (std::int32_t i = 0; i < taps->outputs; ++i) {
    first = std::min(first, taps->start[i]);
    last = std::max(last, taps->start[i] + taps->count[i]);
    max_count = std::max(max_count, taps->count[i]);
  }
  taps->first = first;
  taps->last = last;
  taps->max_count = max_count;
  taps->identity = max_count == 1;
  for (std::int32_t i = 0; i < taps->outputs && taps->identity; ++i) {
    taps->identity = taps->start[i] == first + i;
  }
}

// Makes the taps of an axis whose size does not change: with any filter, a weight of 1 for the
// sample itself.
void unit_taps(const AxisSpec& spec, const Geometry& g, AxisTaps* taps) {
  const std::int32_t n = g.window_size;
  const auto first = static_cast<std::int32_t>(spec.box_begin) + spec.window_begin;
  taps->outputs = n;
  taps->pitch = 2;
  taps->start.resize(static_cast<std::size_t>(n));
  taps->count.assign(static_cast<std::size_t>(n), 1);
  taps->weights.resize(2 * static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i) {
    taps->start[i] = first + (spec.mirror ? n - 1 - i : i);
    taps->weights[2 * i] = kMaxWeight;
    taps->weights[2 * i + 1] = 0;
  }
  taps->first = first;
  taps->last = first + n;
  taps->max_count = 1;
  taps->shift = 15;
  taps->identity = !spec.mirror || n == 1;
}

void copy_rows(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t rows,
               std::size_t row_bytes, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  for (std::int32_t y = 0; y < rows; ++y, src += src_stride, dst += dst_stride) {
    std::memcpy(dst, src, row_bytes);
  }
}

}  // namespace

void AxisTaps::reserve() {
  const auto n = static_cast<std::size_t>(outputs);
  start.resize(n);
  count.resize(n);
  weights.resize(n * pitch);
  scratch.weights.resize(n * pitch);
  scratch.offset.resize(n);
  scratch.given.resize(n);
  scratch.normalise.resize(n);
  scratch.running.resize(n);
}

void make_taps(const AxisSpec& spec, AxisTaps* taps) {
  const Geometry g = resolve(spec);
  if (g.scale == 1 && spec.box_begin == std::floor(spec.box_begin)) return unit_taps(spec, g, taps);
  const bool nearest = spec.filter == Filter::nearest;
  const auto widest = nearest ? 1 : static_cast<std::int32_t>(2 * g.support) + 1;
  taps->outputs = g.window_size;
  taps->pitch = round_up(std::min(spec.in, widest), 2);
  taps->reserve();
  if (nearest) {
    place_nearest(spec, g, taps);
  } else {
    place_taps(spec, g, taps);
  }
  if (spec.filter == Filter::bicubic) {
    weigh_taps<cubic>(g, taps);
  } else {
    weigh_taps<triangle>(g, taps);
  }
  taps->shift = choose_shift(*taps);
  round_weights(taps);
  for (std::int32_t i = 0; i < taps->outputs; ++i) {
    std::int16_t* weights = &taps->weights[static_cast<std::size_t>(i) * taps->pitch];
    trim(weights, &taps->start[i], &taps->count[i]);
    spill_full(weights, taps->count[i], 1 << taps->shift);
  }
  measure_taps(taps);
}

void HorizontalPlan::build(const AxisTaps& taps, int channels) {
  identity_ = taps.identity;
  tables_ = {};
  tables_.channels = channels;
  tables_.outputs = taps.outputs;
  tables_.shift = taps.shift;
  if (identity_) return;
  kernel_ = horizontal_portable;
#ifdef FASTIO_X86
  const Simd simd = simd_active();
  if (simd.has(kAvx512)) {
    build_windows(taps, 2);
    if (place_groups()) {
      fill_groups();
      kernel_ = horizontal_avx512;
      return;
    }
  }
  if (simd.has(kAvx2)) {
    build_windows(taps, 4);
    kernel_ = horizontal_avx2;
    return;
  }
#endif
#ifdef FASTIO_ARM64
  if (simd_active().has(kNeon)) {
    build_windows(taps, 4);
    kernel_ = horizontal_neon;
    return;
  }
#endif
  build_windows(taps, 1);
}

// Gives all outputs the same number of taps. A window that would extend past the last sample starts
// earlier, with zero weights in front, so that kernels read few bytes past the end.
void HorizontalPlan::build_windows(const AxisTaps& taps, std::int32_t tap_multiple) {
  const std::int32_t width = round_up(taps.max_count, tap_multiple);
  const std::int32_t latest = std::max(taps.first, taps.last - width);
  offset_.resize(taps.outputs);
  weights_.assign(static_cast<std::size_t>(taps.outputs) * width, 0);
  for (std::int32_t i = 0; i < taps.outputs; ++i) {
    const std::int32_t start = std::min(taps.start[i], latest);
    offset_[i] = (start - taps.first) * tables_.channels;
    std::memcpy(&weights_[static_cast<std::size_t>(i) * width + (taps.start[i] - start)],
                &taps.weights[static_cast<std::size_t>(i) * taps.pitch],
                taps.count[i] * sizeof(std::int16_t));
  }
  tables_.taps = width;
  tables_.offset = offset_.data();
  tables_.weights = weights_.data();
}

// Divides the output values into groups of 16. Returns false if there are fewer values, or if the
// taps of a group do not fit two registers (if the image shrinks by more than about 8).
bool HorizontalPlan::place_groups() {
  const int channels = tables_.channels;
  const std::int32_t values = tables_.outputs * channels;
  const std::int32_t groups = (values + kLanes - 1) / kLanes;
  if (values < kLanes) return false;
  group_output_.resize(groups);
  group_base_.resize(groups);
  std::int32_t widest = 0;  // the most bytes that a pair of taps of all values of a group spans
  for (std::int32_t g = 0; g < groups; ++g) {
    // The last group overlaps the one before it, so as not to pass the end.
    const std::int32_t first = std::min(g * kLanes, values - kLanes);
    const auto [low, high] = std::minmax_element(&offset_[first / channels],
                                                 &offset_[(first + kLanes - 1) / channels] + 1);
    widest = std::max(widest, *high - *low + 2 * channels);
    group_output_[g] = first;
    group_base_[g] = *high + 2 * channels;  // the end of the bytes, until `loads` is known
  }
  if (widest > 128) return false;
  tables_.groups = groups;
  tables_.loads = widest > 64 ? 2 : 1;
  for (std::int32_t& base : group_base_) base = std::max(0, base - 64 * tables_.loads);
  return true;
}

void HorizontalPlan::fill_groups() {
  const int channels = tables_.channels, pairs = tables_.taps / 2;
  group_index_.resize(tables_.groups);
  group_weights_.resize(static_cast<std::size_t>(tables_.groups) * pairs);
  for (std::int32_t g = 0; g < tables_.groups; ++g) {
    LaneWeights* group_weights = &group_weights_[static_cast<std::size_t>(g) * pairs];
    std::int32_t pixel = group_output_[g] / channels, channel = group_output_[g] % channels;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int32_t at = offset_[pixel] + channel - group_base_[g];
      std::uint8_t* index = &group_index_[g].byte[4 * lane];
      index[0] = static_cast<std::uint8_t>(at);
      index[2] = static_cast<std::uint8_t>(at + channels);
      const std::int16_t* weights = &weights_[static_cast<std::size_t>(pixel) * tables_.taps];
      for (int p = 0; p < pairs; ++p) {
        std::memcpy(&group_weights[p].weight[2 * lane], weights + 2 * p, 2 * sizeof *weights);
      }
      if (++channel == channels) {
        channel = 0;
        ++pixel;
      }
    }
  }
  tables_.group_output = group_output_.data();
  tables_.group_base = group_base_.data();
  tables_.group_index = group_index_.data();
  tables_.group_weights = group_weights_.data();
}

void horizontal(const HorizontalPlan& plan, const std::uint8_t* src, std::ptrdiff_t src_stride,
                std::int32_t rows, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  if (plan.identity_) {
    const auto row_bytes = static_cast<std::size_t>(plan.outputs()) * plan.channels();
    copy_rows(src, src_stride, rows, row_bytes, dst, dst_stride);
  } else {
    plan.kernel_(plan.tables_, src, src_stride, rows, dst, dst_stride);
  }
}

namespace {

VerticalKernel* vertical_kernel() {
  static constexpr Choice<VerticalKernel*> kChoices[] = {
#ifdef FASTIO_X86
      {kAvx512, vertical_avx512},
      {kAvx2, vertical_avx2},
#endif
#ifdef FASTIO_ARM64
      {kNeon, vertical_neon},
#endif
      {0, vertical_portable}};
  return choose(kChoices);
}

void vertical_row(VerticalKernel* kernel, const AxisTaps& taps, std::int32_t i,
                  const std::uint8_t* src, std::ptrdiff_t src_stride, std::size_t row_bytes,
                  std::uint8_t* dst) {
  const std::uint8_t* rows = src + (taps.start[i] - taps.first) * src_stride;
  if (taps.count[i] == 1) {
    std::memcpy(dst, rows, row_bytes);
  } else {
    kernel(rows, src_stride, &taps.weights[static_cast<std::size_t>(i) * taps.pitch], taps.count[i],
           taps.shift, row_bytes, dst);
  }
}

}  // namespace

void vertical(const AxisTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
              std::size_t row_bytes, std::uint8_t* dst, std::ptrdiff_t dst_stride) {
  VerticalKernel* const kernel = vertical_kernel();
  for (std::int32_t i = 0; i < taps.outputs; ++i, dst += dst_stride)
    vertical_row(kernel, taps, i, src, src_stride, row_bytes, dst);
}

bool vertical_first(const AxisSpec& x, const AxisSpec& y) {
  return y.in > y.out && y.in - y.out > 2 * (x.in - x.out);
}

void Resampler::prepare(const AxisSpec& x, const AxisSpec& y, int channels) {
  make_taps(x, &x_);
  make_taps(y, &y_);
  plan_.build(x_, channels);
  vertical_first_ = vertical_first(x, y);
}

void Resampler::run(const std::uint8_t* src, std::ptrdiff_t src_stride, std::uint8_t* dst,
                    std::ptrdiff_t dst_stride, std::ptrdiff_t plane) {
  const Target target{dst, dst_stride, plan_.channels() == 1 ? 0 : plane};
  if (y_.identity) {
    last_horizontal(src, src_stride, target);
  } else if (x_.identity) {
    last_vertical(src, src_stride, target);
  } else if (vertical_first_) {
    run_vertical_first(src, src_stride, target);
  } else {
    run_horizontal_first(src, src_stride, target);
  }
}

// For planar output, the last pass makes this many rows of interleaved pixels at a time, which are
// split while they are in the L1 cache: the passes are fastest on interleaved pixels.
constexpr std::int32_t kSplitRows = 8;

void Resampler::split_rows(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t first,
                           std::int32_t count, const Target& target) {
  for (std::int32_t i = 0; i < count; ++i, src += src_stride) {
    split_pixels(src, static_cast<std::size_t>(x_.outputs), plan_.channels(),
                 target.first + (first + i) * target.stride, target.plane);
  }
}

void Resampler::last_horizontal(const std::uint8_t* src, std::ptrdiff_t src_stride,
                                const Target& target) {
  if (target.plane == 0) {
    return horizontal(plan_, src, src_stride, y_.outputs, target.first, target.stride);
  }
  if (x_.identity) return split_rows(src, src_stride, 0, y_.outputs, target);
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{x_.outputs} * plan_.channels();
  rows_.resize(static_cast<std::size_t>(kSplitRows * row_bytes));
  for (std::int32_t y = 0; y < y_.outputs; y += kSplitRows, src += kSplitRows * src_stride) {
    const std::int32_t count = std::min(kSplitRows, y_.outputs - y);
    horizontal(plan_, src, src_stride, count, rows_.data(), row_bytes);
    split_rows(rows_.data(), row_bytes, y, count, target);
  }
}

void Resampler::last_vertical(const std::uint8_t* src, std::ptrdiff_t src_stride,
                              const Target& target) {
  const std::ptrdiff_t row_bytes = std::ptrdiff_t{x_.outputs} * plan_.channels();
  const auto bytes = static_cast<std::size_t>(row_bytes);
  if (target.plane == 0) {
    return vertical(y_, src, src_stride, bytes, target.first, target.stride);
  }
  VerticalKernel* const kernel = vertical_kernel();
  rows_.resize(kSplitRows * bytes);
  for (std::int32_t y = 0; y < y_.outputs; y += kSplitRows) {
    const std::int32_t count = std::min(kSplitRows, y_.outputs - y);
    for (std::int32_t i = 0; i < count; ++i)
      vertical_row(kernel, y_, y + i, src, src_stride, bytes, rows_.data() + i * row_bytes);
    split_rows(rows_.data(), row_bytes, y, count, target);
  }
}

void Resampler::run_horizontal_first(const std::uint8_t* src, std::ptrdiff_t src_stride,
                                     const Target& target) {
  const auto row_bytes = static_cast<std::size_t>(x_.outputs) * plan_.channels();
  const auto stride = static_cast<std::ptrdiff_t>(row_bytes);
  const std::int32_t rows = y_.last - y_.first;
  middle_.resize(row_bytes * rows);
  horizontal(plan_, src, src_stride, rows, middle_.data(), stride);
  last_vertical(middle_.data(), stride, target);
}

void Resampler::run_vertical_first(const std::uint8_t* src, std::ptrdiff_t src_stride,
                                   const Target& target) {
  const auto row_bytes = static_cast<std::size_t>(x_.last - x_.first) * plan_.channels();
  const auto stride = static_cast<std::ptrdiff_t>(row_bytes);
  middle_.resize(row_bytes * y_.outputs + kReadPad);
  vertical(y_, src, src_stride, row_bytes, middle_.data(), stride);
  last_horizontal(middle_.data(), stride, target);
}

}  // namespace fastio
