// Decodes the bits of a tile to dequantised coefficients (docs/block_record.md).
//
// expand_tile() decodes all of a block but its DC, which decode_dc() decodes from the DC
// section. Both check every count against the bytes that are there: they report damage, and read no
// byte outside the given ones and the kExpandPad bytes after them.
//
// All functions are pure and thread-safe. All SIMD paths give equal results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocks.h"
#include "codebook.h"

namespace fastio {

// Parts must be followed by this many readable bytes, whose values do not matter.
inline constexpr std::size_t kExpandPad = 128;

// The part of a tile row in the DC section.
struct RowPart {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// The part of a tile in the AC section, and the number of its exceptions, from the header.
struct TilePart {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  int exceptions = 0;
};

// The numbering of the blocks of a tile, or of a tile row: one run of consecutive numbers for each
// block row of a component. Run k of a tile is a part of run k of its tile row.
struct BlockRuns {
  struct Run {
    int component;
    std::int32_t y;             // the block row in the component
    std::int32_t first, count;  // the number of the run's first block, and of blocks
  };
  int runs = 0;
  std::int32_t blocks = 0;
  Run run[4];  // at most 2 block rows of component 0, and 1 of each other one

  void set_tile(const BlockShape& shape, std::int32_t row, std::int32_t tile);
  void set_row(const BlockShape& shape, std::int32_t row);

 private:
  void add(const BlockShape& shape, int component, std::int32_t row, std::int32_t count);
};

// The quantisation table of each component, in natural order. set_ones(): coefficients remain as
// they are stored.
struct Dequantisers {
  alignas(64) std::int16_t value[3][64];
  bool bytes[3];  // whether no value of the table exceeds 255

  void set(const BlockShape& shape);
  void set_ones();
};

// Decodes the DCs of a tile row's blocks, not dequantised, to `dc`, which has room for all blocks.
// Returns the blocks' classes, which point into `part`, or null if the part is damaged.
const std::uint8_t* decode_dc(const Codebook& book, const BlockRuns& row, const RowPart& part,
                              std::int16_t* dc);

// Copies the classes of the blocks of tile `number` from those of its row, by the tile's numbering.
void classes_of_tile(const BlockShape& shape, const BlockRuns& row, const std::uint8_t* classes,
                     const BlockRuns& tile, std::int32_t number, std::uint8_t* out);

// The same for DCs, which are dequantised.
void dcs_of_tile(const BlockShape& shape, const BlockRuns& row, const std::int16_t* dcs,
                 const BlockRuns& tile, std::int32_t number, const Dequantisers& quant,
                 std::int16_t* out);

// Decodes the blocks of a tile whose bits are set in `wanted`: block i goes to out + 64 * i, which
// is 64-byte aligned, in natural order, dequantised, with dcs[i] as its DC. part: the tile's part
// of the AC section. Returns false if it is damaged; some blocks may then be written.
bool expand_tile(const Codebook& book, const BlockRuns& tile, const TilePart& part,
                 const std::uint8_t* classes, const std::int16_t* dcs, const Dequantisers& quant,
                 std::uint64_t wanted, std::int16_t* out);

}  // namespace fastio
