// The fixed-width columns of a table, by shard, from which gathers read.
//
// A row belongs to one shard, and is a fixed number of consecutive bytes in each column of it. A
// field is a part of these bytes. Columns are memory-mapped. If the table is to be resident, a
// thread copies them to huge pages: a row then costs one TLB miss less, and the system cannot evict
// it. The memory belongs to this process, or is shared with the other ranks of the machine
// (node_memory.h), each of which copies some shards.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "crew.h"
#include "mapping.h"
#include "node_memory.h"
#include "status.h"

namespace fastio {

// What a batch contains of a field. Python uses the numbers. Kinds from `inputs` on are made from
// tokens in segments.
enum class FieldKind : std::uint8_t {
  bytes = 0,      // its bytes
  numbers = 1,    // its numbers, widened
  inputs = 2,     // the tokens of the row's segments, concatenated
  targets = 3,    // for each token the next one in its segment, or `fill` for the last one
  positions = 4,  // 0, 1, ... in each segment
  documents = 5,  // the number of the segment in its row
  mask = 6,       // 1 for each token
};

// A field: bytes [offset, offset + width) of each row of a column. These may extend into the next
// row. For fields of segments, only the width is used: it gives the numbers per row, of which those
// after the last segment are `fill`.
struct TableField {
  std::uint32_t column = 0;
  std::uint32_t offset = 0, width = 0;
  FieldKind kind = FieldKind::bytes;
  std::uint8_t from = 1, to = 1;  // bytes of a number in the column (1, 2, 4) and batch (4, 8)
  std::int64_t fill = 0;

  std::size_t numbers() const { return width / from; }
  std::size_t out_bytes() const { return kind == FieldKind::bytes ? width : numbers() * to; }
  bool in_segments() const { return kind >= FieldKind::inputs; }
};

// The numbers of a column that make up each row of a shard: row i has the segments
// [begin[i], begin[i + 1]), and segment j has length[j] numbers from number start[j] on.
struct Segments {
  std::vector<std::int64_t> begin;  // one entry more than there are rows
  std::vector<std::int64_t> start;
  std::vector<std::int32_t> length;
};

// One shard's columns. Immutable.
struct ShardColumns {
  std::vector<const std::uint8_t*> begin;  // of each column
  std::shared_ptr<const Segments> segments;
  std::shared_ptr<const Mapping> mapping;  // null: columns are in `memory`, or the caller's
  std::vector<std::shared_ptr<const std::uint8_t>> memory;

  // Whether all bytes that were read so far are those of the file: see Mapping::damaged().
  bool sound() const { return !(mapping && mapping->damaged()); }
};

// The position of a column in a shard's file.
struct ColumnPlace {
  std::uint64_t offset = 0;  // of its first row
  std::uint64_t bytes = 0;   // of all rows
};

// A column in the caller's memory.
struct MemoryColumn {
  const std::uint8_t* begin = nullptr;  // of its first row
  std::uint64_t bytes = 0;              // from there to the end of the last row
};

// The shards that are known (set) at one moment.
struct KnownShards {
  std::vector<std::shared_ptr<const ShardColumns>> shards;  // null: the shard is not known
  // origins[column][shard] + row * stride is the address of a row of the shard, where `row` is its
  // number in the table. 0: rows of the shard cannot be read.
  std::vector<std::vector<std::uintptr_t>> origins;
};

// Thread-safe. Must be owned by a shared_ptr. The copying thread holds a reference to it until
// close().
class Table : public std::enable_shared_from_this<Table> {
 public:
  // first_row: the first row of each shard, and at the end the number of all rows; ascending from
  // 0. strides: the bytes from row to row of each column. Throws std::invalid_argument if the
  // arguments contradict each other.
  Table(std::vector<std::int64_t> first_row, std::vector<std::uint64_t> strides,
        std::vector<TableField> fields);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  std::int64_t rows() const { return first_row_.back(); }
  std::size_t shards() const { return first_row_.size() - 1; }
  const std::vector<std::uint64_t>& strides() const { return strides_; }
  const std::vector<TableField>& fields() const { return fields_; }
  std::int64_t first_row(std::size_t shard) const { return first_row_[shard]; }

