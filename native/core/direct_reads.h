// Reads the rows that a thread has claimed while the thread decodes others. The reads are direct
// (O_DIRECT, past the page cache) and use io_uring.
//
// If the data is much larger than memory, the page cache keeps little of it until the next epoch,
// and takes more processor time than the reads themselves.
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

// Used by one thread. No function reports errors: next() returns a row that could not be read
// without bytes, and FileSet::read() then reports the error.
class DirectReads {
 public:
  // Rows in flight, of all threads together: hardly any disk is faster with more.
  static constexpr std::size_t kInFlight = 32;

  // depth: the maximum number of rows of this thread that are read or being read.
  explicit DirectReads(std::size_t depth);
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // The number of rows that begin() has taken and next() has not returned yet.
  std::size_t held() const { return held_; }
  std::size_t depth() const { return reads_.size(); }

  // Takes a claimed row, to read its range. Returns false if direct reads are not possible, or if
  // depth() rows are held already.
  bool begin(const Claim& claim, DirectRange range);

  // Starts the reads of the rows that were taken. next() does so, too.
  void submit();

  // Waits until a row has been read, and returns the oldest such row. Call it only if held() > 0.
  // bytes: those of the row's range, followed by Buffer::kPad zeros; valid until the next call of
  // begin() or next(). Empty if the row must be read with FileSet::read().
  Claim next(std::span<const std::uint8_t>& bytes);

 private:
  struct Read {
    Claim claim;
    DirectRange range;
    std::uint64_t number = 0;  // counts the calls of begin()
    std::int32_t result = 0;
    bool held = false, done = false;
  };
  std::uint8_t* memory_of(std::size_t read) const;
  void give_up();

  std::vector<Read> reads_;
  bool usable_ = false;  // whether there are a ring and memory, and the ring works
  std::size_t held_ = 0;
  std::uint64_t next_number_ = 0;
  std::shared_ptr<std::uint8_t> memory_;
  Ring ring_;
};

}  // namespace fastio
