// The last steps of an image on its way into a batch slot: interleaved pixels become planes, uint8
// samples floats. And EXIF orientations.
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

// What a slot's row holds. For f32, value = fma(sample, scale[c], bias[c]): one rounding. (ToDtype
// and Normalize together: scale = 1 / (255 * std), bias = -mean / std.) u8 keeps samples as they
// are and ignores both.
struct StoreSpec {
  Layout layout = Layout::hwc;
  Element element = Element::u8;
  float scale[4] = {1, 1, 1, 1};
  float bias[4] = {0, 0, 0, 0};
};

// Bytes of an image of h x w x c in a slot.
std::size_t store_bytes(const StoreSpec& spec, std::int32_t h, std::int32_t w, int c);

// Splits `pixels` interleaved pixels of 3 or 4 channels: channel k's go to dst + k * plane. src and
// dst must not overlap.
void split_pixels(const std::uint8_t* src, std::size_t pixels, int channels, std::uint8_t* dst,
                  std::ptrdiff_t plane);

// An image of so many pixels as floats, both in the layout that spec names. channels: 1, 3 or 4.
// src_channels: as many, or 1, which stands for all of them equal. dst: aligned for floats. src and
// dst must not overlap.
void store_floats(const StoreSpec& spec, const std::uint8_t* src, int src_channels,
                  std::size_t pixels, int channels, float* dst);

// Turns an image the way its EXIF orientation says (1 .. 8; 1 copies), as Pillow's
// ImageOps.exif_transpose does. src: (h, w, c) rows; dst: (h, w, c), or (w, h, c) for orientations
// 5 to 8, rows dst_stride bytes apart. c: 1, 3 or 4. src and dst must not overlap.
void orient(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t h, std::int32_t w,
            int c, int orientation, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace fastio
