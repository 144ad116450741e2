// The last step of an image on its way into a batch slot: uint8 interleaved rows (H, W, C) become
// the layout and element type that the batch has. And EXIF orientations.
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

// Stores one image. src: (h, w, c) interleaved, rows src_stride bytes apart (negative: bottom-up,
// src being the row that comes first). c: 1, 3 or 4. dst: store_bytes() bytes, contiguous, aligned
// for its element type. src and dst must not overlap.
void store_image(const StoreSpec& spec, const std::uint8_t* src, std::ptrdiff_t src_stride,
                 std::int32_t h, std::int32_t w, int c, void* dst);

// Turns an image the way its EXIF orientation says (1 .. 8; 1 copies), as Pillow's
// ImageOps.exif_transpose does. src: (h, w, c) rows; dst: (h, w, c), or (w, h, c) for orientations
// 5 to 8, rows dst_stride bytes apart. c: 1, 3 or 4. src and dst must not overlap.
void orient(const std::uint8_t* src, std::ptrdiff_t src_stride, std::int32_t h, std::int32_t w,
            int c, int orientation, std::uint8_t* dst, std::ptrdiff_t dst_stride);

}  // namespace fastio
