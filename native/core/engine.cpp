#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>

namespace fastio {
namespace {

// Threads that ask for bytes ahead: as many files of a folder are opened at a time.
constexpr int kReadAhead = 8;

}  // namespace

Engine::Engine(int threads)
    : pid_(::getpid()),
      shared_(std::make_shared<Shared>(static_cast<std::size_t>(threads))),
      ahead_(std::make_unique<ReadAhead>(kReadAhead)) {
  try {
    start(static_cast<std::size_t>(threads));
  } catch (...) {
    close();  // those that did start
    throw;
  }
}

Engine::~Engine() {
  close();
  if (!forked()) return;
  // The queue cannot go while its lock looks held and waited for.
  static_cast<void>(new std::shared_ptr<Shared>(std::move(shared_)));
}

void Engine::start(std::size_t threads) {
  while (crew_.size() < threads)
    crew_.start([shared = shared_, number = crew_.size()] { work(*shared, number); });
}

int Engine::set_threads(int threads) {
  if (forked()) return threads;
  const std::lock_guard lock(starting_);
  if (closed()) return threads;
  std::size_t wanted = static_cast<std::size_t>(threads);
  try {
    start(wanted);
  } catch (const std::exception&) {
    wanted = crew_.size();
  }
  shared_->queue.limit(wanted);
  return static_cast<int>(wanted);
}

bool Engine::forked() const { return ::getpid() != pid_; }

void Engine::submit(std::shared_ptr<Slot> slot) {
  if (forked() || closed()) return slot->cancel();
  ahead_->push(slot);
  try {
    shared_->queue.push(slot);
  } catch (...) {
    slot->cancel();  // ReadAhead leaves it out then
    throw;
  }
}

void Engine::close(std::chrono::nanoseconds patience) {
  if (forked()) return;
  const std::lock_guard lock(starting_);
  closed_.store(true);
  const auto last = std::chrono::steady_clock::now() + patience;
  shared_->queue.close();
  ahead_->close(patience);
  const auto left = last - std::chrono::steady_clock::now();
  if (crew_.end(std::max(left, decltype(left)::zero())) > 0) hangs_.store(true);
}

// The one place where what a slot's code throws becomes its rows' status: a thread that threw would
// end the process.
void Engine::work(Shared& shared, std::size_t thread) {
  std::optional<Worker> worker;
  std::size_t begin = 0, end = 0;
  while (const std::shared_ptr<Slot> slot = shared.queue.claim(thread, begin, end)) {
    try {
      if (!worker) worker.emplace(shared.counters);
      slot->fill(begin, end, *worker);
    } catch (const std::bad_alloc& error) {
      slot->broke(begin, Code::memory, error.what());
      worker.reset();  // it may have been left halfway through a row
    } catch (const std::exception& error) {
      slot->broke(begin, Code::unforeseen, error.what());
      worker.reset();
    } catch (...) {
      slot->broke(begin, Code::unforeseen, "something that is no std::exception");
      worker.reset();
    }
    slot->finish(end - begin);
  }
}

}  // namespace fastio
