// The layout of a block record (docs/block_record.md): parses and writes its header, and computes
// where its parts are. Nothing here decodes coefficients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "status.h"

namespace fastio {

inline constexpr int kTileBlocks = 64;   // the most blocks of a tile
inline constexpr int kTileColumns = 16;  // blocks across a tile in component 0: 128 samples
inline constexpr int kGroupTiles = 4;    // tiles of a row that share a checksum of the AC section
inline constexpr std::uint8_t kBlocksVersion = 1;

// Returns the bytes of a part with padding: parts begin at multiples of 4 bytes in the record.
constexpr std::size_t part_bytes(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// How components become pixels.
enum class Colour : std::uint8_t { gray = 0, ycbcr = 1, rgb = 2 };

// The fields of a header, and the sizes that follow from them. parse_header() ensures that all
// fields are in range.
struct BlockShape {
  int components = 1;  // 1 or 3
  Colour colour = Colour::gray;
  int sub_x = 1, sub_y = 1;  // samples of component 0 per sample of the others, along x and y
  std::int32_t width = 0, height = 0;
  std::uint8_t ids[3] = {};    // component identifiers of the JPEG
  std::uint8_t table[3] = {};  // the index into `quant` of each component's table
  int tables = 1;
  std::uint16_t quant[3][64] = {};  // the quantisation tables, in zigzag order

  // The numbers of samples and of blocks of component `c` along each axis.
  std::int32_t samples_x(int c) const { return c ? (width + sub_x - 1) / sub_x : width; }
  std::int32_t samples_y(int c) const { return c ? (height + sub_y - 1) / sub_y : height; }
  std::int32_t blocks_x(int c) const { return (samples_x(c) + 7) / 8; }
  std::int32_t blocks_y(int c) const { return (samples_y(c) + 7) / 8; }

  // The number of tile rows, and of tiles in each.
  std::int32_t tile_rows() const { return (height + 8 * sub_y - 1) / (8 * sub_y); }
  std::int32_t tiles_x() const { return (width + 127) / 128; }
  // The number of columns of groups, and the tiles across column g.
  std::int32_t group_columns() const { return (tiles_x() + kGroupTiles - 1) / kGroupTiles; }
  std::int32_t group_tiles(std::int32_t g) const {
    const std::int32_t left = tiles_x() - g * kGroupTiles;
    return left < kGroupTiles ? left : kGroupTiles;
  }
  // The index of tile (r, t) and of group (r, g) in the AC section, which stores one column of
  // groups after the other, each from top to bottom.
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
  // The blocks of component `c` across and down a tile that no edge of the image cuts.
  // Decoders call tile_blocks_x() often, so it shifts instead of dividing by sub_x (1, 2 or 4).
  int tile_blocks_x(int c) const { return c ? kTileColumns >> (sub_x / 2) : kTileColumns; }
  int tile_blocks_y(int c) const { return c ? 1 : sub_y; }

  // The blocks of component `c` across and down tile (r, t), which an edge may cut, and all blocks
  // of the tile.
  int blocks_in_tile_x(int c, std::int32_t t) const;
  int blocks_in_tile_y(int c, std::int32_t r) const;
  int blocks_in_tile(std::int32_t r, std::int32_t t) const;
  std::int32_t blocks_in_row(std::int32_t r) const;  // all blocks of a tile row

  // Returns Code::corrupt, with the name of the field, if a field is out of range.
  Status check() const;
};

// The lengths of a record's parts, in words of 4 bytes, and the number of exceptions of each tile.
struct BlockLengths {
  std::vector<std::uint16_t> dc_words;   // by tile row
  std::vector<std::uint16_t> ac_words;   // by tile_number()
  std::vector<std::uint8_t> exceptions;  // by tile_number()
};

// A record's header, with the positions of all parts. Reuse the object: its vectors keep their
// memory.
struct BlockHeader {
  BlockShape shape;
  std::size_t bytes = 0;           // the size of the header itself
  std::size_t metadata_bytes = 0;  // the size of the metadata, at the end of the record
  std::uint32_t metadata_crc = 0;
  // The offsets of parts in the record: of the DC section by tile row, and of the AC section by
  // tile_number(). One more entry is the end of the section.
  std::vector<std::size_t> dc_begin, ac_begin;
  std::vector<std::uint8_t> exceptions;  // by tile_number()
  std::vector<std::uint32_t> dc_crc;     // CRC-32C by tile row
  std::vector<std::uint32_t> ac_crc;     // CRC-32C by group_number()

  // The bytes of group (r, g) of the AC section, as offsets in the record.
  std::size_t group_begin(std::int32_t r, std::int32_t g) const {
    return ac_begin[shape.tile_number(r, g * kGroupTiles)];
  }
  std::size_t group_end(std::int32_t r, std::int32_t g) const {
    return ac_begin[shape.tile_number(r, g * kGroupTiles) +
                    static_cast<std::size_t>(shape.group_tiles(g))];
  }
  std::size_t record_bytes() const { return ac_begin.back() + metadata_bytes; }
};

// Returns an upper bound of the header's bytes for an image of this size, so that one read gets the
// whole header. If the size is out of range, the result is a guess.
std::size_t header_bytes_bound(std::int32_t height, std::int32_t width);

// Returns an upper bound of the bytes of the header and the DC section, which follows it.
std::size_t dc_bytes_bound(std::int32_t height, std::int32_t width);

// Parses the header from the first `size` bytes of a record of `record_size` bytes. Checks every
// field, sum and checksum: afterwards each part lies in the record and has at least the bytes that
// its blocks need. Returns Code::truncated if `size` bytes do not contain the whole header, and
// Code::unsupported if the record has another version.
Status parse_header(const std::uint8_t* data, std::size_t size, std::size_t record_size,
                    BlockHeader& out);

// Writes the header that parse_header() reads. lengths: those of the parts in the sections `dc` and
// `ac`, whose checksums, with that of `metadata`, go into the header.
Status write_header(const BlockShape& shape, const BlockLengths& lengths,
                    const std::vector<std::uint8_t>& dc, const std::vector<std::uint8_t>& ac,
                    const std::vector<std::uint8_t>& metadata, std::vector<std::uint8_t>& out);

}  // namespace fastio
