// A safe interface to libjpeg-turbo: headers, EXIF orientation, and decoding of only the rows and
// columns that a crop needs. Planes of baseline files are decoded without libjpeg (jpeg_planes.h).
// jpeg_input.h has what all users of libjpeg share.
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
  // The coding process; baseline includes extended sequential files.
  enum class Kind { baseline, progressive, arithmetic };

  std::int32_t height = 0, width = 0;  // stored pixels, before any orientation
  int components = 0;                  // 1 gray, 3 colour, 4 CMYK or YCCK
  Kind kind = Kind::baseline;
  int orientation = 1;  // EXIF, 1 to 8; 1 if the file has none, or an invalid one
};

// A rectangle of pixels.
struct Rect {
  std::int32_t y = 0, x = 0, height = 0, width = 0;
};

// Returns the EXIF orientation of a JPEG file, 1 to 8, or 1 if there is none or it is invalid.
// Reads only the segments before the first scan, checks every length, and never fails.
int exif_orientation(const std::uint8_t* data, std::size_t size);

// Decodes one image after another. Not thread-safe: each thread keeps its own. The bytes that are
// given to open() must live until finish().
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Reads the header. Returns Code::foreign if the bytes are not a JPEG, or one that does not have
  // 1 or 3 components. want_orientation: false leaves header.orientation at 1, and saves a search.
  Status open(const std::uint8_t* data, std::size_t size, bool want_orientation,
              JpegHeader& header);

  // Starts to decode a region of the image, which is scaled by 1/denominator (1, 2, 4 or 8; sizes
  // round up). wanted: the region in the scaled image. Pixels are interleaved RGB, or gray for gray
  // images, and equal those of a full decode at that scale, including chroma upsampling at the
  // region's edges. Sets `columns` to the number of pixels in the rows that read() gives, and
  // `offset_x` to the region's first column in them.
  Status begin(const Rect& wanted, int denominator, std::int32_t& offset_x, std::int32_t& columns);

  // Decodes the next `rows` rows of the region to dst, `stride` bytes apart. Writes begin()'s
  // `columns` pixels to each row.
  Status read(std::uint8_t* dst, std::size_t stride, std::int32_t rows);

  // Call these after open(), instead of begin(). planes() returns the shape of the planes, or null
  // if JpegPlanes cannot decode this kind of file. decode() decodes a region of the planes. index,
  // found: see JpegScan::use().
  const BlockShape* planes();
  Status decode(const PlaneRegion& region, const JpegIndex* index, JpegIndex* found,
                PlaneView* planes);

  // Ends the current image, in any state. May be called at any time.
  void finish();

  // Validates the file after open(): decodes every coefficient, but no pixels. If the result is ok,
  // `index`, which must be empty, is the index of the file's scan; it is not always complete, see
  // JpegIndex::whole(). Calls finish().
  Status check(JpegIndex& index);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastio
