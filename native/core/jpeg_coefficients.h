// The quantised DCT coefficients of a JPEG file, read from it and written back: what the block
// codec stores. Both functions are thread-safe and throw nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "limits.h"
#include "status.h"

namespace fastio {

// Its vectors keep their memory from one image to the next.
struct JpegCoefficients {
  BlockShape shape;
  int orientation = 1;                  // EXIF, 1 to 8
  bool progressive = false;             // the file was, and write_jpeg()'s will be
  std::vector<std::uint8_t> metadata;   // APPn and COM segments before the first scan, FF En on
  std::vector<std::int16_t> blocks[3];  // (blocks_y, blocks_x, 64), natural order, not dequantised
};

// Reads all of a file. Code::foreign: no block record can hold it (docs/block_record.md), or
// libjpeg could not write it again; the message says why. Damage is what JpegDecoder::check() has
// for it: a file that is read here is sound, and one that is not foreign fails here as it does
// there. An image of more than max_pixels is refused.
Status read_coefficients(const std::uint8_t* data, std::size_t size, JpegCoefficients& out,
                         std::int64_t max_pixels = kAnyPixels);

// A JPEG file with these coefficients, quantisers, component identifiers and metadata segments,
// and nothing else; its Huffman tables are made for it. Code::corrupt: parts that contradict each
// other. Code::unsupported: coefficients that no JPEG has.
Status write_jpeg(const JpegCoefficients& in, std::vector<std::uint8_t>& out);

}  // namespace fastio
