// Helpers that image.cpp, image_pixels.cpp, image_planes.cpp and other decoders of images share.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "image.h"
#include "status.h"

namespace fastio {

inline Status no_memory() { return Status::error(Code::memory, "no memory for decoded pixels"); }

// Whether an EXIF orientation swaps height and width.
inline bool swaps_axes(int orientation) { return orientation >= 5; }

// Whether y (x) of the upright image has the opposite direction of the stored axis along it.
inline bool mirrors_y(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}
inline bool mirrors_x(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}

// Returns ITU-R 601-2 luma, in Pillow's fixed point (Convert.c, rgb2l).
inline std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >>
                                   16);
}

// Converts the channels of pixels: from 3 or 4 to 1 or 3 (before resampling), or from 1 to 3 (after
// it).
inline void convert_channels(const std::uint8_t* src, std::size_t pixels, int from, int to,
                             std::uint8_t* dst) {
  for (std::size_t i = 0; i < pixels; ++i, src += from, dst += to) {
    if (to == 1) {
      dst[0] = luma(src);
    } else if (from == 1) {
      dst[0] = dst[1] = dst[2] = src[0];
    } else {
      std::memcpy(dst, src, 3);
    }
  }
}

// Adds the nanoseconds of its lifetime to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(Count& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - start_;
    total_.add(static_cast<std::uint64_t>(spent.count()));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Count& total_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace fastio
