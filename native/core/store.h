// The last steps before an image's pixels are in a batch: splitting interleaved pixels into planes,
// and converting uint8 samples to floats. Also applies EXIF orientations.
//
// All functions are pure and thread-safe, read and write exactly the bytes named, and give equal
// bytes on every SIMD path.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

enum class Layout : std::uint8_t {
  hwc,  // interleaved: torch's channels-last
  chw,  // one plane after another
};

enum class Element : std::uint8_t { u8, f32 };

// The form of the images in a batch. For f32, value = fma(sample, scale[c], bias[c]), with one
// rounding. (ToDtype and Normalize together: scale = 1 / (255 * std), bias = -mean / std.) For u8,
// samples are unchanged, and scale and bias are ignored.
struct StoreSpec {
  Layout layout = Layout::hwc;
  Element element = Element::u8;
  float scale[4] = {1, 1, 1, 1};
  float bias[4] = {0, 0, 0, 0};
};

// Returns the bytes of an image of h x w x c in a batch.
std::size_t store_bytes(const StoreSpec& spec, std::int32_t h, std::int32_t w, int c);

// Splits `pixels` interleaved pixels of 3 or 4 channels into planes: channel k goes to
// dst + k * plane. src and dst must not overlap.
void split_pixels(const std::uint8_t* src, std::size_t pixels, int channels, std::uint8_t* dst,
                  std::ptrdiff_t plane);

// Converts `pixels` pixels to floats; src and dst both have the layout spec.layout. channels: those
// of dst, 1, 3 or 4. src_channels: the same, or 1, whose value is used for all channels of dst. dst
// must be aligned for floats. src and dst must not overlap.
void store_floats(const StoreSpec& spec, const std::uint8_t* src, int src_channels,
                  std::size_t pixels, int channels, float* dst);

// Applies an EXIF orientation (1 .. 8; 1 copies), like Pillow's ImageOps.exif_transpose. src:
// (h, w, c), with rows src_stride bytes apart; dst: (h, w, c), or (w, h, c) for orientations 5 to
// 8, with rows dst_stride bytes apart. c: 1, 3 or 4. src and dst must not overlap.
void orient(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t h, std::int32_t w,
            int c, int orientation, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace fastio
