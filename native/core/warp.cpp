#include "warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pixel_kernels.h"

namespace fastio {
namespace {

constexpr double kDegree = 3.14159265358979323846 / 180;

bool is_whole(double value) { return value == std::nearbyint(value); }

// Whether each row of the result is a shifted row of the image.
bool shifts_rows(const WarpMap& map, bool bilinear) {
  const auto& m = map.m;
  return m[0] == 1 && m[3] == 0 && m[4] == 1 && is_whole(m[5]) && !map.projective &&
         (!bilinear || (m[1] == 0 && is_whole(m[2])));
}

PixelMap places_of(const Planes& image, const WarpMap& map) {
  PixelMap places{};
  places.width = image.width;
  places.height = image.height;
  places.half_x = 0.5f * static_cast<float>(image.width);
  places.half_y = 0.5f * static_cast<float>(image.height);
  for (std::size_t i = 0; i < 8; ++i) {
    const float half = i < 3 ? places.half_x : i < 6 ? places.half_y : 1.0f;
    places.m[i] = static_cast<float>(map.m[i]) / half;
  }
  places.projective = map.projective;
  places.begin_x = map.projective ? 0.5f : 0.5f - places.half_x;
  places.begin_y = map.projective ? 0.5f : 0.5f - places.half_y;
  return places;
}

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
  // Solves eight equations by Gaussian elimination.
  const double right = width - 1, bottom = height - 1;
  const double to[4][2] = {{0, 0}, {right, 0}, {right, bottom}, {0, bottom}};
  double rows[8][9];
  for (std::size_t k = 0; k < 4; ++k) {
    const double x = corners[k][0], y = corners[k][1], u = to[k][0], v = to[k][1];
    const double first[9] = {x, y, 1, 0, 0, 0, -u * x, -u * y, u};
    const double second[9] = {0, 0, 0, x, y, 1, -v * x, -v * y, v};
    std::copy(first, first + 9, rows[2 * k]);
    std::copy(second, second + 9, rows[2 * k + 1]);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i; r < 8; ++r)
      if (std::abs(rows[r][i]) > std::abs(rows[pivot][i])) pivot = r;
    if (rows[pivot][i] == 0) return {};  // the corners lie on a line, so there is no such map
    std::swap_ranges(rows[i], rows[i] + 9, rows[pivot]);
    for (std::size_t r = 0; r < 8; ++r) {
      if (r == i) continue;
      const double factor = rows[r][i] / rows[i][i];
      for (std::size_t k = i; k < 9; ++k) rows[r][k] -= factor * rows[i][k];
    }
  }
  WarpMap map;
  map.projective = true;
  for (std::size_t i = 0; i < 8; ++i) map.m[i] = rows[i][8] / rows[i][i];
  return map;
}

// Copies a part of a row of the image to each row of the result, and fills the rest.
void Warp::shift_rows(const Planes& image, const WarpMap& map, const PixelMap& places,
                      const std::array<std::uint8_t, 3>& fill) {
  const std::int32_t width = image.width, height = image.height;
  const auto w = static_cast<std::size_t>(width);
  const double most = std::max(width, height);
  const auto down = static_cast<std::int32_t>(std::clamp(map.m[5], -most, most));
  const double unsure = width * 0x1p-20;  // this near to 1/2, the rounding of floats decides
  row_.resize(std::max(row_.size(), w));
  for (std::int32_t i = 0; i < height; ++i) {
    // The order of rows ensures that none is overwritten before it is read.
    const std::int32_t row = down < 0 ? height - 1 - i : i, line = row + down;
    const bool inside = line >= 0 && line < height;
    const float y = static_cast<float>(row) + places.begin_y;
    const double shift = std::clamp(map.m[1] * double{y} + map.m[2], -most, most);
    const bool halves = std::abs(std::abs(shift - std::trunc(shift)) - 0.5) < unsure;
    const auto begin = static_cast<std::int32_t>(std::nearbyint(shift));
    const std::int32_t left = inside ? std::clamp(-begin, 0, width) : width;
    const std::int32_t right = inside ? std::clamp(begin, 0, width) : 0;
    const auto count = static_cast<std::size_t>(width - left - right);
    for (int c = 0; c < image.channels; ++c) {
      const std::uint8_t outside = fill[static_cast<std::size_t>(c)];
      std::uint8_t* const out = image.plane(c) + static_cast<std::size_t>(row) * w;
      const std::uint8_t* const from =
          image.plane(c) + static_cast<std::size_t>(inside ? line : row) * w;
      if (inside && halves) {
        std::memcpy(row_.data(), from, w);
        for (std::int32_t x = 0; x < width; ++x) {
          const float at = (places.m[0] * (static_cast<float>(x) + places.begin_x) +
                            places.m[1] * y + places.m[2] + 1.0f) *
                               places.half_x -
                           0.5f;
          const auto column = static_cast<std::int32_t>(std::nearbyint(at));
          out[x] = column >= 0 && column < width ? row_[static_cast<std::size_t>(column)] : outside;
        }
        continue;
      }
      if (inside) std::memmove(out + left, from + right, count);
      std::memset(out, outside, static_cast<std::size_t>(left));
      std::memset(out + left + count, outside, static_cast<std::size_t>(right));
    }
  }
}

