// The single Huffman-coded scan of a JPEG whose header libjpeg has read: the shape of its planes,
// its tables, and its blocks MCU by MCU. For jpeg_coefficients.cpp, jpeg_planes.cpp and jpeg.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "blocks.h"
#include "huffman.h"
#include "jpeg_index.h"
#include "jpeg_input.h"
#include "status.h"

namespace fastio {

// Sets the shape, except the quantisers, from the header. Code::foreign: components that are
// neither gray, YCbCr nor RGB, not of 8 bits, or subsampled in a way that block records do not
// have.
Status read_shape(const jpeg_decompress_struct& info, BlockShape& shape);

// Gives component `c` its quantisation table: an equal one that `shape` has already, or a new one.
// Code::foreign: there is none, or it has a 0.
Status add_table(const JQUANT_TBL* from, int c, BlockShape& shape);

// A table and what it was built from. It is kept between files, as most have the standard's tables
// or those of their camera. Plain data.
struct KeptTable {
  bool build(const JHUFF_TBL& source, bool dc);

  std::uint8_t counts[17], symbols[256];
  bool built = false;
  HuffmanTable table;
};

// Plain data: libjpeg's calls may be left by longjmp.
class JpegScan {
 public:
  // Prepares the tables, and the decoder for the first MCU. libjpeg has read the header. False: the
  // file is not a single Huffman-coded scan of all components, or what libjpeg would check before
  // the first block is not sound.
  bool open(const jpeg_decompress_struct& info);

  // Blocks of component `c` in an MCU, across and down; MCUs of the image.
  int across(int c) const { return across_[c]; }
  int down(int c) const { return down_[c]; }
  std::int32_t columns() const { return shape_.columns; }
  std::int32_t rows() const { return shape_.rows; }

  const McuLayout& layout() const { return layout_; }

  // After open(): decoding begins at points of `index`, and `found` is set to the new points that
  // follow those of `index`. Each may be null. An index of another scan is not used, and `found`
  // gets no points then. Both must live as long as the scan is decoded.
  void use(const JpegIndex* index, JpegIndex* found);

  // skip_to() goes to an MCU, counted from left to right and from top to bottom; MCUs before it are
  // parsed, or skipped with the index. decode() decodes the next `count`. False: the bytes ended.
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
  std::int64_t next_ = 0;  // MCU
  const JpegIndex* index_ = nullptr;
  JpegIndex* found_ = nullptr;
  std::int64_t next_point_ = kNoPoint;  // MCU of the next one to be found
  static constexpr std::int64_t kNoPoint = INT64_MAX;
  JpegIndex::Scan shape_;              // of this scan, to compare with that of an index
  std::int32_t step_ = 1, steps_ = 1;  // its step, and points_a_row()
  unsigned restarts_in_ = 0;           // MCUs
};

// Has libjpeg read what follows a scan that was decoded to its end, up to the end of the image.
// Step::failed also where libjpeg's internals are not known.
Step read_end(JpegInput& input, JpegScan& scan);

}  // namespace fastio
