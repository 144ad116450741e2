// Affine and projective transforms of one uint8 image in planes, like torchvision's affine, rotate
// and perspective on tensors: each pixel of the result is looked up in the image.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pixel.h"
#include "pixel_kernels.h"

namespace fastio {

// Maps the centre of a pixel of the result to a point of the image: x' = (m0 x + m1 y + m2) / w and
// y' = (m3 x + m4 y + m5) / w, where w = m6 x + m7 y + 1. Both points are in pixels: relative to
// the top left corner of the image if the map is projective, otherwise (w is then 1) to its centre.
struct WarpMap {
  std::array<double, 8> m{1, 0, 0, 0, 1, 0, 0, 0};
  bool projective = false;
};

// Returns the inverse map of torchvision's affine: the image is rotated by `degrees`
// counterclockwise, moved, scaled and sheared around a centre, which is in pixels relative to the
// image's centre.
WarpMap affine_map(double degrees, double move_x, double move_y, double scale, double shear_x,
                   double shear_y, double centre_x = 0, double centre_y = 0);

// Returns the map that moves the image's corner pixels (top left, top right, bottom right, bottom
// left) to these points of the result, (x, y) in pixels relative to its top left corner.
WarpMap perspective_map(std::int32_t height, std::int32_t width,
                        const std::array<std::array<double, 2>, 4>& corners);

// Applies maps. Keeps its scratch memory between images, so each thread has its own.
class Warp {
 public:
  // Replaces the image by the result, which has the same size. fill: the value of each channel for
  // points outside of the image. bilinear: interpolates between pixels as torchvision does: pixels
  // outside count as 0, and the result is then blended with `fill` by their share, if a fill was
  // `given`.
  void run(const Planes& image, const WarpMap& map, bool bilinear,
           const std::array<std::uint8_t, 3>& fill, bool given);
  // Frees scratch memory of more than `keep` bytes, as after an unusually large image.
  void shrink(std::size_t keep) { fastio::shrink(frame_, keep); }

 private:
  void shift_rows(const Planes& image, const WarpMap& map, const PixelMap& places,
                  const std::array<std::uint8_t, 3>& fill);
  void frame(const Planes& image, std::uint32_t outside, PixelMap& places);
  WarpRow row_memory(std::size_t count);

  std::vector<std::uint32_t> frame_, pixels_;
  std::vector<std::int32_t> at_;
  std::vector<std::int16_t> shares_;
  std::vector<std::uint64_t> pairs_;
  std::vector<std::uint8_t> row_;
};

}  // namespace fastio
