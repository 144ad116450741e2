#include "engine.h"

#include <unistd.h>

#include <exception>

#include "signals.h"

namespace fastio {
namespace {

// Threads that ask for bytes ahead: as many files of a folder are opened at a time.
constexpr int kReadAhead = 8;

}  // namespace

Engine::Engine(int threads)
    : pid_(::getpid()),
      counters_(std::make_unique<ImageCounters>()),
      queue_(std::make_unique<SlotQueue>(static_cast<std::size_t>(threads))) {
  const SignalsBlocked blocked;
  ahead_ = std::make_unique<ReadAhead>(kReadAhead);
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
  // The threads cannot be joined, and the queue cannot go while its lock looks held and waited for.
  static_cast<void>(new std::vector<std::thread>(std::move(threads_)));
  static_cast<void>(queue_.release());
  static_cast<void>(ahead_.release());
}

void Engine::start(std::size_t threads) {
  threads_.reserve(threads);
  while (threads_.size() < threads)
    threads_.emplace_back([this, number = threads_.size()] { work(number); });
}

int Engine::set_threads(int threads) {
  if (forked()) return threads;
  const std::lock_guard lock(starting_);
  if (closed()) return threads;
  std::size_t wanted = static_cast<std::size_t>(threads);
  try {
    const SignalsBlocked blocked;
    start(wanted);
  } catch (const std::exception&) {
    wanted = threads_.size();
  }
  queue_->limit(wanted);
  return static_cast<int>(wanted);
}

bool Engine::forked() const { return ::getpid() != pid_; }

void Engine::submit(std::shared_ptr<Slot> slot) {
  if (forked() || closed()) return slot->cancel();
  ahead_->push(slot);
  queue_->push(std::move(slot));
}

void Engine::close() {
  if (forked()) return;
  const std::lock_guard lock(starting_);
  closed_.store(true);
  queue_->close();
  ahead_->close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Engine::work(std::size_t thread) {
  Worker worker(*counters_);
  std::size_t begin = 0, end = 0;
  while (const std::shared_ptr<Slot> slot = queue_->claim(thread, begin, end)) {
    slot->fill(begin, end, worker);
    slot->finish(end - begin);
  }
}

}  // namespace fastio
