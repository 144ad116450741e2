// Threads that ask the system to read the bytes of batches before workers need them, so that the
// disk has many reads in flight, however few threads decode.
//
// The bytes go to the page cache, not into this process's memory, so errors here have no effect
// other than slower reads. A request for a cached range still costs time, so slots are skipped as
// long as they seem to be in memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "crew.h"
#include "slot.h"

namespace fastio {

// Thread-safe. Requests slots in the order of push(), and the ranges of a slot by file and offset.
// Skips rows that workers have claimed, and cancelled slots.
class ReadAhead {
 public:
  // Starts `threads` threads, or as many as the system allows. They wait for the disk only if they
  // open a file whose directory entry is not cached.
  explicit ReadAhead(int threads);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Queues a slot. If there is no memory for that, its bytes are not read ahead.
  void push(const std::shared_ptr<const Slot>& slot) noexcept;

  // Drops queued slots and joins the threads; those that do not end within `patience` are detached.
  // May be called again, but not by two threads at once.
  void close(std::chrono::nanoseconds patience = kPatience);

 private:
  struct Job {
    std::shared_ptr<const Slot> slot;
    std::vector<WantedRange> ranges;
    std::size_t next = 0;
  };
  // State that the object and its threads share. Reference-counted, because detached threads may
  // outlive the object.
  struct Shared {
    bool claim(std::shared_ptr<const Slot>& slot, WantedRange& range);
    void work();

    std::mutex mutex;
    std::condition_variable ready;
    std::deque<Job> jobs;  // guarded by mutex
    bool closed = false;   // likewise
  };

  const pid_t pid_;
  std::atomic<int> wary_{0};  // how many slots to request even if they seem to be in memory
  std::shared_ptr<Shared> shared_;
  Crew crew_;
};

}  // namespace fastio
