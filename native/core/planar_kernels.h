// Between planar.cpp and the kernels of each instruction set: plain data and plain functions.
//
// The arithmetic, which all paths share. Samples are centred (128 becomes 0).
//  - Columns: weights sum to 1 << 14, products are summed exactly in 32 bits and rounded to 16 bits
//    with 7 fractional bits. The magnitudes of an output's weights sum to 1 for bilinear, to less
//    than 1.3 for bicubic (1.25, and a little more at a crop's edges; upsampling averages, and adds
//    nothing) and to 4/3 at most where means are sharpened: 128 * 128 * 4/3 = 21845 fits.
//  - Rows: weights are stored negated, for then 1 is -32768 and fits. They sum to -(1 << 15), or to
//    -(1 << 14) where a weight exceeds 1. Each product's high half, rounded down, is
//    subtracted: 6 fractional bits (5), at most 128 * 64 * 16/9 = 14563. Rounding down leaves
//    half a unit a tap on average, which `init` takes off. Above kMaxHighHalves taps that could
//    grow to be seen; then the products are summed exactly instead, to a row of 7 fractional bits
//    (29127 at most) that is given to the row kernel as its lone tap.
//  - Colour: 16 bits. Y, 128.5 added, is at most 22788; 1.772 * 14563 = 25806 fits, and where their
//    sum does not, it saturates, far beyond white.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kPlanarLanes = 16;       // outputs of a group, computed together
inline constexpr int kPlanarRows = 4;         // rows that are resampled together
inline constexpr int kMaxHighHalves = 16;     // taps of a row that are summed in 16 bits
inline constexpr int kUniformTaps = 4;        // of a row: where none has more, all have the same
inline constexpr int kPlanarColumnBits = 14;  // log2 of the sum of an output's weights in x

// Factors of colour conversion (JFIF, Rec. 601), in 65536ths; what would not fit in 16 bits is
// taken from 1 or 2.
inline constexpr int kRedOfCr = 26345;        // R = Y + Cr + this Cr: 1.402
inline constexpr int kGreenOfCb = 22553;      // G = Y - this Cb - Cr + kGreenOfCrLess Cr: 0.344136,
inline constexpr int kGreenOfCrLess = 18734;  // 1 - 0.714136
inline constexpr int kBlueOfCbLess = 14942;   // B = Y + 2 Cb - this Cb: 2 - 1.772
inline constexpr int kLumaOfRed = 19595;      // 0.299
inline constexpr int kLumaOfGreenLess = 27066;  // 1 - 0.587
inline constexpr int kLumaOfBlue = 7471;        // 0.114

// A word for each output of a group.
struct alignas(64) PlanarWords {
  std::int32_t lane[kPlanarLanes];
};
// Two groups of a row between the passes. Each path keeps them in an order of its own.
struct alignas(64) PlanarMiddle {
  std::int16_t lane[2 * kPlanarLanes];
};

enum class PlanarOutput : std::uint8_t {
  gray,        // one plane, as it is
  gray_three,  // one plane, three times
  rgb,         // three planes, as they are
  rgb_luma,    // three planes to one channel
  ycbcr,       // three planes to R, G, B
};

// The filter of one axis of one plane.
struct PlanarTapSpec {
  int radius;                   // 0: nearest, 1: bilinear, 2: bicubic
  double scale;                 // samples of component 0 an output
  double support;               // half the filter's width in them
  double filter_scale;          // how much wider than its definition the filter is
  std::int32_t in;              // the crop's size
  std::int32_t crop_begin;      // where it begins in the image
  std::int32_t window_begin;    // the first output
  std::int32_t outputs;         // how many
  const std::int32_t* nearest;  // (outputs,) radius 0: the sample of each, in the crop
  bool mirror;
  int cell_bits;       // log2 of the samples of component 0 that one of the plane covers
  bool fancy;          // the plane is upsampled by libjpeg's triangle filter
  bool sharpen;        // a sample of the plane is the mean of several: see sharpen_sums()
  std::int32_t cells;  // samples of the plane
  int weight_bits;     // log2 of the sum of an output's weights
  bool columns;        // lay the weights out for columns, in pairs, or for rows
};

// The taps of one axis of one plane. Lane l of group g is an output; groups are filled up with
// the last output over again.
struct PlanarTaps {
  std::int32_t groups;
  std::int32_t max_count;    // the most taps of an output
  std::int32_t pairs;        // of taps: max_count / 2, rounded up
  std::int32_t first, last;  // every tap lies in samples [first, last)
  std::int32_t* start;       // (groups, kPlanarLanes) sample of the first tap
  std::int32_t* count;       // (groups, kPlanarLanes) taps; further weights are 0
  // Columns: (groups, pairs), each lane a pair of 16-bit weights. Rows: (groups, max_count), each
  // lane a negated weight, in both halves.
  PlanarWords* weights;
  std::int32_t largest;  // weight, of rows

  // Columns, for kernels that permute bytes: where in the bytes from `base` on a lane's first pair
  // of taps is, one base for `kBaseLanes` lanes (each path's own); span: the most bytes of a base.
  PlanarWords* index;  // (groups,)
  std::int32_t* base;  // (groups, kPlanarLanes / kBaseLanes) relative to `first`
  std::int32_t span;
  bool shared;  // each two groups have one base

  // Working space: of each lane its window, first cell and offset (see planar_taps.h); running sums
  // of the weights of a group.
  std::int32_t *low, *high, *cell;
  float* offset;
  float* running;  // (taps and 3 more, kPlanarLanes)
};

// A plane's part of an output row.
struct PlanarRow {
  const std::int16_t* const* rows;  // (count,) rows of PlanarMiddle
  const std::int32_t* weights;      // as in PlanarTaps, kPlanarLanes apart
  std::int32_t count;               // at most kMaxHighHalves
  std::int16_t init;  // where sums begin: 128.5, or 0 of the chroma of YCbCr, less half of count
};

// Fills the arrays of `taps`, which have room for the most taps that `spec` may need.
using PlanarTapsKernel = void(const PlanarTapSpec& spec, PlanarTaps* taps);

// Resamples the columns of 1 to kPlanarRows rows from sample taps.first on. dst has room for
// kPlanarRows rows, `blocks` apart; those past `rows` may be written too.
using PlanarColumnsKernel = void(const PlanarTaps& taps, const std::uint8_t* src,
                                 std::ptrdiff_t src_stride, std::int32_t rows, PlanarMiddle* dst,
                                 std::size_t blocks);

// One output row of `outputs` pixels. bits: fractional bits of the sums. plane: bytes from a
// channel's row to the next channel's; 0: pixels are interleaved.
using PlanarRowKernel = void(PlanarOutput output, const PlanarRow* planes, int bits,
                             std::int32_t outputs, std::uint8_t* dst, std::ptrdiff_t plane);

struct PlanarKernels {
  PlanarTapsKernel* taps;
  PlanarColumnsKernel* columns;
  PlanarRowKernel* row;
};

extern const PlanarKernels kPlanarPortable;
#ifdef FASTIO_X86
extern const PlanarKernels kPlanarAvx2;
extern const PlanarKernels kPlanarAvx512bw;
extern const PlanarKernels kPlanarAvx512;
#endif
#ifdef FASTIO_ARM64
extern const PlanarKernels kPlanarNeon;
#endif

}  // namespace fastio
