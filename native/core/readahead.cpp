#include "readahead.h"

#include <unistd.h>

#include <exception>
#include <utility>

namespace fastio {
namespace {

// After a slot that was not in memory, this many slots are requested even if they seem to be in
// memory: if a part of the data is cached, the few rows that are tested may lie in that part.
constexpr int kWary = 8;

}  // namespace

ReadAhead::ReadAhead(int threads) : pid_(::getpid()), shared_(std::make_shared<Shared>()) {
  try {
    for (int i = 0; i < threads; ++i) crew_.start([shared = shared_] { shared->work(); });
  } catch (const std::exception&) {
    // As many as there are.
  }
  if (crew_.size() == 0) shared_->closed = true;  // workers read what nobody asked for ahead
}

ReadAhead::~ReadAhead() {
  if (::getpid() == pid_) {
    close();
  } else {
    // The threads do not exist here, and their lock may look held and waited for.
    static_cast<void>(new std::shared_ptr<Shared>(std::move(shared_)));
  }
}

void ReadAhead::push(const std::shared_ptr<const Slot>& slot) noexcept {
  try {
    if (!slot->in_memory()) {
      wary_.store(kWary, std::memory_order_relaxed);
    } else if (wary_.load(std::memory_order_relaxed) <= 0) {  // below 0: two pushed at a time
      return;
    } else {
      wary_.fetch_sub(1, std::memory_order_relaxed);
    }
    std::vector<WantedRange> ranges = slot->wanted();
    if (ranges.empty()) return;
    const std::lock_guard lock(shared_->mutex);
    if (shared_->closed) return;
    shared_->jobs.push_back({slot, std::move(ranges)});
  } catch (const std::exception&) {
    return;
  }
  shared_->ready.notify_one();
}

void ReadAhead::close(std::chrono::nanoseconds patience) {
  std::deque<Job> forgotten;  // goes after the lock: it may hold the last of a slot
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->closed = true;
    forgotten.swap(shared_->jobs);
  }
  shared_->ready.notify_all();
  crew_.end(patience);
}

// Waits for the next range; false once closed.
bool ReadAhead::Shared::claim(std::shared_ptr<const Slot>& slot, WantedRange& range) {
  std::unique_lock lock(mutex);
  ready.wait(lock, [this] { return closed || !jobs.empty(); });
  if (closed) return false;
  Job& job = jobs.front();
  slot = job.slot;
  range = job.ranges[job.next++];
  if (job.next == job.ranges.size()) jobs.pop_front();
  // One thread wakes the next: what is cached takes so little time that one or two are enough.
  if (!jobs.empty()) ready.notify_one();
  return true;
}

void ReadAhead::Shared::work() {
  std::shared_ptr<const Slot> slot;
  WantedRange range;
  while (claim(slot, range)) {
    try {
      slot->ask_for(range);
    } catch (const std::exception&) {
      // The worker that reads it meets the same, and tells it.
    }
    slot.reset();
  }
}

}  // namespace fastio
