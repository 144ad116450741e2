#include "engine.h"

#include <unistd.h>

#include "signals.h"

namespace fastio {
namespace {

// Threads that ask for bytes ahead: as many files of a folder are opened at a time.
constexpr int kReadAhead = 8;

}  // namespace

Engine::Engine(int threads)
    : pid_(::getpid()),
      counters_(std::make_unique<ImageCounters>()),
      queue_(std::make_unique<SlotQueue>()) {
  const SignalsBlocked blocked;
  ahead_ = std::make_unique<ReadAhead>(kReadAhead);
  try {
    threads_.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
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

bool Engine::forked() const { return ::getpid() != pid_; }

void Engine::submit(std::shared_ptr<Slot> slot) {
  if (forked() || closed()) return slot->cancel();
  ahead_->push(slot);
  queue_->push(std::move(slot));
}

void Engine::close() {
  if (forked()) return;
  const std::lock_guard lock(closing_);
  closed_.store(true);
  queue_->close();
  ahead_->close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Engine::work() {
  Worker worker(*counters_);
  std::size_t begin = 0, end = 0;
  while (const std::shared_ptr<Slot> slot = queue_->claim(begin, end)) {
    slot->fill(begin, end, worker);
    slot->finish(end - begin);
  }
}

}  // namespace fastio
