#include "core/table.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/engine.h"
#include "core/gather_slot.h"
#include "core/widen.h"

using namespace fastio;

namespace {

constexpr auto kLong = std::chrono::seconds(60);

// Shards of two columns behind a header of 64 bytes: records of 24 bytes (an int64 that is the
// global row, 13 bytes of its lowest byte, 3 of padding), and numbers of 2 bytes (its lowest 16
// bits).
class Shards {
 public:
  static constexpr std::size_t kRecord = 24, kHead = 64;

  explicit Shards(std::vector<std::int64_t> rows) : rows_(std::move(rows)) {
    first_row_.push_back(0);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      paths_.push_back("/tmp/fastio_table_" + std::to_string(::getpid()) + "_" + std::to_string(i));
      std::vector<std::uint8_t> bytes(kHead, 0xee);
      for (std::int64_t row = 0; row < rows_[i]; ++row) {
        const std::int64_t global = first_row_.back() + row;
        std::uint8_t record[kRecord] = {};
        std::memcpy(record, &global, 8);
        std::memset(record + 8, static_cast<int>(global & 0xff), 13);
        bytes.insert(bytes.end(), record, record + kRecord);
      }
      for (std::int64_t row = 0; row < rows_[i]; ++row) {
        const auto low = static_cast<std::uint16_t>(first_row_.back() + row);
        bytes.push_back(static_cast<std::uint8_t>(low));
        bytes.push_back(static_cast<std::uint8_t>(low >> 8));
      }
      std::ofstream(paths_[i], std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
      first_row_.push_back(first_row_.back() + rows_[i]);
    }
  }
  ~Shards() {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }

  std::shared_ptr<Table> table() const {
    return std::make_shared<Table>(first_row_, std::vector<std::uint64_t>{kRecord, 2},
                                   std::vector<TableField>{{0, 0, 8}, {0, 8, 13}, {1, 0, 2}});
  }

  Status open(Table& table, std::size_t shard) const {
    std::shared_ptr<Mapping> mapping;
    REQUIRE(Mapping::open(paths_[shard], mapping).ok());
    const auto rows = static_cast<std::uint64_t>(rows_[shard]);
    return table.set(shard, mapping, {{kHead, rows * kRecord}, {kHead + rows * kRecord, rows * 2}});
  }
  void open_all(Table& table) const {
    for (std::size_t i = 0; i < rows_.size(); ++i) REQUIRE(open(table, i).ok());
  }
  const std::string& path(std::size_t shard) const { return paths_[shard]; }
  std::int64_t rows() const { return first_row_.back(); }

 private:
  std::vector<std::int64_t> rows_, first_row_;
  std::vector<std::string> paths_;
};

struct Gathered {
  std::vector<std::int64_t> number;
  std::vector<std::uint8_t> bytes, low;
  std::vector<Failure> failures;
};

Gathered gather(Engine& engine, const std::shared_ptr<Table>& table,
                const std::vector<std::int64_t>& rows) {
  Gathered result{std::vector<std::int64_t>(rows.size(), -1),
                  std::vector<std::uint8_t>(rows.size() * 13),
                  std::vector<std::uint8_t>(rows.size() * 2),
                  {}};
  const auto slot = std::make_shared<GatherSlot>(
      table, rows,
      std::vector<std::uint8_t*>{reinterpret_cast<std::uint8_t*>(result.number.data()),
                                 result.bytes.data(), result.low.data()});
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  result.failures = slot->failures();
  return result;
}

void check(const Gathered& got, const std::vector<std::int64_t>& rows) {
  CHECK(got.failures.empty());
  CHECK(got.number == rows);
  bool same = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < 13; ++j)
      same &= got.bytes[13 * i + j] == static_cast<std::uint8_t>(rows[i]);
    same &= got.low[2 * i] == static_cast<std::uint8_t>(rows[i]);
    same &= got.low[2 * i + 1] == static_cast<std::uint8_t>(rows[i] >> 8);
  }
  CHECK(same);
}

