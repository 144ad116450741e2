// Runs drawn operations on one uint8 image in planes.
#pragma once

#include <cstdint>
#include <vector>

#include "augment.h"
#include "pixel.h"
#include "store.h"
#include "warp.h"

namespace fastio {

// Keeps its scratch memory between images, so each thread has its own.
class PixelRunner {
 public:
  // Runs any operation except crop, pad and one_channel, which change the image's size.
  void run(const Planes& image, const DrawnOp& drawn);
  // Frees scratch memory of more than `keep` bytes, as after an unusually large image.
  void shrink(std::size_t keep);

 private:
  void mix(const Planes& image, const DrawnOp& drawn);

  PixelScratch scratch_;
  Warp warp_;
  std::vector<std::uint8_t> original_;  // the saved image of a mix
  std::vector<float> mixed_;
};

// PixelOp::pad: copies `image` to its position in `out`, which has the padded size, and fills the
// rest.
void pad_planes(const Planes& image, const DrawnOp& drawn, const Planes& out);

// PixelOp::erase: fills a box of an image of height x width float pixels in this layout.
void erase_floats(const DrawnOp& drawn, Layout layout, std::int32_t height, std::int32_t width,
                  int channels, float* pixels);

// Converts planes to interleaved pixels. They must not overlap.
void interleave_planes(const Planes& image, std::uint8_t* out);

}  // namespace fastio
