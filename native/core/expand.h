// From the bits of a tile to dequantised coefficients (docs/block_record.md).
//
// expand_tile() writes whole blocks but for their DC, which decode_dc() gives from the DC section.
// Both check every count against the bytes that are there: damaged bits give false, and no byte
// outside the given ones and kExpandPad more is read.
//
// All functions are pure and thread-safe; all SIMD paths give equal results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocks.h"
#include "codebook.h"

namespace fastio {

// A part may be read this far past its end (values there do not matter).
inline constexpr std::size_t kExpandPad = 128;

// The part of a tile row in the DC section.
struct RowPart {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
};

// The part of a tile in the AC section, and how many exceptions it has: the header knows both.
struct TilePart {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  int exceptions = 0;
};

// The blocks of a tile, or of a tile row, as they are numbered: runs of them, one a block row of a
// component. The runs of a tile are parts of those of its tile row, in the same order.
struct BlockRuns {
  struct Run {
    int component;
    std::int32_t y;  // its block row among the component's
    std::int32_t first, count;
  };
  int runs = 0;
  std::int32_t blocks = 0;
  Run run[4];  // at most 2 block rows of component 0, 1 of each other

  void set_tile(const BlockShape& shape, std::int32_t row, std::int32_t tile);
  void set_row(const BlockShape& shape, std::int32_t row);

 private:
  void add(const BlockShape& shape, int component, std::int32_t row, std::int32_t count);
};

// Dequantisation of each component: 64 values in natural order. 1 everywhere keeps values as
// stored.
struct Dequantisers {
  alignas(64) std::int16_t value[3][64];
  alignas(64) std::int16_t zigzag[3][64];  // the same in zigzag order

  void set(const BlockShape& shape);
  void set_ones();
};

// The classes of a tile row's blocks and their DCs, not dequantised, in the order of blocks.
// dc: room for all blocks. The classes are where they stand in `part`. Null: damaged.
const std::uint8_t* decode_dc(const Codebook& book, const BlockRuns& row, const RowPart& part,
                              std::int16_t* dc);

// The classes of one tile's blocks, from those of its row.
void classes_of_tile(const BlockShape& shape, const BlockRuns& row, const std::uint8_t* classes,
                     const BlockRuns& tile, std::int32_t number, std::uint8_t* out);

// Writes those blocks of a tile that `wanted` has (bit i: block i) to out + 64 i, 64-byte aligned:
// natural order, dequantised, the DC left 0. `part`: the tile's part of the AC section. False:
// damaged; some blocks may be written.
bool expand_tile(const Codebook& book, const BlockRuns& tile, const TilePart& part,
                 const std::uint8_t* classes, const Dequantisers& quant, std::uint64_t wanted,
                 std::int16_t* out);

}  // namespace fastio