std::vector<std::int64_t> scattered(std::int64_t rows, std::size_t count) {
  std::vector<std::int64_t> found(count);
  std::int64_t row = 7;
  for (auto& each : found) each = row = (row * 1103515245 + 12345) % rows;
  return found;
}

}  // namespace

TEST_CASE("rows are gathered from shards of any sizes") {
  const Shards shards({1, 700, 3, 1, 2000, 64});
  const auto table = shards.table();
  shards.open_all(*table);
  Engine engine(3);
  check(gather(engine, table, {}), {});
  check(gather(engine, table, {shards.rows() - 1}), {shards.rows() - 1});
  std::vector<std::int64_t> all(static_cast<std::size_t>(shards.rows()));
  std::iota(all.begin(), all.end(), 0);
  check(gather(engine, table, all), all);
  const auto some = scattered(shards.rows(), 5000);
  check(gather(engine, table, some), some);
}

TEST_CASE("the shard of every row is found") {
  const Shards shards({5, 1, 1, 1, 900, 2, 1, 60});
  const auto table = shards.table();
  for (std::int64_t row = 0; row < shards.rows(); ++row) {
    const std::size_t shard = table->shard_of(row);
    CHECK(table->first_row(shard) <= row);
    CHECK(row < table->first_row(shard + 1));
  }
}

TEST_CASE("a field that is not wanted is left out") {
  const Shards shards({100});
  const auto table = shards.table();
  shards.open_all(*table);
  Engine engine(1);
  std::vector<std::int64_t> number(2);
  const auto slot = std::make_shared<GatherSlot>(
      table, std::vector<std::int64_t>{99, 4},
      std::vector<std::uint8_t*>{reinterpret_cast<std::uint8_t*>(number.data()), nullptr, nullptr});
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  CHECK(number == std::vector<std::int64_t>{99, 4});
}

TEST_CASE("shards that are not open are told of, and their rows fail") {
  const Shards shards({10, 10, 10});
  const auto table = shards.table();
  REQUIRE(shards.open(*table, 1).ok());
  const std::vector<std::int64_t> rows{29, 15, 0, 12};
  CHECK(table->missing(rows.data(), rows.size()) == std::vector<std::int64_t>{0, 2});
  Engine engine(1);
  const Gathered got = gather(engine, table, rows);
  REQUIRE(got.failures.size() == 2);
  CHECK(got.failures[0].first == 0);
  CHECK(got.failures[1].first == 2);
  CHECK(got.failures[1].second.code == Code::not_found);
  CHECK(got.number == std::vector<std::int64_t>{-1, 15, -1, 12});
  shards.open_all(*table);
  CHECK(table->missing(rows.data(), rows.size()).empty());
  table->unset(1);
  CHECK(table->missing(rows.data(), rows.size()) == std::vector<std::int64_t>{1});
}

TEST_CASE("what is known is copied for those who look at it, not for each shard") {
  constexpr std::size_t kShards = 20'000;
  const Shards one({1});
  std::shared_ptr<Mapping> mapping;
  REQUIRE(Mapping::open(one.path(0), mapping).ok());
  std::vector<std::int64_t> first_row(kShards + 1);
  std::iota(first_row.begin(), first_row.end(), 0);
  const auto table = std::make_shared<Table>(first_row, std::vector<std::uint64_t>{24},
                                             std::vector<TableField>{{0, 0, 24}});
  const auto set = [&](std::size_t shard) {
    REQUIRE(table->set(shard, mapping, {{Shards::kHead, 24}}).ok());
  };
  const KnownShards* const state = table->snapshot().get();
  for (std::size_t shard = 1; shard < kShards; ++shard) set(shard);
  CHECK(table->snapshot().get() == state);

  const auto kept = table->snapshot();
  set(0);
  table->unset(1);
  CHECK_FALSE(kept->shards[0]);
  CHECK(kept->shards[1]);
  CHECK(kept->origins[0][0] == 0);
  const auto now = table->snapshot();
  CHECK(now->shards[0]);
  CHECK_FALSE(now->shards[1]);
  CHECK(now->origins[0][0] != 0);
}

