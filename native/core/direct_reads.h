// Rows that are read while the thread that claimed them decodes others: directly (O_DIRECT), past
// the page cache, by io_uring.
//
// If the data is much larger than memory, the page cache keeps little of it until the next epoch,
// and costs more processor time than the reads themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "queue.h"
#include "read.h"
#include "ring.h"

namespace fastio {

// For one thread. Nothing fails here: a row that cannot be read is handed out without its bytes,
// and what is wrong with it is reported by FileSet::read().
class DirectReads {
 public:
  // Rows under way, of all threads together: few disks are faster with more.
  static constexpr std::size_t kInFlight = 32;

  // depth: rows of this thread, read or being read.
  explicit DirectReads(std::size_t depth);
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // The number of rows that begin() took and next() has not returned.
  std::size_t held() const { return held_; }
  std::size_t depth() const { return reads_.size(); }

  // Takes a claimed row to read it. Returns false if that is not possible, or if there are depth()
  // rows already.
  bool begin(const Claim& claim, DirectRange range);

  // Begins the reads of rows that were taken. next() does that too.
  void submit();

  // Waits for a row, and returns the oldest one that is there. bytes: those of its range, which
  // stay until begin() or next() is called, followed by Buffer::kPad zeros; none if the row has to
  // be read with FileSet::read(). Only if there are held() rows.
  Claim next(std::span<const std::uint8_t>& bytes);

 private:
  struct Read {
    Claim claim;
    DirectRange range;
    std::uint64_t number = 0;  // in the order in which they began
    std::int32_t result = 0;
    bool held = false, done = false;
  };
  std::uint8_t* memory_of(std::size_t read) const;
  void give_up();

  std::vector<Read> reads_;
  bool usable_ = false;  // whether the system gave us a ring and memory, and the ring works
  std::size_t held_ = 0;
  std::uint64_t next_number_ = 0;
  std::shared_ptr<std::uint8_t> memory_;
  Ring ring_;
};

}  // namespace fastio
