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
#include <utility>
#include <vector>

#include "image.h"
#include "read.h"
#include "status.h"

namespace fastio {

// What a worker thread keeps between rows.
struct Worker {
  explicit Worker(ImageCounters& shared) : decoder(shared), counters(shared) {}

  ImageDecoder decoder;
  Buffer bytes;
  ImageCounters& counters;
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
    begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= rows_) return false;
    end = std::min(begin + chunk_, rows_);
    return true;
  }
  // May be called once for claimed rows; what goes wrong is the rows' status.
  virtual void fill(std::size_t begin, std::size_t end, Worker& worker) = 0;
  // Claimed rows were not filled, or not all of them, since fill() threw: `what` it said. Called in
  // a catch clause; needs no memory.
  void broke(std::size_t begin, Code code, const char* what) noexcept;
  // So many claimed rows are done.
  void finish(std::size_t rows) {
    // Notified under the lock: the consumer may free the slot as soon as it sees left_ == 0.
    const std::lock_guard lock(mutex_);
    left_ -= rows;
    if (left_ == 0) done_.notify_all();
  }

  // What the rows will need of files, by file and offset, neighbours joined: see ReadAhead.
  virtual std::vector<WantedRange> wanted() const { return {}; }
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
    return done_.wait_for(lock, timeout, [this] { return left_ == 0; });
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
  const std::size_t rows_, chunk_;
  // Of each claim the code of what fill() threw, else ok. Made before the slot is queued.
  const std::unique_ptr<std::atomic<std::uint8_t>[]> broken_;
  std::atomic<bool> any_broken_{false};
  char what_[200] = "";  // the first of them said; guarded by mutex_
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> cancelled_{false}, abandoned_{false};
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::size_t left_;  // rows neither finished nor cancelled; guarded by mutex_
};

}  // namespace fastio
