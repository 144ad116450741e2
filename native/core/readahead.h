// Threads that ask the system for the bytes of batches before workers come to them, so that a disk
// has many reads to do at a time, however few threads decode.
//
// What is asked for goes to the page cache: nothing is read into memory of ours, so nothing here
// can fail or be wrong, only useless. A range that is cached already still costs a request, so
// slots are skipped as long as they seem to be in memory.
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

// Thread-safe. Slots are asked for in the order in which they came, ranges of one slot by where
// they lie. Rows that workers have begun with, and slots that were cancelled, are left out.
class ReadAhead {
 public:
  // Starts `threads` threads, or as many as the system has. They wait for the disk where a file is
  // opened whose directory entry is not cached; what is asked for of open files does not wait.
  explicit ReadAhead(int threads);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Never throws: where there is no memory, the slot's bytes are read when workers come to them.
  void push(const std::shared_ptr<const Slot>& slot) noexcept;

  // Forgets what waits, joins the threads, and leaves those alone that do not come back within
  // `patience`. May be called again; not from two threads at once.
  void close(std::chrono::nanoseconds patience = kPatience);

 private:
  struct Job {
    std::shared_ptr<const Slot> slot;
    std::vector<WantedRange> ranges;
    std::size_t next = 0;
  };
  // What the threads use: the last of them lets go.
  struct Shared {
    bool claim(std::shared_ptr<const Slot>& slot, WantedRange& range);
    void work();

    std::mutex mutex;
    std::condition_variable ready;
    std::deque<Job> jobs;  // guarded by mutex
    bool closed = false;   // likewise
  };

  const pid_t pid_;
  std::atomic<int> wary_{0};  // number of next slots to request even if they seem to be in memory
  std::shared_ptr<Shared> shared_;
  Crew crew_;
};

}  // namespace fastio
