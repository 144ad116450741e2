// A field's chain of transforms: a crop and a resampling that decoding takes part in, then
// operations on pixels, further crops and resamplings, and boxes that are erased at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "augment.h"
#include "geometry.h"
#include "status.h"

namespace fastio {

// What a chain does to one image. Everything is known before a pixel is touched.
struct DrawnChain {
  CropPlan crop;                // of the stored image
  std::vector<DrawnOp> ops;     // then, in order; of PixelOp::crop the number is an index of crops
  std::vector<CropPlan> crops;  // of the image as it is then
  std::vector<DrawnOp> erased;  // of what is stored, after normalisation
  std::int32_t height = 0, width = 0;  // of the result
};

// Immutable once built; thread-safe.
class Chain {
 public:
  // A crop, resizing or flip. It joins the first crop if nothing stands between that changes with
  // it, and if it may: an image that is resized twice, or after padding, is resampled twice.
  void add(const GeometryStep& step);
  // Operations on pixels of bytes.
  void add(AugmentNode node);
  // Gray in the place of colours, one channel of it.
  void to_gray();
  // Of an image of so many channels: those of the result.
  int channels(int of_image) const { return to_gray_ ? 1 : of_image; }
  // The number that keys the draws of the next step, those after it counting on from there. Steps
  // with equal numbers draw alike.
  void count_from(std::uint32_t step) { steps_ = step; }
  // What is erased once the image is stored: its values are in the units of the result.
  void erase_at_end(AugmentNode node);

  // For an image of height x width (upright, both >= 1). Code::unsupported where a step is
  // impossible for this size: a RandomCrop larger than the padded image, a blur wider than it.
  Status draw(std::int32_t height, std::int32_t width, std::uint64_t seed, std::uint64_t epoch,
              std::int64_t row, DrawnChain& out) const;

 private:
  struct Stage {
    std::uint32_t step = 0;
    AugmentNode node;
    Geometry geometry;  // if is_crop
    bool is_crop = false;
  };

  Geometry first_;
  std::vector<Stage> stages_;
  std::vector<Stage> erasing_;
  std::uint32_t steps_ = 0;
  bool to_gray_ = false;
};

}  // namespace fastio
