#include "warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pixel_kernels.h"

namespace fastio {
namespace {

constexpr double kDegree = 3.14159265358979323846 / 180;

// Where a pixel of the result lies in the image, in pixels from the first pixel's middle. In single
// floats, as torchvision computes it: neighbours at half a pixel are decided alike, mostly.
struct Point {
  float x, y;
};

class Mapper {
 public:
  Mapper(const Planes& image, const WarpMap& map)
      : half_x_(0.5f * static_cast<float>(image.width - 1)),
        half_y_(0.5f * static_cast<float>(image.height - 1)) {
    for (std::size_t i = 0; i < 8; ++i) m_[i] = static_cast<float>(map.m[i]);
    flat_ = m_[6] == 0 && m_[7] == 0;
  }

  Point operator()(std::int32_t column, std::int32_t row) const {
    const float x = static_cast<float>(column) - half_x_, y = static_cast<float>(row) - half_y_;
    float px = m_[0] * x + m_[1] * y + m_[2], py = m_[3] * x + m_[4] * y + m_[5];
    if (!flat_) {
      const float w = m_[6] * x + m_[7] * y + 1.0f;
      px /= w;
      py /= w;
    }
    return {px + half_x_, py + half_y_};
  }

 private:
  float half_x_, half_y_;
  float m_[8];
  bool flat_;
};

}  // namespace

WarpMap affine_map(double degrees, double move_x, double move_y, double scale, double shear_x,
                   double shear_y, double centre_x, double centre_y) {
  const double turn = degrees * kDegree, sx = shear_x * kDegree, sy = shear_y * kDegree;
  const double a = std::cos(turn - sy) / std::cos(sy);
  const double b = -(a * std::tan(sx) + std::sin(turn));
  const double c = std::sin(turn - sy) / std::cos(sy);
  const double d = std::cos(turn) - c * std::tan(sx);
  WarpMap map;
  map.m = {d / scale, -b / scale, 0, -c / scale, a / scale, 0, 0, 0};
  const double x = centre_x + move_x, y = centre_y + move_y;
  map.m[2] = centre_x - map.m[0] * x - map.m[1] * y;
  map.m[5] = centre_y - map.m[3] * x - map.m[4] * y;
  return map;
}

WarpMap perspective_map(std::int32_t height, std::int32_t width,
                        const std::array<std::array<double, 2>, 4>& corners) {
  // Eight equations for the map between points counted from the middle, by Gauss' elimination.
  const double hx = 0.5 * width, hy = 0.5 * height;
  const double right = width - 1, bottom = height - 1;
  const double to[4][2] = {{0, 0}, {right, 0}, {right, bottom}, {0, bottom}};
  double rows[8][9];
  for (std::size_t k = 0; k < 4; ++k) {
    const double x = corners[k][0] - hx, y = corners[k][1] - hy;
    const double u = to[k][0] - hx, v = to[k][1] - hy;
    const double first[9] = {x, y, 1, 0, 0, 0, -u * x, -u * y, u};
    const double second[9] = {0, 0, 0, x, y, 1, -v * x, -v * y, v};
    std::copy(first, first + 9, rows[2 * k]);
    std::copy(second, second + 9, rows[2 * k + 1]);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i; r < 8; ++r)
      if (std::abs(rows[r][i]) > std::abs(rows[pivot][i])) pivot = r;
    if (rows[pivot][i] == 0) return {};  // corners on one line: there is no such map
    std::swap_ranges(rows[i], rows[i] + 9, rows[pivot]);
    for (std::size_t r = 0; r < 8; ++r) {
      if (r == i) continue;
      const double factor = rows[r][i] / rows[i][i];
      for (std::size_t k = i; k < 9; ++k) rows[r][k] -= factor * rows[i][k];
    }
  }
  WarpMap map;
  for (std::size_t i = 0; i < 8; ++i) map.m[i] = rows[i][8] / rows[i][i];
  return map;
}

