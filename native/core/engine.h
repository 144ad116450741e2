// The worker threads: they take rows of the oldest slot, read, decode and write them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "crew.h"
#include "queue.h"
#include "readahead.h"
#include "slot.h"

namespace fastio {

// The sums of the ImageCounters of all threads.
struct ImageTotals {
  std::uint64_t images = 0, bytes = 0, read_ns = 0, decode_ns = 0, resample_ns = 0, augment_ns = 0;
};

// The counters of each thread, on separate cache lines. Threads can be added, and are never removed
// before the list is destroyed. There is no lock, because it might appear held in a forked child.
class CounterList {
 public:
  CounterList() = default;
  ~CounterList();
  CounterList(const CounterList&) = delete;
  CounterList& operator=(const CounterList&) = delete;

  ImageCounters& add();
  ImageTotals sum() const;

 private:
  struct alignas(128) Entry {  // two cache lines, because the processor prefetches pairs of lines
    ImageCounters counters;
    Entry* next = nullptr;
  };
  std::atomic<Entry*> first_{nullptr};
};

// Thread-safe. No Python object is ever touched from a worker thread.
class Engine {
 public:
  // Starts `threads` >= 1 threads. Throws std::system_error where the system has no more.
  explicit Engine(int threads);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Has so many threads (at least 1) take rows from now on: starts those that are missing, and lets
  // the others finish what they have in hand and wait. Returns how many do, which are less where
  // the system has no more threads. Does nothing after close() and in a forked child.
  int set_threads(int threads);

  // Queues a slot. After close(), and in a forked child, it is cancelled at once. Where this throws
  // (std::bad_alloc), it is cancelled too, and no thread has it.
  void submit(std::shared_ptr<Slot> slot);

  // Cancels what waits, lets the rows in hand finish, joins every thread. One that does not come
  // back within `patience` (its file system does not answer) is left alone, and its slot is never
  // done. May be called again. Does nothing in a forked child, where the threads do not exist.
  void close(std::chrono::nanoseconds patience = kPatience);

  // Whether close() left a thread alone.
  bool hangs() const { return hangs_.load(); }

  bool closed() const { return closed_.load(); }

  // Whether this is a child of the process that the engine was made in.
  bool forked() const;

  ImageTotals counters() const { return shared_->counters.sum(); }

  // The indexes of JPEGs that the threads have decoded. Not to be used in a forked child.
  JpegIndexes& indexes() const { return shared_->indexes; }

 private:
  // What the threads use: the last of them lets go.
  struct Shared {
    explicit Shared(std::size_t threads) : queue(threads) {}
    CounterList counters;
    JpegIndexes indexes;
    SlotQueue queue;
  };
  class Thread;
  void start(std::size_t threads);

  const pid_t pid_;
  std::shared_ptr<Shared> shared_;
  std::unique_ptr<ReadAhead> ahead_;
  std::atomic<bool> closed_{false}, hangs_{false};
  std::mutex starting_;  // and ending
  Crew crew_;            // guarded by starting_
};

}  // namespace fastio
