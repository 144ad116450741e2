#include "pixel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cpu.h"
#include "pixel_kernels.h"

namespace fastio {
namespace {

using Table = std::array<std::uint8_t, 256>;

constexpr double kOne = 1 << 15;      // a factor of 1 in PixelScale and blend, where bytes are << 8
constexpr double kMostFactor = 1.99;  // that they take

const PixelKernels& kernels() { return pixel_kernels(); }

std::uint8_t to_byte(double value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
}

std::uint16_t fixed(double value, double one) {
  return static_cast<std::uint16_t>(std::lround(value * one));
}

// x * factor + offset of every byte.
void scale(const Planes& image, double factor, double offset) {
  if (factor > kMostFactor) {
    Table table;
    for (int v = 0; v < 256; ++v) table[static_cast<std::size_t>(v)] = to_byte(v * factor + offset);
    return kernels().look_up(image.data, image.bytes(), table.data());
  }
  PixelScale how;
  how.factor = fixed(factor, kOne);
  // What cutting products off takes away, half of the last place on average.
  const double shift = offset * (1 << kFractionBits) + 1;
  how.more = shift > 0 ? fixed(shift, 1) : std::uint16_t{0};
  how.less = shift < 0 ? fixed(-shift, 1) : std::uint16_t{0};
  kernels().scale(image.data, image.bytes(), how);
}

// image * factor + other * (1 - factor), with `other` for the plane `c` alone.
void blend(std::uint8_t* plane, const std::uint8_t* other, std::size_t n, double factor) {
  if (factor > kMostFactor) {
    for (std::size_t i = 0; i < n; ++i)
      plane[i] = to_byte(plane[i] * factor + other[i] * (1 - factor));
    return;
  }
  kernels().blend(plane, other, n, fixed(factor, kOne), fixed(std::abs(1 - factor), kOne),
                  factor > 1);
}

// Mirrored at the edges, without the edge sample itself.
std::int32_t mirrored(std::int32_t at, std::int32_t size) {
  if (at < 0) at = -at;
  return at >= size ? 2 * size - 2 - at : at;
}

// Weights of a Gaussian's middle and of each distance, in 65536ths that sum to 1 with both sides;
// the middle's is half of itself, for it is added to itself.
std::vector<std::uint16_t> gaussian(int size, double sigma) {
  std::vector<double> weight(static_cast<std::size_t>(size / 2 + 1));
  double sum = 0;
  for (std::size_t k = 0; k < weight.size(); ++k) {
    const double at = static_cast<double>(k) / sigma;
    weight[k] = std::exp(-0.5 * at * at);
    sum += k ? 2 * weight[k] : weight[k];
  }
  std::vector<std::uint16_t> out;
  for (std::size_t k = 0; k < weight.size(); ++k)
    out.push_back(static_cast<std::uint16_t>(
        std::min(65535.0, std::nearbyint(weight[k] / sum * (k ? 65536.0 : 32768.0)))));
  while (out.size() > 1 && out.back() == 0) out.pop_back();  // of narrow Gaussians most are
  return out;
}

}  // namespace

const PixelKernels& pixel_kernels() {
#ifdef FASTIO_X86
  const Simd simd = simd_active();
  if (simd == Simd::avx512) return kPixelAvx512;
  if (simd == Simd::avx2) return kPixelAvx2;
#endif
  return kPixelPortable;
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
    // The range is shifted to the top of 16 bits: what it is multiplied by then has as many.
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
    // Four histograms: neighbouring pixels are often equal, and would wait for each other.
    std::array<std::array<std::uint32_t, 256>, 4> parts{};
    const std::uint8_t* plane = image.plane(c);
    for (std::size_t i = 0; i < n; ++i) ++parts[i & 3][plane[i]];
    std::array<std::uint32_t, 256> histogram{};
    std::size_t last = 0;
    for (std::size_t v = 0; v < 256; ++v) {
      for (const auto& part : parts) histogram[v] += part[v];
      if (histogram[v]) last = v;
    }
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

void PixelScratch::adjust_saturation(const Planes& image, double factor) {
  if (image.channels != 3) return;
  const std::size_t n = image.pixels();
  bytes_.resize(std::max(bytes_.size(), n));
  kernels().gray(image.plane(0), image.plane(1), image.plane(2), n, bytes_.data());
  for (int c = 0; c < 3; ++c) blend(image.plane(c), bytes_.data(), n, factor);
}

void PixelScratch::adjust_sharpness(const Planes& image, double factor) {
  if (image.height <= 2 || image.width <= 2) return;
  const std::size_t n = image.pixels();
  const auto width = static_cast<std::size_t>(image.width);
  bytes_.resize(std::max(bytes_.size(), n));
  for (int c = 0; c < image.channels; ++c) {
    std::uint8_t* plane = image.plane(c);
    std::memcpy(bytes_.data(), plane, n);
    for (std::int32_t y = 1; y + 1 < image.height; ++y) {
      const std::size_t at = static_cast<std::size_t>(y) * width;
      kernels().near_means(plane + at - width, plane + at, plane + at + width, width,
                           bytes_.data() + at);
    }
    // Edge pixels are blended with themselves, which gives them again.
    const std::size_t begin = width, count = n - 2 * width;
    blend(plane + begin, bytes_.data() + begin, count, factor);
  }
}

void PixelScratch::gaussian_blur(const Planes& image, int columns, int rows, double sigma_x,
                                 double sigma_y) {
  const PixelKernels& k = kernels();
  const auto across = gaussian(columns, sigma_x), down = gaussian(rows, sigma_y);
  const std::int32_t height = image.height, width = image.width;
  const std::int32_t side = columns / 2;
  const auto w = static_cast<std::size_t>(width);
  samples_.resize(std::max(samples_.size(), image.pixels()));
  row_.resize(std::max(row_.size(), w + 2 * static_cast<std::size_t>(side)));
  low_.resize(std::max(across.size(), down.size()));
  high_.resize(low_.size());
  // Half a unit was cut off for each weight, on average.
  const auto bias = [](std::size_t taps) { return static_cast<std::uint16_t>(taps / 2); };
  for (int c = 0; c < image.channels; ++c) {
    std::uint8_t* plane = image.plane(c);
    for (std::int32_t y = 0; y < height; ++y) {
      std::uint16_t* middle = row_.data() + side;
      k.widen(plane + static_cast<std::size_t>(y) * w, w, middle);
      for (std::int32_t i = 1; i <= side; ++i) {
        middle[-i] = middle[mirrored(-i, width)];
        middle[width - 1 + i] = middle[mirrored(width - 1 + i, width)];
      }
      for (std::size_t j = 0; j < across.size(); ++j) {
        low_[j] = middle - j;
        high_[j] = middle + j;
      }
      k.weigh(low_.data(), high_.data(), across.data(), static_cast<int>(across.size()), w,
              bias(across.size()), samples_.data() + static_cast<std::size_t>(y) * w);
    }
    for (std::int32_t y = 0; y < height; ++y) {
      for (std::size_t j = 0; j < down.size(); ++j) {
        const auto d = static_cast<std::int32_t>(j);
        low_[j] = samples_.data() + static_cast<std::size_t>(mirrored(y - d, height)) * w;
        high_[j] = samples_.data() + static_cast<std::size_t>(mirrored(y + d, height)) * w;
      }
      k.weigh(low_.data(), high_.data(), down.data(), static_cast<int>(down.size()), w,
              bias(down.size()), row_.data());
      k.narrow(row_.data(), w, plane + static_cast<std::size_t>(y) * w);
    }
  }
}

}  // namespace fastio
