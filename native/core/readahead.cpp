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
    // Continue with the threads that were started.
  }
  if (crew_.size() == 0) shared_->closed = true;  // nothing is read ahead then
}

ReadAhead::~ReadAhead() {
  if (::getpid() == pid_) {
    close();
  } else {
    // Leaked on purpose: the threads do not exist here, and the mutex may appear locked.
    static_cast<void>(new std::shared_ptr<Shared>(std::move(shared_)));
  }
}

void ReadAhead::push(const std::shared_ptr<const Slot>& slot) noexcept {
  try {
    if (!slot->in_memory()) {
      wary_.store(kWary, std::memory_order_relaxed);
    } else if (wary_.load(std::memory_order_relaxed) <= 0) {  // concurrent calls may make it < 0
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
  // Destroyed after the lock is released, since it may own the last reference to a slot.
  std::deque<Job> forgotten;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->closed = true;
    forgotten.swap(shared_->jobs);
  }
  shared_->ready.notify_all();
  crew_.end(patience);
}

// Waits for the next range. Returns false once closed.
bool ReadAhead::Shared::claim(std::shared_ptr<const Slot>& slot, WantedRange& range) {
  std::unique_lock lock(mutex);
  ready.wait(lock, [this] { return closed || !jobs.empty(); });
  if (closed) return false;
  Job& job = jobs.front();
  slot = job.slot;
  range = job.ranges[job.next++];
  if (job.next == job.ranges.size()) jobs.pop_front();
  // Each thread wakes the next one. For cached data, requests are so short that one or two suffice.
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
      // The worker that reads the row meets the same error, and reports it.
    }
    slot.reset();
  }
}

}  // namespace fastio
