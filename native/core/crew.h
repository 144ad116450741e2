// A group of threads that are ended together, within a bounded time.
//
// A thread that reads from a file system which does not answer cannot be ended. It is detached
// then. It must do no harm if it ever continues, so a thread's function must own everything that it
// uses.
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

// The time to wait for threads to end. Finishing a row takes milliseconds.
inline constexpr std::chrono::milliseconds kPatience{2000};

// Not thread-safe.
class Crew {
 public:
  Crew();
  // Calls end(kPatience). In a forked child, where the threads do not exist, does nothing.
  ~Crew() { end(kPatience); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Starts a thread that calls `work`, with all signals blocked except those of its own faults.
  // Exceptions of `work` are ignored. Throws std::system_error or std::bad_alloc if the thread
  // cannot be started.
  void start(std::function<void()> work);

  std::size_t size() const { return members_.size(); }

  // Joins the threads, which the caller has told to end. Threads that do not end within `patience`
  // are detached; returns their number.
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
