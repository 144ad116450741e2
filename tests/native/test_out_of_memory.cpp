// What every thread does when it gets no more memory.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "block_records.h"
#include "core/engine.h"
#include "core/gather_slot.h"
#include "core/image_slot.h"
#include "core/recoding.h"
#include "core/span_slot.h"
#include "core/table.h"
#include "jpeg_files.h"

// The sanitizers have their own. GCC takes free() in the operators below for a mistake.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {

std::atomic<int> failing{0};  // every so manieth allocation of other threads; 0: none
std::atomic<unsigned> asked_for{0};
thread_local bool spared = false;  // the thread of the test

bool fails() {
  const int every = failing.load(std::memory_order_relaxed);
  return every && !spared && asked_for++ % static_cast<unsigned>(every) == 0;
}

void* allocate(std::size_t bytes) { return fails() ? nullptr : std::malloc(bytes ? bytes : 1); }

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* const memory = allocate(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

using namespace fastio;

namespace {

constexpr auto kLong = std::chrono::minutes(10);
constexpr std::size_t kPage = 4096;

// In its scope the other threads get no memory, or every so manieth time.
class NoMemory {
 public:
  explicit NoMemory(int every = 1) {
    spared = true;
    failing = every;
  }
  ~NoMemory() { failing = 0; }
};

class File {
 public:
  explicit File(const std::vector<std::uint8_t>& bytes)
      : path("/tmp/fastio_memory_" + std::to_string(::getpid()) + "_" + std::to_string(next_++)) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  ~File() { std::remove(path.c_str()); }
  std::shared_ptr<Mapping> mapped() const {
    std::shared_ptr<Mapping> mapping;
    REQUIRE(Mapping::open(path, mapping).ok());
    return mapping;
  }
  const std::string path;

 private:
  static inline int next_ = 0;
};

// A table of one column of 8 bytes, in a file of so many pages.
std::shared_ptr<Table> table_of(std::size_t pages) {
  return std::make_shared<Table>(
      std::vector<std::int64_t>{0, static_cast<std::int64_t>(pages * kPage / 8)},
      std::vector<std::uint64_t>{8}, std::vector<TableField>{{0, 0, 8}});
}

std::size_t out_of_memory(const Slot& slot) {
  std::size_t found = 0;
  for (const Failure& failure : slot.failures()) found += failure.second.code == Code::memory;
  return found;
}

}  // namespace

TEST_CASE("without memory, images fail by name, and are decoded again when there is some") {
  const auto jpeg = test::make_jpeg({}, 1);
  const File file(jpeg);
  for (const bool keep_open : {false, true}) {
    const auto files = std::make_shared<FileSet>(keep_open);
    files->add(std::vector<std::string>(8, file.path));
    const auto chain = std::make_shared<Chain>();
    ImageReads reads;
    for (int i = 0; i < 64; ++i) {
      reads.file.push_back(i % 8);
      reads.offset.push_back(0);
      reads.length.push_back(FileSet::kWholeFile);
    }
    reads.codec.assign(64, 0);
    reads.orientation.assign(64, 0);
    reads.height.assign(64, 0);
    reads.width.assign(64, 0);
    reads.row.assign(64, 0);
    const auto slot = [&] {
      return std::make_shared<ImageSlot>(files, std::vector{SlotView{chain}}, nullptr, ImageTask{},
                                         reads);
    };
    spared = true;
    Engine engine(2);
    for (const int every : {1, 2, 3, 5, 7}) {
      const auto poor = slot();
      {
        const NoMemory now(every);
        engine.submit(poor);
        REQUIRE(poor->wait(kLong));
      }
      if (every == 1) CHECK(out_of_memory(*poor) == 64);
      CHECK(out_of_memory(*poor) == poor->failures().size());
      const auto rich = slot();
      engine.submit(rich);
      REQUIRE(rich->wait(kLong));
      CHECK(rich->failures().empty());
    }
  }
}

TEST_CASE("without memory, images that are recoded come to an end without records") {
  const File file(test::make_jpeg({}, 1));
  const auto files = std::make_shared<FileSet>(false);
  files->add({file.path});
  const JpegPlaces places{files, std::vector<std::int64_t>(16, 0), std::vector<std::int64_t>(16, 0),
                          std::vector<std::int64_t>(16, FileSet::kWholeFile)};
  spared = true;
  Recoding job(places, test::random_codebook(1), 1 << 20);
  {
    const NoMemory now;
    job.start_resting(2, 1.0);
    REQUIRE(job.wait(kLong));
  }
  for (const RecodedImage& image : job.images()) CHECK(image.record.empty());
}

TEST_CASE("without memory, rows of a shard that was cut off have failed all the same") {
  const File file(std::vector<std::uint8_t>(4 * kPage, 7));
  const auto table = table_of(4);
  const auto mapping = file.mapped();
  REQUIRE(table->set(0, mapping, {{0, 4 * kPage}}).ok());
  REQUIRE(::truncate(file.path.c_str(), 0) == 0);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(table->rows()));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::uint8_t> out(4 * kPage), copy(4 * kPage);
  spared = true;
  Engine engine(2);
  const auto gathered =
      std::make_shared<GatherSlot>(table, rows, std::vector<std::uint8_t*>{out.data()});
  const auto copied = std::make_shared<SpanSlot>(
      SpanSlot::Sources{mapping}, std::vector<Span>{{0, 0, 4 * kPage, 0, 4 * kPage}}, copy.data());
  {
    const NoMemory now;
    engine.submit(gathered);
    engine.submit(copied);
    REQUIRE(gathered->wait(kLong));
    REQUIRE(copied->wait(kLong));
  }
  CHECK(out_of_memory(*gathered) == rows.size());
  CHECK(out_of_memory(*copied) == 1);
}

