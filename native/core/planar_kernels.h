// The interface between planar.cpp and the kernels of each instruction set: plain data and plain
// functions.
//
// The arithmetic, which all paths share. Samples are centred (128 becomes 0).
//  - Column pass: weights sum to 1 << 14. Products are summed exactly in 32 bits, and rounded to 16
//    bits with 7 fractional bits. The magnitudes of an output's weights sum to 1 for bilinear, to
//    less than 1.3 for bicubic (1.25, and a little more at a crop's edges; upsampling averages and
//    does not increase it), and to at most 4/3 for sharpened means: 128 * 128 * 4/3 = 21845 fits.
//  - Row pass: weights are stored negated, because -1 is -32768 and fits, while +1 does not. They
//    sum to -(1 << 15), or to -(1 << 14) if a weight exceeds 1. The high half of each product,
//    rounded down, is subtracted. The sums have 6 (or 5) fractional bits, and are at most 128 * 64
//    * 16/9 = 14563. Rounding down leaves half a unit per tap on average, which `init` compensates.
//    Above kMaxHighHalves taps the remaining error could become visible. Products are then summed
//    exactly, to a row with 7 fractional bits (at most 29127), which the row kernel gets as its
//    only tap.
//  - Colour: 16 bits. Y plus 128.5 is at most 22788, and 1.772 * 14563 = 25806 fits. If their sum
//    does not, it saturates, far above white.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kPlanarLanes = 16;       // outputs of a group, which are computed together
inline constexpr int kPlanarRows = 4;         // rows that the column pass resamples together
inline constexpr int kMaxHighHalves = 16;     // the most taps whose high halves are summed
inline constexpr int kUniformTaps = 4;        // if no row has more taps, all get the same number
inline constexpr int kPlanarColumnBits = 14;  // log2 of the sum of an output's weights in x

// Factors of colour conversion (JFIF, Rec. 601), in units of 1/65536. Factors that do not fit in 16
// bits are given as the difference to 1 or 2.
inline constexpr int kRedOfCr = 26345;        // R = Y + Cr + this Cr: 1.402
inline constexpr int kGreenOfCb = 22553;      // G = Y - this Cb - Cr + kGreenOfCrLess Cr: 0.344136,
inline constexpr int kGreenOfCrLess = 18734;  // 1 - 0.714136
inline constexpr int kBlueOfCbLess = 14942;   // B = Y + 2 Cb - this Cb: 2 - 1.772
inline constexpr int kLumaOfRed = 19595;      // 0.299
inline constexpr int kLumaOfGreenLess = 27066;  // 1 - 0.587
inline constexpr int kLumaOfBlue = 7471;        // 0.114

// A dword for each output of a group.
struct alignas(64) PlanarWords {
  std::int32_t lane[kPlanarLanes];
};
// Two groups of a row between the passes. Each path has its own order of lanes.
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
  double scale;                 // samples of component 0 per output
  double support;               // half of the filter's width, in samples of component 0
  double filter_scale;          // by how much the filter is wider than its definition
  std::int32_t in;              // the crop's size
  std::int32_t crop_begin;      // the crop's offset in the image
  std::int32_t window_begin;    // the first output
  std::int32_t outputs;         // the number of outputs
  const std::int32_t* nearest;  // (outputs,) for radius 0: the sample of each, in the crop
  bool mirror;
  int cell_bits;       // log2 of the samples of component 0 per sample (cell) of the plane
  bool fancy;          // the plane is upsampled by libjpeg's triangle filter
  bool sharpen;        // a sample of the plane is the mean of several: see sharpen_sums()
  std::int32_t cells;  // samples of the plane
  int weight_bits;     // log2 of the sum of an output's weights
  bool columns;        // lay the weights out for columns, in pairs, or for rows
};

// The taps of one axis of one plane. Each lane of a group is an output. The last group is filled
// with repetitions of the last output.
struct PlanarTaps {
  std::int32_t groups;
  std::int32_t max_count;    // the most taps of an output
  std::int32_t pairs;        // pairs of taps: max_count / 2, rounded up
  std::int32_t first, last;  // every tap lies in samples [first, last)
  std::int32_t* start;       // (groups, kPlanarLanes) the sample of the first tap
  std::int32_t* count;       // (groups, kPlanarLanes) the number of taps; later weights are 0
  // Column pass: (groups, pairs), each lane a pair of 16-bit weights. Row pass: (groups,
  // max_count), each lane a negated weight, in both halves.
  PlanarWords* weights;
  std::int32_t largest;  // row pass: the largest weight

  // Column pass, for kernels that permute bytes: the position of each lane's first pair of taps in
  // the bytes from `base` on. kBaseLanes lanes (a number of each path) share a base. span: the most
  // bytes that the lanes of a base need.
  PlanarWords* index;  // (groups,)
  std::int32_t* base;  // (groups, kPlanarLanes / kBaseLanes) relative to `first`
  std::int32_t span;
  bool shared;  // the two groups of each pair of groups have the same base

  // Working space: the window, first cell and offset of each lane (see planar_taps.h), and running
  // sums of the weights of a group.
  std::int32_t *low, *high, *cell;
  float* offset;
  float* running;  // (taps and 3 more, kPlanarLanes)
};

// The inputs of an output row from one plane.
struct PlanarRow {
  const std::int16_t* const* rows;  // (count,) rows of PlanarMiddle
  const std::int32_t* weights;      // one lane of PlanarTaps::weights, kPlanarLanes apart
  std::int32_t count;               // at most kMaxHighHalves
  std::int16_t init;  // the sums' initial value: 128.5 (chroma of YCbCr: 0) less half of count
};

// Computes taps. The arrays of `taps` must have room for the most taps that `spec` may need.
using PlanarTapsKernel = void(const PlanarTapSpec& spec, PlanarTaps* taps);

// The column pass: resamples 1 to kPlanarRows rows. src: sample taps.first of the first row. dst
// has room for kPlanarRows rows, `blocks` apart, all of which may be written.
using PlanarColumnsKernel = void(const PlanarTaps& taps, const std::uint8_t* src,
                                 std::ptrdiff_t src_stride, std::int32_t rows, PlanarMiddle* dst,
                                 std::size_t blocks);

// The row pass: computes one output row of `outputs` pixels. bits: the fractional bits of the sums.
// plane: the bytes from one channel's row to the next channel's; 0: pixels are interleaved.
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
