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

Status row_damaged(const char* section, std::size_t row) {
  return corrupt("tile row " + std::to_string(row) + " of the " + section +
                 " section is damaged: its CRC-32C is another");
}

Status tile_damaged(std::size_t row, std::size_t tile) {
  return corrupt("tile " + std::to_string(tile) + " of row " + std::to_string(row) +
                 " contradicts the format");
}

std::int16_t product(std::int16_t a, std::int16_t b) {
  return static_cast<std::int16_t>(static_cast<std::uint32_t>(std::int32_t{a}) *
                                   static_cast<std::uint32_t>(std::int32_t{b}));
}

std::int32_t round_up(std::int32_t value, std::int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Blocks [first, last) of `count` that hold reduced samples [range.first, range.last), `size` a
// block.
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

void BlockDecoder::plan(const PlaneRegion& region, ByteRange& dc, ByteRange& ac) {
  const BlockShape& shape = header_.shape;
  region_ = region;
  dc_only_ = true;
  tile_rows_ = tiles_ = {INT32_MAX, 0};
  for (int c = 0; c < region.components; ++c) {
    const int size = 8 / region.reduce[c];
    dc_only_ = dc_only_ && size == 1;
    block_x_[c] = blocks_of<Extent>(region.x[c], size);
    block_y_[c] = blocks_of<Extent>(region.y[c], size);
    const int across = shape.tile_blocks_x(c), down = shape.tile_blocks_y(c);
    tiles_.first = std::min(tiles_.first, block_x_[c].first / across);
    tiles_.last = std::max(tiles_.last, (block_x_[c].last - 1) / across + 1);
    tile_rows_.first = std::min(tile_rows_.first, block_y_[c].first / down);
    tile_rows_.last = std::max(tile_rows_.last, (block_y_[c].last - 1) / down + 1);
  }
  const auto tiles_x = static_cast<std::size_t>(shape.tiles_x());
  const std::size_t first = static_cast<std::size_t>(tile_rows_.first) * tiles_x;
  const std::size_t last = static_cast<std::size_t>(tile_rows_.last) * tiles_x;
  dc_range_ = dc = {header_.dc_begin[first], header_.dc_begin[last]};
  ac_range_ = ac =
      dc_only_ ? ByteRange{} : ByteRange{header_.ac_begin[first], header_.ac_begin[last]};
}

Status BlockDecoder::decode(const std::uint8_t* dc, const std::uint8_t* ac, PlaneView* planes) {
  for (int c = 0; c < region_.components; ++c) {
    const int size = 8 / region_.reduce[c];
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

Status BlockDecoder::decode_row(std::int32_t row, const std::uint8_t* dc, const std::uint8_t* ac) {
  const BlockShape& shape = header_.shape;
  const auto r = static_cast<std::size_t>(row);
  const auto tiles_x = static_cast<std::size_t>(shape.tiles_x());
  const std::size_t begin = r * tiles_x, end = begin + tiles_x;
  const auto dc_part = [&](std::size_t k) { return dc + (header_.dc_begin[k] - dc_range_.begin); };
  const auto ac_part = [&](std::size_t k) { return ac + (header_.ac_begin[k] - ac_range_.begin); };
  if (crc32c(dc_part(begin), header_.dc_begin[end] - header_.dc_begin[begin]) != header_.dc_crc[r])
    return row_damaged("DC", r);
  if (!dc_only_ &&
      crc32c(ac_part(begin), header_.ac_begin[end] - header_.ac_begin[begin]) != header_.ac_crc[r])
    return row_damaged("AC", r);

  TileRuns runs;
  std::int16_t values[kTileBlocks];
  std::int16_t* coefficients = coefficients_[0].value;
  for (std::int32_t t = tiles_.first; t < tiles_.last; ++t) {
    if (t == tiles_.first || t == shape.tiles_x() - 1) runs.set(shape, row, t);
    const std::size_t k = begin + static_cast<std::size_t>(t);
    const std::uint8_t* classes = decode_dc(
        *book_, runs, {dc_part(k), header_.dc_begin[k + 1] - header_.dc_begin[k]}, values);
    if (!classes) return tile_damaged(r, static_cast<std::size_t>(t));
    if (!dc_only_ &&
        !expand_tile(*book_, runs, {ac_part(k), header_.ac_begin[k + 1] - header_.ac_begin[k]},
                     classes, quant_, wanted(row, t, runs), coefficients))
      return tile_damaged(r, static_cast<std::size_t>(t));
    write_tile(row, t, runs, values);
  }
  return Status::okay();
}

// The blocks of a tile whose AC coefficients the region takes.
std::uint64_t BlockDecoder::wanted(std::int32_t row, std::int32_t tile,
                                   const TileRuns& runs) const {
  std::uint64_t bits = 0;
  int component = -1;
  std::int32_t y = 0;
  for (int k = 0; k < runs.runs; ++k) {
    const TileRuns::Run& run = runs.run[k];
    const int c = run.component;
    y = c == component ? y + 1 : row * header_.shape.tile_blocks_y(c);
    component = c;
    if (c >= region_.components || region_.reduce[c] == 8) continue;
    if (y < block_y_[c].first || y >= block_y_[c].last) continue;
    const std::int32_t x = tile * header_.shape.tile_blocks_x(c);
    const std::int32_t first = std::max(block_x_[c].first - x, 0);
    const std::int32_t last = std::min<std::int32_t>(block_x_[c].last - x, run.count);
    if (first < last) bits |= ((std::uint64_t{1} << (last - first)) - 1) << (run.first + first);
  }
  return bits;
}

// The inverse DCT of a tile's blocks into the planes.
void BlockDecoder::write_tile(std::int32_t row, std::int32_t tile, const TileRuns& runs,
                              const std::int16_t* dc) {
  std::int16_t* coefficients = coefficients_[0].value;
  int component = -1;
  std::int32_t y = 0;
  for (int k = 0; k < runs.runs; ++k) {
    const TileRuns::Run& run = runs.run[k];
    const int c = run.component;
    y = c == component ? y + 1 : row * header_.shape.tile_blocks_y(c);
    component = c;
    if (c >= region_.components) break;
    if (y < block_y_[c].first || y >= block_y_[c].last) continue;
    const std::int32_t x = tile * header_.shape.tile_blocks_x(c);
    const std::int32_t first = std::max(block_x_[c].first - x, 0);
    const std::int32_t last = std::min<std::int32_t>(block_x_[c].last - x, run.count);
    if (first >= last) continue;
    const int size = 8 / region_.reduce[c];
    const std::int16_t q = quant_.value[c][0];
    std::uint8_t* out = planes_[c].data() + (y - block_y_[c].first) * size * stride_[c] +
                        (x + first - block_x_[c].first) * size;
    if (size == 1) {
      std::int16_t scaled[kTileBlocks];
      for (std::int32_t i = first; i < last; ++i) scaled[i] = product(dc[run.first + i], q);
      idct_dc(scaled + first, last - first, out);
    } else {
      std::int16_t* blocks = coefficients + 64 * (run.first + first);
      for (std::int32_t i = 0; i < last - first; ++i)
        blocks[64 * i] = product(dc[run.first + first + i], q);
      idct(size, blocks, last - first, out, stride_[c]);
    }
  }
}

void BlockDecoder::shrink(std::size_t keep) {
  for (Buffer& plane : planes_) plane.shrink(keep);
}

namespace {

// The blocks of one tile, in their places among all blocks of each component.
void place_blocks(const BlockShape& shape, std::int32_t row, std::int32_t tile,
                  const TileRuns& runs, const std::int16_t* dc, std::int16_t* blocks,
                  JpegCoefficients& out) {
  int component = -1;
  std::int32_t y = 0;
  for (int k = 0; k < runs.runs; ++k) {
    const TileRuns::Run& run = runs.run[k];
    const int c = run.component;
    y = c == component ? y + 1 : row * shape.tile_blocks_y(c);
    component = c;
    const std::size_t at =
        static_cast<std::size_t>(y) * static_cast<std::size_t>(shape.blocks_x(c)) +
        static_cast<std::size_t>(tile * shape.tile_blocks_x(c));
    for (int i = 0; i < run.count; ++i) blocks[64 * (run.first + i)] = dc[run.first + i];
    std::copy_n(blocks + 64 * run.first, 64 * run.count, out.blocks[c].data() + 64 * at);
  }
}

Status unpack_tiles(const Codebook& book, const BlockHeader& header, const std::uint8_t* record,
                    JpegCoefficients& out) {
  const BlockShape& shape = header.shape;
  const auto tiles_x = static_cast<std::size_t>(shape.tiles_x());
  Dequantisers ones;
  ones.set_ones();
  TileRuns runs;
  std::int16_t dc[kTileBlocks];
  alignas(64) std::int16_t blocks[64 * kTileBlocks];
  for (std::size_t r = 0; r < header.dc_crc.size(); ++r) {
    const std::size_t begin = r * tiles_x, end = begin + tiles_x;
    const std::size_t dc_at = header.dc_begin[begin], ac_at = header.ac_begin[begin];
    if (crc32c(record + dc_at, header.dc_begin[end] - dc_at) != header.dc_crc[r])
      return row_damaged("DC", r);
    if (crc32c(record + ac_at, header.ac_begin[end] - ac_at) != header.ac_crc[r])
      return row_damaged("AC", r);
    for (std::size_t k = begin; k < end; ++k) {
      const auto row = static_cast<std::int32_t>(r), tile = static_cast<std::int32_t>(k - begin);
      runs.set(shape, row, tile);
      const TilePart dc_part{record + header.dc_begin[k],
                             header.dc_begin[k + 1] - header.dc_begin[k]};
      const TilePart ac_part{record + header.ac_begin[k],
                             header.ac_begin[k + 1] - header.ac_begin[k]};
      const std::uint8_t* classes = decode_dc(book, runs, dc_part, dc);
      if (!classes || !expand_tile(book, runs, ac_part, classes, ones, ~std::uint64_t{0}, blocks))
        return tile_damaged(r, k - begin);
      place_blocks(shape, row, tile, runs, dc, blocks, out);
    }
  }
  return Status::okay();
}

}  // namespace

Status unpack_record(const Codebook& book, const std::uint8_t* record, std::size_t size,
                     JpegCoefficients& out) {
  BlockHeader header;
  Status status = parse_header(record, size, size, header);
  if (!status.ok()) return status;
  const std::uint8_t* metadata = record + (size - header.metadata_bytes);
  if (crc32c(metadata, header.metadata_bytes) != header.metadata_crc)
    return corrupt("the metadata are damaged: their CRC-32C is another");
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
  return unpack_tiles(book, header, record, out);
}

}  // namespace fastio
