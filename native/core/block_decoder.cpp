#include "block_decoder.h"

#include <algorithm>
#include <string>

#include "crc32c.h"
#include "idct.h"
#include "jpeg_coefficients.h"

namespace fastio {
namespace {

Status corrupt(std::string what) {
  return Status::error(Code::corrupt, "block record: " + std::move(what));
}

std::string number(std::int64_t value) { return std::to_string(value); }

// Finds the part of a tile row in the DC section, and compares its checksum. bytes: the record's
// bytes from offset `begin` on.
Status dc_part(const BlockHeader& header, std::int32_t row, const std::uint8_t* bytes,
               std::size_t begin, RowPart& out) {
  const auto r = static_cast<std::size_t>(row);
  out = {bytes + (header.dc_begin[r] - begin), header.dc_begin[r + 1] - header.dc_begin[r]};
  if (crc32c(out.data, out.size) == header.dc_crc[r]) return Status::okay();
  return corrupt("tile row " + number(row) +
                 " of the DC section is damaged: its CRC-32C does not match");
}

Status dc_damaged(std::int32_t row) {
  return corrupt("tile row " + number(row) + " of the DC section violates the format");
}

// Compares the checksum of group (row, g). bytes: those of the group.
Status check_group(const BlockHeader& header, std::int32_t row, std::int32_t g,
                   const std::uint8_t* bytes) {
  const std::size_t size = header.group_end(row, g) - header.group_begin(row, g);
  if (crc32c(bytes, size) == header.ac_crc[header.shape.group_number(row, g)])
    return Status::okay();
  const std::int32_t first = g * kGroupTiles;
  return corrupt("tiles " + number(first) + " to " +
                 number(first + header.shape.group_tiles(g) - 1) + " of row " + number(row) +
                 " of the AC section are damaged: their CRC-32C does not match");
}

// Returns the part of tile (row, t). group: the bytes of the tile's group.
TilePart ac_part(const BlockHeader& header, std::int32_t row, std::int32_t t,
                 const std::uint8_t* group) {
  const std::size_t k = header.shape.tile_number(row, t);
  return {group + (header.ac_begin[k] - header.group_begin(row, t / kGroupTiles)),
          header.ac_begin[k + 1] - header.ac_begin[k], header.exceptions[k]};
}

Status tile_damaged(std::int32_t row, std::int32_t t) {
  return corrupt("tile " + number(t) + " of row " + number(row) + " violates the format");
}

// Prefetches bytes that are read some microseconds later, a part at a time: a core has only some
// 16 buffers for lines that are on their way, and waits when it has no more.
class Prefetch {
 public:
  void begin(const std::uint8_t* bytes, std::size_t size) {
    next_ = bytes;
    end_ = bytes + size;
  }
  // Prefetches one of `parts` equal parts of the bytes that are left.
  void some(std::int32_t parts) {
    const std::ptrdiff_t lines = (end_ - next_ + 63) / 64;
    for (std::ptrdiff_t i = (lines + parts - 1) / parts; i > 0; --i, next_ += 64)
      __builtin_prefetch(next_);
  }

