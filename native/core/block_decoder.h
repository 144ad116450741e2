// Block records to sample planes, a region at a time, or back to coefficients.
//
// A record need not be in memory as a whole: plan() says which of its bytes a region takes. That is
// the header, which open() reads, the region's tile rows of the DC section, and, unless every plane
// is wanted at an eighth of its size, the groups of tiles of the AC section that the region
// touches.
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

// What a region takes of a record behind its header.
struct RecordReads {
  ByteRange dc;
  // One range for each column of groups, or fewer: ranges that follow each other are one. None
  // where the DC section suffices.
  std::vector<ByteRange> ac;
};

// Samples of each plane that are wanted, at 1 / reduce[c] of the component's size (1, 2, 4 or 8;
// sizes round up). Components from `components` on are not wanted at all.
struct PlaneRegion {
  int components = 1;
  int reduce[3] = {1, 1, 1};
  SampleRange x[3], y[3];
};

// One a thread; keeps its memory between images.
class BlockDecoder {
 public:
  // Reads the header from the first `size` bytes of a record of record_size. The codebook must
  // outlive what follows.
  Status open(const Codebook& book, const std::uint8_t* data, std::size_t size,
              std::size_t record_size);
  const BlockShape& shape() const { return header_.shape; }
  const BlockHeader& header() const { return header_; }

  // Where the bytes of a region stand; valid until the next call. A region that does not lie in the
  // image is the caller's mistake.
  const RecordReads& plan(const PlaneRegion& region);

  // Decodes the planned region from those bytes; ac: of each range. kExpandPad readable bytes
  // follow those of the DC section and of each range. planes[c].first is the region's first sample;
  // rows are padded by kReadPad readable bytes. They live until the next call.
  Status decode(const std::uint8_t* dc, const std::uint8_t* const* ac, PlaneView* planes);

  // Gives memory back that a large image took.
  void shrink(std::size_t keep);

 private:
  struct Extent {
    std::int32_t first, last;
  };
  void plan_ac();
  Status decode_row(std::int32_t row, const std::uint8_t* dc, const std::uint8_t* const* ac);
  Status expand(std::int32_t row, std::int32_t tile, const std::uint8_t* group,
                const std::uint8_t* classes);
  void set_dcs(std::int32_t tile);
  void write_tile(std::int32_t tile);
  std::uint64_t wanted(std::int32_t tile) const;

  const Codebook* book_ = nullptr;
  BlockHeader header_;
  Dequantisers quant_;
  PlaneRegion region_;
  RecordReads reads_;
  std::vector<std::size_t> range_of_column_;  // of groups, from the first one that the region takes
  bool dc_only_ = false;
  Extent tile_rows_{}, tiles_{};
  Extent block_x_[3], block_y_[3];  // of each component: the blocks that the region takes
  Buffer planes_[3];
  std::ptrdiff_t stride_[3] = {};
  struct alignas(64) Coefficients {
    std::int16_t value[64 * (kTileBlocks + 4)];  // the inverse DCT reads up to 3 blocks past
  };
  std::vector<Coefficients> coefficients_;
  // The tile row and the tile at work.
  BlockRuns row_, tile_;
  std::vector<std::int16_t> row_dc_;
};

// Every coefficient, checksum and byte of a record, read and checked: what read_coefficients() gave
// for the JPEG. The orientation and whether it was progressive are not in a record. `record` is
// followed by kExpandPad readable bytes.
Status unpack_record(const Codebook& book, const std::uint8_t* record, std::size_t size,
                     JpegCoefficients& out, std::int64_t max_pixels = kAnyPixels);

}  // namespace fastio
