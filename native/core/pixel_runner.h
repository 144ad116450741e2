// Runs drawn operations on one image of bytes in planes.
#pragma once

#include <cstdint>
#include <vector>

#include "augment.h"
#include "pixel.h"
#include "store.h"
#include "warp.h"

namespace fastio {

// One a thread; keeps its scratch memory between images.
class PixelRunner {
 public:
  // Any operation but crop, pad and one_channel, which change the image's size.
  void run(const Planes& image, const DrawnOp& drawn);
  // Frees scratch memory of more than `keep` bytes, as after an unusually large image.
  void shrink(std::size_t keep);

 private:
  void mix(const Planes& image, const DrawnOp& drawn);

  PixelScratch scratch_;
  Warp warp_;
  std::vector<std::uint8_t> original_;  // of a mix
  std::vector<float> mixed_;
};

// Of PixelOp::pad: `image` into the middle of `out`, which has its size, and the rest filled.
void pad_planes(const Planes& image, const DrawnOp& drawn, const Planes& out);

// Of PixelOp::erase: a box of floats of height x width pixels in this layout.
void erase_floats(const DrawnOp& drawn, Layout layout, std::int32_t height, std::int32_t width,
                  int channels, float* pixels);

// Planes to interleaved pixels, which must not overlap.
void interleave_planes(const Planes& image, std::uint8_t* out);

}  // namespace fastio
