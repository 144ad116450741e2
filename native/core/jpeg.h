// libjpeg-turbo behind a safe face: headers, EXIF orientation, and the decoding of just the rows
// and columns that a crop needs. The planes of baseline files are decoded without it
// (jpeg_planes.h). jpeg_input.h has what its users share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "block_decoder.h"
#include "blocks.h"
#include "jpeg_index.h"
#include "planar.h"
#include "status.h"

namespace fastio {

struct JpegHeader {
  // What the entropy coding is; "other" is what this build of libjpeg cannot decode.
  enum class Kind { baseline, progressive, arithmetic };

  std::int32_t height = 0, width = 0;  // stored pixels, before any orientation
  int components = 0;                  // 1 gray, 3 colour, 4 CMYK or YCCK
  Kind kind = Kind::baseline;
  int orientation = 1;  // EXIF 1 to 8; 1 where the file says nothing sensible
};

struct Rect {
  std::int32_t y = 0, x = 0, height = 0, width = 0;
};

// The EXIF orientation of a JPEG file's bytes, 1 if there is none. Reads the segments before the
// first scan only, checks every length, never fails.
int exif_orientation(const std::uint8_t* data, std::size_t size);

// Decodes one image at a time; kept by one thread and used again for the next image. Not
// thread-safe. The bytes given to open() must live until finish().
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. Code::foreign when the bytes are no JPEG or one with four components.
  // `want_orientation` false leaves header.orientation at 1 and saves the search.
  Status open(const std::uint8_t* data, std::size_t size, bool want_orientation,
              JpegHeader& header);

  // Starts decoding at 1/denominator of the size (1, 2, 4 or 8; sizes round up) the region
  // `wanted` of the scaled image, as 3 interleaved channels RGB, or 1 of gray for gray images.
  // The pixels are those that a full decode at that scale has there, chroma upsampling at the
  // region's edges included. `offset_x`: where the region's first column stands in the rows that
  // read() gives; `columns`: how many pixels such a row has.
  Status begin(const Rect& wanted, int denominator, std::int32_t& offset_x, std::int32_t& columns);

  // The next `rows` rows of the region into dst, `stride` bytes apart; each writes columns pixels.
  Status read(std::uint8_t* dst, std::size_t stride, std::int32_t rows);

  // After open(), instead of begin(): planes() returns the shape of the planes, or null if
  // JpegPlanes does not decode this kind of file; decode() decodes a region of them. index, found:
  // see JpegScan::use().
  const BlockShape* planes();
  Status decode(const PlaneRegion& region, const JpegIndex* index, JpegIndex* found,
                PlaneView* planes);

  // Ends the image, wherever it stands. Always safe to call.
  void finish();

  // Reads every coefficient of the image without computing a pixel: a sound file gives ok, and
  // `index`, which is empty, becomes that of its scan. It may not be whole: see JpegIndex::whole().
  // After open(); ends the image.
  Status check(JpegIndex& index);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastio
