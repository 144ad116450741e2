// The engine with its slots and their queue.
#include "core/engine.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/crc32c.h"
#include "core/image_slot.h"
#include "jpeg_files.h"

using namespace fastio;
using namespace std::chrono_literals;
using test::Bytes;
using test::JpegOptions;
namespace fs = std::filesystem;

namespace {

constexpr std::int32_t kEdge = 8;
constexpr std::size_t kRowBytes = kEdge * kEdge * 3;
constexpr auto kLong = 10min;  // a test that waits so long hangs

// A shard of small JPEGs of one grey level each, 16 times their number, and batches of them.
class Shard {
 public:
  Shard() {
    std::string name = (fs::temp_directory_path() / "fastio-engine-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    ::close(fd);
    path_ = name;
    std::ofstream file(path_, std::ios::binary);
    std::int64_t at = 0;
    for (int i = 0; i < 16; ++i) {
      JpegOptions o;
      o.height = 20;
      o.width = 20 + i;
      o.components = 1;
      o.level = i * 16;
      o.quality = 100;
      const Bytes bytes = test::make_jpeg(o, 1);
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
      offset_.push_back(at);
      length_.push_back(static_cast<std::int64_t>(bytes.size()));
      at += length_.back();
    }
    file.close();
    files = std::make_shared<FileSet>(true);
    files->add({path_});
    auto crop = std::make_shared<Chain>();
    GeometryStep step;
    step.kind = GeometryStep::Kind::random_crop;
    step.height = step.width = kEdge;
    crop->add(step);
    chain = crop;
    whole = std::make_shared<Chain>();
  }
  ~Shard() { fs::remove(path_); }
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  ImageReads reads(std::size_t rows) const {
    ImageReads r;
    for (std::size_t i = 0; i < rows; ++i) {
      r.file.push_back(0);
      r.offset.push_back(offset_[i % 16]);
      r.length.push_back(length_[i % 16]);
      r.codec.push_back(0);
      r.orientation.push_back(1);
      r.height.push_back(0);
      r.width.push_back(0);
      r.row.push_back(static_cast<std::int64_t>(i));
    }
    return r;
  }

  // A batch whose rows go to `out`, which has room for them.
  std::shared_ptr<ImageSlot> batch(std::size_t rows, Bytes& out) const {
    out.assign(rows * kRowBytes, 1);
    return std::make_shared<ImageSlot>(files,
                                       std::vector{SlotView{chain, out.data(), kEdge, kEdge}},
                                       nullptr, ImageTask{}, reads(rows));
  }
  std::shared_ptr<ImageSlot> own_sizes(ImageReads of) const {
    return std::make_shared<ImageSlot>(files, std::vector{SlotView{whole}}, nullptr, ImageTask{},
                                       std::move(of));
  }

  static bool is_whole(const Bytes& out, std::size_t row) {
    for (std::size_t i = 0; i < kRowBytes; ++i)
      if (out[row * kRowBytes + i] != row % 16 * 16) return false;
    return true;
  }

  std::shared_ptr<FileSet> files;
  std::shared_ptr<const Chain> chain, whole;

 private:
  std::string path_;
  std::vector<std::int64_t> offset_, length_;
};

}  // namespace

TEST_CASE("every row of every batch is filled, whatever the number of threads") {
  const Shard shard;
  for (const int threads : {1, 2, 5}) {
    Engine engine(threads);
    std::vector<Bytes> memory(40);
    std::vector<std::shared_ptr<ImageSlot>> slots;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      slots.push_back(shard.batch(i % 7, memory[i]));
      engine.submit(slots.back());
    }
    std::size_t rows = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      REQUIRE(slots[i]->wait(kLong));
      for (std::size_t row = 0; row < slots[i]->rows(); ++row, ++rows) {
        REQUIRE(slots[i]->status(row).ok());
        REQUIRE(Shard::is_whole(memory[i], row));
      }
    }
    CHECK(engine.counters().images == rows);
  }
}

