#include "planar.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu.h"

namespace fastio {
namespace {

constexpr int kNarrowPlane =
    2;  // up to this width, libjpeg repeats chroma samples, although do_fancy_upsampling is set

constexpr std::int32_t kStep = 4;  // rows of the result whose source rows are resampled together

constexpr std::int32_t round_up(std::int32_t value, std::int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Makes a vector longer if necessary. Vectors never shrink, so that the same elements are not
// filled with zeros again and again.
template <typename T>
void grow(std::vector<T>* vector, std::size_t size) {
  if (vector->size() < size) vector->resize(size);
}

constexpr Choice<const PlanarKernels*> kChoices[] = {
#ifdef FASTIO_X86
    {kAvx512, &kPlanarAvx512},
    {kAvx512bw, &kPlanarAvx512bw},
    {kAvx2, &kPlanarAvx2},
#endif
#ifdef FASTIO_ARM64
    {kNeon, &kPlanarNeon},
#endif
    {0, &kPlanarPortable}};

PlanarOutput output_of(Colour colour, int channels) {
  if (colour == Colour::gray) return channels == 1 ? PlanarOutput::gray : PlanarOutput::gray_three;
  if (colour == Colour::rgb) return channels == 1 ? PlanarOutput::rgb_luma : PlanarOutput::rgb;
  return channels == 1 ? PlanarOutput::gray : PlanarOutput::ycbcr;
}

int planes_of(PlanarOutput output) {
  return output == PlanarOutput::gray || output == PlanarOutput::gray_three ? 1 : 3;
}

// Returns the samples of components 1 and 2 along an axis, at full size.
std::int32_t chroma_samples(const PlanarAxis& axis) {
  return (axis.size + axis.sub - 1) / axis.sub;
}

// Whether libjpeg (jdsample.c) smooths the chroma that it upsamples.
bool is_fancy(const PlanarAxis& x, const PlanarAxis& y) {
  if (x.sub == 4 || y.sub == 4) return false;
  return x.sub == 1 || chroma_samples(x) > kNarrowPlane;
}

// Returns the filter of component 0 if `c` is 0, or of the others if it is 1.
PlanarTapSpec tap_spec(const PlanarAxis& axis, int c, bool fancy) {
  const AxisSpec& spec = axis.spec;
  PlanarTapSpec s{};
  s.radius = static_cast<int>(spec.filter);
  s.scale = static_cast<double>(spec.in) / spec.out;
  s.filter_scale = spec.antialias ? std::max(1.0, s.scale) : 1.0;
  s.support = std::max(s.radius, 1) * s.filter_scale;
  s.in = spec.in;
  s.crop_begin = axis.begin;
  s.window_begin = spec.window_begin;
  s.outputs = spec.window_size ? spec.window_size : spec.out - spec.window_begin;
  s.mirror = spec.mirror;
  const int sub = c ? axis.sub : 1, cell = sub * axis.reduce[c];
  s.cell_bits = std::countr_zero(static_cast<unsigned>(cell));
  s.fancy = fancy && sub == 2;
  s.sharpen = axis.reduce[c] > 1 && spec.filter == Filter::bilinear;
  s.cells = (axis.size + cell - 1) / cell;
  return s;
}

// Returns an upper bound of an output's taps, and of the cells that weigh_group() needs besides.
std::int32_t tap_bound(const PlanarTapSpec& spec) {
  const auto samples = static_cast<std::int32_t>(2 * spec.support) + 2;
  return (std::min(samples, spec.in) >> spec.cell_bits) + 16;
}

// Finds the sample of each output, in the same way as make_taps() for Filter::nearest.
void find_nearest(const PlanarTapSpec& spec, std::vector<std::int32_t>* nearest) {
  grow(nearest, static_cast<std::size_t>(spec.outputs));
  double center = 0.5 * spec.scale;
  for (std::int32_t i = 0; i < spec.window_begin; ++i) center += spec.scale;
  for (std::int32_t i = 0; i < spec.outputs; ++i, center += spec.scale) {
    (*nearest)[i] = std::min(static_cast<std::int32_t>(center), spec.in - 1);
  }
}

// Sums the products of a row pass exactly, for more than kMaxHighHalves taps. The results have 7
// fractional bits. The weights sum to 1 << 15, because of so many taps none exceeds 1.
void sum_rows(const PlanarRow& row, std::size_t blocks, PlanarMiddle* out) {
  constexpr int kLanes = 2 * kPlanarLanes;
  for (std::size_t b = 0; b < blocks; ++b) {
    std::int32_t sum[kLanes];
    std::fill(sum, sum + kLanes, 1 << 14);
    for (std::int32_t k = 0; k < row.count; ++k) {
      const auto weight = static_cast<std::int16_t>(row.weights[k * kPlanarLanes]);
      const std::int16_t* samples = row.rows[k] + b * kLanes;
      for (int j = 0; j < kLanes; ++j) sum[j] -= weight * samples[j];
    }
    for (int j = 0; j < kLanes; ++j) out[b].lane[j] = static_cast<std::int16_t>(sum[j] >> 15);
  }
}

}  // namespace

void PlanarResampler::build(const PlanarTapSpec& given, Taps* taps) {
  PlanarTapSpec spec = given;
  if (spec.radius == 0) {
    find_nearest(spec, &nearest_);
    spec.nearest = nearest_.data();
  }
  const std::int32_t lanes = round_up(spec.outputs, 2 * kPlanarLanes);
  const auto groups = static_cast<std::size_t>(lanes / kPlanarLanes);
  const auto most = static_cast<std::size_t>(tap_bound(spec));
  grow(&taps->lanes, groups * kPlanarLanes * 6);
  grow(&taps->base, groups * kPlanarLanes);
  grow(&taps->words, groups * (most + 1));
  grow(&taps->running, most * kPlanarLanes);

  PlanarTaps& table = taps->table;
  std::int32_t* at = taps->lanes.data();
  for (std::int32_t** part : {&table.start, &table.count, &table.low, &table.high, &table.cell}) {
    *part = at;
    at += lanes;
  }
  table.offset = reinterpret_cast<float*>(at);
  table.running = taps->running.data();
  table.base = taps->base.data();
  table.index = taps->words.data();
  table.weights = taps->words.data() + groups;
  kernels_->taps(spec, &table);
}

// Builds the row pass's taps. All planes need the same number of fractional bits, so all use 14-bit
// weights if a weight of any plane exceeds 1.
void PlanarResampler::build_rows(PlanarTapSpec luma, PlanarTapSpec chroma) {
  for (row_bits_ = 15; row_bits_ >= 14; --row_bits_) {
    luma.weight_bits = chroma.weight_bits = row_bits_;
    build(luma, &y_[0]);
    std::int32_t largest = y_[0].table.largest;
    if (y_differ_) {
      build(chroma, &y_[1]);
      largest = std::max(largest, y_[1].table.largest);
    }
    if (largest <= 1 << 15) break;
  }
}

void PlanarResampler::prepare(const PlanarAxis& x, const PlanarAxis& y, Colour colour,
                              int channels) {
  kernels_ = choose(kChoices);
  output_ = output_of(colour, channels);
  planes_ = planes_of(output_);
  const bool fancy = is_fancy(x, y);
  x_differ_ = planes_ == 3 && (x.sub > 1 || x.reduce[0] != x.reduce[1]);
  y_differ_ = planes_ == 3 && (y.sub > 1 || y.reduce[0] != y.reduce[1]);
  for (int c = 0; c <= (x_differ_ ? 1 : 0); ++c) {
    PlanarTapSpec columns = tap_spec(x, c, fancy);
    columns.columns = true;
    columns.weight_bits = kPlanarColumnBits;
    build(columns, &x_[c]);
  }
  PlanarTapSpec luma = tap_spec(y, 0, fancy), chroma = tap_spec(y, 1, fancy);
  upside_down_ = luma.mirror;
  luma.mirror = chroma.mirror = false;  // run() computes rows in the source's order
  outputs_ = luma.outputs;
  columns_ = x.spec.window_size ? x.spec.window_size : x.spec.out - x.spec.window_begin;
  build_rows(luma, chroma);
  blocks_ = static_cast<std::size_t>(columns_ + 2 * kPlanarLanes - 1) / (2 * kPlanarLanes);
  for (int c = 0; c < planes_; ++c) prepare_ring(c);
}

// Returns the source rows that rows [i, i + kStep) of the result need, relative to rows(c).first.
SampleRange PlanarResampler::step_rows(int c, std::int32_t i) const {
  const PlanarTaps& taps = y_taps(c);
  const std::int32_t last = std::min(i + kStep, outputs_) - 1;
  return {taps.start[i] - taps.first, taps.start[last] + taps.count[last] - taps.first};
}

void PlanarResampler::prepare_ring(int c) {
  const PlanarTaps& taps = y_taps(c);
  std::int32_t needed = 0;
  for (std::int32_t i = 0; i < outputs_; i += kStep) {
    const SampleRange rows = step_rows(c, i);
    needed = std::max(needed, rows.last - rows.first);
  }
  // kPlanarRows rows are resampled at a time, and must not overwrite rows that are still needed.
  const std::size_t slots = std::bit_ceil(static_cast<std::size_t>(needed + 2 * kPlanarRows));
  Ring& ring = ring_[c];
  ring.mask = static_cast<std::int32_t>(slots) - 1;
  grow(&ring.rows, slots * blocks_);
  if (taps.max_count > kMaxHighHalves) grow(&ring.sums, blocks_);
  const std::size_t pointers = slots + static_cast<std::size_t>(taps.max_count);
  grow(&ring.pointers, pointers);
  for (std::size_t r = 0; r < pointers; ++r) {
    ring.pointers[r] = ring.rows[(r & (slots - 1)) * blocks_].lane;
  }
}

// Resamples the columns of the needed rows that are not in the ring yet. Skips rows that no output
// needs any more.
void PlanarResampler::fill_ring(int c, const PlaneView& plane, SampleRange needed) {
  Ring& ring = ring_[c];
  const PlanarTaps &x = x_taps(c), &y = y_taps(c);
  const std::int32_t rows = y.last - y.first;
  std::int32_t next = std::max(ring.next, needed.first / kPlanarRows * kPlanarRows);
  for (; next < needed.last; next += kPlanarRows) {
    kernels_->columns(x, plane.first + next * plane.stride, plane.stride,
                      std::min(rows - next, kPlanarRows),
                      &ring.rows[static_cast<std::size_t>(next & ring.mask) * blocks_], blocks_);
  }
  ring.next = next;
}

// Sets the inputs of row `i` of the result. Its source rows must be in the ring.
inline void PlanarResampler::set_row(int c, std::int32_t i, PlanarRow* row) {
  const PlanarTaps& taps = y_taps(c);
  Ring& ring = ring_[c];
  const std::int32_t start = taps.start[i] - taps.first, count = taps.count[i];
  const auto group = static_cast<std::size_t>(i / kPlanarLanes);
  const int bits = fraction_bits(), middle = (128 << bits) + (1 << (bits - 1));
  const int init = output_ == PlanarOutput::ycbcr && c > 0 ? 0 : middle;
  row->rows = &ring.pointers[start & ring.mask];
  row->weights = taps.weights[group * taps.max_count].lane + i % kPlanarLanes;
  // Kernels are fastest if all rows have the same number of taps. Weights past an output's taps are
  // 0.
  row->count = taps.max_count <= kUniformTaps ? taps.max_count : count;
  // Rounding down leaves half a unit per tap. The rounding of count / 2 is chosen so that the bias
  // of the final result, which colour conversion and the last rounding add to, is nearest to 0.
  const int rest = output_ == PlanarOutput::ycbcr && c == 2 ? 0 : 1;
  row->init = static_cast<std::int16_t>(init - (count + rest) / 2);
  if (count > kMaxHighHalves) {
    static constexpr auto kOne = static_cast<std::int32_t>(0x80008000u);  // -1 in both halves
    sum_rows(*row, blocks_, ring.sums.data());
    ring.sum = ring.sums[0].lane;
    row->rows = &ring.sum;
    row->weights = &kOne;
    row->count = 1;
    row->init = static_cast<std::int16_t>(init);
  }
}

void PlanarResampler::run(const PlaneView* planes, std::uint8_t* dst, std::ptrdiff_t dst_stride,
                          std::ptrdiff_t plane) {
  if (upside_down_) {
    dst += (outputs_ - 1) * dst_stride;
    dst_stride = -dst_stride;
  }
  for (int c = 0; c < planes_; ++c) ring_[c].next = 0;
  PlanarRow rows[3];
  for (std::int32_t i = 0; i < outputs_; ++i, dst += dst_stride) {
    for (int c = 0; c < planes_; ++c) {
      if (i % kStep == 0) fill_ring(c, planes[c], step_rows(c, i));
      set_row(c, i, &rows[c]);
    }
    kernels_->row(output_, rows, fraction_bits(), columns_, dst, plane);
  }
}

}  // namespace fastio
