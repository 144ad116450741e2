// Affine and projective maps of one image of bytes in planes, as torchvision's affine, rotate and
// perspective on tensors: each pixel of the result is looked up in the image.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pixel.h"

namespace fastio {

// From the middle of a pixel of the result to a point of the image, both in pixels from their
// image's middle: x' = (m0 x + m1 y + m2) / w, y' = (m3 x + m4 y + m5) / w, w = m6 x + m7 y + 1.
struct WarpMap {
  std::array<double, 8> m{1, 0, 0, 0, 1, 0, 0, 0};
};

// The inverse map of torchvision's affine: the image turned by `degrees` counterclockwise, moved,
// scaled and sheared around `centre`, which is in pixels from the image's middle.
WarpMap affine_map(double degrees, double move_x, double move_y, double scale, double shear_x,
                   double shear_y, double centre_x = 0, double centre_y = 0);

// The map of an image whose corner pixels (top left, top right, bottom right, bottom left) come to
// lie at these points of the result, (x, y) in pixels from its top left corner.
WarpMap perspective_map(std::int32_t height, std::int32_t width,
                        const std::array<std::array<double, 2>, 4>& corners);

class Warp {
 public:
  // image becomes the result, of the same size. fill: the value of each channel where the point
  // lies outside of the image. Between pixels, as torchvision has it, those outside are 0, and the
  // sum counts with its share of the fill once more (unless no fill was `given`).
  void run(const Planes& image, const WarpMap& map, bool bilinear,
           const std::array<std::uint8_t, 3>& fill, bool given);

 private:
  void shift_rows(const Planes& image, const WarpMap& map, const std::array<std::uint8_t, 3>& fill);
  const std::uint8_t* source(int c) const {
    return source_.data() + stride_ * static_cast<std::size_t>(c);
  }
  void nearest(const Planes& image, const WarpMap& map);
  void bilinear(const Planes& image, const WarpMap& map, const std::array<std::uint8_t, 3>& fill,
                bool given);
  // One pixel of the result: within the image, and at its edge or outside.
  void between(const Planes& image, float px, float py, std::size_t out) const;
  void at_edge(const Planes& image, float px, float py, std::size_t out,
               const std::array<std::uint8_t, 3>& fill, bool given) const;

  // A copy of the image, each plane followed by a row of `fill`.
  std::vector<std::uint8_t> source_;
  std::size_t stride_ = 0;  // from plane to plane
  std::vector<std::int32_t> at_;
};

}  // namespace fastio