// Copies the image to a frame with the value `outside` around it; see PixelMap.
void Warp::frame(const Planes& image, std::uint32_t outside, PixelMap& places) {
  const PixelKernels& kernels = pixel_kernels();
  const auto w = static_cast<std::size_t>(image.width), h = static_cast<std::size_t>(image.height);
  const std::size_t stride = w + 2, size = stride * (h + 3) + 1;
  frame_.resize(std::max(frame_.size(), size));
  std::uint32_t* const first = frame_.data();
  std::fill(first, first + stride, outside);
  std::fill(first + stride * (h + 1), first + size, outside);
  const bool gray = image.channels == 1;
  for (std::size_t y = 0; y < h; ++y) {
    std::uint32_t* const row = first + stride * (y + 1);
    const std::size_t at = y * w;
    row[0] = row[w + 1] = outside;
    kernels.frame_row(image.plane(0) + at, image.plane(gray ? 0 : 1) + at,
                      image.plane(gray ? 0 : 2) + at, w, row + 1);
  }
  places.frame = first;
  places.stride = static_cast<std::int32_t>(stride);
}

WarpRow Warp::row_memory(std::size_t count) {
  pixels_.resize(std::max(pixels_.size(), count));
  at_.resize(pixels_.size());
  shares_.resize(2 * pixels_.size());
  pairs_.resize(2 * pixels_.size());
  return {at_.data(), shares_.data(), shares_.data() + count, pairs_.data(), pairs_.data() + count};
}

void Warp::run(const Planes& image, const WarpMap& map, bool bilinear,
               const std::array<std::uint8_t, 3>& fill, bool given) {
  PixelMap places = places_of(image, map);
  if (shifts_rows(map, bilinear)) return shift_rows(image, map, places, fill);
  places.filled = given;
  for (std::size_t c = 0; c < 3; ++c)
    places.fill |= std::uint64_t{fill[c]} << (16 * c + kFractionBits);
  const std::uint32_t filled = fill[0] | std::uint32_t{fill[1]} << 8 | std::uint32_t{fill[2]} << 16;
  frame(image, bilinear ? 0 : filled, places);
  const std::int32_t count = (image.width + kWarpPixels - 1) / kWarpPixels * kWarpPixels;
  const WarpRow scratch = row_memory(static_cast<std::size_t>(count));
  const PixelKernels& kernels = pixel_kernels();
  const auto run_row = bilinear ? kernels.between_row : kernels.nearest_row;
  const bool gray = image.channels == 1;
  const auto w = static_cast<std::size_t>(image.width);
  for (std::int32_t row = 0; row < image.height; ++row) {
    run_row(places, row, count, scratch, pixels_.data());
    const std::size_t at = static_cast<std::size_t>(row) * w;
    kernels.split_row(pixels_.data(), w, image.plane(0) + at, gray ? nullptr : image.plane(1) + at,
                      gray ? nullptr : image.plane(2) + at);
  }
}

}  // namespace fastio
