// Computes the taps of a plane's axis, in plain loops over the outputs of a group. The file of each
// instruction set includes this header and compiles it for that set; hence the unnamed namespace,
// and no functions of std. All do the same additions and multiplications in the same order, so all
// give the same taps.
#pragma once

#include <cstring>

#include "planar_kernels.h"

namespace fastio {
namespace {

// The layout of tables that a path needs.
struct PlanarTapLayout {
  std::int32_t order[kPlanarLanes];  // which output of a group of columns each lane is
  int base_lanes;                    // how many lanes share a base; 0 without index and base
};

constexpr std::int32_t kInOrder[kPlanarLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};

inline std::int32_t at_most(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
inline std::int32_t at_least(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

// The most bytes that two groups with the same base may need.
constexpr std::int32_t kSharedSpan = 64;

struct LaneFloats {
  float lane[kPlanarLanes];
};

// The positions from which the taps of one group are computed. Samples of a lane are numbered from
// the first sample of its first cell.
struct GroupWindow {
  LaneFloats offset;               // from the output's centre to the centre of sample 0
  std::int32_t low[kPlanarLanes];  // the samples inside the filter's window: [low, high)
  std::int32_t high[kPlanarLanes];
};

// Computes the filter's value at sample `k` of every lane: 0 outside its window.
template <int kRadius>
inline void filter_values(const GroupWindow& window, std::int32_t k, float step, LaneFloats* out) {
  const float at = static_cast<float>(k);
  for (int l = 0; l < kPlanarLanes; ++l) {
    float value = 1.0f;
    const float x = __builtin_fabsf((window.offset.lane[l] + at) * step);
    if constexpr (kRadius == 1) value = 1.0f - x;
    if constexpr (kRadius == 2) {
      const float near = (1.5f * x - 2.5f) * x * x + 1.0f;
      const float far = ((-0.5f * x + 2.5f) * x - 4.0f) * x + 2.0f;
      value = x < 1.0f ? near : far;
    }
    const bool inside = (k >= window.low[l]) & (k < window.high[l]);
    out->lane[l] = inside ? value : 0.0f;
  }
}

// Computes running sums of the weights of `count` cells of 1 << cell_bits samples each.
template <int kRadius>
inline void sum_cells(const GroupWindow& window, int cell_bits, std::int32_t count, float step,
                      float* running) {
  LaneFloats sum{}, value;
  for (std::int32_t k = 0, j = 0; j < count; ++j, running += kPlanarLanes) {
    for (const std::int32_t end = (j + 1) << cell_bits; k < end; ++k) {
      filter_values<kRadius>(window, k, step, &value);
      for (int l = 0; l < kPlanarLanes; ++l) sum.lane[l] += value.lane[l];
    }
    memcpy(running, &sum, sizeof sum);
  }
}

// Like sum_cells(), for a plane that libjpeg's triangle filter upsamples by 2: sample c of the
// plane has the weights 1/4, 3/4, 3/4, 1/4 in samples 2c - 1 to 2c + 2 of component 0. In a cell of
// several samples of the plane, these weights sum to 1 except at its ends.
template <int kRadius>
inline void sum_fancy_cells(const GroupWindow& window, int cell_bits, std::int32_t count,
                            float step, float* running) {
  LaneFloats sum{}, before{}, first{}, value;  // no window includes sample 0: see place_group()
  for (std::int32_t k = 1, j = 0; j < count; ++j, running += kPlanarLanes) {
    for (int l = 0; l < kPlanarLanes; ++l) {
      sum.lane[l] += 0.25f * before.lane[l] + 0.75f * first.lane[l];
    }
    for (const std::int32_t end = ((j + 1) << cell_bits) - 1; k < end; ++k) {
      filter_values<kRadius>(window, k, step, &value);
      for (int l = 0; l < kPlanarLanes; ++l) sum.lane[l] += value.lane[l];
    }
    filter_values<kRadius>(window, k++, step, &before);
    filter_values<kRadius>(window, k++, step, &first);
    for (int l = 0; l < kPlanarLanes; ++l) {
      sum.lane[l] += 0.75f * before.lane[l] + 0.25f * first.lane[l];
    }
    memcpy(running, &sum, sizeof sum);
  }
}

// Compensates the blur of samples that are means of cells. Summing the weights of a cell spreads
// them over the cell, and so does the mean: each adds a variance of 1/12 of a cell's square. These
// three taps add -1/6. Compared to the filter on all samples, the error at a shrink of one to two
// cells falls by 3 to 7 dB (benchmarks/LOG.md). The operation is linear, so it applies to running
// sums too.
inline void sharpen_sums(std::int32_t count, float* running) {
  constexpr float kSharpen = 1.0f / 12;
  LaneFloats before{}, here, after;
  memcpy(&here, running, sizeof here);
  for (std::int32_t j = 0; j < count; ++j, running += kPlanarLanes) {
    after = here;
    if (j + 1 < count) memcpy(&after, running + kPlanarLanes, sizeof after);
    for (int l = 0; l < kPlanarLanes; ++l) {
      const float bend = (after.lane[l] - here.lane[l]) - (here.lane[l] - before.lane[l]);
      running[l] = here.lane[l] - kSharpen * bend;
    }
    before = here;
    here = after;
  }
}

template <int kRadius>
inline void sum_weights(const PlanarTapSpec& spec, const GroupWindow& window, std::int32_t count,
                        float* running) {
  const float step = static_cast<float>(1.0 / spec.filter_scale);
  if (spec.fancy) {
    sum_fancy_cells<kRadius>(window, spec.cell_bits, count, step, running);
  } else {
    sum_cells<kRadius>(window, spec.cell_bits, count, step, running);
  }
}

// Computes which samples and cells the outputs of group `g` need.
inline void place_group(const PlanarTapSpec& spec, const std::int32_t* order, std::int32_t g,
                        PlanarTaps* taps) {
  // Omits samples at the very edge of the filter, where its value is 0.
  constexpr double kNothing = 1e-6;
  std::int32_t output[kPlanarLanes], begin[kPlanarLanes], end[kPlanarLanes];
  double center[kPlanarLanes];
  const std::int32_t at = g * kPlanarLanes, last_output = spec.outputs - 1;
  for (int l = 0; l < kPlanarLanes; ++l) {
    const std::int32_t i = at_most(at + order[l], last_output);
    output[l] = spec.mirror ? last_output - i : i;
    center[l] = (spec.window_begin + output[l] + 0.5) * spec.scale;
    begin[l] = at_least(static_cast<std::int32_t>(center[l] - spec.support + 0.5), 0);
    end[l] =
        at_most(static_cast<std::int32_t>(center[l] + spec.support + (0.5 - kNothing)), spec.in);
  }
  for (int l = 0; l < kPlanarLanes && spec.radius == 0; ++l) {
    begin[l] = spec.nearest[output[l]];
    end[l] = begin[l] + 1;
  }
  // Local copies, so that the compiler knows that nothing aliases.
  const std::int32_t margin = spec.fancy ? 1 : 0, wider = spec.sharpen ? 1 : 0;
  const std::int32_t crop = spec.crop_begin, cells = spec.cells;
  const int bits = spec.cell_bits;
  LaneFloats offset;
  std::int32_t low[kPlanarLanes], high[kPlanarLanes], cell[kPlanarLanes], start[kPlanarLanes],
      count[kPlanarLanes];
  for (int l = 0; l < kPlanarLanes; ++l) {
    const std::int32_t last = ((crop + end[l] - 1 + margin) >> bits) + wider;
    cell[l] = ((crop + begin[l] - margin) >> bits) - wider;
    const std::int32_t origin = cell[l] * (1 << bits) - crop;
    low[l] = begin[l] - origin;
    high[l] = end[l] - origin;
    offset.lane[l] = static_cast<float>(origin + 0.5 - center[l]);
    // Cells before the plane's first and past its last are clamped to those: see fold_edges().
    start[l] = at_least(cell[l], 0);
    count[l] = at_most(last, cells - 1) - start[l] + 1;
  }
  memcpy(taps->offset + at, &offset, sizeof offset);
  memcpy(taps->low + at, low, sizeof low);
  memcpy(taps->high + at, high, sizeof high);
  memcpy(taps->cell + at, cell, sizeof cell);
  memcpy(taps->start + at, start, sizeof start);
  memcpy(taps->count + at, count, sizeof count);
}

inline void place_groups(const PlanarTapSpec& spec, const std::int32_t* order, PlanarTaps* taps) {
  for (std::int32_t g = 0; g < taps->groups; ++g) place_group(spec, order, g, taps);
  std::int32_t first = taps->start[0], last = 0, most = 1;
  for (std::int32_t i = 0; i < taps->groups * kPlanarLanes; ++i) {
    first = at_most(first, taps->start[i]);
    last = at_least(last, taps->start[i] + taps->count[i]);
    most = at_least(most, taps->count[i]);
  }
  taps->first = first;
  taps->last = last;
  taps->max_count = most;
  taps->pairs = (most + 1) / 2;
}

// Whether a lane of the group has a tap at an edge of the plane.
inline bool at_edge(const PlanarTaps& taps, std::int32_t at, std::int32_t cells) {
  std::int32_t edge = 0;
  for (int l = 0; l < kPlanarLanes; ++l) {
    edge |= taps.cell[at + l] < 0;
    edge |= taps.start[at + l] + taps.count[at + l] == cells;
  }
  return edge != 0;
}

// Adds the weights of cells -2 and -1 to cell 0, and those past the last cell to the last one.
inline void fold_edges(const PlanarTaps& taps, std::int32_t at, std::int32_t count) {
  float* running = taps.running;
  for (int l = 0; l < kPlanarLanes; ++l) {
    const std::int32_t over = at_least(-taps.cell[at + l], 0);
    for (std::int32_t j = 0; over > 0 && j + over < count; ++j) {
      running[j * kPlanarLanes + l] = running[(j + over) * kPlanarLanes + l];
    }
    const float all = running[(count - 1) * kPlanarLanes + l];
    for (std::int32_t j = taps.count[at + l] - 1; j < count; ++j) {
      running[j * kPlanarLanes + l] = all;
    }
  }
}

// Scales running sums so that the last one is 1 << weight_bits, and rounds them. The weights are
// their differences, so they sum to 1 << weight_bits exactly, and rounding errors affect only
// differences between neighbouring samples.
inline void round_sums(const float* sums, const LaneFloats& factor, std::int32_t* out) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the lowest bit of a sum has the value 1
  for (int l = 0; l < kPlanarLanes; ++l) {
    const float shifted = sums[l] * factor.lane[l] + kMagic;
    std::int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    out[l] = bits - 0x4B400000;
  }
}

inline void store_pairs(const PlanarTaps& taps, const LaneFloats& factor, PlanarWords* weights) {
  std::int32_t before[kPlanarLanes] = {}, middle[kPlanarLanes], after[kPlanarLanes];
  for (std::int32_t p = 0; p < taps.pairs; ++p) {
    round_sums(taps.running + 2 * p * kPlanarLanes, factor, middle);
    round_sums(taps.running + (2 * p + 1) * kPlanarLanes, factor, after);
    for (int l = 0; l < kPlanarLanes; ++l) {
      const std::int32_t second = after[l] - middle[l];
      weights[p].lane[l] = ((middle[l] - before[l]) & 0xFFFF) |
                           static_cast<std::int32_t>(static_cast<std::uint32_t>(second) << 16);
    }
    memcpy(before, after, sizeof before);
  }
}

inline void store_negated(PlanarTaps* taps, const LaneFloats& factor, PlanarWords* weights) {
  std::int32_t before[kPlanarLanes] = {}, after[kPlanarLanes], largest[kPlanarLanes] = {};
  for (std::int32_t j = 0; j < taps->max_count; ++j) {
    round_sums(taps->running + j * kPlanarLanes, factor, after);
    for (int l = 0; l < kPlanarLanes; ++l) {
      const std::int32_t weight = after[l] - before[l];
      largest[l] = at_least(largest[l], weight);
      const auto half = static_cast<std::uint32_t>(-weight) & 0xFFFF;
      weights[j].lane[l] = static_cast<std::int32_t>(half | half << 16);
    }
    memcpy(before, after, sizeof before);
  }
  for (int l = 0; l < kPlanarLanes; ++l) taps->largest = at_least(taps->largest, largest[l]);
}

inline void weigh_group(const PlanarTapSpec& spec, std::int32_t g, PlanarTaps* taps) {
  const std::int32_t at = g * kPlanarLanes;
  GroupWindow window;
  memcpy(&window.offset, taps->offset + at, sizeof window.offset);
  memcpy(window.low, taps->low + at, sizeof window.low);
  memcpy(window.high, taps->high + at, sizeof window.high);
  // Additional cells, for those that fold_edges() removes.
  const bool folded = (spec.fancy || spec.sharpen) && at_edge(*taps, at, spec.cells);
  const std::int32_t count = 2 * taps->pairs + (folded ? 6 : 0);
  if (spec.radius == 0) sum_weights<0>(spec, window, count, taps->running);
  if (spec.radius == 1) sum_weights<1>(spec, window, count, taps->running);
  if (spec.radius == 2) sum_weights<2>(spec, window, count, taps->running);
  if (spec.sharpen) sharpen_sums(count, taps->running);
  if (folded) fold_edges(*taps, at, count);

  LaneFloats factor;
  const float* all = taps->running + (count - 1) * kPlanarLanes;
  const float unit = static_cast<float>(1 << spec.weight_bits);
  for (int l = 0; l < kPlanarLanes; ++l) factor.lane[l] = unit / all[l];
  if (spec.columns) {
    store_pairs(*taps, factor, taps->weights + static_cast<std::ptrdiff_t>(g) * taps->pairs);
  } else {
    store_negated(taps, factor, taps->weights + static_cast<std::ptrdiff_t>(g) * taps->max_count);
  }
}

// Computes PlanarTaps::index, base and span of a group.
inline void index_group(std::int32_t g, int base_lanes, PlanarTaps* taps) {
  for (int part = 0; part < kPlanarLanes; part += base_lanes) {
    const std::int32_t at = g * kPlanarLanes + part;
    std::int32_t low = taps->start[at], high = 0;
    for (int l = 0; l < base_lanes; ++l) {
      low = at_most(low, taps->start[at + l]);
      high = at_least(high, taps->start[at + l] + taps->count[at + l]);
    }
    taps->base[at / base_lanes] = low - taps->first;
    taps->span = at_least(taps->span, high - low);
    for (int l = 0; l < base_lanes; ++l) {
      const std::int32_t first = taps->start[at + l] - low;
      taps->index[g].lane[part + l] = (first & 0x7F) | ((first + 1) & 0x7F) << 16;
    }
  }
}

// Sets the same base for both groups of each pair, if the samples of each pair lie within
// kSharedSpan bytes.
inline void share_bases(PlanarTaps* taps) {
  std::int32_t apart = 0;
  for (std::int32_t g = 0; g + 1 < taps->groups; g += 2) {
    const std::int32_t step = taps->base[g + 1] - taps->base[g];
    apart = at_least(apart, at_least(step, -step));
  }
  taps->shared = taps->span + apart <= kSharedSpan;
  for (std::int32_t g = 0; g + 1 < taps->groups && taps->shared; g += 2) {
    const std::int32_t first = at_most(taps->base[g], taps->base[g + 1]);
    for (std::int32_t i = g; i < g + 2; ++i) {
      const std::int32_t moved = (taps->base[i] - first) * 0x00010001;
      for (int l = 0; l < kPlanarLanes; ++l) taps->index[i].lane[l] += moved;
      taps->base[i] = first;
    }
  }
}

inline void compute_taps(const PlanarTapSpec& spec, const PlanarTapLayout& layout,
                         PlanarTaps* taps) {
  taps->groups = (spec.outputs + kPlanarLanes - 1) / kPlanarLanes;
  taps->largest = 0;
  taps->span = 0;
  place_groups(spec, spec.columns ? layout.order : kInOrder, taps);
  for (std::int32_t g = 0; g < taps->groups; ++g) {
    weigh_group(spec, g, taps);
    if (spec.columns && layout.base_lanes) index_group(g, layout.base_lanes, taps);
  }
  taps->shared = false;
  if (spec.columns && layout.base_lanes == kPlanarLanes) share_bases(taps);
}

}  // namespace
}  // namespace fastio
