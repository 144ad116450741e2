#include "core/readahead.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cold_file.h"
#include "core/image_slot.h"

using namespace fastio;
using namespace std::chrono_literals;
using test::ColdFile;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

struct Row {
  std::int32_t file;
  std::int64_t offset, length;
  Codec codec = Codec::jpeg;
};

std::shared_ptr<ImageSlot> slot_of(const std::shared_ptr<FileSet>& files,
                                   const std::vector<Row>& rows) {
  ImageReads reads;
  for (const Row& row : rows) {
    reads.file.push_back(row.file);
    reads.offset.push_back(row.offset);
    reads.length.push_back(row.length);
    reads.codec.push_back(static_cast<std::uint8_t>(row.codec));
  }
  const std::size_t n = rows.size();
  reads.orientation.resize(n);
  reads.height.resize(n);
  reads.width.resize(n);
  reads.row.resize(n);
  return std::make_shared<ImageSlot>(files, std::vector{SlotView{std::make_shared<Chain>()}},
                                     nullptr, ImageTask{}, reads);
}

std::vector<WantedRange> wanted(const std::vector<Row>& rows) {
  return slot_of(std::make_shared<FileSet>(true), rows)->wanted();
}

bool same(const WantedRange& a, std::int32_t file, std::int64_t offset, std::int64_t length) {
  return a.file == file && a.offset == offset && a.length == length;
}

}  // namespace

TEST_CASE("what is wanted is sorted by file and offset, and neighbours are joined") {
  const auto ranges = wanted({{1, 0, 100}, {0, 5'000'000, 100}, {0, 1000, 100}, {0, 0, 1000}});
  REQUIRE(ranges.size() == 3);
  CHECK(same(ranges[0], 0, 0, 1100));
  CHECK(ranges[0].last_row == 3);
  CHECK(same(ranges[1], 0, 5'000'000, 100));
  CHECK(same(ranges[2], 1, 0, 100));
}

TEST_CASE("ranges with a page between them are joined, those with ten are not") {
  CHECK(wanted({{0, 0, 100}, {0, 4096, 100}}).size() == 1);
  CHECK(wanted({{0, 0, 100}, {0, 40960, 100}}).size() == 2);
  const auto twice = wanted({{0, 7, 100}, {0, 7, 100}});
  REQUIRE(twice.size() == 1);
  CHECK(same(twice[0], 0, 7, 100));
}

TEST_CASE("joined ranges stay small enough for several threads to share them") {
  std::vector<Row> rows;
  for (int i = 0; i < 64; ++i) rows.push_back({0, i * kMiB / 4, kMiB / 4});
  const auto ranges = wanted(rows);
  CHECK(ranges.size() > 8);
  std::int64_t end = 0;
  for (const WantedRange& range : ranges) {
    CHECK(range.offset == end);
    end += range.length;
  }
  CHECK(end == 16 * kMiB);
}

