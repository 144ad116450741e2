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
#include <cstring>

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

// The quantisation table of each component, in the order of idct_place(). set_ones(): coefficients
// remain as they are stored.
struct Dequantisers {
  alignas(64) std::int16_t value[3][64];
  bool bytes[3];  // whether no value of the table exceeds 255

  void set(const BlockShape& shape);
  void set_ones();
};

// Decodes the DCs of a tile row's blocks, dequantised, to `dc`, which has room for all blocks.
// Returns the blocks' classes, which point into `part`, or null if the part is damaged.
const std::uint8_t* decode_dc(const Codebook& book, const BlockRuns& row, const RowPart& part,
                              const Dequantisers& quant, std::int16_t* dc);

// Copies the classes or DCs of the blocks of tile `number` from those of its row, by the tile's
// numbering. Copies kTileColumns values for each run, because copies of a fixed length are faster.
// Thus it reads up to kTileColumns values past the end of `of_row`, and writes as many past the
// tile's last value.
template <typename T>
void take_tile(const BlockShape& shape, const BlockRuns& row, const T* of_row,
               const BlockRuns& tile, std::int32_t number, T* out) {
  for (int k = 0; k < tile.runs; ++k) {
    const BlockRuns::Run& run = tile.run[k];
    const T* from = of_row + row.run[k].first + number * shape.tile_blocks_x(run.component);
    std::memcpy(out + run.first, from, kTileColumns * sizeof(T));
  }
}

// Decodes the blocks of a tile whose bits are set in `wanted`: block i goes to out + 64 * i, which
// is 64-byte aligned, in the order of idct_place(), dequantised, with dcs[i] as its DC. part: the
// tile's part of the AC section. Returns false if it is damaged; some blocks may then be written.
bool expand_tile(const Codebook& book, const BlockRuns& tile, const TilePart& part,
                 const std::uint8_t* classes, const std::int16_t* dcs, const Dequantisers& quant,
                 std::uint64_t wanted, std::int16_t* out);

}  // namespace fastio
