// The layout of the fuzz targets' inputs, for the targets and the maker of their seeds.
#pragma once

#include <cstddef>

namespace fastio::fuzz {

// fuzz_blocks: selectors, then a record.
inline constexpr std::size_t kSelectors = 16;

// fuzz_tile: selectors, a codebook in short, the DC part of a tile row, the AC part of a tile.
inline constexpr std::size_t kTileSelectors = 17;

// fuzz_jpeg: one selector, then a file.

// fuzz_parquet: selectors, then the pages of a column chunk.
inline constexpr std::size_t kParquetSelectors = 3;

// fuzz_snappy: the size that is expected, then a stream.
inline constexpr std::size_t kSnappySelectors = 2;

}  // namespace fastio::fuzz