TEST_CASE("a slot that cannot be queued without memory is cancelled, and no thread has it") {
  const File file(std::vector<std::uint8_t>(kPage, 7));
  const auto table = table_of(1);
  REQUIRE(table->set(0, file.mapped(), {{0, kPage}}).ok());
  // The queue asks for memory now and then, so some of many slots are refused.
  std::vector<std::uint8_t> out(8 * 500);
  std::vector<std::shared_ptr<Slot>> slots;
  for (std::size_t i = 0; i < 500; ++i)
    slots.push_back(std::make_shared<GatherSlot>(table, std::vector<std::int64_t>{0},
                                                 std::vector<std::uint8_t*>{out.data() + 8 * i}));
  std::vector<std::uint8_t> refused(slots.size());
  spared = true;
  Engine engine(2);
  {
    const NoMemory now;
    spared = false;
    for (std::size_t i = 0; i < slots.size(); ++i) try {
        engine.submit(slots[i]);
      } catch (const std::bad_alloc&) {
        refused[i] = 1;
      }
    spared = true;
  }
  CHECK(std::accumulate(refused.begin(), refused.end(), 0) > 0);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    CAPTURE(i);
    CHECK(slots[i]->cancelled() == (refused[i] == 1));
    // There is nothing to wait for where no thread has it.
    REQUIRE(slots[i]->wait(refused[i] ? std::chrono::nanoseconds(0) : kLong));
    if (refused[i]) CHECK(out[8 * i] == 0);
  }
}

TEST_CASE("without memory, a shard stays mapped") {
  const File file(std::vector<std::uint8_t>(4 * kPage, 7));
  const auto table = table_of(4);
  spared = true;
  table->make_resident();
  {
    const NoMemory now;
    const unsigned before = asked_for;
    REQUIRE(table->set(0, file.mapped(), {{0, 4 * kPage}}).ok());
    while (asked_for == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    table->close();
  }
  CHECK(table->resident() == 0);
  CHECK(table->complete());
}

#endif
