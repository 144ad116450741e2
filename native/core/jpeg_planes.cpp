#include "jpeg_planes.h"

#include <algorithm>

#include "idct.h"
#include "jpeg_scan.h"

namespace fastio {
namespace {

// MCUs that are decoded together: their coefficients stay in the L1 cache.
constexpr std::int32_t kRun = 16;
// Blocks past the last one of a row that the inverse DCT may read.
constexpr std::size_t kPastBlocks = 3;

std::int16_t product(std::int16_t a, std::int16_t b) {
  return static_cast<std::int16_t>(static_cast<std::uint32_t>(std::int32_t{a}) *
                                   static_cast<std::uint32_t>(std::int32_t{b}));
}

}  // namespace

bool JpegPlanes::open(const JpegInput& input, JpegScan& scan) {
  scan_ = &scan;
  if (!read_shape(input.info, shape_).ok() || !scan.open(input.info)) return false;
  for (int c = 0; c < shape_.components; ++c) {
    const int table = input.info.comp_info[c].quant_tbl_no;
    if (!add_table(input.info.quant_tbl_ptrs[table], c, shape_).ok()) return false;
  }
  quant_.set(shape_);
  return true;
}

// Computes which MCUs and blocks the region needs, and allocates its planes.
Status JpegPlanes::prepare(PlaneView* planes) {
  rows_ = columns_ = {INT32_MAX, 0};
  for (int c = 0; c < region_.components; ++c) {
    const int size = 8 / region_.reduce[c];
    block_x_[c] = {region_.x[c].first / size, (region_.x[c].last - 1) / size + 1};
    block_y_[c] = {region_.y[c].first / size, (region_.y[c].last - 1) / size + 1};
    const int across = scan_->across(c), down = scan_->down(c);
    columns_.first = std::min(columns_.first, block_x_[c].first / across);
    columns_.last = std::max(columns_.last, (block_x_[c].last - 1) / across + 1);
    rows_.first = std::min(rows_.first, block_y_[c].first / down);
    rows_.last = std::max(rows_.last, (block_y_[c].last - 1) / down + 1);

    const std::int32_t width = (block_x_[c].last - block_x_[c].first) * size;
    const std::int32_t height = (block_y_[c].last - block_y_[c].first) * size;
    const std::int32_t slack = std::max<std::int32_t>(kIdctSlack, kReadPad);
    stride_[c] = (width + slack + 63) / 64 * 64;
    if (!planes_[c].resize(static_cast<std::size_t>(stride_[c]) * static_cast<std::size_t>(height)))
      return Status::error(Code::memory, "no memory for decoded samples");
    planes[c] = {planes_[c].data() + (region_.y[c].first - block_y_[c].first * size) * stride_[c] +
                     (region_.x[c].first - block_x_[c].first * size),
                 stride_[c]};
  }
  const auto all = static_cast<std::size_t>(scan_->layout().blocks);
  blocks_.resize(std::max(blocks_.size(), all * kRun + kPastBlocks));
  return Status::okay();
}

Status JpegPlanes::decode(const PlaneRegion& region, PlaneView* planes) {
  region_ = region;
  const Status status = prepare(planes);
  if (!status.ok()) return status;
  // Lay the blocks out by component and block row, so that blocks_ has the blocks of kRun MCUs
  // along a block row side by side, as idct() needs them.
  McuOutput out{};
  out.order = &kIdctOrder;
  Block* at = blocks_.data();
  int block = 0;
  for (int c = 0; c < shape_.components; ++c) {
    for (int y = 0; y < scan_->down(c); ++y, at += kRun * scan_->across(c)) {
      for (int x = 0; x < scan_->across(c); ++x, ++block) {
        out.first[block] = c < region.components ? at[x].value : nullptr;
        out.step[block] = 64 * scan_->across(c);
      }
    }
  }
  for (std::int32_t row = rows_.first; row < rows_.last; ++row) {
    for (std::int32_t column = columns_.first; column < columns_.last; column += kRun) {
      const std::int32_t count = std::min(kRun, columns_.last - column);
      const std::int64_t mcu = std::int64_t{row} * scan_->columns() + column;
      if (!scan_->skip_to(mcu) || !scan_->decode(count, out))
        return Status::error(Code::truncated, "JPEG data ends too early");
      write(row, column, count);
    }
  }
  return status;
}

// Writes the samples of `count` MCUs, whose coefficients are in blocks_, to the planes.
void JpegPlanes::write(std::int32_t row, std::int32_t column, std::int32_t count) {
  Block* at = blocks_.data();
  for (int c = 0; c < region_.components; ++c) {
    const int across = scan_->across(c), down = scan_->down(c);
    const std::int32_t begin = column * across;
    const std::int32_t first = std::max(block_x_[c].first, begin);
    const std::int32_t last = std::min(block_x_[c].last, begin + count * across);
    for (int y = 0; y < down; ++y, at += kRun * across) {
      const std::int32_t block_y = row * down + y;
      if (first >= last || block_y < block_y_[c].first || block_y >= block_y_[c].last) continue;
      write_blocks(c, block_y, first, last - first, at + (first - begin));
    }
  }
}

void JpegPlanes::write_blocks(int c, std::int32_t y, std::int32_t x, std::int32_t count,
                              Block* blocks) {
  const int size = 8 / region_.reduce[c];
  const std::int16_t* const quant = quant_.value[c];
  std::uint8_t* const out = planes_[c].data() + (y - block_y_[c].first) * size * stride_[c] +
                            (x - block_x_[c].first) * size;
  if (size == 1) {
    std::int16_t dc[4 * kRun];
    for (std::int32_t i = 0; i < count; ++i) dc[i] = product(blocks[i].value[0], quant[0]);
    idct_dc(dc, count, out);
    return;
  }
  for (std::int32_t i = 0; i < count; ++i)
    for (int k = 0; k < 64; ++k) blocks[i].value[k] = product(blocks[i].value[k], quant[k]);
  idct(size, blocks[0].value, count, out, stride_[c]);
}

void JpegPlanes::shrink(std::size_t keep) {
  for (Buffer& plane : planes_) plane.shrink(keep);
}

}  // namespace fastio
