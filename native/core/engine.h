// The worker threads: they take rows of the oldest slot, read, decode and write them.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "queue.h"
#include "slot.h"

namespace fastio {

// Thread-safe, but for close(), which one thread calls once. No Python object is ever touched
// from a worker thread.
class Engine {
 public:
  // Starts `threads` >= 1 threads.
  explicit Engine(int threads);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a slot. After close() it is cancelled at once.
  void submit(std::shared_ptr<Slot> slot);

  // Cancels what waits, lets the rows in hand finish, joins every thread. May be called again.
  void close();

  const ImageCounters& counters() const { return *counters_; }

  // In a forked child the threads do not exist: forgets them without joining. The queue they may
  // have held locked is leaked with them.
  void abandon();

 private:
  void work();

  std::unique_ptr<ImageCounters> counters_;
  std::unique_ptr<SlotQueue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace fastio
