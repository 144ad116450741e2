// Resamples the planes of a JPEG's crop directly to the output size. Each plane is resampled
// separately, subsampled chroma included, and only the small result is converted to RGB. That saves
// upsampling the chroma and converting the pixels of the whole crop.
//
//   resampler.prepare(x, y, Colour::ycbcr, 3);
//   ... decode rows(c) and columns(c) of each plane ...
//   resampler.run(planes, dst, dst_stride);
//
// The filters are those of resample.h. For a subsampled plane they are composed with libjpeg's
// upsampling filter, so that phases are exact. For a plane that was decoded at a reduced size, the
// weights of all samples that a reduced one replaces are summed. Nothing is rounded to 8 bits in
// between: one value in a hundred (bicubic: two) differs by one level from the result in floating
// point.
//
// Thread-safety: a PlanarResampler is one thread's scratch, which allocates nothing once it has
// grown, and throws std::bad_alloc if it cannot grow. All SIMD paths give equal bytes.
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
  std::int32_t size = 0;   // of the whole image along this axis: at least begin + spec.in
  int sub = 1;             // samples of component 0 per sample of components 1 and 2: 1, 2 or 4
  // By how much the plane is reduced: 1, 2, 4 or 8. [0]: component 0, [1]: the others.
  int reduce[2] = {1, 1};
};

// A plane, beginning at the sample (rows(c).first, columns(c).first). The stride is in bytes.
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
  // Computes the filters. x: the columns, y: the rows. channels: 3 or 1. With one channel, the
  // result is Y for Colour::ycbcr, and Rec. 601 luma for Colour::rgb. With three channels,
  // Colour::gray gives three equal ones.
  //
  // Chroma with a `sub` of 2 is upsampled by libjpeg's triangle filter ("fancy"), unless the other
  // axis has 4 or the plane is at most 2 samples wide. Chroma with a `sub` of 4 is repeated.
  void prepare(const PlanarAxis& x, const PlanarAxis& y, Colour colour, int channels);

  // After prepare(): the number of planes that run() reads (1 or 3), and the range of samples that
  // it reads of plane `c`.
  int planes() const { return planes_; }
  SampleRange columns(int c) const { return {x_taps(c).first, x_taps(c).last}; }
  SampleRange rows(int c) const { return {y_taps(c).first, y_taps(c).last}; }

  // Resamples the planes to `dst`: rows that are dst_stride bytes apart, and nothing is written
  // past a row's end. Three channels are interleaved if `plane` is 0, else `plane` bytes apart.
  // Each row of a plane must have kReadPad readable bytes after the last sample of columns(c),
  // whose values do not matter. Strides may be negative.
  void run(const PlaneView* planes, std::uint8_t* dst, std::ptrdiff_t dst_stride,
           std::ptrdiff_t plane = 0);

 private:
  // The taps of one axis, for component 0 or for the others, with the memory that they lie in.
  struct Taps {
    PlanarTaps table{};
    std::vector<std::int32_t> lanes;  // table.start, .count, .low, .high, .cell and .offset
    std::vector<PlanarWords> words;   // table.weights and .index
    std::vector<std::int32_t> base;
    std::vector<float> running;
  };
  // A ring buffer of a plane's rows after the column pass, as long as the row pass needs them. Row
  // r of the plane's range is at index r & mask.
  struct Ring {
    std::vector<PlanarMiddle> rows;
    std::int32_t mask = 0;
    std::int32_t next = 0;                      // the next row to be resampled
    std::vector<const std::int16_t*> pointers;  // to rows 0, 1, ..., mask, 0, 1, ...
    std::vector<PlanarMiddle> sums;             // one row of exact sums, see kMaxHighHalves
    const std::int16_t* sum = nullptr;          // points to `sums`
  };

  const PlanarTaps& x_taps(int c) const { return x_[c > 0 && x_differ_].table; }
  const PlanarTaps& y_taps(int c) const { return y_[c > 0 && y_differ_].table; }
  void build(const PlanarTapSpec& given, Taps* taps);
  void build_rows(PlanarTapSpec luma, PlanarTapSpec chroma);
  void prepare_ring(int c);
  SampleRange step_rows(int c, std::int32_t i) const;
  void fill_ring(int c, const PlaneView& plane, SampleRange needed);
  void set_row(int c, std::int32_t i, PlanarRow* row);

  int fraction_bits() const { return 7 + row_bits_ - 16; }  // of the row pass's sums

  const PlanarKernels* kernels_ = nullptr;
  PlanarOutput output_{};
  int planes_ = 1;
  std::int32_t columns_ = 0, outputs_ = 0;    // the width and height of the result
  std::size_t blocks_ = 0;                    // the number of PlanarMiddle in a row
  bool x_differ_ = false, y_differ_ = false;  // whether components 1 and 2 have their own taps
  bool upside_down_ = false;
  int row_bits_ = 15;  // log2 of the sum of an output's weights in y
  Taps x_[2], y_[2];
  std::vector<std::int32_t> nearest_;
  Ring ring_[3];
};

}  // namespace fastio
