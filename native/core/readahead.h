// Threads that ask the system for the bytes of batches before workers come to them, so that a disk
// has many reads to do at a time, however few threads decode.
//
// What is asked for goes to the page cache: nothing is read into memory of ours, so nothing here
// can fail or be wrong, only useless. A range that is cached already costs a look.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "slot.h"

namespace fastio {

// Thread-safe. Slots are asked for in the order in which they came, ranges of one slot by where
// they lie. Rows that workers have begun with, and slots that were cancelled, are left out.
class ReadAhead {
 public:
  // Starts `threads` threads, or as many as the system has. They wait for the disk where a file is
  // opened whose directory entry is not cached; what is asked for of open files does not wait.
  explicit ReadAhead(int threads);
  ~ReadAhead() { close(); }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void push(std::shared_ptr<const Slot> slot);

  // Forgets what waits, joins the threads. May be called again; not from two threads at once.
  void close();

 private:
  struct Job {
    std::shared_ptr<const Slot> slot;
    std::vector<WantedRange> ranges;
    std::size_t next = 0;
  };
  void work();
  bool claim(std::shared_ptr<const Slot>& slot, WantedRange& range);

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool closed_ = false;   // likewise
  std::vector<std::thread> threads_;
};

}  // namespace fastio