TEST_CASE("images that keep their sizes are handed over once") {
  const Shard shard;
  Engine engine(2);
  const auto slot = shard.own_sizes(shard.reads(20));
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  for (std::size_t row = 0; row < 20; ++row) {
    const OwnedImage image = slot->take(row);
    REQUIRE(image.pixels);
    REQUIRE(image.height == 20);
    REQUIRE(image.width == 20 + static_cast<std::int32_t>(row % 16));
    REQUIRE(image.pixels[0] == row % 16 * 16);
    REQUIRE_FALSE(slot->take(row).pixels);
  }
  Bytes memory;
  CHECK_FALSE(shard.batch(1, memory)->take(0).pixels);  // has memory of the caller's
}

TEST_CASE("a bad row is its own status, and its neighbours are whole") {
  const Shard shard;
  Engine engine(2);
  ImageReads reads = shard.reads(8);
  reads.length[1] = 10;                     // cut short
  reads.offset[2] += 1;                     // no JPEG
  reads.offset[3] = std::int64_t{1} << 40;  // past the end
  reads.file[4] = 99;                       // no such file
  reads.codec[5] = 2;                       // for Pillow
  reads.codec[6] = 77;                      // of no kind
  reads.length[7] = -2;                     // no length
  Bytes memory(8 * kRowBytes);
  const auto slot = std::make_shared<ImageSlot>(
      shard.files, std::vector{SlotView{shard.chain, memory.data(), kEdge, kEdge}}, nullptr,
      ImageTask{}, reads);
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  CHECK(slot->status(0).ok());
  CHECK(Shard::is_whole(memory, 0));
  CHECK(slot->status(1).code == Code::truncated);
  CHECK(slot->status(2).code == Code::foreign);
  CHECK(slot->status(3).code == Code::truncated);
  CHECK(slot->status(4).code == Code::not_found);
  CHECK(slot->status(5).code == Code::foreign);
  CHECK(slot->status(6).code == Code::foreign);
  CHECK(slot->status(7).code == Code::corrupt);
}

TEST_CASE("raw images have as many channels as the batch") {
  const Shard shard;
  Engine engine(1);
  for (const int channels : {1, 3}) {
    ImageReads reads = shard.reads(1);
    reads.codec[0] = 1;
    reads.offset[0] = 0;
    reads.height[0] = 3;
    reads.width[0] = 5;
    reads.length[0] = 15 * channels;
    ImageTask task;
    task.channels = task.raw_channels = channels;
    const auto slot = std::make_shared<ImageSlot>(shard.files, std::vector{SlotView{shard.whole}},
                                                  nullptr, task, reads);
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    CHECK(slot->status(0).ok());
    CHECK(slot->take(0).width == 5);
  }
}

TEST_CASE("rows of another size than the batch's are refused") {
  const Shard shard;
  Engine engine(1);
  Bytes memory(kRowBytes);
  const auto slot = std::make_shared<ImageSlot>(
      shard.files, std::vector{SlotView{shard.whole, memory.data(), kEdge, kEdge}}, nullptr,
      ImageTask{}, shard.reads(1));
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  CHECK(slot->status(0).code == Code::unsupported);
}

TEST_CASE("a batch without rows is done at once") {
  const Shard shard;
  Engine engine(1);
  Bytes memory;
  const auto slot = shard.batch(0, memory);
  CHECK(slot->wait(0ns));
  engine.submit(slot);
  CHECK(slot->wait(kLong));
  slot->cancel();
  CHECK(slot->wait(0ns));
}

TEST_CASE("a wait that is too short says so") {
  const Shard shard;
  Bytes memory;
  const auto slot = shard.batch(3, memory);  // no engine works on it
  CHECK_FALSE(slot->wait(0ns));
  CHECK_FALSE(slot->wait(1ms));
  slot->cancel();
  CHECK(slot->wait(0ns));
  CHECK(slot->cancelled());
}