 private:
  const std::uint8_t *next_ = nullptr, *end_ = nullptr;
};

std::int32_t round_up(std::int32_t value, std::int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns the blocks [first, last) that contain the reduced samples of a range, of which each block
// has `size` along an axis.
template <typename Extent>
Extent blocks_of(const SampleRange& range, int size) {
  return {range.first / size, (range.last - 1) / size + 1};
}

}  // namespace

Status BlockDecoder::open(const Codebook& book, const std::uint8_t* data, std::size_t size,
                          std::size_t record_size) {
  book_ = &book;
  const Status status = parse_header(data, size, record_size, header_);
  if (status.ok()) quant_.set(header_.shape);
  return status;
}

const RecordReads& BlockDecoder::plan(const PlaneRegion& region) {
  const BlockShape& shape = header_.shape;
  region_ = region;
  dc_only_ = true;
  tile_rows_ = tiles_ = {INT32_MAX, 0};
  for (int c = 0; c < region.components; ++c) {
    const int size = size_[c] = 8 / region.reduce[c];
    dc_only_ = dc_only_ && size == 1;
    block_x_[c] = blocks_of<Extent>(region.x[c], size);
    block_y_[c] = blocks_of<Extent>(region.y[c], size);
    const int across = shape.tile_blocks_x(c), down = shape.tile_blocks_y(c);
    tiles_.first = std::min(tiles_.first, block_x_[c].first / across);
    tiles_.last = std::max(tiles_.last, (block_x_[c].last - 1) / across + 1);
    tile_rows_.first = std::min(tile_rows_.first, block_y_[c].first / down);
    tile_rows_.last = std::max(tile_rows_.last, (block_y_[c].last - 1) / down + 1);
  }
  reads_.dc = {header_.dc_begin[static_cast<std::size_t>(tile_rows_.first)],
               header_.dc_begin[static_cast<std::size_t>(tile_rows_.last)]};
  reads_.ac.clear();
  range_of_column_.clear();
  if (!dc_only_) plan_ac();
  return reads_;
}

// Plans the ranges of the AC section: one for each column of groups, which has the region's tile
// rows one after the other.
void BlockDecoder::plan_ac() {
  std::vector<ByteRange>& ranges = reads_.ac;
  for (std::int32_t g = tiles_.first / kGroupTiles; g * kGroupTiles < tiles_.last; ++g) {
    const ByteRange range{header_.group_begin(tile_rows_.first, g),
                          header_.group_end(tile_rows_.last - 1, g)};
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
    range_of_column_.push_back(ranges.size() - 1);
  }
}

Status BlockDecoder::decode(const std::uint8_t* dc, const std::uint8_t* const* ac,
                            PlaneView* planes) {
  for (int c = 0; c < region_.components; ++c) {
    const int size = size_[c];
    const std::int32_t width = (block_x_[c].last - block_x_[c].first) * size;
    const std::int32_t height = (block_y_[c].last - block_y_[c].first) * size;
    const std::int32_t slack = std::max<std::int32_t>(kIdctSlack, kReadPad);
    stride_[c] = round_up(width + slack, 64);
    if (!planes_[c].resize(static_cast<std::size_t>(stride_[c]) * static_cast<std::size_t>(height)))
      return Status::error(Code::memory, "no memory for decoded samples");
    planes[c] = {planes_[c].data() + (region_.y[c].first - block_y_[c].first * size) * stride_[c] +
                     (region_.x[c].first - block_x_[c].first * size),
                 stride_[c]};
  }
  if (coefficients_.empty()) coefficients_.resize(1);
  Status status;
  for (std::int32_t row = tile_rows_.first; status.ok() && row < tile_rows_.last; ++row)
    status = decode_row(row, dc, ac);
  return status;
}

Status BlockDecoder::decode_row(std::int32_t row, const std::uint8_t* dc,
                                const std::uint8_t* const* ac) {
  const BlockShape& shape = header_.shape;
  RowPart part;
  Status status = dc_part(header_, row, dc, reads_.dc.begin, part);
  if (!status.ok()) return status;
  row_.set_row(shape, row);
  row_dc_.resize(std::max(row_dc_.size(), static_cast<std::size_t>(row_.blocks + kTileColumns)));
  const std::uint8_t* classes = decode_dc(*book_, row_, part, quant_, row_dc_.data());
  if (!classes) return dc_damaged(row);
  const std::uint8_t* group = nullptr;
  Prefetch next;  // the bytes of the same group in the next row
  for (std::int32_t t = tiles_.first; t < tiles_.last; ++t) {
    if (t == tiles_.first || t == shape.tiles_x() - 1) tile_.set_tile(shape, row, t);
    if (!dc_only_) {
      if (t == tiles_.first || t % kGroupTiles == 0) {
        const std::int32_t g = t / kGroupTiles;
        const std::size_t range =
            range_of_column_[static_cast<std::size_t>(g - tiles_.first / kGroupTiles)];
        group = ac[range] + (header_.group_begin(row, g) - reads_.ac[range].begin);
        if (row + 1 < tile_rows_.last)
          next.begin(ac[range] + (header_.group_begin(row + 1, g) - reads_.ac[range].begin),
                     header_.group_end(row + 1, g) - header_.group_begin(row + 1, g));
        status = check_group(header_, row, g, group);
      }
      next.some(std::min(t / kGroupTiles * kGroupTiles + kGroupTiles, tiles_.last) - t);
      if (status.ok()) status = expand(row, t, group, classes);
      if (!status.ok()) return status;
    }
    write_tile(t);
  }
  return status;
}

// Decodes the coefficients of a tile's blocks that the region needs.
Status BlockDecoder::expand(std::int32_t row, std::int32_t tile, const std::uint8_t* group,
                            const std::uint8_t* classes) {
  std::uint8_t own[kTileBlocks + kTileColumns];
  std::int16_t dcs[kTileBlocks + kTileColumns];
  take_tile(header_.shape, row_, classes, tile_, tile, own);
  take_tile(header_.shape, row_, row_dc_.data(), tile_, tile, dcs);
  const bool sound = expand_tile(*book_, tile_, ac_part(header_, row, tile, group), own, dcs,
                                 quant_, wanted(tile), coefficients_[0].value);
  return sound ? Status::okay() : tile_damaged(row, tile);
}

// Returns, as bits, the blocks of a tile whose AC coefficients the region needs.
std::uint64_t BlockDecoder::wanted(std::int32_t tile) const {
  std::uint64_t bits = 0;
  for (int k = 0; k < tile_.runs; ++k) {
    const BlockRuns::Run& run = tile_.run[k];
    const int c = run.component;
    if (c >= region_.components || region_.reduce[c] == 8) continue;
    if (run.y < block_y_[c].first || run.y >= block_y_[c].last) continue;
    const std::int32_t x = tile * header_.shape.tile_blocks_x(c);
    const std::int32_t first = std::max(block_x_[c].first - x, 0);
    const std::int32_t last = std::min(block_x_[c].last - x, run.count);
    if (first < last) bits |= ((std::uint64_t{1} << (last - first)) - 1) << (run.first + first);
  }
  return bits;
}

// Writes the samples of a tile's blocks to the planes.
void BlockDecoder::write_tile(std::int32_t tile) {
  const std::int16_t* coefficients = coefficients_[0].value;
  for (int k = 0; k < tile_.runs; ++k) {
    const BlockRuns::Run& run = tile_.run[k];
    const int c = run.component;
    if (c >= region_.components) break;
    if (run.y < block_y_[c].first || run.y >= block_y_[c].last) continue;
    const std::int32_t x = tile * header_.shape.tile_blocks_x(c);
    const std::int32_t first = std::max(block_x_[c].first - x, 0);
    const std::int32_t count = std::min(block_x_[c].last - x, run.count) - first;
    if (count <= 0) continue;
    const int size = size_[c];
    std::uint8_t* out = planes_[c].data() + (run.y - block_y_[c].first) * size * stride_[c] +
                        (x + first - block_x_[c].first) * size;
    if (size == 1) {
      idct_dc(row_dc_.data() + row_.run[k].first + x + first, count, out);
    } else {
      const std::int16_t* blocks = coefficients + 64 * (run.first + first);
      idct(size, blocks, count, out, stride_[c]);
    }
  }
}

void BlockDecoder::shrink(std::size_t keep) {
  for (Buffer& plane : planes_) plane.shrink(keep);
}

namespace {

// Copies the blocks of a tile to their positions in the image's coefficients, in natural order.
void place_blocks(const BlockShape& shape, std::int32_t t, const BlockRuns& tile,
                  const std::int16_t* blocks, JpegCoefficients& out) {
  for (int k = 0; k < tile.runs; ++k) {
    const BlockRuns::Run& run = tile.run[k];
    const int c = run.component;
    const std::int32_t x = t * shape.tile_blocks_x(c);
    const std::size_t at =
        static_cast<std::size_t>(run.y) * static_cast<std::size_t>(shape.blocks_x(c)) +
        static_cast<std::size_t>(x);
    const std::int16_t* from = blocks + 64 * run.first;
    std::int16_t* to = out.blocks[c].data() + 64 * at;
    for (std::int32_t i = 0; i < run.count; ++i, from += 64, to += 64)
      for (int n = 0; n < 64; ++n) to[n] = from[idct_place(n)];
  }
}

// Decodes the blocks of a tile row for unpack_record().
Status unpack_row(const Codebook& book, const BlockHeader& header, std::int32_t row,
                  const std::uint8_t* record, std::vector<std::int16_t>& dc,
                  JpegCoefficients& out) {
  const BlockShape& shape = header.shape;
  RowPart part;
  Status status = dc_part(header, row, record, 0, part);
  if (!status.ok()) return status;
  BlockRuns whole, tile;
  whole.set_row(shape, row);
  dc.resize(static_cast<std::size_t>(whole.blocks + kTileColumns));
  Dequantisers ones;
  ones.set_ones();
  const std::uint8_t* classes = decode_dc(book, whole, part, ones, dc.data());
  if (!classes) return dc_damaged(row);
  std::uint8_t own[kTileBlocks + kTileColumns];
  std::int16_t dcs[kTileBlocks + kTileColumns];
  alignas(64) std::int16_t blocks[64 * kTileBlocks];
  for (std::int32_t t = 0; t < shape.tiles_x(); ++t) {
    const std::int32_t g = t / kGroupTiles;
    const std::uint8_t* group = record + header.group_begin(row, g);
    if (t % kGroupTiles == 0) status = check_group(header, row, g, group);
    if (!status.ok()) return status;
    tile.set_tile(shape, row, t);
    take_tile(shape, whole, classes, tile, t, own);
    take_tile(shape, whole, dc.data(), tile, t, dcs);
    if (!expand_tile(book, tile, ac_part(header, row, t, group), own, dcs, ones, ~std::uint64_t{0},
                     blocks))
      return tile_damaged(row, t);
    place_blocks(shape, t, tile, blocks, out);
  }
  return status;
}

}  // namespace

Status unpack_record(const Codebook& book, const std::uint8_t* record, std::size_t size,
                     JpegCoefficients& out, std::int64_t max_pixels) {
  BlockHeader header;
  Status status = parse_header(record, size, size, header);
  if (status.ok()) status = check_pixels(header.shape.height, header.shape.width, max_pixels);
  if (!status.ok()) return status;
  const std::uint8_t* metadata = record + (size - header.metadata_bytes);
  if (crc32c(metadata, header.metadata_bytes) != header.metadata_crc)
    return corrupt("the metadata is damaged: its CRC-32C does not match");
  out.shape = header.shape;
  out.metadata.assign(metadata, metadata + header.metadata_bytes);
  for (int c = 0; c < 3; ++c) {
    const bool there = c < header.shape.components;
    out.blocks[c].assign(there ? std::size_t{64} *
                                     static_cast<std::size_t>(header.shape.blocks_x(c)) *
                                     static_cast<std::size_t>(header.shape.blocks_y(c))
                               : 0,
                         0);
  }
  std::vector<std::int16_t> dc;
  for (std::int32_t row = 0; status.ok() && row < header.shape.tile_rows(); ++row)
    status = unpack_row(book, header, row, record, dc, out);
  return status;
}

}  // namespace fastio
