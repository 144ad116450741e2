// The slots that wait for threads, oldest first.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "slot.h"

namespace fastio {

// Thread-safe. All threads work on the oldest slot until its rows are handed out, so that batches
// complete in order and a slow row delays its own batch only.
class SlotQueue {
 public:
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

  // Waits for rows and claims some of them; null once closed.
  std::shared_ptr<Slot> claim(std::size_t& begin, std::size_t& end) {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!slots_.empty()) {
        if (slots_.front()->claim(begin, end)) return slots_.front();
        slots_.pop_front();
      }
      if (closed_) return nullptr;
      ready_.wait(lock);
    }
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
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Slot>> slots_;
  bool closed_ = false;
};

}  // namespace fastio
