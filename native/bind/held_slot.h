// The Python objects of an engine and of its slots. They keep the memory of batches alive until
// threads have finished with it.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "bind.h"
#include "core/engine.h"
#include "core/image_slot.h"
#include "core/slot.h"

namespace fastio {

// State that an engine and its slots share.
struct Away {
  std::atomic<int> threads{0};     // Python threads that are in native code without the GIL
  std::atomic<bool> hangs{false};  // a worker hangs, so that waiting for it is useless
};
using SharedAway = std::shared_ptr<Away>;

// Releases the GIL for a scope.
class Unlocked {
 public:
  explicit Unlocked(const SharedAway& away) : away_(away->threads) {
    ++away_;
    release_.emplace();
  }
  ~Unlocked() {
    release_.reset();
    --away_;
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::atomic<int>& away_;
  std::optional<nb::gil_scoped_release> release_;
};

// Memory that worker threads write to.
using Memory = nb::ndarray<nb::c_contig, nb::device::cpu>;

// A slot with its memory. Created before the slot is queued.
struct SlotMemory {
  std::shared_ptr<Slot> slot;
  std::vector<Memory> memory;
  std::vector<Source> sources;  // arrays that threads read
  SlotMemory* next = nullptr;

  bool done() const { return slot->wait(std::chrono::nanoseconds(0)); }
};

// Slots that Python released while a thread that hangs had claimed rows of them. They and their
// memory are kept until the thread continues. Never destroyed, because such a thread may outlive
// everything else.
class Orphans {
 public:
  static Orphans& all() {
    static Orphans& kept = *new Orphans;
    return kept;
  }
  void add(std::unique_ptr<SlotMemory> slot) noexcept {
    const std::lock_guard lock(mutex_);
    slot->next = first_;
    first_ = slot.release();
    any_.store(true, std::memory_order_relaxed);
  }
  // Frees the slots that are done by now. The caller must hold the GIL.
  void look() {
    if (!any_.load(std::memory_order_relaxed)) return;
    SlotMemory* done = nullptr;
    {
      const std::lock_guard lock(mutex_);
      for (SlotMemory** at = &first_; *at;) {
        SlotMemory* const slot = *at;
        if (slot->done()) {
          *at = slot->next;
          slot->next = done;
          done = slot;
        } else {
          at = &slot->next;
        }
      }
      any_.store(first_ != nullptr, std::memory_order_relaxed);
    }
    while (done) delete std::exchange(done, done->next);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  SlotMemory* first_ = nullptr;
};

// The Python object of a slot, with its memory. If Python releases it early, for example because of
// an exception, the destructor waits for the rows that threads have claimed, which takes
// milliseconds. If a thread hangs, the memory is kept for it (see Orphans).
class HeldSlot {
 public:
  HeldSlot(std::shared_ptr<Slot> slot, std::vector<Memory> memory, std::vector<Source> sources,
           SharedAway away)
      : kept_(new SlotMemory{std::move(slot), std::move(memory), std::move(sources)}),
        away_(std::move(away)),
        pid_(::getpid()) {}
  HeldSlot(std::shared_ptr<ImageSlot> images, std::vector<Memory> memory,
           std::vector<Source> sources, SharedAway away)
      : HeldSlot(std::shared_ptr<Slot>(images), std::move(memory), std::move(sources),
                 std::move(away)) {
    images_ = images.get();
  }
  HeldSlot(HeldSlot&&) = default;
  ~HeldSlot() {
    if (!kept_) return;  // moved from
    if (forked()) {
      static_cast<void>(kept_.release());  // leaked: no thread finishes it; its mutex may be locked
      return;
    }
    if (kept_->done()) return;
    kept_->slot->cancel();
    if (kept_->done() || (!away_->hangs && wait(kPatience))) return;
    abandon();
    Orphans::all().add(std::move(kept_));
  }

  Slot& slot() const {
    if (forked()) throw std::runtime_error("this slot belongs to the parent process");
    return *kept_->slot;
  }
  const std::shared_ptr<Slot>& shared() const { return kept_->slot; }
  ImageSlot* images() const { return images_; }  // null: there are none
  bool forked() const { return ::getpid() != pid_; }

  // Keeps the GIL if the slot is done already.
  bool wait(std::chrono::nanoseconds timeout) const {
    if (slot().wait(std::chrono::nanoseconds(0))) return true;
    const Unlocked unlocked(away_);
    return slot().wait(timeout);
  }

  void cancel() const {
    if (!forked()) kept_->slot->cancel();
  }

  // Gives up waiting for this slot. If a thread hangs, the destructors of the engine's other slots
  // do not wait either.
  void abandon() const {
    if (forked()) return;
    kept_->slot->cancel();
    kept_->slot->abandon();
    if (!kept_->done()) away_->hangs = true;
  }

 private:
  std::unique_ptr<SlotMemory> kept_;
  ImageSlot* images_ = nullptr;
  SharedAway away_;
  pid_t pid_;
};

// The Python object of an engine.
struct HeldEngine {
  explicit HeldEngine(int threads) : engine(checked(threads)) {}
  ~HeldEngine() { close(); }
  HeldEngine(const HeldEngine&) = delete;
  HeldEngine& operator=(const HeldEngine&) = delete;

  static int checked(int threads) {
    constexpr int kMostThreads = 1 << 14;
    if (threads < 1 || threads > kMostThreads)
      throw nb::value_error("threads must be in [1, 16384]");
    return threads;
  }

  // Returns when all Python threads that were in native code have taken the GIL again: a daemon
  // thread that takes it after the interpreter has ended would abort the process. Does not wait for
  // threads that wait for a worker that hangs.
  void close() {
    if (engine.forked()) return;
    const nb::gil_scoped_release release;
    engine.close();
    if (engine.hangs()) away->hangs = true;
    const auto last = std::chrono::steady_clock::now() + kPatience;
    while (away->threads > 0 && !(away->hangs && std::chrono::steady_clock::now() > last))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  Engine engine;
  SharedAway away = std::make_shared<Away>();
};

// Queues a slot. The HeldSlot exists before, so that the memory that threads write to is kept
// whatever fails from here on. Releases the GIL, because queueing takes locks that workers hold;
// but not if the engine is closed: see HeldEngine::close().
inline HeldSlot queue(HeldEngine& engine, HeldSlot slot) {
  Orphans::all().look();
  if (engine.engine.closed() || engine.engine.forked()) {
    engine.engine.submit(slot.shared());
  } else {
    const Unlocked unlocked(engine.away);
    engine.engine.submit(slot.shared());
  }
  return slot;
}

}  // namespace fastio