TEST_CASE("a resident table has the same rows, also when the files are cut off") {
  const Shards shards({3000, 5000});
  const auto table = shards.table();
  table->make_resident();
  shards.open_all(*table);
  while (table->resident() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (std::size_t i = 0; i < 2; ++i) REQUIRE(::truncate(shards.path(i).c_str(), 0) == 0);
  Engine engine(2);
  const auto rows = scattered(shards.rows(), 20000);
  check(gather(engine, table, rows), rows);
  table->close();
}

TEST_CASE("rows of a shard that is cut off while it is mapped fail, others do not") {
  const Shards shards({3000, 5000});
  const auto table = shards.table();
  shards.open_all(*table);
  REQUIRE(::truncate(shards.path(0).c_str(), 4096) == 0);
  Engine engine(2);
  const Gathered got = gather(engine, table, {2900, 3001, 7});
  REQUIRE(got.failures.size() == 2);  // row 7 is there, but its shard is no longer what it was
  CHECK(got.failures[0].second.code == Code::truncated);
  CHECK(got.failures[0].first == 0);
  CHECK(got.failures[1].first == 2);
  CHECK(got.number[1] == 3001);
}

TEST_CASE("columns that leave the file, and tables that do not fit, are refused") {
  const Shards shards({10});
  const auto table = shards.table();
  std::shared_ptr<Mapping> mapping;
  REQUIRE(Mapping::open(shards.path(0), mapping).ok());
  const std::uint64_t size = mapping->size();
  const ColumnPlace records{64, 240}, numbers{304, 20};
  CHECK_FALSE(table->set(0, mapping, {{size - 239, 240}, numbers}).ok());
  CHECK_FALSE(table->set(0, mapping, {{UINT64_MAX - 8, 240}, numbers}).ok());
  CHECK_FALSE(table->set(0, mapping, {{64, UINT64_MAX}, numbers}).ok());
  CHECK_FALSE(table->set(0, mapping, {{64, 230}, numbers}).ok());
  CHECK_FALSE(table->set(1, mapping, {records, numbers}).ok());
  CHECK_FALSE(table->set(0, mapping, {records}).ok());
  CHECK(table->set(0, mapping, {{size - 240, 240}, numbers}).ok());
  const auto made = [](std::vector<std::int64_t> first_row, TableField field) {
    return Table(std::move(first_row), {8}, {field});
  };
  CHECK_THROWS(made({0}, {0, 0, 8}));
  CHECK_THROWS(made({1, 2}, {0, 0, 8}));
  CHECK_THROWS(made({0, 5, 5}, {0, 0, 8}));
  CHECK_THROWS(made({0, 5}, {1, 0, 8}));
  CHECK_THROWS(made({0, 5}, {0, 0, 0}));
  CHECK_THROWS(made({0, 5}, {0, 0, 8, FieldKind::numbers, 3, 8}));
  CHECK_THROWS(made({0, 5}, {0, 0, 8, FieldKind::numbers, 2, 2}));
  CHECK_THROWS(made({0, 5}, {0, 0, 7, FieldKind::numbers, 2, 8}));
}

TEST_CASE("numbers are widened, of rows that overlap, alike on every instruction set") {
  std::vector<std::uint8_t> bytes(4 * 333);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 151 + 9);
  for (const int from : {1, 2, 4})
    for (const int to : {4, 8})
      for (const std::size_t count : {0, 1, 3, 7, 8, 15, 16, 31, 32, 33, 64, 65, 331}) {
        std::vector<std::uint8_t> expected(count * static_cast<std::size_t>(to) + 1, 0x5a), got;
        for (std::size_t i = 0; i < count; ++i)
          for (int j = 0; j < to; ++j)
            expected[i * static_cast<std::size_t>(to) + static_cast<std::size_t>(j)] =
                j < from
                    ? bytes[1 + i * static_cast<std::size_t>(from) + static_cast<std::size_t>(j)]
                    : 0;
        for (auto* kernel : {&widen, &widen_portable}) {
          got.assign(expected.size(), 0x5a);
          kernel(bytes.data() + 1, count, from, to, got.data());
          CHECK(got == expected);
        }
      }
}

