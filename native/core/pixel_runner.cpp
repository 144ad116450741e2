#include "pixel_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pixel_kernels.h"
#include "rng.h"

namespace fastio {
namespace {

std::uint8_t to_byte(float value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
}

std::array<std::uint8_t, 3> fill_bytes(const PixelFill& fill) {
  return {to_byte(fill.value[0]), to_byte(fill.value[1]), to_byte(fill.value[2])};
}

// Standard normal numbers, by the transform of G. E. P. Box and M. E. Muller (1958).
class Noise {
 public:
  explicit Noise(std::uint64_t key) : key_(key) {}
  float next() {
    if (left_ == 0) {
      constexpr double kTurn = 6.283185307179586;
      const Philox words = philox(key_, {count_++, 0, 0, 0});
      for (std::size_t i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2 * std::log((words[i] + 0.5) * 0x1p-32));
        const double angle = kTurn * (words[i + 1] * 0x1p-32);
        values_[i] = static_cast<float>(radius * std::cos(angle));
        values_[i + 1] = static_cast<float>(radius * std::sin(angle));
      }
      left_ = 4;
    }
    return values_[static_cast<std::size_t>(4 - left_--)];
  }

 private:
  const std::uint64_t key_;
  std::uint32_t count_ = 0;
  float values_[4] = {};
  int left_ = 0;
};

void erase_bytes(const Planes& image, const DrawnOp& drawn) {
  const auto top = static_cast<std::size_t>(drawn.numbers[0]);
  const auto left = static_cast<std::size_t>(drawn.numbers[1]);
  const auto rows = static_cast<std::size_t>(drawn.numbers[2]);
  const auto columns = static_cast<std::size_t>(drawn.numbers[3]);
  const auto width = static_cast<std::size_t>(image.width);
  const auto fill = fill_bytes(drawn.fill);
  for (int c = 0; c < image.channels; ++c)
    for (std::size_t y = top; y < top + rows; ++y)
      std::memset(image.plane(c) + y * width + left, fill[static_cast<std::size_t>(c)], columns);
}

void flip_rows(const Planes& image) {
  const auto width = static_cast<std::size_t>(image.width);
  for (int c = 0; c < image.channels; ++c)
    for (std::int32_t y = 0; y < image.height; ++y)
      pixel_kernels().mirror(image.plane(c) + static_cast<std::size_t>(y) * width, width);
}

void flip_columns(const Planes& image) {
  const auto width = static_cast<std::size_t>(image.width);
  const auto height = static_cast<std::size_t>(image.height);
  for (int c = 0; c < image.channels; ++c)
    for (std::size_t y = 0; y < height / 2; ++y) {
      std::uint8_t* row = image.plane(c) + y * width;
      std::swap_ranges(row, row + width, image.plane(c) + (height - 1 - y) * width);
    }
}

WarpMap map_of(const Planes& image, const DrawnOp& drawn) {
  const auto& v = drawn.numbers;
  if (drawn.op == PixelOp::affine)
    return affine_map(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
  std::array<std::array<double, 2>, 4> corners;
  for (std::size_t i = 0; i < 4; ++i) corners[i] = {v[2 * i], v[2 * i + 1]};
  return perspective_map(image.height, image.width, corners);
}

// Returns the sample from which padding copies position `at` of an axis with `size` samples, or -1
// if it is filled.
std::int32_t padding_source(std::int32_t at, std::int32_t size, PadMode mode) {
  if (at >= 0 && at < size) return at;
  switch (mode) {
    case PadMode::constant:
      break;
    case PadMode::edge:
      return at < 0 ? 0 : size - 1;
    case PadMode::reflect:
      return at < 0 ? -at : 2 * size - 2 - at;
    case PadMode::symmetric:
      return at < 0 ? -1 - at : 2 * size - 1 - at;
  }
  return -1;
}

}  // namespace

void PixelRunner::run(const Planes& image, const DrawnOp& drawn) {
  const auto& v = drawn.numbers;
  switch (drawn.op) {
    case PixelOp::brightness:
      return adjust_brightness(image, v[0]);
    case PixelOp::contrast:
      return adjust_contrast(image, v[0]);
    case PixelOp::saturation:
      return adjust_saturation(image, v[0]);
    case PixelOp::hue:
      return adjust_hue(image, v[0]);
    case PixelOp::sharpness:
      return scratch_.adjust_sharpness(image, v[0]);
    case PixelOp::posterize:
      return posterize(image, static_cast<int>(v[0]));
    case PixelOp::solarize:
      return solarize(image, v[0]);
    case PixelOp::invert:
      return invert(image);
    case PixelOp::autocontrast:
      return autocontrast(image);
    case PixelOp::equalize:
      return equalize(image);
    case PixelOp::grayscale:
      return grayscale(image);
    case PixelOp::gaussian_blur:
      return scratch_.gaussian_blur(image, static_cast<int>(v[0]), static_cast<int>(v[1]), v[2],
                                    v[2]);
    case PixelOp::affine:
    case PixelOp::perspective:
      return warp_.run(image, map_of(image, drawn), drawn.fill.bilinear, fill_bytes(drawn.fill),
                       drawn.fill.given);
    case PixelOp::flip_horizontal:
      return flip_rows(image);
    case PixelOp::flip_vertical:
      return flip_columns(image);
    case PixelOp::erase:
      return erase_bytes(image, drawn);
    case PixelOp::mix_begin:
    case PixelOp::mix_add:
    case PixelOp::mix_end:
      return mix(image, drawn);
    case PixelOp::pad:
    case PixelOp::crop:
    case PixelOp::one_channel:
      break;
  }
}

void PixelRunner::shrink(std::size_t keep) {
  scratch_.shrink(keep);
  warp_.shrink(keep);
  fastio::shrink(original_, keep);
  fastio::shrink(mixed_, keep);
}

void PixelRunner::mix(const Planes& image, const DrawnOp& drawn) {
  const std::size_t n = image.bytes();
  const auto weight = static_cast<float>(drawn.numbers[0]);
  switch (drawn.op) {
    case PixelOp::mix_begin:
      original_.assign(image.data, image.data + n);
      mixed_.assign(n, 0);
      pixel_kernels().mix_in(mixed_.data(), image.data, n, weight);
      break;
    case PixelOp::mix_add:
      pixel_kernels().mix_in(mixed_.data(), image.data, n, weight);
      std::memcpy(image.data, original_.data(), n);
      break;
    default:
      pixel_kernels().mixed(mixed_.data(), n, image.data);
  }
}

void pad_planes(const Planes& image, const DrawnOp& drawn, const Planes& out) {
  const auto left = static_cast<std::int32_t>(drawn.numbers[0]);
  const auto top = static_cast<std::int32_t>(drawn.numbers[1]);
  const auto mode = static_cast<PadMode>(drawn.numbers[4]);
  const auto fill = fill_bytes(drawn.fill);
  const auto width = static_cast<std::size_t>(image.width);
  const auto out_width = static_cast<std::size_t>(out.width);
  for (int c = 0; c < image.channels; ++c) {
    const std::uint8_t outside = fill[static_cast<std::size_t>(c)];
    for (std::int32_t y = 0; y < out.height; ++y) {
      std::uint8_t* const row = out.plane(c) + static_cast<std::size_t>(y) * out_width;
      const std::int32_t source = padding_source(y - top, image.height, mode);
      if (source < 0) {
        std::memset(row, outside, out_width);
        continue;
      }
      const std::uint8_t* const from = image.plane(c) + static_cast<std::size_t>(source) * width;
      const auto fill_between = [&](std::int32_t begin, std::int32_t end) {
        for (std::int32_t x = begin; x < end; ++x) {
          const std::int32_t at = padding_source(x - left, image.width, mode);
          row[x] = at < 0 ? outside : from[at];
        }
      };
      const std::int32_t first = std::clamp(left, 0, out.width);
      const std::int32_t last = std::clamp(left + image.width, first, out.width);
      fill_between(0, first);
      std::memcpy(row + first, from + (first - left), static_cast<std::size_t>(last - first));
      fill_between(last, out.width);
    }
  }
}

void erase_floats(const DrawnOp& drawn, Layout layout, std::int32_t height, std::int32_t width,
                  int channels, float* pixels) {
  const auto top = static_cast<std::ptrdiff_t>(drawn.numbers[0]);
  const auto left = static_cast<std::ptrdiff_t>(drawn.numbers[1]);
  const auto rows = static_cast<std::ptrdiff_t>(drawn.numbers[2]);
  const auto columns = static_cast<std::ptrdiff_t>(drawn.numbers[3]);
  const bool planar = layout == Layout::chw;
  const std::ptrdiff_t across = planar ? 1 : channels, down = width * across;
  const std::ptrdiff_t plane = planar ? std::ptrdiff_t{height} * width : 1;
  Noise noise(drawn.key);
  for (int c = 0; c < channels; ++c)
    for (std::ptrdiff_t y = top; y < top + rows; ++y)
      for (std::ptrdiff_t x = left; x < left + columns; ++x)
        pixels[c * plane + y * down + x * across] =
            drawn.fill.noise ? noise.next() : drawn.fill.value[static_cast<std::size_t>(c)];
}

void interleave_planes(const Planes& image, std::uint8_t* out) {
  const std::size_t n = image.pixels();
  if (image.channels == 1) {
    std::memcpy(out, image.data, n);
    return;
  }
  const std::uint8_t *r = image.plane(0), *g = image.plane(1), *b = image.plane(2);
  for (std::size_t i = 0; i < n; ++i) {
    out[3 * i] = r[i];
    out[3 * i + 1] = g[i];
    out[3 * i + 2] = b[i];
  }
}

}  // namespace fastio
