// Shuffles rows of columns: combines columns to records, distributes the records to buckets of a
// shuffled stream, and copies them from there to the arrays of a batch.
//
// A record is the concatenation of the columns' values in one row. Rows are shuffled in two steps,
// which both stay in the processor's caches: `interleave` appends each record to the bucket that
// contains its position in the stream, and `deal` then moves the records of a bucket to their
// positions. If rows were moved directly, each would touch a cache line that its neighbours, which
// come much later, have to load again. Too many buckets slow down the first step, and too large
// buckets the second: 2048 records of 168 bytes were best (benchmarks/LOG.md).
//
// All functions are pure except for their output, and may run concurrently on different rows or
// buckets.
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

// The division of a stream: chunks of `rows` positions from position 0 on, and buckets of 2**shift
// positions in each chunk, of which the last may have fewer.
struct Cut {
  std::int64_t rows;
  int shift;

  std::size_t buckets() const {  // per chunk
    return static_cast<std::size_t>((rows + (std::int64_t{1} << shift) - 1) >> shift);
  }
};

// The memory of a bucket: the next record goes to records + next * stride, and its position in the
// bucket to places[next]. There is room for `room` records.
struct Bucket {
  std::uint8_t* records;
  std::uint32_t* places;
  std::int64_t next, room;
};

// Sets counts[c * cut.buckets() + b] to the number of `positions` in bucket b of chunk first + c.
// Ignores positions below 0. Returns whether all others are in one of the `chunks` chunks.
bool count_buckets(const std::int64_t* positions, std::size_t n, const Cut& cut, std::int64_t first,
                   std::size_t chunks, std::int64_t* counts);

// Appends the record of each of n rows to the bucket of its position, and advances its `next`.
// positions: as count_buckets accepted them. buckets: in the order of its counts. Each position is
// read once and checked, because another thread may change it: returns false if a position is in no
// bucket, or if a bucket has no room. The columns must lie in [0, stride) of a record and not
// overlap. Bytes of a record that no column covers are undefined.
bool interleave(const std::vector<RecordColumn>& columns, std::size_t stride,
                const std::int64_t* positions, std::size_t n, const Cut& cut, std::int64_t first,
                std::vector<Bucket>& buckets);

// Copies the `count` records of a full bucket to their positions in the fields' arrays of `count`
// rows. Returns false, and writes nothing, unless the places are a permutation of [0, count).
bool deal(const std::uint8_t* records, const std::uint32_t* places, std::size_t count,
          std::size_t stride, const std::vector<RecordField>& fields);

// The kernels of `interleave`, for tests: combine eight columns of 4 bytes to 32 bytes in each of n
// records, which are `stride` bytes apart.
void transpose8(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                std::size_t stride);
void transpose8_portable(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                         std::size_t stride);
void transpose8_avx2(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                     std::size_t stride);

}  // namespace fastio
