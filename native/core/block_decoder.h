// Decodes block records: a region to sample planes, or a whole record to coefficients.
//
// The record need not be in memory as a whole: plan() returns the bytes that a region needs. These
// are the region's tile rows of the DC section and, unless every plane is wanted at an eighth of
// its size, the groups of tiles of the AC section that the region touches. open() needs the header.
//
// The bytes are not trusted: checksums, sizes and counts are checked before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks.h"
#include "codebook.h"
#include "expand.h"
#include "limits.h"
#include "planar.h"
#include "read.h"
#include "status.h"

namespace fastio {

struct JpegCoefficients;

// Bytes [begin, end) of a record.
struct ByteRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

// The bytes of a record that a region needs, besides the header.
struct RecordReads {
  ByteRange dc;
  // One range for each column of groups, with adjacent ranges merged. Empty if the DC section
  // suffices.
  std::vector<ByteRange> ac;
};

// The samples to decode of each plane, at 1 / reduce[c] of the component's size (1, 2, 4 or 8;
// sizes round up). Only the first `components` components are decoded.
struct PlaneRegion {
  int components = 1;
  int reduce[3] = {1, 1, 1};
  SampleRange x[3], y[3];
};

// Not thread-safe: each thread keeps its own, which reuses its memory for the next image.
class BlockDecoder {
 public:
  // Parses the header from the first `size` bytes of a record of record_size bytes: see
  // parse_header(). The codebook must live as long as the record is decoded.
  Status open(const Codebook& book, const std::uint8_t* data, std::size_t size,
              std::size_t record_size);
  const BlockShape& shape() const { return header_.shape; }
  const BlockHeader& header() const { return header_; }

  // Returns the bytes that a region needs, valid until the next call. The region must lie in the
  // image.
  const RecordReads& plan(const PlaneRegion& region);

  // Decodes the planned region. dc, ac: the bytes of each range that plan() returned, each followed
  // by kExpandPad readable bytes. planes[c].first is the region's first sample; kReadPad readable
  // bytes follow each row. The planes are valid until the next call.
  Status decode(const std::uint8_t* dc, const std::uint8_t* const* ac, PlaneView* planes);

  // Frees each plane's memory if it has more than `keep` bytes.
  void shrink(std::size_t keep);

 private:
  struct Extent {
    std::int32_t first, last;
  };
  void plan_ac();
  Status decode_row(std::int32_t row, const std::uint8_t* dc, const std::uint8_t* const* ac);
  Status expand(std::int32_t row, std::int32_t tile, const std::uint8_t* group,
                const std::uint8_t* classes);
  void write_tile(std::int32_t tile);
  std::uint64_t wanted(std::int32_t tile) const;

  const Codebook* book_ = nullptr;
  BlockHeader header_;
  Dequantisers quant_;
  PlaneRegion region_;
  RecordReads reads_;
  // The index in reads_.ac of each column of groups, from the first one that the region needs.
  std::vector<std::size_t> range_of_column_;
  bool dc_only_ = false;
  Extent tile_rows_{}, tiles_{};
  int size_[3];                     // of each component: a decoded block's width and height
  Extent block_x_[3], block_y_[3];  // of each component: the blocks that the region needs
  Buffer planes_[3];
  std::ptrdiff_t stride_[3] = {};
  struct alignas(64) Coefficients {
    std::int16_t value[64 * (kTileBlocks + 4)];  // the inverse DCT reads up to 3 blocks past
  };
  std::vector<Coefficients> coefficients_;
  // The current tile row and tile.
  BlockRuns row_, tile_;
  std::vector<std::int16_t> row_dc_;
};

// Decodes a whole record to the coefficients and metadata that read_coefficients() gave for the
// JPEG, and checks every byte. Does not set the orientation and whether the JPEG was progressive,
// which are not in a record. kExpandPad readable bytes must follow `record`.
Status unpack_record(const Codebook& book, const std::uint8_t* record, std::size_t size,
                     JpegCoefficients& out, std::int64_t max_pixels = kAnyPixels);

}  // namespace fastio
