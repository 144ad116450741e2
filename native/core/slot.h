// A part of a batch while threads fill it: rows that are claimed, filled and waited for.
//
// Ownership: the memory that rows are written to belongs to the caller, who keeps it alive until
// wait() said true (a cancelled slot too: rows in hand are finished first).
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

// What a worker thread keeps between rows.
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
  JpegIndex index, found;  // of the current image: what is known, and new points
};

// Bytes of a file that rows of a slot will be read from.
struct WantedRange {
  std::int32_t file = 0;
  std::int64_t offset = 0, length = 0;  // or FileSet::kWholeFile
  std::size_t last_row = 0;             // of those in it; kNeverClaimed: it is not a worker's
  static constexpr std::size_t kNeverClaimed = SIZE_MAX;
};

// A row that is not whole, and why.
using Failure = std::pair<std::size_t, Status>;

// Images are filled by `ImageSlot`, fixed-width fields of tables by `GatherSlot`, rows whose sizes
// differ by `SpanSlot`.
class Slot {
 public:
  // chunk: rows that a thread claims at a time.
  Slot(std::size_t rows, std::size_t chunk);
  virtual ~Slot() = default;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  std::size_t rows() const { return rows_; }

  // The workers' side. claim() hands out the next rows, [begin, end); false when none are left.
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
  // May be called once for claimed rows; what goes wrong is the rows' status.
  virtual void fill(std::size_t begin, std::size_t end, Worker& worker) = 0;
  // Claimed rows were not filled, or not all of them, since fill() threw: `what` it said. Called in
  // a catch clause; needs no memory.
  void broke(std::size_t begin, Code code, const char* what) noexcept;
  // So many claimed rows are done.
  void finish(std::size_t rows) {
    // Release: what this thread wrote to rows comes before the subtraction. Acquire: the thread
    // that takes the last rows away, and after it the consumer through the mutex, sees what all
    // others wrote. A thread that is not the last touches no row after this; it may look for more
    // rows in the slot, which its own shared_ptr keeps.
    if (rows == 0 || left_.fetch_sub(rows, std::memory_order_acq_rel) != rows) return;
    // The consumer does not look at left_, but at done_, and that under the lock: as soon as it
    // sees it, it may free the slot, and the last touch of a thread is the unlocking. Notified
    // under the lock for the same reason.
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  // What the rows will need of files, by file and offset, neighbours joined: see ReadAhead.
  virtual std::vector<WantedRange> wanted() const { return {}; }
  // Returns whether the bytes of all rows seem to be in memory, after testing a few rows.
  virtual bool in_memory() const { return false; }
  // Asks the system for it, unless workers have begun with all rows of it.
  virtual void ask_for(const WantedRange&) const {}

  // The consumer's side. cancel(): rows not yet claimed are left out. wait(): true once no thread
  // touches the slot any more, false after `timeout`.
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
  // The consumer waits no longer for a thread that does not come back: rows that it has not begun
  // to write are not written any more.
  void abandon() { abandoned_.store(true); }
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  // After wait() said true: by row, those that broke() told of included.
  std::vector<Failure> failures() const;

 protected:
  // What fill() noted, a row at most once, in any order.
  virtual std::vector<Failure> noted() const = 0;
  // Whether a thread has begun with this row and all before it.
  bool begun(std::size_t row) const { return row < next_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kCacheLine = 64;
  const std::size_t rows_, chunk_;
  // Of each claim the code of what fill() threw, else ok. Made before the slot is queued.
  const std::unique_ptr<std::atomic<std::uint8_t>[]> broken_;
  std::atomic<bool> any_broken_{false};
  char what_[200] = "";  // the first of them said; guarded by mutex_
  alignas(kCacheLine) std::atomic<std::size_t> next_{0};
  std::atomic<bool> cancelled_{false}, abandoned_{false};
  // Rows neither finished nor cancelled. On its own cache line, like next_.
  alignas(kCacheLine) std::atomic<std::size_t> left_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_;  // no thread touches the slot any more; guarded by mutex_
};

}  // namespace fastio
