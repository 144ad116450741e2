// A block record in its parts, for the mutator and the mender: read without checks that matter, so
// that damaged records have parts too, and put together again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/blocks.h"
#include "fuzz_support.h"

namespace fastio::fuzz {

inline constexpr std::size_t kMaxPixels = std::size_t{2} << 20;

struct RecordParts {
  BlockShape shape;       // all but the tables
  Bytes tables;           // as they stand in the record
  std::uint8_t wide = 0;  // which tables have 16-bit values
  std::vector<Bytes> dc;  // of each tile row
  std::vector<Bytes> ac;  // of each tile, by its number: bits, then exceptions
  Bytes exceptions;       // how many each tile has
  Bytes metadata;

  std::size_t rows() const { return static_cast<std::size_t>(shape.tile_rows()); }
  std::size_t tiles() const { return rows() * static_cast<std::size_t>(shape.tiles_x()); }
};

// The shape that the first 20 bytes name. False: too few of them, no shape, or too many pixels.
bool read_shape(const std::uint8_t* data, std::size_t size, BlockShape& shape);

// Bytes of the tables, from the same ones.
std::size_t table_bytes(const std::uint8_t* data);

// Takes a record apart, as far as its bytes reach. False: it has no shape.
bool take_apart(const std::uint8_t* data, std::size_t size, RecordParts& out);

// A record of these parts with sound sums and checksums. Parts are filled up to words of 4 bytes;
// lengths that the index cannot hold are cut off.
Bytes put_together(const RecordParts& parts);

// Makes checksums, and the metadata's length, fit the rest of a record; what it lacks at its end
// are zeros then, within bounds. `header_only`: leaves the checksums of the sections as they are.
// A record whose index cannot be found stays as it is.
void mend(Bytes& record, bool header_only);

// Makes a tile row's part of the DC section as long as its classes and bits say, which are taken
// from its front; missing bytes count as 0. So are the number of its escapes and what fills words
// up.
void fit_dc(const Codebook& book, const BlockShape& shape, std::int32_t row, Bytes& part);

// Likewise a tile's part of the AC section. Of its exceptions those stay that are for its blocks,
// in order and once.
void fit_ac(const Codebook& book, const std::uint8_t* classes, int blocks, Bytes& part,
            std::uint8_t& exceptions);

// A tile's exceptions, as numbers of 24 bits, taken off its part; and put back behind its bits.
std::vector<std::uint32_t> take_exceptions(Bytes& part, std::uint8_t count);
void put_exceptions(Bytes& part, const std::vector<std::uint32_t>& exceptions, std::uint8_t& count);

}  // namespace fastio::fuzz
