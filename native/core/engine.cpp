#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "direct_reads.h"
#include "image_parts.h"

namespace fastio {
namespace {

// The number of threads that read ahead, and thus of files of a folder that are opened at a time.
constexpr int kReadAhead = 8;

}  // namespace

// A worker thread. While it fills one row, direct reads of other rows that it has claimed may be in
// flight.
class Engine::Thread {
 public:
  Thread(Shared& shared, std::size_t number, ImageCounters& counters)
      : shared_(shared), number_(number), counters_(counters) {}
  void work();

 private:
  bool claim();
  bool begin_to_read(const Claim& claim);
  Claim next_read(std::span<const std::uint8_t>& bytes);
  void fill(const Claim& claim, bool read, std::span<const std::uint8_t> bytes);

  Shared& shared_;
  const std::size_t number_;
  ImageCounters& counters_;
  std::optional<Worker> worker_;
  std::optional<DirectReads> reads_;
  Claim claim_;  // the last one
};

CounterList::~CounterList() {
  for (Entry* entry = first_.load(); entry;) delete std::exchange(entry, entry->next);
}

ImageCounters& CounterList::add() {
  Entry* const entry = new Entry;
  entry->next = first_.load(std::memory_order_relaxed);
  while (!first_.compare_exchange_weak(entry->next, entry, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
  return entry->counters;
}

ImageTotals CounterList::sum() const {
  ImageTotals total;
  for (const Entry* at = first_.load(std::memory_order_acquire); at; at = at->next) {
    const ImageCounters& of_thread = at->counters;
    total.images += of_thread.images.load();
    total.bytes += of_thread.bytes.load();
    total.read_ns += of_thread.read_ns.load();
    total.decode_ns += of_thread.decode_ns.load();
    total.resample_ns += of_thread.resample_ns.load();
    total.augment_ns += of_thread.augment_ns.load();
  }
  return total;
}

Engine::Engine(int threads)
    : pid_(::getpid()),
      shared_(std::make_shared<Shared>(static_cast<std::size_t>(threads))),
      ahead_(std::make_unique<ReadAhead>(kReadAhead)) {
  try {
    start(static_cast<std::size_t>(threads));
  } catch (...) {
    close();  // joins the threads that did start
    throw;
  }
}

Engine::~Engine() {
  close();
  if (!forked()) return;
  // Leaked on purpose: in the child, the queue's mutex may appear locked and its condition
  // variables waited for, and destroying those is undefined.
  static_cast<void>(new std::shared_ptr<Shared>(std::move(shared_)));
}

void Engine::start(std::size_t threads) {
  while (crew_.size() < threads)
    crew_.start([shared = shared_, number = crew_.size(), &counters = shared_->counters.add()] {
      Thread(*shared, number, counters).work();
    });
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

void Engine::Thread::work() {
  for (;;) {
    if (claim()) {
      fill(claim_, false, {});
    } else if (reads_ && reads_->held() > 0) {
      std::span<const std::uint8_t> bytes;
      const Claim claim = next_read(bytes);
      fill(claim, true, bytes);
    } else {
      if (worker_) worker_->open.let_go();
      if (!shared_.queue.wait(number_)) return;
    }
  }
}

bool Engine::Thread::claim() {
  const std::size_t held = reads_ ? reads_->held() : 0;
  if (held > 0 && (held == reads_->depth() || !shared_.queue.spares(held, claim_))) return false;
  return shared_.queue.claim(number_, claim_);
}

// Begins a direct read of a claimed row. Returns false if that is not possible: the row must then
// be filled at once.
bool Engine::Thread::begin_to_read(const Claim& claim) {
  DirectRange range = claim.slot->direct(claim.begin, worker_->open);
  if (!range.file) {
    if (reads_) reads_->submit();  // queued reads proceed while this row is filled
    return false;
  }
  if (!reads_)
    reads_.emplace(std::max<std::size_t>(2, DirectReads::kInFlight / shared_.queue.threads()));
  return reads_->begin(claim, std::move(range));
}

Claim Engine::Thread::next_read(std::span<const std::uint8_t>& bytes) {
  const Stopwatch watch(counters_.read_ns);
  return reads_->next(bytes);
}

// Fills claimed rows, or begins to read them. read: whether they were read directly; `bytes` is the
// result. This is the one place that turns exceptions of a slot's code into the status of its rows:
// an exception that left the thread would end the process.
void Engine::Thread::fill(const Claim& claim, bool read, std::span<const std::uint8_t> bytes) {
  Slot& slot = *claim.slot;
  try {
    if (!worker_) worker_.emplace(counters_, shared_.indexes);
    if (!read && begin_to_read(claim)) return;
    worker_->fetched = bytes;
    if (!read || !slot.cancelled()) slot.fill(claim.begin, claim.end, *worker_);
  } catch (const std::bad_alloc& error) {
    slot.broke(claim.begin, Code::memory, error.what());
    worker_.reset();  // its state is unknown after an exception
  } catch (const std::exception& error) {
    slot.broke(claim.begin, Code::unforeseen, error.what());
    worker_.reset();
  } catch (...) {
    slot.broke(claim.begin, Code::unforeseen, "something that is no std::exception");
    worker_.reset();
  }
  slot.finish(claim.end - claim.begin);
}

}  // namespace fastio
