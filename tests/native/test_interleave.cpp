#include "core/interleave.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "core/shuffle.h"

using namespace fastio;

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes noise(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
  return bytes;
}

// Rows of columns of some widths go through interleave() and deal(), in pieces, and come out at
// their positions, less `start`.
void check_rows(const std::vector<std::uint32_t>& widths, std::size_t n, const Cut& cut,
                std::size_t piece, std::int64_t start) {
  std::vector<Bytes> columns;
  std::size_t stride = 0;
  for (const std::uint32_t width : widths) {
    columns.push_back(noise(n * width, static_cast<unsigned>(columns.size())));
    stride += width;
  }
  stride = (stride + 7) / 8 * 8;
  std::vector<std::int64_t> rows(n), positions(n);
  std::iota(rows.begin(), rows.end(), 0);
  permute_inverse(n, 7, rows.data(), n, positions.data());
  for (auto& position : positions) position -= start;

  const std::size_t left = n - static_cast<std::size_t>(start);
  const std::size_t chunks = (left + static_cast<std::size_t>(cut.rows) - 1) / cut.rows;
  const std::size_t buckets = chunks * cut.buckets(), room = std::size_t{1} << cut.shift;
  Bytes records(buckets * room * stride);
  std::vector<std::uint32_t> places(buckets * room);
  std::vector<Bucket> filled;
  for (std::size_t b = 0; b < buckets; ++b)
    filled.push_back({records.data() + b * room * stride, places.data() + b * room, 0,
                      static_cast<std::int64_t>(room)});
  std::vector<std::int64_t> counts(buckets), all(buckets);
  for (std::size_t begin = 0; begin < n; begin += piece) {
    const std::size_t some = std::min(piece, n - begin);
    std::vector<RecordColumn> parts;
    std::uint32_t offset = 0;
    for (std::size_t c = 0; c < widths.size(); offset += widths[c++])
      parts.push_back({columns[c].data() + begin * widths[c], widths[c], offset});
    REQUIRE(count_buckets(positions.data() + begin, some, cut, 0, chunks, counts.data()));
    for (std::size_t b = 0; b < buckets; ++b) all[b] += counts[b];
    REQUIRE(interleave(parts, stride, positions.data() + begin, some, cut, 0, filled));
  }
  for (std::size_t b = 0; b < buckets; ++b) REQUIRE(filled[b].next == all[b]);

  std::vector<Bytes> out;
  std::vector<RecordField> fields;
  std::uint32_t offset = 0;
  for (const std::uint32_t width : widths) {
    out.emplace_back(left * width);
    fields.push_back({out.back().data(), width, offset});
    offset += width;
  }
  for (const Bucket& bucket : filled) {
    const auto count = static_cast<std::size_t>(bucket.next);
    REQUIRE(deal(bucket.records, bucket.places, count, stride, fields));
    for (RecordField& field : fields) field.data += count * field.width;
  }
  for (std::size_t row = 0; row < n; ++row)
    for (std::size_t c = 0; c < widths.size(); ++c)
      if (positions[row] >= 0)
        REQUIRE(std::memcmp(out[c].data() + positions[row] * widths[c],
                            columns[c].data() + row * widths[c], widths[c]) == 0);
}

}  // namespace

TEST_CASE("positions that are in none of the buckets, or in full ones, are refused") {
  const Bytes column(8 * 4);
  const std::vector<RecordColumn> columns{{column.data(), 8, 0}};
  for (const std::int64_t wrong : {std::int64_t{16}, std::int64_t{17}, std::int64_t{1} << 40,
                                   std::int64_t{1} << 52, INT64_MAX, std::int64_t{4}}) {
    Bytes records(16 * 8 + 64, 0xee);
    std::vector<std::uint32_t> places(16 + 8, 77);
    std::vector<Bucket> buckets;
    for (std::size_t b = 0; b < 4; ++b)
      buckets.push_back({records.data() + b * 32, places.data() + b * 4, 0, 4});
    buckets[1].next = 4;  // of positions 4 to 7
    const std::int64_t positions[4] = {0, 1, wrong, 2};
    CHECK_FALSE(interleave(columns, 8, positions, 4, {16, 2}, 0, buckets));
    CHECK(std::count(records.begin() + 16, records.end(), 0xee) == 16 * 8 + 64 - 16);
    CHECK(std::count(places.begin() + 2, places.end(), 77u) == 22);
  }
}

TEST_CASE("records whose place is not in their bucket, or is another's, are refused") {
  const Bytes records(100 * 8, 1);
  for (const std::uint32_t wrong : {100u, 101u, 1u << 20, UINT32_MAX, 0u, 69u, 99u}) {
    std::vector<std::uint32_t> places(100);
    std::iota(places.begin(), places.end(), 0);
    places[70] = wrong;
    Bytes out(100 * 8 + 64, 0xee);
    CHECK_FALSE(deal(records.data(), places.data(), 100, 8, {{out.data(), 8, 0}}));
    CHECK(std::count(out.begin(), out.end(), 0xee) == 100 * 8 + 64);
  }
}

TEST_CASE("rows come out at their positions") {
  const std::vector<std::uint32_t> criteo(40, 4);
  const std::vector<std::uint32_t> mixed = {1,   2,  4, 8,  16, 3,  12, 24, 40,  100,
                                            300, 4,  4, 4,  4,  4,  4,  4,  4,   4,
                                            8,   65, 1, 64, 32, 17, 33, 9,  128, 129};
  for (const auto& widths : {criteo, mixed, std::vector<std::uint32_t>{8}})
    for (const std::size_t n : {1u, 7u, 1000u}) {
      check_rows(widths, n, {250, 5}, 1000, 0);
      check_rows(widths, n, {64, 6}, 37, 0);
      check_rows(widths, n, {2000, 4}, 100, 0);
      if (n > 300) check_rows(widths, n, {100, 4}, 333, 300);
    }
}

TEST_CASE("a position outside of the chunks is noticed") {
  std::vector<std::int64_t> counts(4);
  for (const std::int64_t position : {0, 99, 300, 1 << 30})
    CHECK_FALSE(count_buckets(&position, 1, {100, 6}, 1, 2, counts.data()));
  for (const std::int64_t position : {-1, 100, 299})
    CHECK(count_buckets(&position, 1, {100, 6}, 1, 2, counts.data()));
}

TEST_CASE("chunks begin at multiples of their rows, however large") {
  for (const std::int64_t rows : {1ll, 3ll, 96ll, 16384ll, 1000003ll})
    for (const std::int64_t chunk : {0ll, 1ll, 12345ll, 4000000ll})
      for (const std::int64_t rest : {std::int64_t{0}, rows - 1}) {
        const Cut cut{rows, 31};
        std::int64_t count = 0;
        const std::int64_t position = chunk * rows + rest;
        REQUIRE(count_buckets(&position, 1, cut, chunk, 1, &count));
        CHECK(count == 1);
      }
}

TEST_CASE("the kernels of interleave are equal") {
  const Bytes in = noise(8 * 4 * 100, 3);
  for (std::size_t n = 0; n < 40; ++n) {
    const std::uint8_t* columns[8];
    for (std::size_t c = 0; c < 8; ++c) columns[c] = in.data() + c * 400;
    Bytes wanted(n * 45 + 32, 9), found = wanted;
    transpose8_portable(columns, n, wanted.data(), 45);
    transpose8(columns, n, found.data(), 45);
    CHECK(found == wanted);
  }
}
