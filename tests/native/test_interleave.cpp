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

// Rows of columns of some widths become records in pieces, and come out in another order, some of
// them twice.
void check_rows(const std::vector<std::uint32_t>& widths, std::size_t n, int shift,
                std::size_t piece) {
  std::vector<Bytes> columns;
  std::size_t stride = 0;
  for (const std::uint32_t width : widths) {
    columns.push_back(noise(n * width, static_cast<unsigned>(columns.size())));
    stride += width;
  }
  stride = (stride + 7) / 8 * 8;
  std::vector<std::int64_t> numbers(n), order(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  permute_inverse(n, 7, numbers.data(), n, order.data());
  order.insert(order.end(), numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(n / 2));

  // Blocks of exactly their size, so that a sanitizer notices what is written beyond.
  std::vector<Bytes> memory(((n - 1) >> shift) + 1, Bytes(stride << shift));
  RecordBlocks records{{}, stride, shift};
  for (Bytes& block : memory) records.blocks.push_back(block.data());
  for (std::size_t begin = 0; begin < n; begin += piece) {
    std::vector<RecordColumn> parts;
    std::uint32_t offset = 0;
    for (std::size_t c = 0; c < widths.size(); offset += widths[c++])
      parts.push_back({columns[c].data() + begin * widths[c], widths[c], offset});
    interleave(parts, std::min(piece, n - begin), records, begin);
  }

  std::vector<Bytes> out;
  std::vector<RecordField> fields;
  std::uint32_t offset = 0;
  for (const std::uint32_t width : widths) {
    out.emplace_back(order.size() * width);
    fields.push_back({out.back().data(), width, offset});
    offset += width;
  }
  REQUIRE(deal(records, order.data(), order.size(), fields));
  for (std::size_t row = 0; row < order.size(); ++row)
    for (std::size_t c = 0; c < widths.size(); ++c)
      REQUIRE(std::memcmp(out[c].data() + row * widths[c],
                          columns[c].data() + static_cast<std::size_t>(order[row]) * widths[c],
                          widths[c]) == 0);
}

}  // namespace

TEST_CASE("records that are in none of the blocks are refused") {
  Bytes block(16 * 8);
  const RecordBlocks records{{block.data(), block.data()}, 8, 4};
  for (const std::size_t place : {0u, 5u, 40u, 99u})
    for (const std::int64_t wrong :
         {std::int64_t{32}, std::int64_t{-1}, std::int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
      std::vector<std::int64_t> numbers(100, 31);
      Bytes out(100 * 8);
      CHECK(deal(records, numbers.data(), 100, {{out.data(), 8, 0}}));
      numbers[place] = wrong;
      CHECK_FALSE(deal(records, numbers.data(), 100, {{out.data(), 8, 0}}));
    }
}

TEST_CASE("rows come out in any order") {
  const std::vector<std::uint32_t> criteo(40, 4);
  const std::vector<std::uint32_t> mixed = {1,   2,  4, 8,  16, 3,  12, 24, 40,  100,
                                            300, 4,  4, 4,  4,  4,  4,  4,  4,   4,
                                            8,   65, 1, 64, 32, 17, 33, 9,  128, 129};
  for (const auto& widths :
       {criteo, mixed, std::vector<std::uint32_t>{8}, std::vector<std::uint32_t>{4, 52, 104, 8},
        std::vector<std::uint32_t>{5000, 3}, std::vector<std::uint32_t>(700, 4)})
    for (const std::size_t n : {1u, 7u, 1000u}) {
      check_rows(widths, n, 10, 1000);
      check_rows(widths, n, 0, 37);
      check_rows(widths, n, 3, 100);
      check_rows(widths, n, 6, 333);
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