void Warp::run(const Planes& image, const WarpMap& map, bool smooth,
               const std::array<std::uint8_t, 3>& fill, bool given) {
  const auto channels = static_cast<std::size_t>(image.channels);
  stride_ = image.pixels() + static_cast<std::size_t>(image.width);
  source_.resize(std::max(source_.size(), stride_ * channels));
  for (std::size_t c = 0; c < channels; ++c) {
    std::uint8_t* const plane = source_.data() + stride_ * c;
    std::memcpy(plane, image.plane(static_cast<int>(c)), image.pixels());
    std::memset(plane + image.pixels(), fill[c], static_cast<std::size_t>(image.width));
  }
  const auto& m = map.m;
  const bool rows_only = m[0] == 1 && m[3] == 0 && m[6] == 0 && m[7] == 0;
  if (smooth) {
    bilinear(image, map, fill, given);
  } else if (rows_only) {
    shift_rows(image, map, fill);
  } else {
    nearest(image, map);
  }
}

// Each row of the result is a part of one row of the image, and fill beside it.
void Warp::shift_rows(const Planes& image, const WarpMap& map,
                      const std::array<std::uint8_t, 3>& fill) {
  const Mapper mapper(image, map);
  const std::int32_t width = image.width;
  const auto w = static_cast<std::size_t>(width);
  for (std::int32_t row = 0; row < image.height; ++row) {
    const Point point = mapper(0, row);
    const double x = std::nearbyint(static_cast<double>(point.x));
    const double y = std::nearbyint(static_cast<double>(point.y));
    const bool inside = y >= 0 && y < image.height && x > -width && x < width;
    const std::int32_t begin = inside ? static_cast<std::int32_t>(x) : width;
    const std::int32_t left = std::max(0, -begin), right = std::max(0, begin);
    const std::int32_t count = width - left - right;
    for (int c = 0; c < image.channels; ++c) {
      std::uint8_t* out = image.plane(c) + static_cast<std::size_t>(row) * w;
      std::memset(out, fill[static_cast<std::size_t>(c)], w);
      if (count > 0)
        std::memcpy(out + left, source(c) + static_cast<std::size_t>(y) * w + right,
                    static_cast<std::size_t>(count));
    }
  }
}

void Warp::nearest(const Planes& image, const WarpMap& map) {
  PixelMap places{};
  for (std::size_t i = 0; i < 8; ++i) places.m[i] = static_cast<float>(map.m[i]);
  places.half_x = 0.5f * static_cast<float>(image.width - 1);
  places.half_y = 0.5f * static_cast<float>(image.height - 1);
  places.width = image.width;
  places.height = image.height;
  places.outside = static_cast<std::int32_t>(image.pixels());
  const auto w = static_cast<std::size_t>(image.width);
  at_.resize(std::max(at_.size(), w));
  const std::int32_t* const at = at_.data();
  for (std::int32_t row = 0; row < image.height; ++row) {
    pixel_kernels().nearest_places(places, row, image.width, at_.data());
    const std::size_t begin = static_cast<std::size_t>(row) * w;
    if (image.channels == 3) {
      const std::uint8_t *r = source(0), *g = source(1), *b = source(2);
      std::uint8_t* const red = image.plane(0) + begin;
      std::uint8_t* const green = image.plane(1) + begin;
      std::uint8_t* const blue = image.plane(2) + begin;
      for (std::size_t i = 0; i < w; ++i) {
        const std::int32_t place = at[i];
        red[i] = r[place];
        green[i] = g[place];
        blue[i] = b[place];
      }
    } else {
      for (int c = 0; c < image.channels; ++c)
        for (std::size_t i = 0; i < w; ++i) image.plane(c)[begin + i] = source(c)[at[i]];
    }
  }
}