TEST_CASE("after a cancelled batch was waited for, nobody writes to its memory") {
  const Shard shard;
  Engine engine(3);
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    Bytes memory;
    const auto slot = shard.batch(12, memory);
    engine.submit(slot);
    if (rng() % 2) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 300));
    slot->cancel();
    slot->cancel();
    REQUIRE(slot->wait(kLong));
    memory.assign(memory.size(), 0);  // a race, if a thread still works: the sanitizers tell
    memory = Bytes();
  }
}

TEST_CASE("batches come from many threads, and many threads cancel them") {
  const Shard shard;
  Engine engine(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> consumers;
  for (unsigned t = 0; t < 4; ++t) {
    consumers.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int round = 0; round < 150; ++round) {
        Bytes memory;
        const std::size_t rows = rng() % 6;
        const auto slot = shard.batch(rows, memory);
        engine.submit(slot);
        const bool cancel = rng() % 3 == 0;
        std::thread other;
        if (cancel) other = std::thread([slot] { slot->cancel(); });
        if (!slot->wait(kLong)) ++wrong;
        if (cancel) other.join();
        for (std::size_t row = 0; row < rows && !cancel; ++row)
          wrong += !slot->status(row).ok() || !Shard::is_whole(memory, row);
      }
    });
  }
  for (std::thread& thread : consumers) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("closing wakes those who wait, and what comes later is cancelled") {
  const Shard shard;
  for (int round = 0; round < 40; ++round) {
    Engine engine(2);
    std::vector<Bytes> memory(30);
    std::vector<std::shared_ptr<ImageSlot>> slots;
    for (auto& bytes : memory) {
      slots.push_back(shard.batch(8, bytes));
      engine.submit(slots.back());
    }
    std::atomic<int> woken{0};
    std::thread consumer([&] {
      for (const auto& slot : slots) woken += slot->wait(kLong);
    });
    std::thread submitter([&] {
      for (int i = 0; i < 20; ++i) {
        Bytes late;
        const auto slot = shard.batch(4, late);
        engine.submit(slot);
        slot->cancel();
        woken += slot->wait(kLong);
      }
    });
    engine.close();
    consumer.join();
    submitter.join();
    CHECK(woken == 30 + 20);
    Bytes late;
    const auto slot = shard.batch(4, late);
    engine.submit(slot);
    CHECK(slot->cancelled());
    CHECK(slot->wait(0ns));
  }
}

TEST_CASE("an engine can be closed from several threads, and again") {
  const Shard shard;
  for (int round = 0; round < 30; ++round) {
    Engine engine(2);
    Bytes memory;
    const auto slot = shard.batch(16, memory);
    engine.submit(slot);
    std::vector<std::thread> closers;
    for (int i = 0; i < 3; ++i) closers.emplace_back([&] { engine.close(); });
    for (std::thread& thread : closers) thread.join();
    engine.close();
    REQUIRE(slot->wait(0ns));
  }
}

TEST_CASE("an engine that goes with work in its queue leaves every batch done") {
  const Shard shard;
  for (int round = 0; round < 40; ++round) {
    std::vector<Bytes> memory(10);
    std::vector<std::shared_ptr<ImageSlot>> slots;
    {
      Engine engine(2);
      for (auto& bytes : memory) {
        slots.push_back(shard.batch(8, bytes));
        engine.submit(slots.back());
      }
    }
    for (const auto& slot : slots) REQUIRE(slot->wait(0ns));
  }
}

TEST_CASE("slots, files and chain may outlive the engine, or go before it") {
  Engine engine(2);
  std::shared_ptr<ImageSlot> last;
  Bytes memory[20];
  {
    const Shard shard;
    for (auto& bytes : memory) {
      last = shard.batch(4, bytes);
      engine.submit(last);
    }
  }  // the file is removed, and the slots hold the rest
  REQUIRE(last->wait(kLong));
  engine.close();
}

// Rows that wait until `wanted` threads are at work on them at once, and note how many ever are.
class CountingSlot : public Slot {
 public:
  CountingSlot(std::size_t rows, int wanted) : Slot(rows, 1), wanted_(wanted) {}

