// The limit on the size of images. The size in a header is compared before memory is allocated.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "status.h"

namespace fastio {

inline constexpr std::int64_t kAnyPixels = std::numeric_limits<std::int64_t>::max();

// Returns Code::unsupported if height x width is more than max_pixels. Never overflows.
inline Status check_pixels(std::int32_t height, std::int32_t width, std::int64_t max_pixels) {
  if (std::int64_t{height} * width <= max_pixels) return Status::okay();
  return Status::error(Code::unsupported,
                       "it has " + std::to_string(width) + " x " + std::to_string(height) +
                           " pixels, more than max_pixels=" + std::to_string(max_pixels) +
                           ". If you trust the data, pass a larger max_pixels "
                           "to fastio.open or fastio.pack");
}

}  // namespace fastio
