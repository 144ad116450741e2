// A field's chain of transforms: a crop and a resampling, of which the decoder does a part; then
// operations on pixels, further crops and resamplings; and boxes that are erased at the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "augment.h"
#include "geometry.h"
#include "status.h"

namespace fastio {

// The plan for one image, complete before pixels are decoded.
struct DrawnChain {
  CropPlan crop;                       // applied to the stored image
  std::vector<DrawnOp> ops;            // applied after it, in order
  std::vector<CropPlan> crops;         // those of PixelOp::crop in `ops`, by its number
  std::vector<DrawnOp> erased;         // applied to the normalised result
  std::int32_t height = 0, width = 0;  // of the result
};

// Immutable once built; thread-safe.
class Chain {
 public:
  // Appends a crop, a resize or a flip. It is merged into the first crop if all operations in
  // between commute with it, and if Geometry::add() allows it; otherwise it is a stage of its own,
  // so that an image that is resized twice, or resized after padding, is resampled twice.
  void add(const GeometryStep& step);
  // Appends operations on the pixels of a uint8 image.
  void add(AugmentNode node);
  // Converts the image to gray, with one channel.
  void to_gray();
  // Returns the channels of the result for an image of `of_image` channels.
  int channels(int of_image) const { return to_gray_ ? 1 : of_image; }
  // Sets the number that keys the draws of the next step; later steps count from there. Steps with
  // equal numbers draw equal random words.
  void count_from(std::uint32_t step) { steps_ = step; }
  // Erases boxes after the result is stored. Fill values are in the units of the result.
  void erase_at_end(AugmentNode node);

  // Draws the plan for an image of height x width (upright, both >= 1). Returns Code::unsupported
  // if a step is impossible for this size: for example a RandomCrop larger than the padded image,
  // or a blur wider than the image.
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
