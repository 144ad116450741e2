#include "pixel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "cpu.h"
#include "pixel_kernels.h"

namespace fastio {
namespace {

using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::uint32_t, 256>;

constexpr double kOne = 1 << 15;       // a factor of 1 in PixelScale and saturate, of bytes << 8
constexpr double kMostFactor = 1.999;  // the largest factor that they support

const PixelKernels& kernels() { return pixel_kernels(); }

std::uint8_t to_byte(double value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
}

std::uint16_t fixed(double value, double one) {
  return static_cast<std::uint16_t>(std::lround(value * one));
}

// Replaces every byte x by x * factor + offset.
void scale(const Planes& image, double factor, double offset) {
  if (factor > kMostFactor) {
    Table table;
    for (int v = 0; v < 256; ++v) table[static_cast<std::size_t>(v)] = to_byte(v * factor + offset);
    return kernels().look_up(image.data, image.bytes(), table.data());
  }
  PixelScale how;
  how.factor = fixed(factor, kOne);
  // + 1 compensates for truncated products, which lose half of the last place on average.
  const double shift = offset * (1 << kFractionBits) + 1;
  how.more = shift > 0 ? fixed(shift, 1) : std::uint16_t{0};
  how.less = shift < 0 ? fixed(-shift, 1) : std::uint16_t{0};
  kernels().scale(image.data, image.bytes(), how);
}

// Saturation for factors that are too large for 16 bits, with torchvision's arithmetic.
void saturate_much(const Planes& image, double factor) {
  std::uint8_t *r = image.plane(0), *g = image.plane(1), *b = image.plane(2);
  for (std::size_t i = 0; i < image.pixels(); ++i) {
    const auto gray = static_cast<std::uint8_t>(0.2989f * r[i] + 0.587f * g[i] + 0.114f * b[i]);
    for (std::uint8_t* value : {r + i, g + i, b + i})
      *value = to_byte(*value * factor + gray * (1 - factor));
  }
}

// Counts how often each byte value occurs; n >= 1.
Histogram histogram_of(const std::uint8_t* bytes, std::size_t n) {
  // Eight counters per value: neighbouring pixels are often equal, and increments of one counter
  // would wait for each other.
  std::array<Histogram, 8> counts{};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, bytes + i, sizeof(eight));
    for (std::size_t k = 0; k < 8; ++k) ++counts[k][eight >> (8 * k) & 255];
  }
  for (; i < n; ++i) ++counts[0][bytes[i]];
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t v = 0; v < 256; ++v) counts[0][v] += counts[k][v];
  return counts[0];
}

// Reflects an index at the edges, without repeating the edge sample.
std::int32_t mirrored(std::int32_t at, std::int32_t size) {
  if (at < 0) at = -at;
  return at >= size ? 2 * size - 2 - at : at;
}

// Returns the weights of a Gaussian by distance from its centre, in units of 1/65536. Those of both
// sides sum to 1. The centre has half of its weight, because the filter adds it twice. Small
// weights at the ends are omitted, which changes no value by more than 1/8 level.
std::vector<std::uint16_t> gaussian(int size, double sigma) {
  constexpr double kLeftOut = 1.0 / 2048;
  std::vector<double> weight(static_cast<std::size_t>(size / 2 + 1));
  double sum = 0;
  for (std::size_t k = 0; k < weight.size(); ++k) {
    const double at = static_cast<double>(k) / sigma;
    weight[k] = k ? 2 * std::exp(-0.5 * at * at) : 1;  // the weight of both sides
    sum += weight[k];
  }
  double left = 0;
  while (weight.size() > 1 && left + weight.back() <= kLeftOut * sum) {
    left += weight.back();
    weight.pop_back();
  }
  std::vector<std::uint16_t> out;
  for (const double both : weight)
    out.push_back(static_cast<std::uint16_t>(
        std::min(65535.0, std::nearbyint(both / (sum - left) * 32768.0))));
  return out;
}

// Words per cache line. Loading a register from two cache lines takes twice as long.
constexpr std::size_t kLine = 32;

std::size_t aligned(std::size_t words) { return (words + kLine - 1) / kLine * kLine; }

std::uint16_t* line_in(std::vector<std::uint16_t>& words) {
  void* begin = words.data();
  std::size_t space = 2 * kLine * sizeof(std::uint16_t);
  return static_cast<std::uint16_t*>(
      std::align(kLine * sizeof(std::uint16_t), sizeof(std::uint16_t), begin, space));
}

}  // namespace

const PixelKernels& pixel_kernels() {
  static constexpr Choice<const PixelKernels*> kChoices[] = {
#ifdef FASTIO_X86
      {kAvx512, &kPixelAvx512},
      {kAvx2, &kPixelAvx2},
#endif
      {0, &kPixelPortable}};
  return *choose(kChoices);
}

