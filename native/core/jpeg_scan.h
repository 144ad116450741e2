// Decodes the single Huffman-coded scan of a JPEG whose header libjpeg has read: the shape of its
// planes, its tables, and its blocks MCU by MCU. Used by jpeg_coefficients.cpp, jpeg_planes.cpp and
// jpeg.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "blocks.h"
#include "huffman.h"
#include "jpeg_index.h"
#include "jpeg_input.h"
#include "status.h"

namespace fastio {

// Sets the shape, except the quantisers, from the header. Returns Code::foreign if block records
// cannot hold the image: components other than gray, YCbCr or RGB, samples of more than 8 bits,
// arithmetic or lossless coding, or another subsampling.
Status read_shape(const jpeg_decompress_struct& info, BlockShape& shape);

// Assigns component `c` a quantisation table: an equal one that `shape` has already, or a new one.
// Call it for c = 0, 1, ... in order. Returns Code::foreign if `from` is null or contains a 0.
Status add_table(const JQUANT_TBL* from, int c, BlockShape& shape);

// A decoding table and the Huffman table that it was built from. It is reused for the next file if
// that has the same table, as files of one camera or with the standard's tables do. Plain data.
struct KeptTable {
  // Builds the table unless it is the current one. Returns false if HuffmanTable::build() does.
  bool build(const JHUFF_TBL& source, bool dc);

  std::uint8_t counts[17], symbols[256];
  bool built = false;
  HuffmanTable table;
};

// Plain data, because libjpeg may leave calls by longjmp. Must not be moved after open().
class JpegScan {
 public:
  // Builds the tables and prepares to decode the first MCU. libjpeg must have read the header.
  // Returns false if the file is not a single Huffman-coded scan of all components, or if libjpeg
  // would reject it before the first block.
  bool open(const jpeg_decompress_struct& info);

  // across(), down(): the blocks of component `c` in an MCU. columns(), rows(): the MCUs of the
  // image.
  int across(int c) const { return across_[c]; }
  int down(int c) const { return down_[c]; }
  std::int32_t columns() const { return shape_.columns; }
  std::int32_t rows() const { return shape_.rows; }

  const McuLayout& layout() const { return layout_; }

  // Call this after open() to begin at points of `index` and to collect the points after those in
  // `found`. Each may be null. If `index` is that of another scan, it is not used, and `found` gets
  // no points. Both must live as long as the scan is decoded.
  void use(const JpegIndex* index, JpegIndex* found);

  // skip_to() advances to an MCU, in raster order; MCUs before it are parsed, or skipped by means
  // of the index. decode() decodes the next `count` MCUs. Both return false if the bytes ended.
  bool skip_to(std::int64_t mcu);
  bool decode(std::int32_t count, McuOutput out);

  ScanDecoder& decoder() { return decoder_; }

 private:
  std::int64_t mcu_of(std::size_t point) const;
  void seek(std::int64_t mcu);
  void note_point();
  std::int32_t begin_run(std::int64_t wanted);

  ScanDecoder decoder_;
  KeptTable dc_[NUM_HUFF_TBLS], ac_[NUM_HUFF_TBLS];
  McuLayout layout_;
  int across_[3] = {}, down_[3] = {};
  std::int64_t next_ = 0;  // the next MCU
  const JpegIndex* index_ = nullptr;
  JpegIndex* found_ = nullptr;
  std::int64_t next_point_ = kNoPoint;  // the MCU whose position is the next new point
  static constexpr std::int64_t kNoPoint = INT64_MAX;
  JpegIndex::Scan shape_;              // of this scan, to compare with that of an index
  std::int32_t step_ = 1, steps_ = 1;  // shape_.step and shape_.points_a_row()
  unsigned restarts_in_ = 0;           // MCUs until the next restart marker
};

// After all MCUs of a scan are decoded, lets libjpeg read the markers up to the end of the image.
// Fails also if this was compiled without libjpeg's internal header, or with another release's.
Step read_end(JpegInput& input, JpegScan& scan);

}  // namespace fastio