// Between four pixels: in integers where all of them are in the image, which differs from floats by
// less than rounding does.
void Warp::bilinear(const Planes& image, const WarpMap& map,
                    const std::array<std::uint8_t, 3>& fill, bool given) {
  const Mapper mapper(image, map);
  const std::int32_t width = image.width, height = image.height;
  const auto w = static_cast<std::size_t>(width);
  const float last_x = static_cast<float>(width - 1), last_y = static_cast<float>(height - 1);
  for (std::int32_t row = 0; row < height; ++row) {
    for (std::int32_t column = 0; column < width; ++column) {
      const Point point = mapper(column, row);
      const std::size_t out = static_cast<std::size_t>(row) * w + static_cast<std::size_t>(column);
      if (point.x >= 0 && point.x < last_x && point.y >= 0 && point.y < last_y) {
        between(image, point.x, point.y, out);
      } else {
        at_edge(image, point.x, point.y, out, fill, given);
      }
    }
  }
}

void Warp::between(const Planes& image, float px, float py, std::size_t out) const {
  constexpr std::uint32_t kOne = 1 << 11;
  const auto x = static_cast<std::uint32_t>(px * kOne), y = static_cast<std::uint32_t>(py * kOne);
  const std::uint32_t right = x % kOne, down = y % kOne;
  const auto w = static_cast<std::size_t>(image.width);
  const std::size_t at = static_cast<std::size_t>(y / kOne) * w + x / kOne;
  for (int c = 0; c < image.channels; ++c) {
    const std::uint8_t* const p = source(c) + at;
    const std::uint32_t top = p[0] * (kOne - right) + p[1] * right;
    const std::uint32_t bottom = p[w] * (kOne - right) + p[w + 1] * right;
    const std::uint32_t v = top * (kOne - down) + bottom * down;
    image.plane(c)[out] = static_cast<std::uint8_t>((v + kOne * kOne / 2) / (kOne * kOne));
  }
}

void Warp::at_edge(const Planes& image, float px, float py, std::size_t out,
                   const std::array<std::uint8_t, 3>& fill, bool given) const {
  const std::int32_t width = image.width, height = image.height;
  // Also false where a coordinate is not a number.
  const bool near =
      px > -1 && px < static_cast<float>(width) && py > -1 && py < static_cast<float>(height);
  if (!near) {
    for (int c = 0; c < image.channels; ++c)
      image.plane(c)[out] = fill[static_cast<std::size_t>(c)];
    return;
  }
  const auto x = static_cast<std::int32_t>(std::floor(px));
  const auto y = static_cast<std::int32_t>(std::floor(py));
  const float right = px - static_cast<float>(x), down = py - static_cast<float>(y);
  // Pixels outside weigh nothing, and are read where there is one.
  const float wx0 = x >= 0 ? 1 - right : 0, wx1 = x + 1 < width ? right : 0;
  const float wy0 = y >= 0 ? 1 - down : 0, wy1 = y + 1 < height ? down : 0;
  const auto w = static_cast<std::size_t>(width);
  const auto x0 = static_cast<std::size_t>(std::max(x, 0));
  const auto x1 = static_cast<std::size_t>(std::min(x + 1, width - 1));
  const auto top = static_cast<std::size_t>(std::max(y, 0)) * w;
  const auto bottom = static_cast<std::size_t>(std::min(y + 1, height - 1)) * w;
  const float mask = (wx0 + wx1) * (wy0 + wy1);
  for (int c = 0; c < image.channels; ++c) {
    const std::uint8_t* const from = source(c);
    float v = wy0 * (wx0 * from[top + x0] + wx1 * from[top + x1]) +
              wy1 * (wx0 * from[bottom + x0] + wx1 * from[bottom + x1]);
    const float outside = fill[static_cast<std::size_t>(c)];
    if (given) v = (v - outside) * mask + outside;
    image.plane(c)[out] = static_cast<std::uint8_t>(std::nearbyint(v));
  }
}

}  // namespace fastio