void adjust_brightness(const Planes& image, double factor) { scale(image, factor, 0); }

void adjust_contrast(const Planes& image, double factor) {
  const PixelKernels& k = kernels();
  const std::size_t n = image.pixels();
  std::uint64_t sum = 0;
  if (image.channels == 3) {
    sum = k.gray(image.plane(0), image.plane(1), image.plane(2), n, nullptr);
  } else {
    for (std::size_t i = 0; i < n; ++i) sum += image.data[i];
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(n);
  scale(image, factor, mean * (1 - factor));
}

void adjust_saturation(const Planes& image, double factor) {
  if (image.channels != 3) return;
  if (factor > kMostFactor) return saturate_much(image, factor);
  kernels().saturate(image.plane(0), image.plane(1), image.plane(2), image.pixels(),
                     fixed(factor, kOne), fixed(std::abs(1 - factor), kOne), factor > 1);
}

void adjust_hue(const Planes& image, double turns) {
  if (image.channels != 3) return;
  const double positive = turns < 0 ? turns + 1 : turns;
  kernels().turn_hue(
      image.plane(0), image.plane(1), image.plane(2), image.pixels(),
      static_cast<std::uint16_t>(std::min(6 * 8192.0 - 1, std::nearbyint(positive * 6 * 8192))));
}

void posterize(const Planes& image, int bits) {
  const auto mask = static_cast<std::uint8_t>(bits >= 8 ? 255 : ((1 << bits) - 1) << (8 - bits));
  kernels().bits(image.data, image.bytes(), 0, 0, mask);
}

void solarize(const Planes& image, double threshold) {
  if (threshold > 255) return;
  const auto first = static_cast<std::uint8_t>(std::max(0.0, std::ceil(threshold)));
  kernels().bits(image.data, image.bytes(), first, 255, 255);
}

void invert(const Planes& image) { kernels().bits(image.data, image.bytes(), 0, 255, 255); }

void autocontrast(const Planes& image) {
  const PixelKernels& k = kernels();
  for (int c = 0; c < image.channels; ++c) {
    std::uint8_t low = 0, high = 0;
    k.extremes(image.plane(c), image.pixels(), &low, &high);
    if (low == high) continue;
    // Shift the range to the top of 16 bits, so that its factor has 16 significant bits.
    PixelScale how;
    how.low = low;
    const int range = high - low;
    while (2 * range * how.unit < 1 << 16) how.unit = static_cast<std::uint16_t>(2 * how.unit);
    how.factor = static_cast<std::uint16_t>(
        std::ceil(255.0 * (1 << kFractionBits) * 65536.0 / (range * how.unit)));
    how.more = 1;
    k.scale(image.plane(c), image.pixels(), how);
  }
}

void equalize(const Planes& image) {
  const std::size_t n = image.pixels();
  for (int c = 0; c < image.channels; ++c) {
    const Histogram histogram = histogram_of(image.plane(c), n);
    std::size_t last = 255;
    while (histogram[last] == 0) --last;
    const std::uint32_t step = (static_cast<std::uint32_t>(n) - histogram[last]) / 255;
    if (step == 0) continue;
    Table table;
    std::uint32_t before = step / 2;
    for (std::size_t v = 0; v < 256; ++v) {
      table[v] = static_cast<std::uint8_t>(std::min<std::uint32_t>(before / step, 255));
      before += histogram[v];
    }
    kernels().look_up(image.plane(c), n, table.data());
  }
}

void grayscale(const Planes& image) {
  if (image.channels != 3) return;
  const std::size_t n = image.pixels();
  kernels().gray(image.plane(0), image.plane(1), image.plane(2), n, image.plane(0));
  std::memcpy(image.plane(1), image.plane(0), n);
  std::memcpy(image.plane(2), image.plane(0), n);
}

// image * factor + mean * (1 - factor). The mean is that of a pixel and its eight neighbours, in
// which the pixel counts five times.
void PixelScratch::adjust_sharpness(const Planes& image, double factor) {
  if (image.height <= 2 || image.width <= 2) return;
  const auto width = static_cast<std::size_t>(image.width);
  const double own = factor + (1 - factor) * 5 / 13;
  if (own > kMostFactor) return sharpen_much(image, factor);
  PixelSharpen how;
  how.own = fixed(own, kOne);
  how.around = fixed(std::abs(1 - factor) * 8 / 13, kOne);
  how.subtract = factor > 1;
  // Compensates for truncation. For integer factors, torchvision rounds only the mean.
  const bool rounded = factor == std::floor(factor);
  how.more = static_cast<std::uint16_t>((rounded ? 1 << (kFractionBits - 1) : 0) + 1);
  bytes_.resize(std::max(bytes_.size(), 2 * width));
  row_.resize(std::max(row_.size(), width));
  for (int c = 0; c < image.channels; ++c) {
    std::uint8_t *above = bytes_.data(), *here = above + width;  // rows before the change
    std::memcpy(above, image.plane(c), width);
    for (std::int32_t y = 1; y + 1 < image.height; ++y) {
      std::uint8_t* const row = image.plane(c) + static_cast<std::size_t>(y) * width;
      std::memcpy(here, row, width);
      kernels().sharpen(above, here, row + width, width, how, row_.data(), row);
      std::swap(above, here);
    }
  }
}

// adjust_sharpness() for large factors, with torchvision's arithmetic: the mean is rounded before
// it is blended.
void PixelScratch::sharpen_much(const Planes& image, double factor) {
  const auto width = static_cast<std::size_t>(image.width);
  bytes_.resize(std::max(bytes_.size(), image.pixels()));
  const std::uint8_t* const from = bytes_.data();
  for (int c = 0; c < image.channels; ++c) {
    std::uint8_t* const plane = image.plane(c);
    std::memcpy(bytes_.data(), plane, image.pixels());
    for (std::size_t y = 1; y + 1 < static_cast<std::size_t>(image.height); ++y)
      for (std::size_t x = 1; x + 1 < width; ++x) {
        const std::size_t at = y * width + x;
        int sum = 4 * from[at];
        for (const std::size_t row : {at - width, at, at + width})
          sum += from[row - 1] + from[row] + from[row + 1];
        plane[at] = to_byte(from[at] * factor + (sum + 6) / 13 * (1 - factor));
      }
  }
}

void PixelScratch::gaussian_blur(const Planes& image, int columns, int rows, double sigma_x,
                                 double sigma_y) {
  const PixelKernels& k = kernels();
  const auto across = gaussian(columns, sigma_x), down = gaussian(rows, sigma_y);
  const std::int32_t height = image.height, width = image.width;
  const auto side = static_cast<std::int32_t>(across.size()) - 1;
  const auto reach = static_cast<std::int32_t>(down.size()) - 1;
  const auto w = static_cast<std::size_t>(width);
  // samples_ is a ring of rows of wider numbers around a row of the image; row_ has their sums.
  const std::size_t ring = std::bit_ceil(2 * down.size() - 1), stride = aligned(w);
  const std::size_t before = aligned(across.size());
  samples_.resize(std::max(samples_.size(), ring * stride + kLine));
  row_.resize(std::max(row_.size(), before + w + across.size() + kLine));
  std::uint16_t* const samples = line_in(samples_);
  std::uint16_t* const middle = line_in(row_) + before;
  taps_.resize(std::max(taps_.size(), 2 * (across.size() + down.size())));
  const std::uint16_t **low = taps_.data(), **high = low + down.size();
  const std::uint16_t **left = high + down.size(), **right = left + across.size();
  // Compensates for the half unit that each product loses on average, and rounds bytes.
  const auto cut = [](std::int32_t taps) { return static_cast<std::uint16_t>((taps + 1) / 2); };
  const PixelTaps in_columns{low, high, down.data(), reach + 1, cut(reach)};
  const PixelTaps in_row{left, right, across.data(), side + 1,
                         static_cast<std::uint16_t>(cut(side) + (1 << (kFractionBits - 1)))};
  for (std::int32_t d = 0; d <= side; ++d) {
    left[d] = middle - d;
    right[d] = middle + d;
  }
  const auto sample_row = [&](std::int32_t y) {
    return samples + (static_cast<std::size_t>(y) & (ring - 1)) * stride;
  };
  for (int c = 0; c < image.channels; ++c) {
    std::uint8_t* const plane = image.plane(c);
    std::int32_t next = 0;
    for (std::int32_t y = 0; y < height; ++y) {
      for (; next < height && next <= y + reach; ++next)
        k.widen(plane + static_cast<std::size_t>(next) * w, w, sample_row(next));
      for (std::int32_t d = 0; d <= reach; ++d) {
        low[d] = sample_row(mirrored(y - d, height));
        high[d] = sample_row(mirrored(y + d, height));
      }
      k.weigh(in_columns, w, middle, nullptr);
      for (std::int32_t d = 1; d <= side; ++d) {
        middle[-d] = middle[d];
        middle[width - 1 + d] = middle[width - 1 - d];
      }
      k.weigh(in_row, w, nullptr, plane + static_cast<std::size_t>(y) * w);
    }
  }
}

void PixelScratch::shrink(std::size_t keep) {
  fastio::shrink(bytes_, keep);
  fastio::shrink(samples_, keep);
}

}  // namespace fastio