  void fill(std::size_t, std::size_t, Worker&) override {
    std::unique_lock lock(mutex_);
    most_ = std::max(most_, ++busy_);
    changed_.notify_all();
    changed_.wait_for(lock, kLong, [this] { return most_ >= wanted_; });
    changed_.wait_for(lock, 1ms, [this] { return most_ > wanted_; });  // one that is not allowed
    --busy_;
  }
  std::vector<Failure> noted() const override { return {}; }

  int most() const { return most_; }  // after wait() said true

 private:
  const int wanted_;
  int busy_ = 0, most_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Rows that throw, each something else, also in what ReadAhead calls.
class ThrowingSlot : public Slot {
 public:
  ThrowingSlot(std::size_t rows, std::size_t chunk) : Slot(rows, chunk), rows_(rows) {}

  void fill(std::size_t begin, std::size_t, Worker&) override {
    if (begin % 4 == 1) throw std::bad_alloc();
    if (begin % 4 == 2) throw std::runtime_error("number " + std::to_string(begin));
    if (begin % 4 == 3) throw 7;
  }
  std::vector<Failure> noted() const override {
    return {{5, Status::error(Code::io, "noted")}, {4, Status::error(Code::io, "noted")}};
  }
  std::vector<WantedRange> wanted() const override {
    if (rows_ == 12) throw std::bad_alloc();
    return {WantedRange{}, WantedRange{}};
  }
  void ask_for(const WantedRange&) const override { throw std::runtime_error("cannot ask"); }

 private:
  const std::size_t rows_;
};

TEST_CASE("what a row's code throws is the row's status, and the threads go on") {
  for (const std::size_t rows : {12u, 13u}) {  // 12: nothing is asked for ahead
    Engine engine(2);
    const auto slot = std::make_shared<ThrowingSlot>(rows, 1);
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    const std::vector<Failure> failures = slot->failures();
    std::vector<Code> codes(rows, Code::ok);
    for (const Failure& failure : failures) codes[failure.first] = failure.second.code;
    CHECK(failures.size() == 10);
    for (std::size_t row = 0; row < rows; ++row)
      CHECK(codes[row] == (row == 4       ? Code::io
                           : row % 4 == 1 ? Code::memory
                           : row % 4 == 0 ? Code::ok
                                          : Code::unforeseen));
    const Shard shard;  // the same threads decode afterwards
    Bytes out;
    const auto batch = shard.batch(40, out);
    engine.submit(batch);
    REQUIRE(batch->wait(kLong));
    CHECK(batch->failures().empty());
    CHECK(Shard::is_whole(out, 39));
    engine.close();
  }
}

TEST_CASE("all rows of a claim that threw have failed") {
  Engine engine(1);
  const auto slot = std::make_shared<ThrowingSlot>(9, 5);  // claims from 0 and 5
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  const std::vector<Failure> failures = slot->failures();
  REQUIRE(failures.size() == 5);
  CHECK(failures[0].first == 4);
  CHECK(failures[0].second.message == "noted");
  for (std::size_t i = 1; i < 5; ++i) CHECK(failures[i].second.code == Code::memory);
}

// A row that does not come back before it is told to, as a read from a server that hangs.
class HangingSlot : public Slot {
 public:
  HangingSlot() : Slot(2, 1) {}
  void fill(std::size_t, std::size_t, Worker&) override {
    begun = true;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return back_; });
  }
  std::vector<Failure> noted() const override { return {}; }
  void come_back() {
    const std::lock_guard lock(mutex_);
    back_ = true;
    changed_.notify_all();
  }
  std::atomic<bool> begun{false};

 private:
  bool back_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
};

TEST_CASE("closing leaves a thread alone that does not come back, and it may come back later") {
  auto engine = std::make_unique<Engine>(2);
  const auto slot = std::make_shared<HangingSlot>();
  engine->submit(slot);
  while (!slot->begun) std::this_thread::sleep_for(1ms);
  engine->close(50ms);
  CHECK(engine->hangs());
  CHECK_FALSE(slot->wait(0ms));
  engine.reset();
  slot->come_back();
  CHECK(slot->wait(kLong));
}