TEST_CASE("segments make up rows: inputs, targets, positions, documents and a mask") {
  const std::string path = "/tmp/fastio_tokens_" + std::to_string(::getpid());
  std::vector<std::uint16_t> tokens(20);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{100});
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), 40);
  std::vector<TableField> fields;
  for (const auto kind : {FieldKind::inputs, FieldKind::targets, FieldKind::positions,
                          FieldKind::documents, FieldKind::mask})
    fields.push_back({0, 0, 10, kind, 2, 8, -7});
  const auto table = std::make_shared<Table>(std::vector<std::int64_t>{0, 3},
                                             std::vector<std::uint64_t>{0}, fields);
  std::shared_ptr<Mapping> mapping;
  REQUIRE(Mapping::open(path, mapping).ok());
  std::remove(path.c_str());
  // A row of two documents and padding; one that goes on behind its end; one that is cut off there.
  const Segments segments{{0, 2, 4, 5}, {3, 10, 0, 14, 6}, {2, 1, 3, 3, 5}};
  const auto kept = [](const Segments& some) { return std::make_shared<const Segments>(some); };
  REQUIRE(table->set(0, mapping, {{0, 40}}, kept(segments)).ok());
  Engine engine(1);
  std::vector<std::vector<std::int64_t>> out(5, std::vector<std::int64_t>(15));
  std::vector<std::uint8_t*> pointers;
  for (auto& each : out) pointers.push_back(reinterpret_cast<std::uint8_t*>(each.data()));
  const auto slot =
      std::make_shared<GatherSlot>(table, std::vector<std::int64_t>{0, 1, 2}, pointers);
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  CHECK(slot->failures().empty());
  using Row = std::vector<std::int64_t>;
  CHECK(out[0] == Row{103, 104, 110, -7, -7, 100, 101, 102, 114, 115, 106, 107, 108, 109, 110});
  CHECK(out[1] == Row{104, -7, -7, -7, -7, 101, 102, -7, 115, 116, 107, 108, 109, 110, -7});
  CHECK(out[2] == Row{0, 1, 0, -7, -7, 0, 1, 2, 0, 1, 0, 1, 2, 3, 4});
  CHECK(out[3] == Row{0, 0, 1, -7, -7, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0});
  CHECK(out[4] == Row{1, 1, 1, -7, -7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});

  const auto refused = [&](const Segments& some) {
    return !table->set(0, mapping, {{0, 40}}, kept(some)).ok();
  };
  CHECK(refused({{0, 2, 4}, {3, 10, 0, 14}, {2, 1, 3, 3}}));
  CHECK(refused({{0, 2, 1, 5}, {3, 10, 0, 14, 6}, {2, 1, 3, 3, 5}}));
  CHECK(refused({{0, 2, 4, 6}, {3, 10, 0, 14, 6}, {2, 1, 3, 3, 5}}));
  CHECK(refused({{0, 2, 4, 5}, {3, 10, 0, 18, 6}, {2, 1, 3, 3, 5}}));
  CHECK(refused({{0, 2, 4, 5}, {-1, 10, 0, 14, 6}, {2, 1, 3, 3, 5}}));
  CHECK(refused({{0, 2, 4, 5}, {3, 10, 0, 14, 6}, {2, 0, 3, 3, 5}}));
  CHECK_FALSE(table->set(0, mapping, {{0, 40}}).ok());
}

