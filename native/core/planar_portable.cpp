// The portable kernels of the planar resampler: plain loops that compilers vectorise.
#include "planar_kernels.h"
#include "planar_taps.h"

namespace fastio {
namespace {

constexpr int kBlock = 2 * kPlanarLanes;

constexpr PlanarTapLayout kLayout = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 0};

void taps_portable(const PlanarTapSpec& spec, PlanarTaps* taps) {
  compute_taps(spec, kLayout, taps);
}

// The column pass of a row. kPairs: the number of pairs of taps if it is known (in the common
// cases), else 0.
template <int kPairs>
void columns_of_row(const PlanarTaps& t, const std::uint8_t* src, PlanarMiddle* dst) {
  constexpr std::int32_t kStart = 64 - (128 << kPlanarColumnBits);
  const std::int32_t pairs = kPairs ? kPairs : t.pairs;
  const PlanarWords* weights = t.weights;
  std::int16_t* out = dst->lane;
  for (std::int32_t g = 0; g < t.groups; ++g, weights += pairs, out += kPlanarLanes) {
    const std::int32_t* starts = t.start + g * kPlanarLanes;
    for (int l = 0; l < kPlanarLanes; ++l) {
      const std::uint8_t* samples = src + (starts[l] - t.first);
      std::int32_t sum = kStart;
      if constexpr (kPairs > 0) {
        for (int p = 0; p < kPairs; ++p) {
          const std::int32_t pair = weights[p].lane[l];
          sum +=
              static_cast<std::int16_t>(pair) * samples[2 * p] + (pair >> 16) * samples[2 * p + 1];
        }
      } else {
        const std::int32_t count = t.count[g * kPlanarLanes + l];
        for (std::int32_t k = 0; k < count; ++k) {
          const std::int32_t pair = weights[k >> 1].lane[l];
          sum += (k & 1 ? pair >> 16 : static_cast<std::int16_t>(pair)) * samples[k];
        }
      }
      out[l] = static_cast<std::int16_t>(sum >> 7);
    }
  }
}

void columns_portable(const PlanarTaps& taps, const std::uint8_t* src, std::ptrdiff_t src_stride,
                      std::int32_t rows, PlanarMiddle* dst, std::size_t blocks) {
  using Kernel = void(const PlanarTaps&, const std::uint8_t*, PlanarMiddle*);
  static constexpr Kernel* kKernels[] = {columns_of_row<0>, columns_of_row<1>, columns_of_row<2>,
                                         columns_of_row<3>, columns_of_row<4>, columns_of_row<5>};
  Kernel* kernel = kKernels[taps.pairs <= 5 ? taps.pairs : 0];
  for (std::int32_t y = 0; y < rows; ++y, src += src_stride, dst += blocks) kernel(taps, src, dst);
}

struct Sums {
  std::int16_t lane[kBlock];
};

inline std::int16_t high_half(std::int16_t a, std::int16_t b) {
  return static_cast<std::int16_t>((a * b) >> 16);
}

// Not inlined, because GCC 12 does not vectorise it together with the loop over the taps.
[[gnu::noinline]] void subtract_products(const std::int16_t* __restrict samples,
                                         std::int16_t weight, std::int16_t* __restrict sums) {
  for (int j = 0; j < kBlock; ++j) {
    sums[j] = static_cast<std::int16_t>(sums[j] - high_half(samples[j], weight));
  }
}

// Returns the sums of columns [x, x + kBlock) of a plane.
inline Sums sum_plane(const PlanarRow& row, std::size_t x) {
  Sums sums;
  for (auto& sum : sums.lane) sum = row.init;
  for (std::int32_t k = 0; k < row.count; ++k) {
    const auto weight = static_cast<std::int16_t>(row.weights[k * kPlanarLanes]);
    subtract_products(row.rows[k] + x, weight, sums.lane);
  }
  return sums;
}

// Returns a + b, at most 32767; it cannot be below -32768 (see planar_kernels.h). Uses only 16-bit
// numbers, like everything here, so that compilers vectorise it.
inline std::int16_t add_saturated(std::int16_t a, std::int16_t b) {
  const auto room = static_cast<std::int16_t>(32767 - (a > 0 ? a : 0));
  return static_cast<std::int16_t>(a + (b < room ? b : room));
}

// Converts Y, Cb, Cr to R, G, B.
inline void convert(Sums* planes) {
  for (int j = 0; j < kBlock; ++j) {
    const std::int16_t y = planes[0].lane[j], b = planes[1].lane[j], r = planes[2].lane[j];
    const auto blue = static_cast<std::int16_t>(2 * b - high_half(b, kBlueOfCbLess));
    const auto green =
        static_cast<std::int16_t>(high_half(b, kGreenOfCb) + r - high_half(r, kGreenOfCrLess));
    const auto red = static_cast<std::int16_t>(r + high_half(r, kRedOfCr));
    planes[0].lane[j] = add_saturated(y, red);
    planes[1].lane[j] = add_saturated(y, static_cast<std::int16_t>(-green));
    planes[2].lane[j] = add_saturated(y, blue);
  }
}

// Converts R, G, B to Y.
inline void to_luma(Sums* planes) {
  for (int j = 0; j < kBlock; ++j) {
    const std::int16_t g = planes[1].lane[j];
    planes[0].lane[j] = static_cast<std::int16_t>(high_half(planes[0].lane[j], kLumaOfRed) + g -
                                                  high_half(g, kLumaOfGreenLess) +
                                                  high_half(planes[2].lane[j], kLumaOfBlue));
  }
}

// Rounds sums down and clamps them to 0 .. 255.
inline void to_bytes(Sums* sums, int bits) {
  for (auto& sum : sums->lane) {
    const auto value = static_cast<std::int16_t>(sum >> bits);
    const auto positive = static_cast<std::int16_t>(value > 0 ? value : 0);
    sum = positive < 255 ? positive : std::int16_t{255};
  }
}

void store_one(Sums sums, int bits, std::int32_t count, std::uint8_t* dst) {
  to_bytes(&sums, bits);
  for (std::int32_t j = 0; j < count; ++j) dst[j] = static_cast<std::uint8_t>(sums.lane[j]);
}

void store_three(Sums a, Sums b, Sums c, int bits, std::int32_t count, std::uint8_t* dst) {
  to_bytes(&a, bits);
  to_bytes(&b, bits);
  to_bytes(&c, bits);
  std::uint32_t pixels[kBlock];
  for (int j = 0; j < kBlock; ++j) {
    const auto two = static_cast<std::uint16_t>(a.lane[j] | b.lane[j] << 8);
    pixels[j] = two | static_cast<std::uint32_t>(static_cast<std::uint16_t>(c.lane[j])) << 16;
  }
  const auto store = [&](std::int32_t j, int bytes) {
    for (int k = 0; k < bytes; ++k) dst[3 * j + k] = static_cast<std::uint8_t>(pixels[j] >> 8 * k);
  };
  // Store four bytes at once: the next pixel overwrites the fourth.
  for (std::int32_t j = 0; j < count - 1; ++j) store(j, 4);
  store(count - 1, 3);
}

// Stores three channels in rows that are `plane` bytes apart, or as pixels if `plane` is 0.
void store(const Sums& a, const Sums& b, const Sums& c, int bits, std::int32_t count,
           std::uint8_t* dst, std::ptrdiff_t plane) {
  if (plane == 0) return store_three(a, b, c, bits, count, dst);
  store_one(a, bits, count, dst);
  store_one(b, bits, count, dst + plane);
  store_one(c, bits, count, dst + 2 * plane);
}

void row_portable(PlanarOutput output, const PlanarRow* planes, int bits, std::int32_t outputs,
                  std::uint8_t* dst, std::ptrdiff_t plane) {
  const bool one_plane = output == PlanarOutput::gray || output == PlanarOutput::gray_three;
  const bool one_channel = output == PlanarOutput::gray || output == PlanarOutput::rgb_luma;
  const int step = kBlock * (one_channel || plane != 0 ? 1 : 3);
  for (std::int32_t x = 0; x < outputs; x += kBlock, dst += step) {
    Sums sums[3];
    for (int c = 0; c < (one_plane ? 1 : 3); ++c) {
      sums[c] = sum_plane(planes[c], static_cast<std::size_t>(x));
    }
    const std::int32_t count = at_most(outputs - x, kBlock);
    if (output == PlanarOutput::ycbcr) convert(sums);
    if (output == PlanarOutput::rgb_luma) to_luma(sums);
    if (one_channel) {
      store_one(sums[0], bits, count, dst);
    } else if (one_plane) {
      store(sums[0], sums[0], sums[0], bits, count, dst, plane);
    } else {
      store(sums[0], sums[1], sums[2], bits, count, dst, plane);
    }
  }
}

}  // namespace

const PlanarKernels kPlanarPortable = {taps_portable, columns_portable, row_portable};

}  // namespace fastio
