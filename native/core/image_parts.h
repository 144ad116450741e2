// Helpers that image.cpp, image_planes.cpp and other decoders of images share.
#pragma once

#include <chrono>
#include <cstdint>

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
