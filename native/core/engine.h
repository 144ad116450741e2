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

  // Sets how many threads (at least 1) take rows from now on. Starts threads that are missing;
  // surplus threads finish the rows that they hold and then wait. Returns the number of threads
  // that take rows, which is smaller than `threads` if the system refuses to start more. After
  // close() and in a forked child, does nothing and returns `threads`.
  int set_threads(int threads);

  // Queues a slot. After close() and in a forked child, the slot is cancelled at once. If this
  // throws std::bad_alloc, the slot is cancelled and no thread holds it.
  void submit(std::shared_ptr<Slot> slot);

  // Cancels waiting slots, lets threads finish the rows that they hold, and joins the threads. A
  // thread that does not end within `patience` (because its file system hangs) is abandoned, and
  // its slot is never done. May be called again. Does nothing in a forked child, where the threads
  // do not exist.
  void close(std::chrono::nanoseconds patience = kPatience);

  // Whether close() abandoned a thread that did not end in time.
  bool hangs() const { return hangs_.load(); }

  bool closed() const { return closed_.load(); }

  // Whether the current process was forked from the one that created the engine.
  bool forked() const;

  ImageTotals counters() const { return shared_->counters.sum(); }

  // The indexes of JPEGs that the threads have decoded. Not to be used in a forked child.
  JpegIndexes& indexes() const { return shared_->indexes; }

 private:
  // State that the engine and its threads share. Reference-counted, because abandoned threads may
  // outlive the engine.
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
  std::mutex starting_;  // held while threads are started or joined
  Crew crew_;            // guarded by starting_
};

}  // namespace fastio