TEST_CASE("fields of every width are copied whole") {
  constexpr std::size_t kRows = 300, kStride = 700;
  const std::string path = "/tmp/fastio_widths_" + std::to_string(::getpid());
  std::vector<std::uint8_t> bytes(kRows * kStride);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 37 + i / 251);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  std::shared_ptr<Mapping> mapping;
  REQUIRE(Mapping::open(path, mapping).ok());
  std::remove(path.c_str());
  const std::vector<std::int64_t> rows = scattered(kRows, 1000);
  Engine engine(2);
  for (std::uint32_t width = 1; width <= 600; width = width < 70 ? width + 1 : width + 53) {
    const auto table = std::make_shared<Table>(std::vector<std::int64_t>{0, kRows},
                                               std::vector<std::uint64_t>{kStride},
                                               std::vector<TableField>{{0, 5, width}});
    REQUIRE(table->set(0, mapping, {{0, bytes.size()}}).ok());
    std::vector<std::uint8_t> out(rows.size() * width + 16, 0xcc);
    const auto slot =
        std::make_shared<GatherSlot>(table, rows, std::vector<std::uint8_t*>{out.data()});
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    bool same = true;
    for (std::size_t i = 0; i < rows.size(); ++i)
      same &=
          std::memcmp(out.data() + i * width,
                      bytes.data() + static_cast<std::size_t>(rows[i]) * kStride + 5, width) == 0;
    for (std::size_t i = rows.size() * width; i < out.size(); ++i) same &= out[i] == 0xcc;
    CHECK_MESSAGE(same, width);
  }
}

TEST_CASE("columns in memory are gathered where they lie, by threads and in the calling one") {
  constexpr std::int64_t kRows = 50;
  std::vector<std::uint32_t> wide(3 * kRows);  // every third number is a row's
  std::vector<std::uint16_t> narrow(kRows);
  for (std::int64_t row = 0; row < kRows; ++row) {
    wide[static_cast<std::size_t>(3 * row)] = static_cast<std::uint32_t>(row);
    narrow[static_cast<std::size_t>(row)] = static_cast<std::uint16_t>(2 * row);
  }
  const auto table = std::make_shared<Table>(std::vector<std::int64_t>{0, kRows},
                                             std::vector<std::uint64_t>{12, 2},
                                             std::vector<TableField>{{0, 0, 4}, {1, 0, 2}});
  const auto* const first = reinterpret_cast<const std::uint8_t*>(wide.data());
  const auto* const second = reinterpret_cast<const std::uint8_t*>(narrow.data());
  const std::uint64_t bytes = 12 * (kRows - 1) + 4;  // the last row's ends with its number
  CHECK_FALSE(table->set_memory(0, {{first, bytes - 1}, {second, 2 * kRows}}).ok());
  CHECK_FALSE(table->set_memory(0, {{first, bytes}, {second, 2 * kRows - 1}}).ok());
  CHECK_FALSE(table->set_memory(0, {{first, bytes}}).ok());
  CHECK_FALSE(table->set_memory(1, {{first, bytes}, {second, 2 * kRows}}).ok());
  CHECK_FALSE(table->complete());
  REQUIRE(table->set_memory(0, {{first, bytes}, {second, 2 * kRows}}).ok());
  CHECK(table->complete());

  const std::vector<std::int64_t> rows = {49, 0, 7, 7, 23};
  for (const bool here : {false, true}) {
    std::vector<std::uint32_t> one(rows.size());
    std::vector<std::uint16_t> two(rows.size());
    Engine engine(2);
    const auto slot = std::make_shared<GatherSlot>(
        table, rows,
        std::vector<std::uint8_t*>{reinterpret_cast<std::uint8_t*>(one.data()),
                                   reinterpret_cast<std::uint8_t*>(two.data())});
    CHECK(slot->bytes() == 6 * rows.size());
    if (here) {
      slot->fill_here();
    } else {
      engine.submit(slot);
    }
    REQUIRE(slot->wait(kLong));
    CHECK(slot->failures().empty());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK(one[i] == rows[i]);
      CHECK(two[i] == 2 * rows[i]);
    }
  }
}
