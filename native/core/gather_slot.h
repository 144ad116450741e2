// The slot of a table's rows, which threads copy into a batch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "slot.h"
#include "table.h"
#include "token_fields.h"

namespace fastio {

class GatherSlot : public Slot {
 public:
  // rows: all in [0, table->rows()). Rows of shards that the table does not know fail. out: for
  // each of the table's fields, the memory for consecutive rows, or null if the field is not
  // wanted.
  GatherSlot(std::shared_ptr<const Table> table, std::vector<std::int64_t> rows,
             std::vector<std::uint8_t*> out);

  void fill(std::size_t begin, std::size_t end, Worker& worker) override;

  // Fills all rows in the calling thread. Only for a slot that is not queued.
  void fill_here();

  // Returns the size of all rows in the batch.
  std::size_t bytes() const;

 protected:
  std::vector<Failure> noted() const override;

 private:
  // A wanted field of the column that is copied.
  struct Target {
    std::uint8_t* out;
    std::size_t out_bytes;  // of a row
    void (*copy)(const std::uint8_t* const* from, std::size_t offset, std::size_t count,
                 std::size_t width, std::uint8_t* out);
    TableField field;
  };
  // A column with wanted fields, and the bytes of a row that they lie in.
  struct Wanted {
    std::size_t column;
    std::uint32_t begin, end;
    std::vector<Target> targets;
  };
  // Wanted fields of segments that differ only in their kind.
  struct InSegments {
    TableField field;                             // any of them
    TokenFields out;                              // of each kind
    std::array<std::int64_t, kTokenFields> fill;  // behind the last segment
  };
  void add_in_segments(const TableField& field, std::uint8_t* out);
  void copy(std::size_t begin, std::size_t end);
  bool copy_column(const Wanted& wanted, std::size_t begin, std::size_t end) const;
  bool locate(const Wanted& wanted, std::size_t begin, std::size_t count,
              const std::uint8_t** from) const;
  static void copy_group(const Target& target, const std::uint8_t* const* from, std::size_t count,
                         std::uint8_t* out);
  void copy_segments(const InSegments& some, std::size_t begin, std::size_t end) const;
  static void copy_row(const InSegments& some, const Segments& segments, std::size_t row,
                       const std::uint8_t* data, std::size_t i);
  void note_failures(std::size_t begin, std::size_t end);

  const std::shared_ptr<const Table> table_;
  const std::shared_ptr<const KnownShards> known_;  // the snapshot from the constructor
  const std::vector<std::int64_t> row_;
  std::vector<Wanted> wanted_;
  std::vector<InSegments> in_segments_;
  mutable std::mutex failing_;
  std::vector<Failure> failures_;  // guarded by failing_
};

}  // namespace fastio
