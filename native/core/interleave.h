// Shuffles rows of columns: combines columns into records, and copies records in any order to the
// arrays of a batch.
//
// A record is the concatenation of the columns' values in one row. `interleave` writes records in
// the order of the rows, past the caches, because a shuffled window is written completely before
// any of it is read. `deal` reads records in the order of the batch and prefetches them. It writes
// each array from front to back. Distributing records to buckets that fit in a cache took about a
// quarter longer for both steps (benchmarks/LOG.md).
//
// All functions are pure except for their output, and may run concurrently on different records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// A column: `width` consecutive bytes for each row, which are at `offset` in a record.
struct RecordColumn {
  const std::uint8_t* data;
  std::uint32_t width;
  std::uint32_t offset;
};

// A part of a record that is copied to an array, `data`, of rows of `width` bytes.
struct RecordField {
  std::uint8_t* data;
  std::uint32_t width;
  std::uint32_t offset;
};

// The memory of records: blocks of 2**shift records. A record has `stride` bytes, a multiple of 8.
struct RecordBlocks {
  std::vector<std::uint8_t*> blocks;
  std::size_t stride;
  int shift;

  std::size_t block_rows() const { return std::size_t{1} << shift; }
  std::size_t rows() const { return blocks.size() << shift; }
  std::uint8_t* at(std::size_t record) const {
    return blocks[record >> shift] + (record & (block_rows() - 1)) * stride;
  }
};

// Writes n rows as records first, first + 1, ..., where first + n <= records.rows(). The columns
// must lie in [0, stride) of a record and not overlap. Bytes of a record that no column covers are
// undefined.
void interleave(const std::vector<RecordColumn>& columns, std::size_t n,
                const RecordBlocks& records, std::size_t first);

// Copies n records, given by their numbers, to the fields' arrays of n rows. Returns false if a
// number is not in [0, records.rows()); the contents of the arrays are then undefined. Reads each
// number only once, because another thread may change it after the check.
bool deal(const RecordBlocks& records, const std::int64_t* numbers, std::size_t n,
          const std::vector<RecordField>& fields);

// The kernels of `interleave`, for tests: combine eight columns of 4 bytes to 32 bytes in each of n
// records, which are `stride` bytes apart.
void transpose8(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                std::size_t stride);
void transpose8_portable(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                         std::size_t stride);
void transpose8_avx2(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                     std::size_t stride);

}  // namespace fastio
