#include "readahead.h"

#include <system_error>
#include <utility>

namespace fastio {

ReadAhead::ReadAhead(int threads) {
  try {
    threads_.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // As many as there are.
  }
  if (threads_.empty()) closed_ = true;  // workers read what nobody asked for ahead
}

void ReadAhead::push(std::shared_ptr<const Slot> slot) {
  std::vector<WantedRange> ranges = slot->wanted();
  if (ranges.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    jobs_.push_back({std::move(slot), std::move(ranges)});
  }
  ready_.notify_one();
}

void ReadAhead::close() {
  std::deque<Job> forgotten;  // goes after the lock: it may hold the last of a slot
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    forgotten.swap(jobs_);
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// Waits for the next range; false once closed.
bool ReadAhead::claim(std::shared_ptr<const Slot>& slot, WantedRange& range) {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
  if (closed_) return false;
  Job& job = jobs_.front();
  slot = job.slot;
  range = job.ranges[job.next++];
  if (job.next == job.ranges.size()) jobs_.pop_front();
  // One thread wakes the next: what is cached takes so little time that one or two are enough.
  if (!jobs_.empty()) ready_.notify_one();
  return true;
}

void ReadAhead::work() {
  std::shared_ptr<const Slot> slot;
  WantedRange range;
  while (claim(slot, range)) {
    slot->ask_for(range);
    slot.reset();
  }
}

}  // namespace fastio
