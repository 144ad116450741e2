// Decodes a region of a baseline JPEG to sample planes, as block_decoder.h does for block records.
// Entropy-coded bytes after the region are not read, and blocks beside it are only parsed.
//
// The bytes are not trusted. Damage has the same results as with libjpeg: MCUs that lack bits are
// gray up to the next restart marker, and if the bytes end before the region does, the result is
// Code::truncated.
#pragma once

#include <cstdint>
#include <vector>

#include "block_decoder.h"
#include "blocks.h"
#include "expand.h"
#include "planar.h"
#include "read.h"
#include "status.h"

namespace fastio {

struct JpegInput;
class JpegScan;

// Not thread-safe: each thread has its own, which keeps its memory between images.
class JpegPlanes {
 public:
  // Returns whether the file can be decoded here: a single Huffman-coded scan of 8-bit components
  // whose shape a block record could have. `input` has read its header, and `scan` is opened here;
  // both must live until decode() has returned.
  bool open(const JpegInput& input, JpegScan& scan);
  const BlockShape& shape() const { return shape_; }

  // Decodes a region, which must lie in the image. Call this once after open(). planes[c].first is
  // the region's first sample; kReadPad readable bytes follow each row. The planes are valid until
  // the next call.
  Status decode(const PlaneRegion& region, PlaneView* planes);

  // Frees each plane's memory if it has more than `keep` bytes.
  void shrink(std::size_t keep);

 private:
  struct Extent {
    std::int32_t first, last;
  };
  struct alignas(64) Block {
    std::int16_t value[64];
  };
  Status prepare(PlaneView* planes);
  void write(std::int32_t row, std::int32_t column, std::int32_t count);
  void write_blocks(int c, std::int32_t y, std::int32_t x, std::int32_t count, Block* blocks);

  JpegScan* scan_ = nullptr;
  BlockShape shape_;
  Dequantisers quant_;
  PlaneRegion region_;
  Extent rows_{}, columns_{};       // of MCUs
  Extent block_x_[3], block_y_[3];  // of each component: the blocks that the region needs
  Buffer planes_[3];
  std::ptrdiff_t stride_[3] = {};
  std::vector<Block> blocks_;  // of MCUs that are decoded together
};

}  // namespace fastio
