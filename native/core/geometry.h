// Computes which pixels of an image a chain of geometric transforms needs: pure arithmetic on sizes
// and random draws.
//
// A chain of torchvision's crops, resizes and flips is reduced to one crop of the upright source,
// one resampling, a window of the result, and flips, so that only pixels of the window are
// computed. Draws come from rng.h, keyed by (seed, epoch, row, step of the chain): they are the
// same for any thread, batch or rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "resample.h"
#include "status.h"

namespace fastio {

// One step of a chain. Sizes are in pixels.
struct GeometryStep {
  enum class Kind {
    random_resized_crop,
    resize,       // width 0: the shorter edge becomes `height`
    center_crop,  // pads with zeros where the image is smaller
    random_crop,  // pads `padding` zeros on every side first
    horizontal_flip,
    vertical_flip,
  };
  Kind kind;
  std::int32_t height = 0, width = 0;
  std::int32_t max_size = 0;      // resize with width 0: the longer edge's limit; 0: none
  std::int32_t padding = 0;       // random_crop
  double scale[2] = {0.08, 1.0};  // random_resized_crop: fraction of the area
  double ratio[2] = {3.0 / 4.0, 4.0 / 3.0};  // random_resized_crop: width / height
  double probability = 0.5;                  // flips
  Filter filter = Filter::bilinear;
  bool antialias = true;
};

// The plan for one image: crop it, resample the crop to out_height x out_width, keep the window,
// flip the window.
struct CropPlan {
  std::int32_t crop_y = 0, crop_x = 0, crop_height = 0, crop_width = 0;  // in the upright source
  std::int32_t out_height = 0, out_width = 0;  // the size of the resampled crop
  std::int32_t window_y = 0, window_x = 0;     // the window in it; parts outside are zeros
  std::int32_t window_height = 0, window_width = 0;
  // The part of the resampled crop that no step has cut off: rows [kept_top, kept_bottom), columns
  // [kept_left, kept_right). If the window extends past it again, because of padding, pixels there
  // are zeros.
  std::int32_t kept_top = 0, kept_bottom = 0, kept_left = 0, kept_right = 0;
  bool flip_horizontal = false, flip_vertical = false;  // of the window
  Filter filter = Filter::bilinear;
  bool antialias = true;

  bool resamples() const { return out_height != crop_height || out_width != crop_width; }
};

// Immutable once built; thread-safe.
class Geometry {
 public:
  // Appends a step, whose draws are keyed by `number`. Returns Code::unsupported, and adds nothing,
  // if the image would be resampled twice, or resampled together with padding.
  Status add(const GeometryStep& step, std::uint32_t number);

  // Computes the plan for an image of height x width (upright, both >= 1). Returns
  // Code::unsupported if a step is impossible for this size: a RandomCrop larger than the padded
  // image.
  Status plan(std::int32_t height, std::int32_t width, std::uint64_t seed, std::uint64_t epoch,
              std::int64_t row, CropPlan& out) const;

 private:
  struct Numbered {
    GeometryStep step;
    std::uint32_t number;
  };
  std::vector<Numbered> steps_;
  bool resampled_ = false, may_pad_ = false;
};

}  // namespace fastio
