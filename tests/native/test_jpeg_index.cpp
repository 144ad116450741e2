// The bytes of JpegIndex: what is written is read, and all other bytes are refused or harmless.
#include <doctest/doctest.h>

#include "block_images.h"

using namespace fastio;
using test::Bench;
using test::Bytes;
using test::JpegOptions;
using test::random_int;
using test::Result;
using test::sized;
using Kind = GeometryStep::Kind;

namespace {

JpegOptions options(std::mt19937& rng) {
  JpegOptions o;
  do {
    o = test::random_options(rng);
  } while (o.components > 3 || o.progressive || o.arithmetic || o.apart);
  o.height = random_int(rng, 1, 300);
  o.width = random_int(rng, 1, 500);
  return o;
}

// The index of a whole file; one that is not whole where it has none.
JpegIndex index_of(const Bytes& jpeg) {
  JpegDecoder decoder;
  JpegHeader header;
  JpegIndex index;
  REQUIRE(decoder.open(jpeg.data(), jpeg.size(), false, header).ok());
  REQUIRE(decoder.check(index).ok());
  return index;
}

bool equal(const JpegIndex& a, const JpegIndex& b) {
  if (a.scan != b.scan || a.points.size() != b.points.size()) return false;
  for (std::size_t i = 0; i < a.points.size(); ++i) {
    const JpegIndex::Point &p = a.points[i], &q = b.points[i];
    if (p.byte != q.byte || p.bit != q.bit) return false;
    for (int c = 0; c < a.scan.components; ++c)
      if (p.dc[c] != q.dc[c]) return false;
  }
  return true;
}

Result crop(Bench& bench, const Bytes& jpeg, std::int64_t row, const JpegIndex* index) {
  Chain chain;
  chain.add(sized(Kind::random_resized_crop, 20, 30));
  ImageTask task;
  task.chain = &chain;
  ImageRequest request;
  request.row = row;
  request.index = index;
  return bench.decode(task, request, Codec::jpeg, jpeg);
}

}  // namespace

TEST_CASE("a whole index is written and read, and gives the crops of a decode from the beginning") {
  std::mt19937 rng(1);
  Bench bench;
  int whole = 0;
  for (int round = 0; round < 150; ++round) {
    const JpegOptions o = options(rng);
    const Bytes jpeg = test::make_jpeg(o, rng());
    CAPTURE(test::describe(o));
    const JpegIndex index = index_of(jpeg);
    if (index.points.empty()) continue;  // not a scan of JpegScan
    REQUIRE(index.whole());              // whatever a window of the decoder ends with
    ++whole;
    const std::vector<std::uint8_t> bytes = index.bytes();
    JpegIndex read;
    REQUIRE(read.read(bytes.data(), bytes.size()));
    REQUIRE(equal(read, index));
    REQUIRE(read.whole());
    for (int n = 0; n < 4; ++n) {
      const auto row = static_cast<std::int64_t>(rng() % 1000);
      const Result expected = crop(bench, jpeg, row, nullptr);
      const Result got = crop(bench, jpeg, row, &read);
      REQUIRE(expected.status.ok());
      REQUIRE(got.status.ok());
      REQUIRE(got.out == expected.out);
    }
  }
  CHECK(whole > 60);
}

TEST_CASE("an index takes less than a hundredth of a photo") {
  JpegOptions o;
  o.height = 375;
  o.width = 500;
  o.sampling[0] = {2, 2};
  o.quality = 85;
  const Bytes jpeg = test::make_jpeg(o, 3);
  REQUIRE(jpeg.size() > 40000);
  const JpegIndex index = index_of(jpeg);
  REQUIRE(index.whole());
  CHECK(index.bytes().size() * 100 < jpeg.size());
}