  // Returns the shard of a row in [0, rows()).
  std::size_t shard_of(std::int64_t row) const {
    std::size_t shard = guide_[static_cast<std::size_t>(row >> guide_shift_)];
    while (row >= first_row_[shard + 1]) ++shard;
    return shard;
  }

  // Makes a shard known. places: one for each column. what: identifies these columns of this file
  // in NodeMemory; 0: the shard is not shared. Returns Code::corrupt if a column does not lie in
  // the file, or a row or segment does not lie in its column.
  Status set(std::size_t shard, std::shared_ptr<const Mapping> mapping,
             const std::vector<ColumnPlace>& places,
             std::shared_ptr<const Segments> segments = nullptr, std::uint64_t what = 0);
  // The same for columns in the caller's memory, which are never copied. The caller must keep the
  // memory until all gathers that began while the shard was known are done.
  Status set_memory(std::size_t shard, const std::vector<MemoryColumn>& columns);
  void unset(std::size_t shard);

  // Returns the shards of these rows, all in [0, rows()), that are not known, in ascending order.
  std::vector<std::int64_t> missing(const std::int64_t* rows, std::size_t count) const;

  // Whether all shards are known.
  bool complete() const;

  // Returns the shards that are known now. The snapshot is immutable.
  std::shared_ptr<const KnownShards> snapshot() const;

  // Starts a thread that copies the shards that become known from now on, one after the other. A
  // shard stays mapped if there is no memory for it. A second call does nothing. The caller must
  // call close() later. node: shared memory for the copies, with an entry for each shard; null:
  // uses memory of this process. Throws std::invalid_argument if it has another number of entries.
  void make_resident(std::shared_ptr<NodeMemory> node = nullptr);

  // Returns the number of shards that are read from copies.
  std::size_t resident() const;

  // Whether the current process was forked from the one that created the table. The table must then
  // neither be used nor destroyed, because its thread may have left it half-changed.
  bool forked() const;

  // Ends the copying thread, which is detached if it does not end within `patience`. May be called
  // again. Does nothing in a forked child, where the thread does not exist.
  void close(std::chrono::nanoseconds patience = kPatience);

 private:
  struct Copy {
    std::size_t shard;
    std::shared_ptr<const ShardColumns> from;
    std::vector<ColumnPlace> places;
    std::uint64_t what;
  };
  // Copy-on-write: changed in place while there is no snapshot of it, so that setting all n shards
  // of a table takes O(n) time.
  struct State {
    KnownShards known;
    std::atomic<std::size_t> snapshots{0};
  };
  Status check_column(std::size_t column, std::size_t shard, std::uint64_t bytes) const;
  Status check_segments(const Segments& segments, std::uint64_t rows,
                        const std::vector<ColumnPlace>& places) const;
  void replace(std::size_t shard, const ShardColumns* expected,
               std::shared_ptr<const ShardColumns> columns);
  void copy_all();
  std::shared_ptr<const ShardColumns> copied(const Copy& copy) const;
  std::shared_ptr<const ShardColumns> shared(const Copy& copy, bool& later) const;

  const std::vector<std::int64_t> first_row_;
  const std::vector<std::uint64_t> strides_;
  const std::vector<TableField> fields_;
  std::vector<std::uint64_t> reach_;  // for each column, the end of a row's last field
  int guide_shift_ = 0;
  std::vector<std::uint32_t> guide_;  // guide_[i]: the shard of row i << guide_shift_

  mutable std::mutex mutex_;
  std::shared_ptr<State> state_;          // guarded by mutex_, like the members below
  std::size_t known_ = 0, resident_ = 0;  // numbers of shards
  std::deque<Copy> to_copy_;
  std::shared_ptr<NodeMemory> node_;  // not changed while a thread copies
  std::condition_variable wanted_;
  bool copying_ = false;
  std::atomic<bool> closed_{false};
  const pid_t pid_;
  std::mutex ending_;
  Crew crew_;  // guarded by ending_, and by mutex_ when the thread is started
};

}  // namespace fastio
