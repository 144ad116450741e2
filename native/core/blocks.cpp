#include "blocks.h"

#include <algorithm>
#include <string>

#include "codebook.h"
#include "crc32c.h"

namespace fastio {
namespace {

constexpr std::size_t kFixedBytes = 20;  // the fields before the quantisation tables

Status corrupt(std::string what) {
  return Status::error(Code::corrupt, "block record: " + std::move(what));
}

Status too_short(std::size_t need, std::size_t have) {
  return Status::error(Code::truncated, "block record: its header needs at least " +
                                            std::to_string(need) + " bytes, but only " +
                                            std::to_string(have) + " are there");
}

std::uint32_t get16(const std::uint8_t* p) {
  return static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8;
}
std::uint32_t get32(const std::uint8_t* p) { return get16(p) | get16(p + 2) << 16; }

void put16(std::vector<std::uint8_t>& out, std::uint32_t value) {
  out.push_back(static_cast<std::uint8_t>(value));
  out.push_back(static_cast<std::uint8_t>(value >> 8));
}
void put32(std::vector<std::uint8_t>& out, std::uint32_t value) {
  put16(out, value);
  put16(out, value >> 16);
}

// Returns the bytes of the index: lengths of parts and numbers of exceptions, then the checksums of
// tile rows, of groups, and of the metadata.
std::size_t index_bytes(std::size_t rows, std::size_t tiles_x) {
  const std::size_t group_columns = (tiles_x + kGroupTiles - 1) / kGroupTiles;
  return part_bytes(rows * (2 + 3 * tiles_x)) + 4 * rows * (1 + group_columns) + 4;
}

// Returns the bytes before the classes in a part of the DC section: the number of escapes, and one
// base per component.
std::size_t dc_head_bytes(const BlockShape& shape) {
  return 2 + 2 * static_cast<std::size_t>(shape.components);
}

bool allowed_subsampling(int x, int y) {
  return (x == 1 && y == 1) || (x == 2 && y == 1) || (x == 2 && y == 2) || (x == 1 && y == 2) ||
         (x == 4 && y == 1);
}

Status parse_shape(const std::uint8_t* data, BlockShape& shape) {
  if (data[0] != kBlocksVersion)
    return Status::error(Code::unsupported, "block record of version " + std::to_string(data[0]) +
                                                ": a newer fastio wrote it, or it is damaged");
  if (data[1] != 0) return corrupt("flags of " + std::to_string(data[1]) + ", expected 0");
  shape.colour = static_cast<Colour>(data[2]);
  shape.components = shape.colour == Colour::gray ? 1 : 3;
  shape.sub_x = data[3] >> 4;
  shape.sub_y = data[3] & 15;
  shape.width = static_cast<std::int32_t>(get16(data + 4));
  shape.height = static_cast<std::int32_t>(get16(data + 6));
  for (int c = 0; c < 3; ++c) {
    shape.ids[c] = data[8 + c];
    shape.table[c] = data[11 + c];
  }
  shape.tables = data[14];
  return shape.check();
}

}  // namespace

int BlockShape::blocks_in_tile_x(int c, std::int32_t t) const {
  return std::min(tile_blocks_x(c), blocks_x(c) - t * tile_blocks_x(c));
}

int BlockShape::blocks_in_tile_y(int c, std::int32_t r) const {
  return std::min(tile_blocks_y(c), blocks_y(c) - r * tile_blocks_y(c));
}

int BlockShape::blocks_in_tile(std::int32_t r, std::int32_t t) const {
  int blocks = 0;
  for (int c = 0; c < components; ++c) blocks += blocks_in_tile_x(c, t) * blocks_in_tile_y(c, r);
  return blocks;
}

std::int32_t BlockShape::blocks_in_row(std::int32_t r) const {
  std::int32_t blocks = 0;
  for (int c = 0; c < components; ++c) blocks += blocks_x(c) * blocks_in_tile_y(c, r);
  return blocks;
}

Status BlockShape::check() const {
  if (components != 1 && components != 3)
    return corrupt(std::to_string(components) + " components, expected 1 or 3");
  const bool gray = colour == Colour::gray;
  if (static_cast<int>(colour) > 2 || gray != (components == 1))
    return corrupt("colour " + std::to_string(static_cast<int>(colour)) + " with " +
                   std::to_string(components) + " components");
  if (!allowed_subsampling(sub_x, sub_y) || (gray && sub_x * sub_y != 1))
    return corrupt("invalid subsampling: " + std::to_string(sub_x) + " x " + std::to_string(sub_y));
  if (width < 1 || height < 1 || width > 65535 || height > 65535)
    return corrupt("invalid size: " + std::to_string(height) + " x " + std::to_string(width) +
                   " pixels");
  if (tables < 1 || tables > 3)
    return corrupt(std::to_string(tables) + " quantisation tables, expected 1 to 3");
  for (int c = 0; c < 3; ++c)
    if (table[c] >= tables || (c >= components && (table[c] != 0 || ids[c] != 0)))
      return corrupt("component " + std::to_string(c) + " refers to quantisation table " +
                     std::to_string(table[c]) + ", but the record has " + std::to_string(tables));
  return Status::okay();
}

std::size_t header_bytes_bound(std::int32_t height, std::int32_t width) {
  if (height < 1 || width < 1 || height > 65535 || width > 65535) return 4096;
  const auto rows = static_cast<std::size_t>((height + 7) / 8);
  const auto tiles = static_cast<std::size_t>((width + 127) / 128);
  return kFixedBytes + 3 * 128 + index_bytes(rows, tiles) + 4;
}

std::size_t dc_bytes_bound(std::int32_t height, std::int32_t width) {
  height = std::clamp(height, 1, 65535);
  width = std::clamp(width, 1, 65535);
  const auto rows = static_cast<std::size_t>((height + 7) / 8);
  const auto tiles = static_cast<std::size_t>((width + 127) / 128);
  // 128 x 8 samples are at most 16 blocks of each component, whatever the subsampling. A block has
  // a class and a DC difference, which may be an escape.
  constexpr std::size_t kMostBlocks = std::size_t{3} * kTileColumns;
  constexpr std::size_t kMostBits = 8 + kPlanes + 16;
  constexpr std::size_t kHead = 8, kPadding = 3 * 3;
  return header_bytes_bound(height, width) +
         rows * (kHead + kPadding + tiles * kMostBlocks * kMostBits / 8);
}

Status parse_header(const std::uint8_t* data, std::size_t size, std::size_t record_size,
                    BlockHeader& out) {
  if (size < kFixedBytes) return too_short(kFixedBytes, size);
  BlockShape& shape = out.shape;
  Status status = parse_shape(data, shape);
  if (!status.ok()) return status;
  const unsigned wide = data[15];
  if (wide >> shape.tables)
    return corrupt("it marks quantisation tables as 16-bit that it does not have");
  const auto rows = static_cast<std::size_t>(shape.tile_rows());
  const auto tiles_x = static_cast<std::size_t>(shape.tiles_x());
  const std::size_t tiles = rows * tiles_x;
  std::size_t position = kFixedBytes;
  for (int k = 0; k < shape.tables; ++k) position += wide >> k & 1 ? 128 : 64;
  out.bytes = position + index_bytes(rows, tiles_x) + 4;
  if (out.bytes > record_size) return too_short(out.bytes, record_size);
  if (out.bytes > size) return too_short(out.bytes, size);
  if (crc32c(data, out.bytes - 4) != get32(data + out.bytes - 4))
    return corrupt("the header is damaged: its CRC-32C does not match");

  const std::uint8_t* p = data + kFixedBytes;
  for (int k = 0; k < shape.tables; ++k)
    for (std::uint16_t& value : shape.quant[k]) {
      value = static_cast<std::uint16_t>(wide >> k & 1 ? get16(p) : *p);
      p += wide >> k & 1 ? 2 : 1;
      if (value == 0) return corrupt("a quantiser is 0");
    }

  const std::uint8_t* const dc_words = p;
  const std::uint8_t* const ac_words = dc_words + 2 * rows;
  const std::uint8_t* const exceptions = ac_words + 2 * tiles;
  const std::uint8_t* const lengths_end = exceptions + tiles;
  p += part_bytes(static_cast<std::size_t>(lengths_end - p));
  if (std::any_of(lengths_end, p, [](std::uint8_t byte) { return byte != 0; }))
    return corrupt("bits are set after the lengths of its parts");
  out.dc_begin.resize(rows + 1);
  out.ac_begin.resize(tiles + 1);
  std::size_t at = out.bytes;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto blocks = static_cast<std::size_t>(shape.blocks_in_row(static_cast<std::int32_t>(r)));
    const std::size_t bytes = 4 * std::size_t{get16(dc_words + 2 * r)};
    if (bytes < dc_head_bytes(shape) + part_bytes(blocks))
      return corrupt("tile row " + std::to_string(r) + " has fewer bytes than blocks");
    out.dc_begin[r] = at;
    at += bytes;
  }
  out.dc_begin[rows] = at;
  for (std::size_t k = 0; k < tiles; ++k) {
    const std::size_t bytes = 4 * std::size_t{get16(ac_words + 2 * k)};
    if (bytes < part_bytes(3 * std::size_t{exceptions[k]}))
      return corrupt("tile " + std::to_string(k) + " has fewer bytes than its exceptions need");
    out.ac_begin[k] = at;
    at += bytes;
  }
  out.ac_begin[tiles] = at;
  out.exceptions.assign(exceptions, lengths_end);

