// What PlanarResampler is to make of planes, computed from the definition in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/planar.h"

namespace planar_reference {

using namespace fastio;
using Doubles = std::vector<double>;

// What is to be made of an image.
struct Job {
  PlanarAxis x, y;
  Colour colour = Colour::ycbcr;
  int channels = 3;

  int out_columns() const { return x.spec.window_size ? x.spec.window_size : x.spec.out; }
  int out_rows() const { return y.spec.window_size ? y.spec.window_size : y.spec.out; }
};

// Samples of a plane along an axis: as stored, and before reducing.
inline int stored(const PlanarAxis& axis, int c) {
  const int cell = (c ? axis.sub : 1) * axis.reduce[c > 0];
  return (axis.size + cell - 1) / cell;
}
inline int unreduced(const PlanarAxis& axis, int c) {
  const int sub = c ? axis.sub : 1;
  return (axis.size + sub - 1) / sub;
}

struct Plane {
  int width, height;
  std::vector<std::uint8_t> samples;  // (height, width)
};

// Samples that are means of several, with the blur of that taken back. The edges go on for ever, so
// that one before the first and one past the last stay as they are: [i + 1] is that of in[i].
inline Doubles sharpened(const Doubles& in, bool means) {
  Doubles out{in.front()};
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double before = in[i > 0 ? i - 1 : 0], after = in[std::min(i + 1, in.size() - 1)];
    out.push_back(in[i] - (means ? (before - 2 * in[i] + after) / 12 : 0));
  }
  out.push_back(in.back());
  return out;
}

// `in`: sharpened() samples, each standing for `reduce`; upsampled to `size`.
inline Doubles upsampled(const Doubles& in, int reduce, int sub, bool fancy, int size) {
  const auto sample = [&](int i) {
    const int cell = i < 0 ? -1 : i / reduce, last = static_cast<int>(in.size()) - 2;
    return in[static_cast<std::size_t>(std::min(cell, last) + 1)];
  };
  Doubles out(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    const int nearest = i / sub, other = i & 1 ? nearest + 1 : nearest - 1;
    out[static_cast<std::size_t>(i)] =
        fancy ? 0.75 * sample(nearest) + 0.25 * sample(other) : sample(nearest);
  }
  return out;
}

// Output `output` of the axis, whose `samples` are those of the crop.
inline double filtered(const AxisSpec& spec, int output, const double* samples) {
  const double scale = static_cast<double>(spec.in) / spec.out;
  const double widen = spec.antialias ? std::max(1.0, scale) : 1.0;
  const double center = (output + 0.5) * scale;
  if (spec.filter == Filter::nearest) {
    double at = 0.5 * scale;  // Pillow steps by adding
    for (int i = 0; i < output; ++i) at += scale;
    return samples[std::min(static_cast<int>(at), spec.in - 1)];
  }
  double sum = 0, weights = 0;
  // All other samples are at a distance of 2 or more, and have the weight 0.
  const int first = std::max(0, static_cast<int>(center - 2 * widen) - 1);
  const int last = std::min(spec.in, static_cast<int>(center + 2 * widen) + 2);
  for (int k = first; k < last; ++k) {
    const double d = std::abs(k + 0.5 - center) / widen;
    double weight = 0;
    if (spec.filter == Filter::bilinear) weight = std::max(0.0, 1 - d);
    if (spec.filter == Filter::bicubic && d < 1) weight = (1.5 * d - 2.5) * d * d + 1;
    if (spec.filter == Filter::bicubic && d >= 1 && d < 2) {
      weight = -0.5 * (((d - 5) * d + 8) * d - 4);
    }
    sum += weight * samples[k];
    weights += weight;
  }
  return sum / weights;
}

// A line of a plane resampled to the window.
inline Doubles line(const PlanarAxis& axis, int c, bool fancy, const Doubles& stored_samples) {
  const int sub = c ? axis.sub : 1;
  const bool means = axis.reduce[c > 0] > 1 && axis.spec.filter == Filter::bilinear;
  const Doubles full = upsampled(sharpened(stored_samples, means), axis.reduce[c > 0], sub,
                                 fancy && sub == 2, axis.size);
  const AxisSpec& spec = axis.spec;
  const int outputs = spec.window_size ? spec.window_size : spec.out;
  Doubles out;
  for (int i = 0; i < outputs; ++i) {
    const int output = spec.window_begin + (spec.mirror ? outputs - 1 - i : i);
    out.push_back(filtered(spec, output, full.data() + axis.begin));
  }
  return out;
}

inline Doubles plane_reference(const Job& job, int c, const Plane& plane) {
  const bool fancy = job.x.sub < 4 && job.y.sub < 4 && (job.x.sub == 1 || unreduced(job.x, 1) > 2);
  std::vector<Doubles> rows;
  for (int y = 0; y < plane.height; ++y) {
    const auto from = plane.samples.begin() + static_cast<std::ptrdiff_t>(y) * plane.width;
    rows.push_back(line(job.x, c, fancy, Doubles(from, from + plane.width)));
  }
  const auto w = static_cast<std::size_t>(job.out_columns());
  Doubles out(w * job.out_rows());
  for (std::size_t x = 0; x < w; ++x) {
    Doubles column;
    for (const Doubles& row : rows) column.push_back(row[x]);
    column = line(job.y, c, fancy, column);
    for (std::size_t y = 0; y < column.size(); ++y) out[y * w + x] = column[y];
  }
  return out;
}

inline Doubles reference(const Job& job, const std::vector<Plane>& planes) {
  std::vector<Doubles> p;
  for (std::size_t c = 0; c < planes.size(); ++c) {
    p.push_back(plane_reference(job, static_cast<int>(c), planes[c]));
  }
  Doubles out;
  for (std::size_t i = 0; i < p[0].size(); ++i) {
    Doubles pixel(3, p[0][i]);
    if (job.colour == Colour::rgb) pixel = {p[0][i], p[1][i], p[2][i]};
    if (job.colour == Colour::ycbcr && job.channels == 3) {
      const double b = p[1][i] - 128, r = p[2][i] - 128;
      pixel = {p[0][i] + 1.402 * r, p[0][i] - 0.344136286 * b - 0.714136286 * r,
               p[0][i] + 1.772 * b};
    }
    if (job.colour == Colour::rgb && job.channels == 1) {
      pixel[0] = 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2];
    }
    for (int c = 0; c < job.channels; ++c) {
      out.push_back(std::clamp(pixel[static_cast<std::size_t>(c)], 0.0, 255.0));
    }
  }
  return out;
}

}  // namespace planar_reference