TEST_CASE("closing waits for a row that takes its time") {
  Engine engine(1);
  const auto slot = std::make_shared<HangingSlot>();
  engine.submit(slot);
  while (!slot->begun) std::this_thread::sleep_for(1ms);
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    slot->come_back();
  });
  engine.close(kLong);
  CHECK_FALSE(engine.hangs());
  CHECK(slot->wait(0ms));
  later.join();
}

TEST_CASE("an image that is given up is not written any more") {
  const Shard shard;
  Bytes out;
  const auto batch = shard.batch(16, out);
  batch->abandon();
  Engine engine(1);
  engine.submit(batch);
  REQUIRE(batch->wait(kLong));
  CHECK(batch->failures().size() == 16);
  CHECK(std::count(out.begin(), out.end(), 1) == static_cast<std::ptrdiff_t>(out.size()));
}

TEST_CASE("an image goes to one of those who take it at once") {
  const Shard shard;
  Engine engine(2);
  for (int round = 0; round < 20; ++round) {
    const auto batch = shard.own_sizes(shard.reads(16));
    engine.submit(batch);
    REQUIRE(batch->wait(kLong));
    std::atomic<int> taken{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (std::size_t row = 0; row < 16; ++row)
          if (batch->take(row).pixels) ++taken;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(taken == 16);
  }
}

TEST_CASE("as many threads take rows as were asked for last") {
  Engine engine(1);
  for (const int threads : {3, 1, 2, 1}) {
    CHECK(engine.set_threads(threads) == threads);
    const auto slot = std::make_shared<CountingSlot>(16, threads);
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    CHECK(slot->most() == threads);
  }
  engine.close();
  CHECK(engine.set_threads(5) == 5);  // of no consequence
}

TEST_CASE("batches go on while the number of threads changes") {
  const Shard shard;
  Engine engine(1);
  std::atomic<bool> done{false};
  std::thread changing([&] {
    for (int i = 0; !done; ++i) engine.set_threads(1 + i % 5);
  });
  std::vector<Bytes> memory(8);
  std::vector<std::shared_ptr<ImageSlot>> ring(8);
  for (std::size_t i = 0; i < 1500; ++i) {
    auto& slot = ring[i % 8];
    if (slot) {
      REQUIRE(slot->wait(kLong));
      REQUIRE(Shard::is_whole(memory[i % 8], 2));
    }
    slot = shard.batch(3, memory[i % 8]);
    engine.submit(slot);
  }
  for (const auto& slot : ring) REQUIRE(slot->wait(kLong));
  done = true;
  changing.join();
}

// Rows in claims of 7 that note which of them were filled, in memory that the test frees as soon as
// the slot is done.
class NotingSlot : public Slot {
 public:
  NotingSlot(std::size_t rows, std::uint8_t* filled) : Slot(rows, 7), filled_(filled) {}
  void fill(std::size_t begin, std::size_t end, Worker&) override {
    for (std::size_t row = begin; row < end; ++row) ++filled_[row];
  }
  std::vector<Failure> noted() const override { return {}; }

 private:
  std::uint8_t* const filled_;
};

TEST_CASE("each row is filled once, or cancelled, by whichever threads, and none after the wait") {
  Engine engine(4);
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t rows = rng() % 40;
    auto filled = std::make_unique<std::uint8_t[]>(rows + 1);
    const auto slot = std::make_shared<NotingSlot>(rows, filled.get());
    const bool cancel = round % 3 == 0;
    engine.submit(slot);
    if (cancel) slot->cancel();
    REQUIRE(slot->wait(kLong));
    for (std::size_t row = 0; row < rows; ++row) {
      if (cancel) {
        // Whole claims, from the first on.
        REQUIRE(filled[row] <= 1);
        REQUIRE(filled[row] == filled[row / 7 * 7]);
        if (row) REQUIRE(filled[row] <= filled[row - 1]);
      } else {
        REQUIRE(filled[row] == 1);
      }
    }
    filled.reset();  // the sanitizers tell if a thread still writes
  }
}

