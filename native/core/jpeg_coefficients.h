// Reads the quantised DCT coefficients of a JPEG file, which the block codec stores, and writes
// them as a JPEG file. Both functions are thread-safe and do not throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "limits.h"
#include "status.h"

namespace fastio {

// A decoded file without its entropy coding. Reuse the object: its vectors keep their memory.
struct JpegCoefficients {
  BlockShape shape;
  int orientation = 1;                  // EXIF, 1 to 8
  bool progressive = false;             // the file is progressive; write_jpeg() keeps that
  std::vector<std::uint8_t> metadata;   // APPn and COM segments before the first scan, with markers
  std::vector<std::int16_t> blocks[3];  // (blocks_y, blocks_x, 64), natural order, not dequantised
};

// Reads all coefficients of a file. Returns Code::foreign if no block record can hold them
// (docs/block_record.md) or libjpeg could not write them again; the message says why. Damaged files
// fail with the same status as in JpegDecoder::check(). An image of more than max_pixels is
// refused.
Status read_coefficients(const std::uint8_t* data, std::size_t size, JpegCoefficients& out,
                         std::int64_t max_pixels = kAnyPixels);

// Writes a JPEG file with these coefficients, quantisers, component identifiers and metadata
// segments, and with optimised Huffman tables. Returns Code::corrupt if parts of `in` contradict
// each other, and Code::unsupported if no JPEG can have such coefficients.
Status write_jpeg(const JpegCoefficients& in, std::vector<std::uint8_t>& out);

}  // namespace fastio
