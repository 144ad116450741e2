// The slots that wait for threads, oldest first.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "slot.h"

namespace fastio {

// Thread-safe. All threads work on the oldest slot until its rows are handed out, so that batches
// complete in order and a slow row delays its own batch only. The first `limit` threads do: those
// with a higher number wait, until they are allowed or the queue is closed.
class SlotQueue {
 public:
  explicit SlotQueue(std::size_t limit) : limit_(limit) {}

  void push(std::shared_ptr<Slot> slot) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        slot->cancel();
        return;
      }
      slots_.push_back(std::move(slot));
    }
    ready_.notify_all();
  }

  // Waits for rows and claims some of them for a thread, numbered from 0; null once closed.
  std::shared_ptr<Slot> claim(std::size_t thread, std::size_t& begin, std::size_t& end) {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (thread < limit_ && !slots_.empty()) {
        if (slots_.front()->claim(begin, end)) return slots_.front();
        slots_.pop_front();
      }
      if (closed_) return nullptr;
      (thread < limit_ ? ready_ : allowed_).wait(lock);
    }
  }

  // Rows that are claimed already are finished all the same.
  void limit(std::size_t threads) {
    {
      const std::lock_guard lock(mutex_);
      limit_ = threads;
    }
    allowed_.notify_all();
  }

  // Wakes every waiting thread for good; rows not claimed yet are never handed out.
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
  std::mutex mutex_;
  std::condition_variable ready_, allowed_;
  std::deque<std::shared_ptr<Slot>> slots_;
  std::size_t limit_;
  bool closed_ = false;
};

}  // namespace fastio
