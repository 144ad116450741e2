// Resampling of a JPEG's planes straight from a crop to the output size: each plane is resampled on
// its own, subsampled chroma included, and only the small result is converted to RGB. That leaves
// out upsampling the chroma and converting the pixels of the whole crop.
//
//   resampler.prepare(x, y, Colour::ycbcr, 3);
//   ... decode rows(c) and columns(c) of each plane ...
//   resampler.run(planes, dst, dst_stride);
//
// The filters are resample.h's. For a subsampled plane they are composed with libjpeg's upsampling
// of it, so that no phase shifts, and for a plane decoded at a reduced size the weights of the
// samples that a reduced one stands for are summed. Nothing is rounded to 8 bits in between: of the
// values computed so in floating point, one in a hundred (of bicubic, two) rounds to a neighbour.
//
// Thread-safety: a PlanarResampler is one thread's scratch, which allocates nothing once it has
// grown (and throws std::bad_alloc where it cannot grow). All SIMD paths give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "planar_kernels.h"
#include "resample.h"

namespace fastio {

// One axis of the crop, in samples of component 0.
struct PlanarAxis {
  AxisSpec spec;           // in: the crop's size; box_begin and box_size are not used
  std::int32_t begin = 0;  // where the crop begins in the image
  std::int32_t size = 0;   // of the whole image along this axis: begin + spec.in, or more
  int sub = 1;             // samples of component 0 to one of components 1 and 2: 1, 2 or 4
  // How many samples one of the plane stands for: 1, 2, 4 or 8. [0]: component 0, [1]: the others.
  int reduce[2] = {1, 1};
};

// A plane from the sample at (rows(c).first, columns(c).first) on. The stride is in bytes.
struct PlaneView {
  const std::uint8_t* first;
  std::ptrdiff_t stride;
};

// [first, last), in samples of the (reduced) plane of the whole image.
struct SampleRange {
  std::int32_t first, last;
};

class PlanarResampler {
 public:
  // x: the columns, y: the rows. channels: 3 or 1. One channel is Y itself of Colour::ycbcr and
  // Rec. 601 luma of Colour::rgb; Colour::gray gives three equal channels.
  //
  // Chroma of sub 2 is taken as upsampled by libjpeg's triangle filter ("fancy"), unless the other
  // axis has sub 4 or the plane is at most 2 samples wide; chroma of sub 4 as repeated.
  void prepare(const PlanarAxis& x, const PlanarAxis& y, Colour colour, int channels);

  // After prepare(): the planes that run() reads (1 or 3), and which samples of plane `c`.
  int planes() const { return planes_; }
  SampleRange columns(int c) const { return {x_taps(c).first, x_taps(c).last}; }
  SampleRange rows(int c) const { return {y_taps(c).first, y_taps(c).last}; }

  // dst: the window's rows, dst_stride bytes apart; nothing is written past a row's end. Three
  // channels are interleaved, or `plane` bytes apart where that is not 0.
  // Each row of a plane has kReadPad readable bytes past the last sample of columns(c); their
  // values do not matter. The stride may be negative.
  void run(const PlaneView* planes, std::uint8_t* dst, std::ptrdiff_t dst_stride,
           std::ptrdiff_t plane = 0);

 private:
  // The taps of one axis, for component 0 or for the others, with the memory that they lie in.
  struct Taps {
    PlanarTaps table{};
    std::vector<std::int32_t> lanes;  // table.start, .count and what is needed to compute them
    std::vector<PlanarWords> words;   // table.weights and .index
    std::vector<std::int32_t> base;
    std::vector<float> running;
  };
  // The rows of a plane that the filter of its rows still needs, their columns resampled: row r of
  // the plane's range is row r & mask.
  struct Ring {
    std::vector<PlanarMiddle> rows;
    std::int32_t mask = 0;
    std::int32_t next = 0;                      // the first row that is not there yet
    std::vector<const std::int16_t*> pointers;  // to rows 0, 1, ..., mask, 0, 1, ...
    std::vector<PlanarMiddle> sums;             // a row, see kMaxHighHalves
    const std::int16_t* sum = nullptr;          // to it
  };

  const PlanarTaps& x_taps(int c) const { return x_[c > 0 && x_differ_].table; }
  const PlanarTaps& y_taps(int c) const { return y_[c > 0 && y_differ_].table; }
  void build(const PlanarTapSpec& given, Taps* taps);
  void build_rows(PlanarTapSpec luma, PlanarTapSpec chroma);
  void prepare_ring(int c);
  SampleRange step_rows(int c, std::int32_t i) const;
  void fill_ring(int c, const PlaneView& plane, SampleRange needed);
  void set_row(int c, std::int32_t i, PlanarRow* row);

  int fraction_bits() const { return 7 + row_bits_ - 16; }  // of the sums of rows

  const PlanarKernels* kernels_ = nullptr;
  PlanarOutput output_{};
  int planes_ = 1;
  std::int32_t columns_ = 0, outputs_ = 0;    // of the result
  std::size_t blocks_ = 0;                    // PlanarMiddle a row
  bool x_differ_ = false, y_differ_ = false;  // components 1 and 2 have taps of their own
  bool upside_down_ = false;
  int row_bits_ = 15;  // log2 of the sum of an output's weights in y
  Taps x_[2], y_[2];
  std::vector<std::int32_t> nearest_;
  Ring ring_[3];
};

}  // namespace fastio