TEST_CASE("a thread that waits keeps neither the last slot nor the descriptors of its files") {
  const Shard shard;
  Engine engine(2);
  std::weak_ptr<ImageSlot> seen;
  Bytes memory;
  {
    const auto slot = shard.batch(16, memory);
    seen = slot;
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
  }
  for (int i = 0; i < 60'000 && !seen.expired(); ++i) std::this_thread::sleep_for(1ms);
  CHECK(seen.expired());
}

TEST_CASE("what threads count is added up, whoever counted it") {
  const Shard shard;
  Engine engine(1);
  Bytes memory;
  std::uint64_t rows = 0;
  for (const int threads : {1, 6, 2, 3}) {
    engine.set_threads(threads);
    const auto slot = shard.batch(64, memory);
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    rows += 64;
    CHECK(engine.counters().images == rows);
    CHECK(engine.counters().bytes > rows);
  }
  const auto broken = std::make_shared<ThrowingSlot>(13, 1);  // threads begin anew after it
  engine.submit(broken);
  REQUIRE(broken->wait(kLong));
  engine.close();
  CHECK(engine.counters().images == rows);
}

TEST_CASE("closing wakes threads that were not allowed to work") {
  Engine engine(4);
  engine.set_threads(1);
  engine.close();
  CHECK(engine.closed());
}

TEST_CASE("thousands of batches of one row") {
  const Shard shard;
  Engine engine(3);
  std::vector<Bytes> memory(64);
  std::vector<std::shared_ptr<ImageSlot>> ring(64);
  for (std::size_t i = 0; i < 4000; ++i) {
    auto& slot = ring[i % 64];
    if (slot) {
      REQUIRE(slot->wait(kLong));
      REQUIRE(Shard::is_whole(memory[i % 64], 0));
    }
    slot = shard.batch(1, memory[i % 64]);
    engine.submit(slot);
  }
  for (const auto& slot : ring) REQUIRE(slot->wait(kLong));  // or their memory goes first
}

// ThreadSanitizer does not follow a fork of a process with threads.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a forked child can let go of its parent's engine") {
  const Shard shard;
  auto engine = std::make_unique<Engine>(2);
  std::vector<Bytes> memory(50);
  std::vector<std::shared_ptr<ImageSlot>> slots;
  for (auto& bytes : memory) {
    slots.push_back(shard.batch(16, bytes));
    engine->submit(slots.back());
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    Bytes late;
    const auto slot = shard.batch(3, late);
    engine->submit(slot);
    const bool cancelled = slot->cancelled() && engine->counters().images <= 50 * 16;
    engine->close();
    engine.reset();
    const Shard of_child;  // the parent's threads may have held a lock of its files
    Engine own(2);
    const auto again = of_child.batch(3, late);
    own.submit(again);
    const bool good = again->wait(kLong) && Shard::is_whole(late, 2);
    own.close();
    ::_exit(cancelled && good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  for (const auto& slot : slots) REQUIRE(slot->wait(kLong));
}
#endif

TEST_CASE(
    "small raw images with checksums: pixels, and what is wrong with those that are not whole") {
  constexpr std::size_t kRows = 300, kImage = 5 * 7 * 3;
  Bytes stored(kRows * kImage);
  for (std::size_t i = 0; i < stored.size(); ++i)
    stored[i] = static_cast<std::uint8_t>(i * 37 >> 3);
  std::string path = (fs::temp_directory_path() / "fastio-raw-XXXXXX").string();
  ::close(::mkstemp(path.data()));
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(stored.data()),
             static_cast<std::streamsize>(stored.size()));
  const auto files = std::make_shared<FileSet>(true);
  files->add({path});
  const auto chain = std::make_shared<Chain>();
  Engine engine(3);
  Bytes out;
  const auto run = [&](std::size_t wrong) {
    ImageReads reads;
    for (std::size_t row = 0; row < kRows; ++row) {
      reads.file.push_back(0);
      reads.offset.push_back(static_cast<std::int64_t>(row * kImage));
      reads.length.push_back(kImage);
      reads.codec.push_back(static_cast<std::uint8_t>(Codec::raw));
      reads.orientation.push_back(1);
      reads.height.push_back(5);
      reads.width.push_back(7);
      reads.row.push_back(static_cast<std::int64_t>(row));
      reads.crc32c.push_back(crc32c(&stored[row * kImage], kImage) + (row == wrong));
    }
    out.assign(stored.size(), 0);
    auto slot = std::make_shared<ImageSlot>(files, std::vector{SlotView{chain, out.data(), 5, 7}},
                                            nullptr, ImageTask{}, reads);
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    return slot;
  };
  for (int epoch = 0; epoch < 3; ++epoch) {  // the first rows open the file
    CHECK(run(kRows)->failures().empty());
    CHECK(out == stored);
  }
  CHECK(engine.counters().images == 3 * kRows);
  CHECK(engine.counters().bytes == 3 * stored.size());
  const auto damaged = run(250);
  REQUIRE(damaged->failures().size() == 1);
  CHECK(damaged->status(250).code == Code::corrupt);
  // Cut off within a page, whose rest reads as zeros, and with pages gone.
  fs::resize_file(path, 5 * kImage + 1);
  const auto cut = run(kRows);
  for (std::size_t row = 0; row < kRows; ++row) {
    CHECK(cut->status(row).code == (row < 5 ? Code::ok : Code::truncated));
    if (row < 5)
      CHECK(std::equal(&out[row * kImage], &out[(row + 1) * kImage], &stored[row * kImage]));
  }
  engine.close();
  fs::remove(path);
}

TEST_CASE("raw images in memory come out whole, in planes or interleaved") {
  constexpr std::size_t kRows = 40, kImage = 5 * 7 * 3;
  Bytes interleaved(kRows * kImage), planar(kRows * kImage);
  for (std::size_t i = 0; i < interleaved.size(); ++i) {
    interleaved[i] = static_cast<std::uint8_t>(i * 37 >> 3);
    const std::size_t row = i / kImage, pixel = i % kImage / 3, channel = i % 3;
    planar[row * kImage + channel * 35 + pixel] = interleaved[i];
  }
  ImageReads reads;
  for (std::size_t row = 0; row < kRows; ++row) {
    reads.file.push_back(0);
    reads.offset.push_back(static_cast<std::int64_t>(row * kImage));
    reads.length.push_back(kImage);
    reads.codec.push_back(static_cast<std::uint8_t>(Codec::raw));
    reads.orientation.push_back(1);
    reads.height.push_back(5);
    reads.width.push_back(7);
    reads.row.push_back(static_cast<std::int64_t>(row));
  }
  reads.offset[3] = -1;
  reads.offset[4] = static_cast<std::int64_t>((kRows - 1) * kImage + 1);
  reads.length[5] = INT64_MAX;
  const auto chain = std::make_shared<Chain>();
  for (const bool planes : {false, true}) {
    const Bytes& memory = planes ? planar : interleaved;
    Bytes out(interleaved.size());
    Engine engine(3);
    const auto slot = std::make_shared<ImageSlot>(
        ImageBytes({{memory.data(), memory.size()}}, planes),
        std::vector{SlotView{chain, out.data(), 5, 7}}, nullptr, ImageTask{}, reads);
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    for (std::size_t row = 0; row < kRows; ++row) {
      const bool outside = row >= 3 && row <= 5;
      CHECK(slot->status(row).ok() != outside);
      if (outside) continue;
      CHECK(std::equal(out.begin() + static_cast<std::ptrdiff_t>(row * kImage),
                       out.begin() + static_cast<std::ptrdiff_t>((row + 1) * kImage),
                       interleaved.begin() + static_cast<std::ptrdiff_t>(row * kImage)));
    }
  }
}