TEST_CASE("of a large block record the beginning is wanted, of a small one all") {
  const auto ranges = wanted({{0, 0, 9 * kMiB, Codec::blocks}, {1, 0, 60'000, Codec::blocks}});
  REQUIRE(ranges.size() == 2);
  CHECK(ranges[0].length < 100'000);
  CHECK(ranges[1].length == 60'000);
}

TEST_CASE("whole files, and ranges that are none, are not joined") {
  constexpr std::int64_t kWhole = FileSet::kWholeFile;
  CHECK(wanted({{0, 0, kWhole}, {1, 0, kWhole}, {0, 0, kWhole}}).size() == 3);
  CHECK(wanted({{0, INT64_MAX, INT64_MAX}, {0, INT64_MIN, 10}, {0, -5, -7}}).size() == 3);
  CHECK(wanted({}).empty());
}

TEST_CASE("ranges that are none, and files that are not there, are asked for without harm") {
  const auto files = std::make_shared<FileSet>(true);
  files->add({"/nowhere/at/all", "/dev/null", "/"});
  ReadAhead ahead(2);
  std::vector<Row> rows;
  for (const std::int32_t file : {-1, 0, 1, 2, 3})
    for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{-1}, INT64_MAX})
      for (const std::int64_t length : {std::int64_t{-1}, std::int64_t{0}, INT64_MAX})
        rows.push_back({file, offset, length});
  ahead.push(slot_of(files, rows));
  ahead.close();
  const auto slot = slot_of(files, rows);
  for (const WantedRange& range : slot->wanted()) slot->ask_for(range);
}

// /tmp and the like may be memory, where everything is cached: nothing is shown there.
TEST_CASE("asked for, a cold range comes into the page cache, also of more than a window") {
  const ColdFile file(4 * kMiB);
  if (file.cached(0, 4 * kMiB) > 0) return;
  const auto files = std::make_shared<FileSet>(true);
  files->add({file.path});
  ReadAhead ahead(2);
  ahead.push(slot_of(files, {{0, 2 * kMiB + 5, kMiB}}));
  CHECK(file.comes(2 * kMiB + 5, kMiB, 257));
  CHECK(file.cached(0, kMiB) == 0);
}

TEST_CASE("asked for, a whole file that is not kept open comes into the page cache") {
  const ColdFile file(600'000);
  if (file.cached(0, 600'000) > 0) return;
  const auto files = std::make_shared<FileSet>(false);
  files->add({file.path});
  ReadAhead ahead(2);
  ahead.push(slot_of(files, {{0, 0, FileSet::kWholeFile}}));
  CHECK(file.comes(0, 600'000, (600'000 + 4095) / 4096));
}

TEST_CASE("a slot whose rows are in the page cache seems to be in memory, a cold one does not") {
  const ColdFile file(4 * kMiB);
  if (file.cached(0, 4 * kMiB) > 0) return;
  const auto files = std::make_shared<FileSet>(true);
  files->add({file.path});
  const auto slot = slot_of(files, {{0, 0, kMiB}, {0, 2 * kMiB, kMiB}});
  CHECK_FALSE(slot->in_memory());  // of a file that is not open nothing is known
  Buffer buffer;
  REQUIRE(files->read(0, 0, kMiB, buffer).ok());
  CHECK_FALSE(slot->in_memory());
  REQUIRE(files->read(0, 2 * kMiB, kMiB, buffer).ok());
  const bool known = slot_of(files, {{0, 0, kMiB}})->in_memory();  // not on every file system
  CHECK(slot->in_memory() == known);
}

TEST_CASE("rows that workers have begun with, or that were cancelled, are not asked for") {
  const ColdFile file(kMiB);
  if (file.cached(0, kMiB) > 0) return;
  const auto files = std::make_shared<FileSet>(true);
  files->add({file.path});
  const auto begun = slot_of(files, {{0, 0, kMiB}});
  std::size_t begin = 0, end = 0;
  REQUIRE(begun->claim(begin, end));
  begun->ask_for(begun->wanted().front());
  begun->finish(1);
  const auto cancelled = slot_of(files, {{0, 0, kMiB, Codec::encoded}});
  cancelled->cancel();
  cancelled->ask_for(cancelled->wanted().front());
  CHECK(file.cached(0, kMiB) == 0);
}

TEST_CASE("closing forgets what waits, and what comes later is not taken") {
  const auto files = std::make_shared<FileSet>(false);
  files->add({"/nowhere/at/all"});
  for (int round = 0; round < 50; ++round) {
    ReadAhead ahead(3);
    std::weak_ptr<Slot> watched;
    std::thread pusher([&] {
      for (int i = 0; i < 20; ++i) {
        const auto slot = slot_of(files, std::vector<Row>(30, Row{0, 0, FileSet::kWholeFile}));
        watched = slot;
        ahead.push(slot);
      }
    });
    if (round % 2) ahead.close();
    pusher.join();
    ahead.close();
    ahead.close();
    CHECK(watched.expired());
  }
}
