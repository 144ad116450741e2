// The fixed-width columns of a table, shard by shard, where gathers find them.
//
// A row lies in one shard, and in each column of that shard as so many consecutive bytes; a field
// is a part of them. Columns are mapped; where the table is to be resident, a thread copies them
// into memory of their own by huge pages, after which a row costs one miss of the address
// translation less and no other process can take it away. The memory is this process's, or shared
// with other ranks of the machine (node_memory.h), of which each copies some shards.
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

// What a batch has of a field. The numbers cross into Python.
enum class FieldKind : std::uint8_t {
  bytes = 0,      // its bytes
  numbers = 1,    // its numbers, widened
  inputs = 2,     // of tokens in segments: those of the row's segments, one after the other
  targets = 3,    // likewise: the token behind each one in its segment, `fill` behind the last
  positions = 4,  // likewise: 0, 1, ... in each segment
  documents = 5,  // likewise: the number of the segment in its row
  mask = 6,       // likewise: 1
};

// A field: bytes [offset, offset + width) of each row of a column, which may go on into the next
// row's. Of segments only the width counts: as many numbers has a row, with `fill` behind the last
// segment.
struct TableField {
  std::uint32_t column = 0;
  std::uint32_t offset = 0, width = 0;
  FieldKind kind = FieldKind::bytes;
  std::uint8_t from = 1, to = 1;  // bytes of a number: 1, 2 or 4, to 4 or 8
  std::int64_t fill = 0;

  std::size_t numbers() const { return width / from; }
  std::size_t out_bytes() const { return kind == FieldKind::bytes ? width : numbers() * to; }
  bool in_segments() const { return kind >= FieldKind::inputs; }
};

// Which numbers of a column make up each row of a shard: row i has the segments from begin[i] on,
// each of them length[j] numbers from number start[j] on.
struct Segments {
  std::vector<std::int64_t> begin;  // one more than rows
  std::vector<std::int64_t> start;
  std::vector<std::int32_t> length;
};

// One shard's columns. Immutable.
struct ShardColumns {
  std::vector<const std::uint8_t*> begin;  // of each column
  std::shared_ptr<const Segments> segments;
  std::shared_ptr<const Mapping> mapping;  // null: columns in `memory`, or the caller's
  std::vector<std::shared_ptr<const std::uint8_t>> memory;

  // Whether what was read from it so far is what the file had.
  bool sound() const { return !(mapping && mapping->damaged()); }
};

// Where a column lies in a shard's file.
struct ColumnPlace {
  std::uint64_t offset = 0;  // of its first row
  std::uint64_t bytes = 0;   // of all rows
};

// A column in the caller's memory.
struct MemoryColumn {
  const std::uint8_t* begin = nullptr;  // of its first row
  std::uint64_t bytes = 0;              // from there to the end of the last row
};

// What is known of a table at one moment.
struct KnownShards {
  std::vector<std::shared_ptr<const ShardColumns>> shards;  // null: one that is not known
  // origins[column][shard] + row * stride is where a row of the shard lies, by its number in the
  // table; 0 where its rows cannot be had.
  std::vector<std::vector<std::uintptr_t>> origins;
};

// Thread-safe. Kept by a shared_ptr, of which the copying thread has one: close() lets it go.
class Table : public std::enable_shared_from_this<Table> {
 public:
  // first_row: of each shard, and the number of all rows at the end; ascending, from 0.
  // strides: bytes from row to row of each column. Throws std::invalid_argument where they, or the
  // fields, do not fit each other.
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

  // The shard of a row in [0, rows()).
  std::size_t shard_of(std::int64_t row) const {
    std::size_t shard = guide_[static_cast<std::size_t>(row >> guide_shift_)];
    while (row >= first_row_[shard + 1]) ++shard;
    return shard;
  }

  // Makes a shard known, one ColumnPlace a column. what: identifies these columns of this file in
  // NodeMemory; 0: the shard is not shared. Code::corrupt: a column leaves the file, or a row or
  // segment leaves its column.
  Status set(std::size_t shard, std::shared_ptr<const Mapping> mapping,
             const std::vector<ColumnPlace>& places,
             std::shared_ptr<const Segments> segments = nullptr, std::uint64_t what = 0);
  // Likewise for columns in the caller's memory, which are never copied. The caller keeps the
  // memory until all gathers that were begun while the shard was known are done.
  Status set_memory(std::size_t shard, const std::vector<MemoryColumn>& columns);
  void unset(std::size_t shard);

  // The shards of `rows`, all in [0, rows()), that are not known; ascending.
  std::vector<std::int64_t> missing(const std::int64_t* rows, std::size_t count) const;

  // Whether all shards are known.
  bool complete() const;

  // What is known now; it stays as it is while somebody has it.
  std::shared_ptr<const KnownShards> snapshot() const;

  // Has a thread copy the shards that become known from now on, one after the other. A shard that
  // there is no memory for stays mapped. Nothing happens the second time. Whoever calls this calls
  // close() in the end. node: where the copies go, with an entry for each shard; null: into memory
  // of this process. Throws std::invalid_argument if it has another number of entries.
  void make_resident(std::shared_ptr<NodeMemory> node = nullptr);

  // How many shards are read from copies.
  std::size_t resident() const;

  // Whether this is a child of the process that the table was made in, where what its thread was
  // changing stays half-changed: neither to be used nor destroyed there.
  bool forked() const;

  // Ends the copying; where its thread does not come back within `patience`, it is left alone. May
  // be called again. Does nothing in a forked child, which has no thread.
  void close(std::chrono::nanoseconds patience = kPatience);

 private:
  struct Copy {
    std::size_t shard;
    std::shared_ptr<const ShardColumns> from;
    std::vector<ColumnPlace> places;
    std::uint64_t what;
  };
  // Changed in its place while nobody has a snapshot of it, and else copied: setting all shards of
  // a table takes time in proportion to their number.
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
  std::vector<std::uint64_t> reach_;  // of each column: where the last field of a row ends
  int guide_shift_ = 0;
  std::vector<std::uint32_t> guide_;  // the shard of row i << guide_shift_

  mutable std::mutex mutex_;
  std::shared_ptr<State> state_;          // guarded by mutex_, as is all below
  std::size_t known_ = 0, resident_ = 0;  // how many
  std::deque<Copy> to_copy_;
  std::shared_ptr<NodeMemory> node_;  // not changed while a thread copies
  std::condition_variable wanted_;
  bool copying_ = false;
  std::atomic<bool> closed_{false};
  const pid_t pid_;
  std::mutex ending_;
  Crew crew_;  // guarded by ending_ (and mutex_ where it starts)
};

}  // namespace fastio
