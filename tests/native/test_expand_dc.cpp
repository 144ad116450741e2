// The DC section: decode_dc(), and how tiles and tile rows number their blocks.
#include <doctest/doctest.h>

#include "block_records.h"
#include "core/expand.h"

using namespace fastio;
using test::Bytes;
using test::ForcedSimd;
using test::PaddedBytes;
using test::random_int;

namespace {

// A tile row as it is to be decoded.
struct Row {
  BlockRuns runs;
  std::vector<int> bases;
  Bytes classes;
  std::vector<int> differences;  // of 16 bits

  Row(const BlockShape& shape, std::int32_t number)
      : bases(static_cast<std::size_t>(shape.components)) {
    runs.set_row(shape, number);
    classes.resize(static_cast<std::size_t>(runs.blocks));
    differences.resize(classes.size());
  }
};

bool fits(int difference, int width) {
  return width == 0 ? difference == 0 : std::abs(difference) < 1 << (width - 1);
}

// Its bytes as the format page has them.
Bytes part_of(const Codebook& book, const Row& row) {
  Bytes out;
  const auto put16 = [&](int number) {
    out.push_back(static_cast<std::uint8_t>(number));
    out.push_back(static_cast<std::uint8_t>(number >> 8));
  };
  const auto pad = [&] { out.resize(part_bytes(out.size())); };
  const auto escapes = [&](std::size_t i) {
    return !fits(row.differences[i], book.width[row.classes[i]][0]);
  };
  int count = 0;
  for (std::size_t i = 0; i < row.classes.size(); ++i) count += escapes(i);
  put16(count);
  for (const int base : row.bases) put16(base);
  out.insert(out.end(), row.classes.begin(), row.classes.end());
  pad();
  test::BitWriter bits(out);
  for (std::size_t i = 0; i < row.classes.size(); ++i) {
    const int width = book.width[row.classes[i]][0];
    bits.put(static_cast<std::uint32_t>(escapes(i) ? -(1 << (width - 1)) : row.differences[i]),
             width);
  }
  pad();
  for (std::size_t i = 0; i < row.classes.size(); ++i)
    if (escapes(i)) put16(row.differences[i]);
  pad();
  return out;
}

std::vector<std::int16_t> expected(const Row& row) {
  std::vector<std::int16_t> out(row.classes.size());
  for (int k = 0; k < row.runs.runs; ++k) {
    const BlockRuns::Run& run = row.runs.run[k];
    const bool further = k > 0 && row.runs.run[k - 1].component == run.component;
    int before = further ? out[static_cast<std::size_t>(row.runs.run[k - 1].first)]
                         : row.bases[static_cast<std::size_t>(run.component)];
    for (std::int32_t i = run.first; i < run.first + run.count; ++i) {
      const auto block = static_cast<std::size_t>(i);
      out[block] = static_cast<std::int16_t>(before + row.differences[block]);
      before = out[block];
    }
  }
  return out;
}

Dequantisers quantisers() {
  Dequantisers quant;
  quant.set_ones();
  for (int c = 0; c < 3; ++c) quant.value[c][0] = static_cast<std::int16_t>(2 + 300 * c);
  return quant;
}

// Whether a part is sound, which every level must say alike, and then its DCs.
bool decode(const Codebook& book, const Row& row, const Bytes& part,
            std::vector<std::int16_t>* out = nullptr) {
  const PaddedBytes bytes(part);
  bool sound = false;
  std::vector<std::int16_t> before;
  for (const Simd level : test::kLevels) {
    const ForcedSimd forced(level);
    std::vector<std::int16_t> dc(row.classes.size());
    const std::uint8_t* classes =
        decode_dc(book, row.runs, {bytes.data(), bytes.size()}, quantisers(), dc.data());
    if (level != Simd::portable) REQUIRE(sound == (classes != nullptr));
    sound = classes != nullptr;
    if (sound) {
      REQUIRE(classes == bytes.data() + 2 + 2 * row.bases.size());
      if (level != Simd::portable) REQUIRE(dc == before);
      before = dc;
    }
  }
  if (out) *out = before;
  return sound;
}

void check(const Codebook& book, const Row& row) {
  std::vector<std::int16_t> dc;
  REQUIRE(decode(book, row, part_of(book, row), &dc));
  std::vector<std::int16_t> products = expected(row);
  for (int k = 0; k < row.runs.runs; ++k) {
    const BlockRuns::Run& run = row.runs.run[k];
    for (auto i = static_cast<std::size_t>(run.first);
         i < static_cast<std::size_t>(run.first + run.count); ++i)
      products[i] = static_cast<std::int16_t>(products[i] * (2 + 300 * run.component));
  }
  REQUIRE(dc == products);
}

// Any classes; one of `rarity` differences is of 16 bits, the others fit.
Row random_row(const Codebook& book, std::mt19937& rng, const BlockShape& shape, int rarity) {
  Row row(shape, random_int(rng, 0, shape.tile_rows() - 1));
  for (int& base : row.bases) base = random_int(rng, -32768, 32767);
  for (std::size_t i = 0; i < row.classes.size(); ++i) {
    row.classes[i] = static_cast<std::uint8_t>(rng());
    const int width = book.width[row.classes[i]][0];
    const int most = width == 0 ? 0 : (1 << (width - 1)) - 1;
    row.differences[i] = width > 0 && random_int(rng, 1, rarity) == 1
                             ? random_int(rng, -32768, 32767)
                             : random_int(rng, -most, most);
  }
  return row;
}

BlockShape random_shape(std::mt19937& rng, int widest) {
  return test::make_shape(random_int(rng, 1, 40), random_int(rng, 1, widest), rng() % 4 ? 3 : 1,
                          test::kSamplings[rng() % 5]);
}

}  // namespace

