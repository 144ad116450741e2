// The layout of a block record (docs/block_record.md): its header, checked, and where its
// parts stand. Nothing here decodes a coefficient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "status.h"

namespace fastio {

inline constexpr int kTileBlocks = 64;   // the most blocks of a tile
inline constexpr int kTileColumns = 16;  // of component 0: 128 samples
inline constexpr int kGroupTiles = 4;    // of a tile row, which share a checksum of the AC section
inline constexpr std::uint8_t kBlocksVersion = 1;

// Bytes of a part that has `bytes`: parts begin at multiples of 4 bytes of the record.
constexpr std::size_t part_bytes(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// How components become pixels.
enum class Colour : std::uint8_t { gray = 0, ycbcr = 1, rgb = 2 };

// What a header says, and sizes that follow from it. All numbers in range once parsed.
struct BlockShape {
  int components = 1;  // 1 or 3
  Colour colour = Colour::gray;
  int sub_x = 1, sub_y = 1;  // samples of component 0 to one of the others: H and V
  std::int32_t width = 0, height = 0;
  std::uint8_t ids[3] = {};    // component identifiers of the JPEG
  std::uint8_t table[3] = {};  // of each component
  int tables = 1;
  std::uint16_t quant[3][64] = {};  // of each table, in zigzag order

  // Samples and blocks of component `c`.
  std::int32_t samples_x(int c) const { return c ? (width + sub_x - 1) / sub_x : width; }
  std::int32_t samples_y(int c) const { return c ? (height + sub_y - 1) / sub_y : height; }
  std::int32_t blocks_x(int c) const { return (samples_x(c) + 7) / 8; }
  std::int32_t blocks_y(int c) const { return (samples_y(c) + 7) / 8; }

  // Tiles, and the blocks of component `c` in a tile that is not cut short.
  std::int32_t tile_rows() const { return (height + 8 * sub_y - 1) / (8 * sub_y); }
  std::int32_t tiles_x() const { return (width + 127) / 128; }
  // Columns of groups, and the tiles across one of them.
  std::int32_t group_columns() const { return (tiles_x() + kGroupTiles - 1) / kGroupTiles; }
  std::int32_t group_tiles(std::int32_t g) const {
    const std::int32_t left = tiles_x() - g * kGroupTiles;
    return left < kGroupTiles ? left : kGroupTiles;
  }
  // The number of tile (r, t) and of group (r, g) in the AC section, which has one column of groups
  // after the other, each from top to bottom.
  std::size_t tile_number(std::int32_t r, std::int32_t t) const {
    const std::int32_t g = t / kGroupTiles, before = g * kGroupTiles;
    return static_cast<std::size_t>(before) * static_cast<std::size_t>(tile_rows()) +
           static_cast<std::size_t>(r) * static_cast<std::size_t>(group_tiles(g)) +
           static_cast<std::size_t>(t - before);
  }
  std::size_t group_number(std::int32_t r, std::int32_t g) const {
    return static_cast<std::size_t>(g) * static_cast<std::size_t>(tile_rows()) +
           static_cast<std::size_t>(r);
  }
  int tile_blocks_x(int c) const { return c ? kTileColumns / sub_x : kTileColumns; }
  int tile_blocks_y(int c) const { return c ? 1 : sub_y; }

  // Blocks of component `c` in tile (r, t), which may be cut short: across and down.
  int blocks_in_tile_x(int c, std::int32_t t) const;
  int blocks_in_tile_y(int c, std::int32_t r) const;
  int blocks_in_tile(std::int32_t r, std::int32_t t) const;
  std::int32_t blocks_in_row(std::int32_t r) const;  // of all tiles of a row

  // Code::corrupt names the field that is out of range.
  Status check() const;
};

// How long the parts of a record are, in words of 4 bytes, and how many exceptions tiles have.
struct BlockLengths {
  std::vector<std::uint16_t> dc_words;   // of each tile row
  std::vector<std::uint16_t> ac_words;   // of each tile, by number
  std::vector<std::uint8_t> exceptions;  // likewise
};

// A record's header with its index. The vectors keep their memory from one record to the next.
struct BlockHeader {
  BlockShape shape;
  std::size_t bytes = 0;           // of the header
  std::size_t metadata_bytes = 0;  // at the end of the record
  std::uint32_t metadata_crc = 0;
  // Where parts begin in the record: tile row r's of the DC section, tile k's of the AC section.
  // The last entry is the section's end.
  std::vector<std::size_t> dc_begin, ac_begin;
  std::vector<std::uint8_t> exceptions;  // of each tile, by number
  std::vector<std::uint32_t> dc_crc;     // of each tile row
  std::vector<std::uint32_t> ac_crc;     // of each group, by number

  // Where group (r, g) of the AC section begins and ends in the record.
  std::size_t group_begin(std::int32_t r, std::int32_t g) const {
    return ac_begin[shape.tile_number(r, g * kGroupTiles)];
  }
  std::size_t group_end(std::int32_t r, std::int32_t g) const {
    return ac_begin[shape.tile_number(r, g * kGroupTiles) +
                    static_cast<std::size_t>(shape.group_tiles(g))];
  }
  std::size_t record_bytes() const { return ac_begin.back() + metadata_bytes; }
};

// Bytes of the header of an image of this size, at most: what to read first. A guess where
// the size is out of range.
std::size_t header_bytes_bound(std::int32_t height, std::int32_t width);

// ... and of its DC section, which follows it, though all its differences were escapes.
std::size_t dc_bytes_bound(std::int32_t height, std::int32_t width);

// Reads the header from the record's first bytes, `size` of its `record_size`. Every field, sum and
// checksum is checked: afterwards each part lies in the record and is as long as its blocks need at
// least. Code::truncated: `size` does not hold the whole header.
// Code::unsupported: another version.
Status parse_header(const std::uint8_t* data, std::size_t size, std::size_t record_size,
                    BlockHeader& out);

// The header of a record whose parts have these lengths: the one that parse_header() reads.
// dc, ac, metadata: the sections.
Status write_header(const BlockShape& shape, const BlockLengths& lengths,
                    const std::vector<std::uint8_t>& dc, const std::vector<std::uint8_t>& ac,
                    const std::vector<std::uint8_t>& metadata, std::vector<std::uint8_t>& out);

}  // namespace fastio
