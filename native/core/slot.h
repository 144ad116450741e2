// One part of a batch while worker threads fill it: threads claim rows and fill them, and the
// consumer waits until all rows are done.
//
// Ownership: the memory that rows are written to belongs to the caller, who must keep it alive
// until wait() has returned true. This holds for cancelled slots too, because threads finish the
// rows that they have claimed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "image.h"
#include "read.h"
#include "status.h"

namespace fastio {

// What a worker thread keeps from one row to the next.
struct Worker {
  Worker(ImageCounters& of_thread, JpegIndexes& of_jpegs)
      : decoder(of_thread), counters(of_thread), indexes(of_jpegs) {}

  ImageDecoder decoder;
  Buffer bytes;
  // The bytes of the row to be filled, if they were read already, followed by Buffer::kPad zeros.
  std::span<const std::uint8_t> fetched;
  OpenFiles open;
  ImageCounters& counters;
  JpegIndexes& indexes;
  JpegIndex index, found;  // of the current image: the known points, and new ones to be added
};

// A range of a file that one or more rows of a slot will read.
struct WantedRange {
  std::int32_t file = 0;
  std::int64_t offset = 0, length = 0;  // or FileSet::kWholeFile
  // The last row that reads from the range. kNeverClaimed: no worker reads it, but Python does.
  std::size_t last_row = 0;
  static constexpr std::size_t kNeverClaimed = SIZE_MAX;
};

// A row that could not be filled, and the reason.
using Failure = std::pair<std::size_t, Status>;

// The base class of `ImageSlot` (images), `GatherSlot` (fixed-width fields of tables) and
// `SpanSlot` (rows whose sizes differ).
class Slot {
 public:
  // chunk: rows that a thread claims at a time.
  Slot(std::size_t rows, std::size_t chunk);
  virtual ~Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  std::size_t rows() const { return rows_; }

  // For workers. claim() takes the next rows, [begin, end), and returns false if none are left.
  bool claim(std::size_t& begin, std::size_t& end) {
    if (!unclaimed()) return false;  // avoids a write, for which other threads would wait
    begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= rows_) return false;
    end = std::min(begin + chunk_, rows_);
    return true;
  }
  bool unclaimed() const { return next_.load(std::memory_order_relaxed) < rows_; }
  std::size_t unclaimed_rows() const {
    return rows_ - std::min(next_.load(std::memory_order_relaxed), rows_);
  }
  // Returns the range of a file to read directly before a row is filled (see DirectReads). If it
  // has no file, fill() reads the bytes itself.
  virtual DirectRange direct(std::size_t, OpenFiles&) const { return {}; }
  // Fills rows that claim() returned; called once for each claim. Errors become the rows' status.
  // May throw: see broke().
  virtual void fill(std::size_t begin, std::size_t end, Worker& worker) = 0;
  // Records that fill() threw for the claim that begins at row `begin`: all rows of the claim fail
  // with `code` and the exception's message `what`. Called in a catch clause; allocates nothing.
  void broke(std::size_t begin, Code code, const char* what) noexcept;
  // Counts `rows` claimed rows as done. The call that completes the slot wakes the consumer.
  void finish(std::size_t rows) {
    // Release: this thread's writes to rows happen before the subtraction. Acquire: the thread
    // that reaches 0 sees the writes of all other threads, and the consumer sees them through the
    // mutex. The other threads touch no row after this; they may still call claim(), because their
    // own shared_ptr keeps the slot alive.
    if (rows == 0 || left_.fetch_sub(rows, std::memory_order_acq_rel) != rows) return;
    // The consumer tests done_ under the lock, and not left_. It may free the slot as soon as it
    // sees done_, so the unlocking must be the last access of this thread. notify_all() is called
    // under the lock for the same reason.
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  // Returns the ranges that the rows will read, sorted by file and offset, with adjacent ranges
  // merged: see ReadAhead.
  virtual std::vector<WantedRange> wanted() const { return {}; }
  // Returns whether the bytes of all rows seem to be in memory, after testing a few rows.
  virtual bool in_memory() const { return false; }
  // Asks the system to read a range ahead, unless workers have claimed all rows that read from it.
  virtual void ask_for(const WantedRange&) const {}

  // For the consumer. cancel() drops the rows that are not claimed yet. wait() returns true once no
  // thread touches the slot any more, or false after `timeout`.
  void cancel() {
    cancelled_.store(true);
    const std::size_t claimed = std::min(next_.exchange(rows_, std::memory_order_relaxed), rows_);
    finish(rows_ - claimed);
  }
  bool wait(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return done_; });
  }
  bool cancelled() const { return cancelled_.load(); }
  // Called when the consumer gives up waiting for a thread that hangs: that thread then writes no
  // row that it has not begun to write.
  void abandon() { abandoned_.store(true); }
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  // Returns the rows that failed, sorted, including those that broke() recorded. Call this only
  // after wait() has returned true.
  std::vector<Failure> failures() const;

 protected:
  // Returns the failures that fill() recorded: at most one per row, in any order.
  virtual std::vector<Failure> noted() const = 0;
  // Whether this row and all rows before it are claimed.
  bool begun(std::size_t row) const { return row < next_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kCacheLine = 64;
  const std::size_t rows_, chunk_;
  // One entry per claim: the Code that was given to broke(), or ok. Allocated by the constructor,
  // because broke() must not allocate.
  const std::unique_ptr<std::atomic<std::uint8_t>[]> broken_;
  std::atomic<bool> any_broken_{false};
  char what_[200] = "";  // the message of the first exception; guarded by mutex_
  alignas(kCacheLine) std::atomic<std::size_t> next_{0};
  std::atomic<bool> cancelled_{false}, abandoned_{false};
  // Rows neither finished nor cancelled. On its own cache line, like next_.
  alignas(kCacheLine) std::atomic<std::size_t> left_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_;  // no thread touches the slot any more; guarded by mutex_
};

}  // namespace fastio