TEST_CASE("DCs of rows of one to many tiles, without escapes, with some and with nothing else") {
  std::mt19937 rng(1);
  for (const int rarity : {1 << 30, 50, 4, 1})
    for (int round = 0; round < 60; ++round) {
      const auto book = test::random_codebook(rng());
      check(*book, random_row(*book, rng, random_shape(rng, round % 2 ? 300 : 3000), rarity));
    }
}

TEST_CASE("differences of each width, at its limits and just beyond") {
  for (int width = 1; width <= kPlanes; ++width) {
    const auto book = test::parse_codebook(test::codebook_bytes(1, width, 1));
    const int least = 1 << (width - 1);
    for (const int difference : {least - 1, 1 - least, least, -least, least + 1, 32767, -32768}) {
      Row row(test::make_shape(8, 24, 1, {1, 1}), 0);
      row.classes = {1, 1, 1};
      row.differences = {0, difference, 0};
      check(*book, row);
    }
  }
}

TEST_CASE("a class without DC bits has the difference 0") {
  const auto book = test::parse_codebook(test::codebook_bytes(1, 0, 1));
  Row row(test::make_shape(16, 300, 3, {2, 2}), 0);
  std::fill(row.classes.begin(), row.classes.end(), std::uint8_t{9});
  row.bases = {-5, 7, 32767};
  CHECK(part_of(*book, row).size() == 8 + part_bytes(row.classes.size()));
  check(*book, row);
}

TEST_CASE("an escape may hold any number, also one that its class has bits for") {
  const auto book = test::parse_codebook(test::codebook_bytes(1, 3, 1));
  Row row(test::make_shape(8, 16, 1, {1, 1}), 0);
  row.classes = {1, 1};
  // Both escaped: 100 100, then 2 and -4 in 16 bits each.
  const Bytes part{2,   0, 0,    0,  // two escapes, and the base
                   1,   1, 0,    0,  // classes
                   044, 0, 0,    0,  // 100 twice
                   2,   0, 0xFC, 0xFF};
  std::vector<std::int16_t> dc;
  REQUIRE(decode(*book, row, part, &dc));
  CHECK(dc == std::vector<std::int16_t>{2 * 2, 2 * -2});
}

TEST_CASE("a DC part without one of its bytes, or with one more, is damaged") {
  std::mt19937 rng(2);
  for (const int rarity : {1 << 30, 5})
    for (int round = 0; round < 15; ++round) {
      const auto book = test::random_codebook(rng());
      const Row row = random_row(*book, rng, random_shape(rng, 300), rarity);
      const Bytes part = part_of(*book, row);
      REQUIRE(decode(*book, row, part));
      for (std::size_t size = 0; size < part.size(); ++size)
        REQUIRE_FALSE(decode(*book, row, Bytes(part.data(), part.data() + size)));
      for (const int more : {0, 1, 255})
        for (const std::size_t bytes : {1, 4}) {
          Bytes longer = part;
          longer.insert(longer.end(), bytes, static_cast<std::uint8_t>(more));
          REQUIRE_FALSE(decode(*book, row, longer));
        }
    }
}