  out.dc_crc.resize(rows);
  for (std::uint32_t& crc : out.dc_crc) {
    crc = get32(p);
    p += 4;
  }
  out.ac_crc.resize(rows * static_cast<std::size_t>(shape.group_columns()));
  for (std::uint32_t& crc : out.ac_crc) {
    crc = get32(p);
    p += 4;
  }
  out.metadata_crc = get32(p);
  out.metadata_bytes = get32(data + 16);
  if (out.record_bytes() != record_size)
    return corrupt("its parts add up to " + std::to_string(out.record_bytes()) +
                   " bytes, but it has " + std::to_string(record_size));
  return status;
}

Status write_header(const BlockShape& shape, const BlockLengths& lengths,
                    const std::vector<std::uint8_t>& dc, const std::vector<std::uint8_t>& ac,
                    const std::vector<std::uint8_t>& metadata, std::vector<std::uint8_t>& out) {
  const Status status = shape.check();
  if (!status.ok()) return status;
  const auto rows = static_cast<std::size_t>(shape.tile_rows());
  const std::size_t tiles = rows * static_cast<std::size_t>(shape.tiles_x());
  if (lengths.dc_words.size() != rows || lengths.ac_words.size() != tiles ||
      lengths.exceptions.size() != tiles || metadata.size() > 0xFFFFFFFFu)
    return corrupt("its parts do not fit an image of its size");
  unsigned wide = 0;
  for (int k = 0; k < shape.tables; ++k)
    for (const std::uint16_t value : shape.quant[k]) wide |= unsigned{value > 255} << k;

  out.clear();
  out.push_back(kBlocksVersion);
  out.push_back(0);  // flags
  out.push_back(static_cast<std::uint8_t>(shape.colour));
  out.push_back(static_cast<std::uint8_t>(shape.sub_x << 4 | shape.sub_y));
  put16(out, static_cast<std::uint32_t>(shape.width));
  put16(out, static_cast<std::uint32_t>(shape.height));
  out.insert(out.end(), shape.ids, shape.ids + 3);
  out.insert(out.end(), shape.table, shape.table + 3);
  out.push_back(static_cast<std::uint8_t>(shape.tables));
  out.push_back(static_cast<std::uint8_t>(wide));
  put32(out, static_cast<std::uint32_t>(metadata.size()));
  for (int k = 0; k < shape.tables; ++k)
    for (const std::uint16_t value : shape.quant[k]) {
      out.push_back(static_cast<std::uint8_t>(value));
      if (wide >> k & 1) out.push_back(static_cast<std::uint8_t>(value >> 8));
    }
  for (const std::uint16_t words : lengths.dc_words) put16(out, words);
  for (const std::uint16_t words : lengths.ac_words) put16(out, words);
  out.insert(out.end(), lengths.exceptions.begin(), lengths.exceptions.end());
  out.resize(part_bytes(out.size()));
  std::size_t at = 0;
  for (const std::uint16_t words : lengths.dc_words) {
    const std::size_t bytes = 4 * std::size_t{words};
    put32(out, crc32c(dc.data() + at, bytes));
    at += bytes;
  }
  at = 0;
  for (std::int32_t g = 0; g < shape.group_columns(); ++g)
    for (std::int32_t r = 0; r < shape.tile_rows(); ++r) {
      std::size_t bytes = 0, k = shape.tile_number(r, g * kGroupTiles);
      for (std::int32_t t = 0; t < shape.group_tiles(g); ++t)
        bytes += 4 * std::size_t{lengths.ac_words[k++]};
      put32(out, crc32c(ac.data() + at, bytes));
      at += bytes;
    }
  put32(out, crc32c(metadata.data(), metadata.size()));
  put32(out, crc32c(out.data(), out.size()));
  return status;
}

}  // namespace fastio
