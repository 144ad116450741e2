// Decodes a whole block record to pixels, at its own or a reduced size, for single samples and
// thumbnails. Images of batches are decoded by image.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "block_decoder.h"
#include "codebook.h"
#include "limits.h"
#include "planar.h"
#include "status.h"

namespace fastio {

class BlockPixels {
 public:
  // record: the first `size` bytes of a record of record_size bytes. They must contain what is
  // decoded (at denominator 8, the header and the DC section), and live until read() has returned.
  // denominator: 1, 2, 4 or 8; sizes round up. channels: 1 or 3. orientation: EXIF, 1 to 8.
  // max_pixels: a stored image of more pixels is refused.
  Status open(const Codebook& book, const std::uint8_t* record, std::size_t size,
              std::size_t record_size, int orientation, int denominator, int channels,
              std::int64_t max_pixels = kAnyPixels);

  // The size of the upright image. Call these after open().
  std::int32_t height() const { return swap() ? columns_ : rows_; }
  std::int32_t width() const { return swap() ? rows_ : columns_; }

  // Decodes the image to `out`: (height, width, channels), interleaved.
  Status read(std::uint8_t* out);

 private:
  bool swap() const { return orientation_ >= 5; }

  const std::uint8_t* record_ = nullptr;
  std::size_t size_ = 0;
  int orientation_ = 1, channels_ = 3;
  std::int32_t rows_ = 0, columns_ = 0;  // as stored
  PlaneRegion region_;
  BlockDecoder decoder_;
  PlanarResampler resampler_;
};

}  // namespace fastio