TEST_CASE("a bit set behind the classes, the differences or the escapes is damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(1, 3, 1));
  for (const int difference : {1, 500}) {
    Row row(test::make_shape(8, 8, 1, {1, 1}), 0);
    row.classes = {1};
    row.differences = {difference};
    const Bytes part = part_of(*book, row);
    REQUIRE(part.size() == (difference == 1 ? 12 : 16));
    for (std::size_t bit = 8 * 4; bit < 8 * part.size(); ++bit) {
      const bool of_class = bit < 8 * 5, of_bits = bit >= 8 * 8 && bit < 8 * 8 + 3,
                 of_escape = bit >= 8 * 12 && bit < 8 * 14;
      if (of_class || of_bits || of_escape) continue;
      Bytes changed = part;
      changed[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      CHECK_FALSE(decode(*book, row, changed));
    }
  }
}

TEST_CASE("another number of escapes than the differences have is damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(1, 3, 1));
  for (int escapes = 0; escapes <= 4; ++escapes) {
    Row row(test::make_shape(8, 32, 1, {1, 1}), 0);
    row.classes = {1, 1, 1, 1};
    for (int i = 0; i < 4; ++i) row.differences[static_cast<std::size_t>(i)] = i < escapes ? 9 : 0;
    const Bytes part = part_of(*book, row);
    REQUIRE(decode(*book, row, part));
    for (int count = 0; count < 6; ++count) {
      if (count == escapes) continue;
      Bytes changed = part;
      changed[0] = static_cast<std::uint8_t>(count);
      changed.resize(12 + part_bytes(2 * static_cast<std::size_t>(count)));
      CHECK_FALSE(decode(*book, row, changed));
    }
  }
}

TEST_CASE("any bytes at all are decoded within their memory, alike at every level") {
  std::mt19937 rng(3);
  std::unique_ptr<Codebook> book;
  for (int round = 0; round < 1000; ++round) {
    if (round % 50 == 0) book = test::random_codebook(rng());
    const Row row = random_row(*book, rng, random_shape(rng, 600), 20);
    Bytes part = part_of(*book, row);
    for (int i = random_int(rng, 1, 9); i > 0; --i)
      part[rng() % part.size()] = static_cast<std::uint8_t>(rng());
    decode(*book, row, part);
  }
}

TEST_CASE("tiles' blocks are those of their row, with the row's classes") {
  std::mt19937 rng(4);
  for (int round = 0; round < 100; ++round) {
    const BlockShape shape = random_shape(rng, 700);
    const std::int32_t r = random_int(rng, 0, shape.tile_rows() - 1);
    BlockRuns row;
    row.set_row(shape, r);
    REQUIRE(row.blocks == shape.blocks_in_row(r));
    Bytes classes(static_cast<std::size_t>(row.blocks));
    for (auto& cls : classes) cls = static_cast<std::uint8_t>(rng());
    std::vector<int> seen(classes.size());
    classes.resize(classes.size() + kTileColumns);
    for (std::int32_t t = 0; t < shape.tiles_x(); ++t) {
      BlockRuns tile;
      tile.set_tile(shape, r, t);
      REQUIRE(tile.blocks == shape.blocks_in_tile(r, t));
      REQUIRE(tile.runs == row.runs);
      Bytes own(static_cast<std::size_t>(tile.blocks + kTileColumns));
      take_tile(shape, row, classes.data(), tile, t, own.data());
      std::int32_t next = 0;
      for (int k = 0; k < tile.runs; ++k) {
        const BlockRuns::Run& run = tile.run[k];
        REQUIRE(run.component == row.run[k].component);
        REQUIRE(run.first == next);
        next += run.count;
        const std::int32_t column = t * (16 / (run.component ? shape.sub_x : 1));
        for (std::int32_t i = 0; i < run.count; ++i) {
          const auto at = static_cast<std::size_t>(row.run[k].first + column + i);
          ++seen[at];
          REQUIRE(own[static_cast<std::size_t>(run.first + i)] == classes[at]);
        }
      }
    }
    for (const int times : seen) REQUIRE(times == 1);
  }
}