TEST_CASE("other bytes are refused") {
  JpegOptions o;
  o.height = o.width = 200;
  const JpegIndex good = index_of(test::make_jpeg(o, 1));
  REQUIRE(good.whole());
  const std::vector<std::uint8_t> bytes = good.bytes();
  JpegIndex read;
  CHECK_FALSE(read.read(nullptr, 0));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    REQUIRE_FALSE(read.read(bytes.data(), size));
  std::vector<std::uint8_t> more = bytes;
  more.push_back(0);
  CHECK_FALSE(read.read(more.data(), more.size()));
  const std::vector<std::uint8_t> zeros(500), ones(500, 0xFF);
  CHECK_FALSE(read.read(zeros.data(), zeros.size()));
  CHECK_FALSE(read.read(ones.data(), ones.size()));

  const auto refused = [&](auto change) {
    JpegIndex wrong = good;
    change(wrong);
    const std::vector<std::uint8_t> written = wrong.bytes();
    return !read.read(written.data(), written.size());
  };
  CHECK_FALSE(refused([](JpegIndex&) {}));
  CHECK_FALSE(refused([](JpegIndex& x) { x.points.pop_back(); }));  // the first ones are known
  CHECK(refused([](JpegIndex& x) { x.points.clear(); }));
  CHECK(refused([](JpegIndex& x) { x.points.push_back(x.points.back()); }));  // too many
  CHECK(refused([](JpegIndex& x) { x.points[1] = x.points[0]; }));            // no step ahead
  CHECK(refused([](JpegIndex& x) { x.points[1] = x.points[3]; }));            // a step back
  CHECK(refused([](JpegIndex& x) { x.points[0].bit = 1; }));
  CHECK(refused([](JpegIndex& x) { x.points.back().byte = 1u << 30; }));
  CHECK(refused([](JpegIndex& x) { x.scan.bytes = x.points.back().byte; }));
  CHECK(refused([](JpegIndex& x) { x.scan.bytes = std::uint64_t{1} << 40; }));
  CHECK(refused([](JpegIndex& x) { x.scan.rows = 0; }));
  CHECK(refused([](JpegIndex& x) { x.scan.rows = 1; }));
  CHECK(refused([](JpegIndex& x) { x.scan.columns = 1 << 20; }));
  CHECK(refused([](JpegIndex& x) { x.scan.mcu_width = 0; }));
  CHECK(refused([](JpegIndex& x) { x.scan.step = 1 << 20; }));
  CHECK(refused([](JpegIndex& x) { x.scan.components = 0; }));
}

TEST_CASE("an index of another file of the same shape ends in wrong pixels or an error") {
  std::mt19937 rng(4);
  Bench bench;
  for (int round = 0; round < 100; ++round) {
    const JpegOptions o = options(rng);
    const Bytes jpeg = test::make_jpeg(o, rng());
    const JpegIndex own = index_of(jpeg);
    JpegIndex other = index_of(test::make_jpeg(o, rng()));
    if (!own.whole() || !other.whole()) continue;
    other.scan = own.scan;
    const std::vector<std::uint8_t> bytes = other.bytes();
    JpegIndex read;
    if (!read.read(bytes.data(), bytes.size())) continue;  // its scan is longer
    for (int n = 0; n < 10; ++n) crop(bench, jpeg, static_cast<std::int64_t>(rng() % 999), &read);
  }
}

TEST_CASE("changed bytes of an index are refused, or end in wrong pixels or an error") {
  std::mt19937 rng(5);
  Bench bench;
  int taken = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    const JpegOptions o = options(rng);
    const Bytes jpeg = test::make_jpeg(o, rng());
    const JpegIndex index = index_of(jpeg);
    if (!index.whole()) continue;
    const std::vector<std::uint8_t> bytes = index.bytes();
    for (int n = 0; n < 60; ++n) {
      std::vector<std::uint8_t> changed = bytes;
      for (std::uint32_t k = 1 + rng() % 3; k > 0; --k) {
        std::uint8_t& byte = changed[rng() % changed.size()];
        byte = static_cast<std::uint8_t>(rng() % 2 ? rng() : byte ^ 1u << rng() % 8);
      }
      JpegIndex read;
      if (!read.read(changed.data(), changed.size())) {
        ++refused;
        continue;
      }
      ++taken;
      std::uint64_t last = 0;
      for (std::size_t i = 0; i < read.points.size(); ++i) {
        const std::uint64_t bit = std::uint64_t{read.points[i].byte} * 8 + read.points[i].bit;
        REQUIRE(read.points[i].bit < 8);
        REQUIRE(read.points[i].byte < read.scan.bytes);
        if (i) REQUIRE(bit > last);
        last = bit;
      }
      crop(bench, jpeg, static_cast<std::int64_t>(rng() % 999), &read);
    }
  }
  CHECK(taken > 100);
  CHECK(refused > 100);
}

namespace {

// Points first to last - 1 of a made-up scan of `rows` rows.
JpegIndex points(int first, int last, int rows = 64) {
  JpegIndex index;
  index.scan = {100000, rows, 8, 16, 3, 8, 0};
  for (int i = first; i < last; ++i) {
    JpegIndex::Point point;
    point.byte = static_cast<std::uint32_t>(i * 100);
    point.dc[0] = static_cast<std::int16_t>(i * 3);
    index.points.push_back(point);
  }
  return index;
}

std::size_t found(JpegIndexes& indexes, std::size_t size, std::uint32_t crc) {
  const JpegIndexes::Bytes bytes = indexes.find(size, crc);
  JpegIndex index;
  if (!bytes) return 0;
  REQUIRE(index.read(bytes.data, bytes.size));
  return index.points.size();
}

void load(JpegIndexes& indexes, const std::vector<std::uint8_t>& bytes) {
  const auto kept = std::make_shared<const std::vector<std::uint8_t>>(bytes);
  indexes.load({kept, kept->data(), kept->size()});
}

}  // namespace

