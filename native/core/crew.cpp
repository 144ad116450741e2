#include "crew.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "signals.h"

namespace fastio {
namespace {

// The time between two tests of whether a thread has ended: the first one, and the longest.
constexpr std::chrono::microseconds kFirstLook{20}, kLongestLook{2000};

}  // namespace

Crew::Crew() : pid_(::getpid()) {}

void Crew::start(std::function<void()> work) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  members_.reserve(members_.size() + 1);
  const SignalsBlocked blocked;
  std::thread thread([work = std::move(work), done]() mutable {
    try {
      work();
      work = nullptr;  // destroys what it owns before the thread counts as done
    } catch (...) {
    }
    done->store(true, std::memory_order_release);
  });
  members_.push_back({std::move(thread), std::move(done)});
}

std::size_t Crew::end(std::chrono::nanoseconds patience) {
  std::vector<Member> members = std::exchange(members_, {});
  if (::getpid() != pid_) {
    static_cast<void>(new std::vector<Member>(std::move(members)));
    return 0;
  }
  const auto last = std::chrono::steady_clock::now() + patience;
  std::size_t left = 0;
  for (Member& member : members) {
    std::chrono::nanoseconds look = kFirstLook;
    while (!member.done->load(std::memory_order_acquire) &&
           std::chrono::steady_clock::now() < last) {
      std::this_thread::sleep_for(look);
      look = std::min<std::chrono::nanoseconds>(2 * look, kLongestLook);
    }
    if (member.done->load(std::memory_order_acquire)) {
      member.thread.join();
    } else {
      member.thread.detach();
      ++left;
    }
  }
  return left;
}

}  // namespace fastio
