// Shuffles rows of columns: combines columns to records, and copies records in any order to the
// arrays of a batch.
//
// A record is the concatenation of the columns' values in one row. Records are written in the order
// of the rows, past the caches, because most of a window is written before it is read. They are read in the order of the batch, each far enough ahead, and arrays are written from front to
// back. To distribute them to buckets first, which fit in a cache, takes a third longer in all
// (benchmarks/LOG.md).
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

// The memory of records of `stride` bytes, a multiple of 8: blocks of 2**shift records.
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

// Writes n rows as records first, first + 1, ..., all below records.rows(). The columns must lie in
// [0, stride) of a record and not overlap. Bytes of a record that no column covers are undefined.
void interleave(const std::vector<RecordColumn>& columns, std::size_t n,
                const RecordBlocks& records, std::size_t first);

// Copies n records, given by their numbers, to the fields' arrays of n rows. Each number is read
// once and checked, because another thread may change it: returns false if it is not in [0,
// records.rows()). The arrays are undefined then.
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