TEST_CASE("indexes are found by size and checksum, grow, and stay within their bytes") {
  JpegIndexes indexes;
  CHECK_FALSE(indexes.find(10, 1));
  indexes.add(10, 1, nullptr, points(0, 2));
  CHECK(found(indexes, 10, 1) == 2);
  CHECK_FALSE(indexes.find(11, 1));
  CHECK_FALSE(indexes.find(10, 2));
  const JpegIndex first = points(0, 2);
  indexes.add(10, 1, &first, points(2, 5));
  indexes.add(10, 1, nullptr, points(0, 1));  // one that knew less
  CHECK(found(indexes, 10, 1) == 5);

  JpegIndexes small(16 * 1000);
  for (std::uint32_t crc = 0; crc < 1000; ++crc) small.add(10, crc * 16, nullptr, points(0, 10));
  int kept = 0;
  for (std::uint32_t crc = 0; crc < 1000; ++crc)
    kept += static_cast<bool>(small.find(10, crc * 16));
  CHECK(kept > 0);
  CHECK(kept < 10);
}

TEST_CASE("indexes are given once, again when they have grown, and loaded elsewhere") {
  JpegIndexes one, other;
  CHECK(one.unsaved(false).empty());
  one.add(10, 1, nullptr, points(0, 8));
  one.add(20, 2, nullptr, points(0, 4));
  const std::vector<std::uint8_t> both = one.unsaved(false);
  CHECK(one.unsaved(false).empty());
  CHECK(one.unsaved(true).size() == both.size());
  load(other, both);
  CHECK(found(other, 10, 1) == 8);
  CHECK(found(other, 20, 2) == 4);
  CHECK(other.unsaved(false).empty());  // they are somewhere already

  const JpegIndex eight = points(0, 8);
  other.add(10, 1, &eight, points(8, 9));
  CHECK(other.unsaved(false).empty());  // a little more
  other.add(10, 1, &eight, points(8, 10));
  const std::vector<std::uint8_t> grown = other.unsaved(false);
  CHECK(grown.size() < both.size());
  load(one, grown);
  CHECK(found(one, 10, 1) == 10);
  load(one, both);  // older ones replace nothing
  CHECK(found(one, 10, 1) == 10);
  CHECK(one.unsaved(false).empty());
}

TEST_CASE("what is loaded takes the place of what is in memory, and is kept while it is used") {
  JpegIndexes indexes;
  indexes.add(10, 1, nullptr, points(0, 8));
  const auto first = std::make_shared<const std::vector<std::uint8_t>>(indexes.unsaved(true));
  const auto second = std::make_shared<const std::vector<std::uint8_t>>(*first);
  indexes.load({first, first->data(), first->size()});
  CHECK(indexes.find(10, 1).owner == first);
  indexes.load({second, second->data(), second->size()});
  CHECK(indexes.find(10, 1).owner == second);
  CHECK(first.use_count() == 1);
  CHECK(found(indexes, 10, 1) == 8);
  const JpegIndex eight = points(0, 8);
  indexes.add(10, 1, &eight, points(8, 12));
  CHECK(second.use_count() == 1);
  indexes.load({second, second->data(), second->size()});  // which knows less
  CHECK(found(indexes, 10, 1) == 12);
}

TEST_CASE("what is loaded may be any bytes") {
  std::mt19937 rng(6);
  JpegIndexes whole;
  for (std::uint32_t crc = 0; crc < 20; ++crc)
    whole.add(1000 + crc, crc, nullptr, points(0, static_cast<int>(1 + rng() % 60)));
  const std::vector<std::uint8_t> bytes = whole.unsaved(false);
  JpegIndexes none;
  none.load({});
  for (int round = 0; round < 2000; ++round) {
    JpegIndexes indexes;
    std::vector<std::uint8_t> changed(bytes.begin(),
                                      bytes.begin() + static_cast<long>(rng() % bytes.size()));
    for (std::uint32_t n = rng() % 4; n > 0 && !changed.empty(); --n)
      changed[rng() % changed.size()] = static_cast<std::uint8_t>(rng());
    load(indexes, changed);
    for (std::uint32_t crc = 0; crc < 20; ++crc) found(indexes, 1000 + crc, crc);
  }
}
