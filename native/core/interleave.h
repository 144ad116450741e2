// Kernels: columns of numbers to records, dealt to buckets of a shuffled stream, and from there to
// the arrays of a batch.
//
// A record is what the columns have in one row, one after the other. Rows are shuffled in two steps
// that both stay in the processor's caches: `interleave` appends each record to the bucket of the
// stream that its position is in, whatever its place there, and `deal` then puts a bucket's records
// where they belong. A row that went straight to its place would touch a line of memory that its
// neighbours, which come much later, have to touch again. Too many buckets make the first step
// slow, too large ones the second: 2048 records of 168 bytes were best (benchmarks/LOG.md).
//
// All functions are pure but for what they write, and may run at once on different rows or buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// A column: `width` bytes for each row, one after the other, that stand at `offset` in a record.
struct RecordColumn {
  const std::uint8_t* data;
  std::uint32_t width;
  std::uint32_t offset;
};

// Part of a record that goes to an array of its own: rows of `width` bytes, at `data`.
struct RecordField {
  std::uint8_t* data;
  std::uint32_t width;
  std::uint32_t offset;
};

// How a stream is cut: in chunks of `rows` positions, from position 0 on, and each chunk in buckets
// of 2**shift positions, the last of which may have fewer.
struct Cut {
  std::int64_t rows;
  int shift;

  std::size_t buckets() const {  // of a chunk
    return static_cast<std::size_t>((rows + (std::int64_t{1} << shift) - 1) >> shift);
  }
};

// Where the records of one bucket go: the next ones to records + next * stride, and to places[next]
// the position of each in its bucket. It has room for `room` of them.
struct Bucket {
  std::uint8_t* records;
  std::uint32_t* places;
  std::int64_t next, room;
};

// counts[c * cut.buckets() + b]: how many of `positions` are in bucket b of chunk first + c.
// Positions below 0 are left out. Returns whether all others are in one of the `chunks` chunks.
bool count_buckets(const std::int64_t* positions, std::size_t n, const Cut& cut, std::int64_t first,
                   std::size_t chunks, std::int64_t* counts);

// Appends the record of each of n rows to the bucket of its position, and moves its `next`.
// Positions as count_buckets accepted them, buckets in the order of its counts: false where a
// position is in none of them, or a bucket has no room, as somebody changed them meanwhile. Each is
// read once and looked at then. The columns' bytes, without overlap, lie in [0, stride) of a
// record; what no column covers has anything in it.
bool interleave(const std::vector<RecordColumn>& columns, std::size_t stride,
                const std::int64_t* positions, std::size_t n, const Cut& cut, std::int64_t first,
                std::vector<Bucket>& buckets);

// Copies the `count` records of a full bucket to their places in the fields' arrays of `count`
// rows. Returns false, with nothing written, unless the places are 0 to count - 1, each once.
bool deal(const std::uint8_t* records, const std::uint32_t* places, std::size_t count,
          std::size_t stride, const std::vector<RecordField>& fields);

// The kernels of `interleave`, for tests: eight columns of 4 bytes to 32 bytes of each of n rows,
// which begin `stride` bytes apart.
void transpose8(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                std::size_t stride);
void transpose8_portable(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                         std::size_t stride);
void transpose8_avx2(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                     std::size_t stride);

}  // namespace fastio
