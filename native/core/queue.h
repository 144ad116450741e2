// The queue of slots from which worker threads claim rows.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "slot.h"

namespace fastio {

// Rows [begin, end) of a slot that a thread has claimed. The thread keeps it, so that its next
// claim in the same slot takes no lock.
struct Claim {
  std::shared_ptr<Slot> slot;
  std::size_t begin = 0, end = 0;
};

// Thread-safe. All threads claim rows of the oldest slot until none are left, so that batches
// complete in order and a slow row delays its own batch only. Threads with numbers of `limit` or
// more wait until the limit is raised or the queue is closed.
//
// A thread takes the lock only if its slot has no more rows. push() wakes one thread, which wakes
// the next one if rows are left, so that a batch of a few small rows does not wake all threads.
class SlotQueue {
 public:
  explicit SlotQueue(std::size_t limit) : limit_(limit) {}

  // Appends a slot. If the queue is closed, the slot is cancelled.
  void push(std::shared_ptr<Slot> slot) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        slot->cancel();
        return;
      }
      slots_.push_back(std::move(slot));
      if (waiting_ == 0) return;
    }
    ready_.notify_one();
  }

  // Returns whether a thread may claim another row while it holds `rows` rows that it has not begun
  // to fill. It may not if too few unclaimed rows would be left for the other threads.
  bool spares(std::size_t rows, const Claim& claim) {
    std::size_t wanted = rows * limit_.load(std::memory_order_relaxed);
    if (wanted == 0 || (claim.slot && claim.slot->unclaimed_rows() >= wanted)) return true;
    const std::lock_guard lock(mutex_);
    for (const auto& slot : slots_) {
      const std::size_t left = slot->unclaimed_rows();
      if (left >= wanted) return true;
      wanted -= left;
    }
    return false;
  }

  std::size_t threads() const { return limit_.load(std::memory_order_relaxed); }

  // Claims rows for thread number `thread` (from 0): of the slot of its last claim, or else of the
  // oldest slot. Returns false if there are none at the moment: call wait() then.
  bool claim(std::size_t thread, Claim& claim) {
    if (claim.slot && allowed(thread) && claim.slot->claim(claim.begin, claim.end)) return true;
    claim.slot.reset();
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      while (allowed(thread) && !slots_.empty() && !claim.slot) {
        if (slots_.front()->claim(claim.begin, claim.end)) {
          claim.slot = slots_.front();
          wake = waiting_ > 0 && (claim.slot->unclaimed() || slots_.size() > 1);
        } else {
          slots_.pop_front();
        }
      }
    }
    if (wake) ready_.notify_one();
    return claim.slot != nullptr;
  }

  // Waits until there may be rows for a thread. Returns false when the queue is closed.
  bool wait(std::size_t thread) {
    std::unique_lock lock(mutex_);
    while (!closed_ && !(allowed(thread) && !slots_.empty())) {
      if (!allowed(thread)) {
        allowed_.wait(lock);
        continue;
      }
      ++waiting_;
      ready_.wait(lock);
      --waiting_;
    }
    return !closed_;
  }

  // Sets how many threads may claim rows. Claims that a thread has already are not affected.
  void limit(std::size_t threads) {
    {
      const std::lock_guard lock(mutex_);
      limit_.store(threads, std::memory_order_relaxed);
    }
    allowed_.notify_all();
    ready_.notify_all();  // notify_one might wake a thread that is not allowed any more
  }

  // Cancels all slots and wakes all threads, for which wait() then returns false.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      for (const auto& slot : slots_) slot->cancel();
      slots_.clear();
    }
    ready_.notify_all();
    allowed_.notify_all();
  }

 private:
  bool allowed(std::size_t thread) const { return thread < limit_.load(std::memory_order_relaxed); }

  std::mutex mutex_;
  std::condition_variable ready_, allowed_;
  std::deque<std::shared_ptr<Slot>> slots_;
  std::atomic<std::size_t> limit_;  // changed under mutex_
  std::size_t waiting_ = 0;         // threads at ready_; guarded by mutex_
  bool closed_ = false;
};

}  // namespace fastio
