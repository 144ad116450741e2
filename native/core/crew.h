// Threads that are ended together, within a bounded time.
//
// A thread that reads from a file system which does not answer cannot be ended. It is left alone
// then, and does no harm if it ever comes back: what a thread's function uses, it keeps alive
// itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace fastio {

// How long threads that were told to end are waited for. A row in hand takes milliseconds.
inline constexpr std::chrono::milliseconds kPatience{2000};

// Not thread-safe.
class Crew {
 public:
  Crew();
  // In a forked child, which has none of the threads, this leaves them alone.
  ~Crew() { end(kPatience); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Has a thread of its own call `work`, with all signals blocked but those of its own faults. What
  // `work` throws is lost. Throws, as std::thread does, where there is no thread or no memory.
  void start(std::function<void()> work);

  std::size_t size() const { return members_.size(); }

  // Joins the threads, which were told to end; returns how many did not within `patience`, and are
  // left alone.
  std::size_t end(std::chrono::nanoseconds patience);

 private:
  struct Member {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };
  pid_t pid_;
  std::vector<Member> members_;
};

}  // namespace fastio
