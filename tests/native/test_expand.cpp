#include "core/expand.h"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <utility>

#include "block_records.h"
#include "core/idct.h"

using namespace fastio;
using test::Bytes;
using test::ForcedSimd;
using test::PaddedBytes;
using test::random_int;

namespace {

struct Exception {
  int block, position, value;
};

// A tile as it is to be decoded.
struct Tile {
  BlockShape shape;
  BlockRuns runs;
  Bytes classes;
  std::vector<std::vector<std::pair<int, int>>>
      values;  // of each block: position, value; ascending
  std::vector<Exception> exceptions;

  Tile(const BlockShape& s, std::int32_t row, std::int32_t number) : shape(s) {
    runs.set_tile(s, row, number);
    classes.resize(static_cast<std::size_t>(runs.blocks));
    values.resize(classes.size());
  }
  std::size_t blocks() const { return classes.size(); }
};

// Its bytes as the format page has them.
Bytes part_of(const Codebook& book, const Tile& tile) {
  Bytes out;
  test::BitWriter bits(out);
  for (std::size_t i = 0; i < tile.blocks(); ++i) {
    const std::map<int, int> values(tile.values[i].begin(), tile.values[i].end());
    for (const int z : test::class_order(book, tile.classes[i])) bits.put(values.contains(z), 1);
  }
  for (std::size_t i = 0; i < tile.blocks(); ++i) {
    const std::map<int, int> values(tile.values[i].begin(), tile.values[i].end());
    for (int j = 0; j < kPlanes; ++j)
      for (const int z : test::class_order(book, tile.classes[i])) {
        if (!values.contains(z) || book.width[tile.classes[i]][z] <= j) continue;
        const int value = values.at(z);
        bits.put(j == 0 ? value < 0 : static_cast<unsigned>(std::abs(value) - 1) >> (j - 1), 1);
      }
  }
  out.resize(part_bytes(out.size()));
  for (const Exception& e : tile.exceptions) {
    const int packed = e.position | e.block << 6 | (e.value & 0xFFF) << 12;
    for (int i = 0; i < 3; ++i) out.push_back(static_cast<std::uint8_t>(packed >> (8 * i)));
  }
  out.resize(part_bytes(out.size()));
  return out;
}

std::int16_t times(int value, int quant) { return static_cast<std::int16_t>(value * quant); }

// The blocks that it says, all of them.
std::vector<std::int16_t> expected(const Codebook& book, const Tile& tile,
                                   const Dequantisers& quant) {
  std::vector<std::int16_t> out(64 * tile.blocks(), 0);
  for (int k = 0; k < tile.runs.runs; ++k) {
    const BlockRuns::Run& run = tile.runs.run[k];
    for (std::int32_t i = run.first; i < run.first + run.count; ++i) {
      const auto block = static_cast<std::size_t>(i);
      const bool narrow = book.planes[tile.classes[block]] <= 8;
      const auto put = [&](int z, int value) {
        const int place = idct_place(kZigzag[z]);
        out[64 * block + place] = times(value, quant.value[run.component][place]);
      };
      for (const auto& [z, value] : tile.values[block])
        put(z, narrow ? static_cast<std::int8_t>(value) : value);
      for (const Exception& e : tile.exceptions)
        if (e.block == i) put(e.position, e.value);
    }
  }
  return out;
}

constexpr std::int16_t kUntouched = 0x5A5A;

struct alignas(64) Line {
  std::int16_t value[32];
};

// Expands from memory of exactly the size that may be read into memory of exactly the size that may
// be written; the same at every level. Checks that wanted blocks have their DCs, and sets these to
// 0.
bool expand(const Codebook& book, const Tile& tile, const Bytes& part, const Dequantisers& quant,
            std::uint64_t wanted, std::vector<std::int16_t>& out) {
  const PaddedBytes bytes(part);
  const int exceptions = static_cast<int>(tile.exceptions.size());
  bool sound = false;
  for (const Simd level : test::kLevels) {
    const ForcedSimd forced(level);
    std::vector<Line> lines(2 * tile.blocks());
    std::int16_t* blocks = lines[0].value;
    std::fill_n(blocks, 64 * tile.blocks(), kUntouched);
    std::vector<std::int16_t> dcs(tile.blocks());
    for (std::size_t i = 0; i < dcs.size(); ++i)
      dcs[i] = static_cast<std::int16_t>(i * 1021 - 9000);
    const bool now = expand_tile(book, tile.runs, {bytes.data(), bytes.size(), exceptions},
                                 Bytes(tile.classes).data(), dcs.data(), quant, wanted, blocks);
    for (std::size_t i = 0; now && i < dcs.size(); ++i) {
      if (!(wanted >> i & 1)) continue;
      REQUIRE(blocks[64 * i] == dcs[i]);
      blocks[64 * i] = 0;
    }
    std::vector<std::int16_t> result(blocks, blocks + 64 * tile.blocks());
    if (level != Simd::portable) REQUIRE(now == sound);
    if (level != Simd::portable && sound) REQUIRE(result == out);
    sound = now;
    out = std::move(result);
  }
  return sound;
}

bool is_sound(const Codebook& book, const Tile& tile, const Bytes& part) {
  Dequantisers ones;
  ones.set_ones();
  std::vector<std::int16_t> out;
  return expand(book, tile, part, ones, ~std::uint64_t{0}, out);
}

void check(const Codebook& book, const Tile& tile, const Dequantisers& quant,
           std::uint64_t wanted = ~std::uint64_t{0}) {
  std::vector<std::int16_t> out, all = expected(book, tile, quant);
  REQUIRE(expand(book, tile, part_of(book, tile), quant, wanted, out));
  for (std::size_t i = 0; i < tile.blocks(); ++i)
    if (!(wanted >> i & 1)) std::fill_n(all.data() + 64 * i, 64, kUntouched);
  REQUIRE(out == all);
}

Dequantisers random_quant(std::mt19937& rng, int most) {
  BlockShape shape = test::make_shape(8, 8, 3, {1, 1});
  shape.tables = 3;
  for (std::uint8_t c = 0; c < 3; ++c) shape.table[c] = c;
  for (auto& table : shape.quant)
    for (auto& value : table) value = static_cast<std::uint16_t>(random_int(rng, 1, most));
  Dequantisers quant;
  quant.set(shape);
  return quant;
}

std::size_t exception_bytes(const Tile& tile) { return part_bytes(3 * tile.exceptions.size()); }

// In the order of the format, one for each place.
void sort_exceptions(Tile& tile) {
  std::map<std::pair<int, int>, int> values;
  for (const Exception& e : tile.exceptions) values[{e.block, e.position}] = e.value;
  tile.exceptions.clear();
  for (const auto& [place, value] : values)
    tile.exceptions.push_back({place.first, place.second, value});
}

// Values of a block of this class, one of `rarity` of the positions that it may have.
void fill_block(const Codebook& book, std::mt19937& rng, int rarity, Tile& tile,
                std::size_t block) {
  const int cls = tile.classes[block];
  for (int z = 1; z <= book.mask_bits[cls]; ++z) {
    if (random_int(rng, 1, rarity) != 1) continue;
    const int most = 1 << (book.width[cls][z] - 1);
    const int size = rng() % 3 ? random_int(rng, 1, most) : most;
    tile.values[block].emplace_back(z, rng() % 2 ? size : -size);
  }
}

Tile random_tile(const Codebook& book, std::mt19937& rng, const BlockShape& shape, int rarity,
                 int exceptions) {
  Tile tile(shape, random_int(rng, 0, shape.tile_rows() - 1),
            random_int(rng, 0, shape.tiles_x() - 1));
  for (std::size_t i = 0; i < tile.blocks(); ++i) {
    tile.classes[i] = static_cast<std::uint8_t>(rng());
    fill_block(book, rng, rarity, tile, i);
  }
  for (int i = 0; i < exceptions; ++i)
    tile.exceptions.push_back({random_int(rng, 0, static_cast<int>(tile.blocks()) - 1),
                               random_int(rng, 1, 63), random_int(rng, -2048, 2047)});
  sort_exceptions(tile);
  return tile;
}

BlockShape random_shape(std::mt19937& rng) {
  return test::make_shape(random_int(rng, 1, 40), random_int(rng, 1, 300), rng() % 4 ? 3 : 1,
                          test::kSamplings[rng() % 5]);
}

// 64 blocks: the most that a tile has.
BlockShape fullest() { return test::make_shape(16, 128, 3, {1, 2}); }

// Two gray blocks, both of class 1.
Tile two_blocks() {
  Tile tile(test::make_shape(8, 16, 1, {1, 1}), 0, 0);
  tile.classes = {1, 1};
  return tile;
}

}  // namespace

TEST_CASE("tiles of any classes are expanded to the values that they were made of") {
  std::mt19937 rng(1);
  std::unique_ptr<Codebook> book;
  for (int round = 0; round < 600; ++round) {
    if (round % 20 == 0) book = test::random_codebook(rng());
    const Tile tile = random_tile(*book, rng, random_shape(rng), random_int(rng, 1, 20),
                                  rng() % 2 ? 0 : random_int(rng, 1, 255));
    check(*book, tile, random_quant(rng, rng() % 2 ? 255 : 65535));
  }
}

TEST_CASE("values of all widths at all positions") {
  std::mt19937 rng(2);
  for (int bits = 1; bits <= kPlanes; ++bits) {
    const auto book = test::parse_codebook(test::codebook_bytes(63, 5, bits));
    for (int round = 0; round < 5; ++round) {
      Tile tile(fullest(), 0, 0);
      std::fill(tile.classes.begin(), tile.classes.end(), std::uint8_t{1});
      for (std::size_t i = 0; i < tile.blocks(); ++i) fill_block(*book, rng, 1, tile, i);
      check(*book, tile, random_quant(rng, 255));
    }
  }
}

TEST_CASE("class 0 everywhere, with the largest values everywhere") {
  const auto book = test::parse_codebook(test::codebook_bytes(3, 3, 3));
  std::mt19937 rng(3);
  for (const int value : {2047, -2047, -2048, 1}) {
    Tile tile(fullest(), 0, 0);
    for (auto& values : tile.values)
      for (int z = 1; z < 64; ++z) values.emplace_back(z, value);
    check(*book, tile, random_quant(rng, 65535));
  }
}

TEST_CASE("masks of 55 to 63 positions, from any bit on") {
  std::mt19937 rng(4);
  for (const int bits : {1, 2, 4, 8, 9, 12}) {
    const auto book = test::parse_codebook(test::codebook_bytes(63, 5, bits));
    for (int positions = 55; positions <= 63; ++positions)
      for (int round = 0; round < 10; ++round) {
        Tile tile(test::make_shape(8, 128, 1, {1, 1}), 0, 0);
        std::fill(tile.classes.begin(), tile.classes.end(), std::uint8_t{1});
        for (std::size_t i = 0; i < tile.blocks(); ++i) {
          fill_block(*book, rng, 1, tile, i);
          // The block before the dense ones shifts them.
          const int fewer = i % 2 ? positions : random_int(rng, 0, 63);
          while (static_cast<int>(tile.values[i].size()) > fewer)
            tile.values[i].erase(tile.values[i].begin() +
                                 random_int(rng, 0, static_cast<int>(tile.values[i].size()) - 1));
        }
        check(*book, tile, random_quant(rng, 255));
      }
  }
}

TEST_CASE("128 is -128 in a class of 8 bits, and itself in a wider one") {
  for (const int widest : {8, 9}) {
    Bytes bytes = test::codebook_bytes(63, 5, 8);
    bytes[65 + 64] = static_cast<std::uint8_t>(widest);  // position 63 of class 1
    const auto book = test::parse_codebook(bytes);
    Dequantisers ones;
    ones.set_ones();
    for (const bool far : {false, true}) {  // whether the wide position has a value
      Tile tile = two_blocks();
      for (auto& values : tile.values) {
        for (int z = 1; z < 62; ++z) values.emplace_back(z, z % 2 ? 128 : -128);
        if (far) values.emplace_back(63, 1);
      }
      check(*book, tile, ones);
      std::vector<std::int16_t> out;
      REQUIRE(expand(*book, tile, part_of(*book, tile), ones, 1, out));
      CHECK(out[idct_place(kZigzag[1])] == (widest == 8 ? -128 : 128));
      CHECK(out[idct_place(kZigzag[2])] == -128);
    }
  }
}

TEST_CASE("sparse and empty blocks") {
  std::mt19937 rng(5);
  const auto book = test::random_codebook(5);
  for (const int rarity : {30, 200, 100000})
    for (int round = 0; round < 20; ++round)
      check(*book, random_tile(*book, rng, random_shape(rng), rarity, 0), random_quant(rng, 255));
  const auto flat = test::parse_codebook(test::codebook_bytes(0, 0, 0));
  Tile tile(fullest(), 0, 0);
  std::fill(tile.classes.begin(), tile.classes.end(), std::uint8_t{255});
  CHECK(part_of(*flat, tile).empty());
  check(*flat, tile, random_quant(rng, 255));
}

TEST_CASE("every subset of a few blocks, and any of many: the others are not touched") {
  std::mt19937 rng(6);
  const auto book = test::random_codebook(6);
  const Tile few = random_tile(*book, rng, test::make_shape(16, 16, 3, {2, 2}), 3, 40);  // 6 blocks
  REQUIRE(few.blocks() == 6);
  const Dequantisers quant = random_quant(rng, 255);
  for (std::uint64_t wanted = 0; wanted < 64; ++wanted) check(*book, few, quant, wanted);
  for (int round = 0; round < 60; ++round) {
    const Tile tile = random_tile(*book, rng, fullest(), random_int(rng, 1, 9), 100);
    const std::uint64_t wanted = std::uint64_t{rng()} << 32 | rng();
    check(*book, tile, quant, round % 2 ? wanted : std::uint64_t{1} << (wanted % 64));
  }
}

TEST_CASE("an exception replaces a value or makes one, also beyond the class") {
  const auto book = test::parse_codebook(test::codebook_bytes(10, 5, 3));
  Dequantisers ones;
  ones.set_ones();
  Tile tile = two_blocks();
  tile.values[1] = {{3, 2}};
  tile.exceptions = {{0, 1, 6}, {1, 3, 77}, {1, 4, -2048}, {1, 10, 0}, {1, 63, 2047}};
  check(*book, tile, ones);
  std::vector<std::int16_t> out;
  REQUIRE(expand(*book, tile, part_of(*book, tile), ones, 3, out));
  CHECK(out[idct_place(kZigzag[1])] == 6);
  CHECK(out[64 + idct_place(kZigzag[3])] == 77);
  CHECK(out[64 + idct_place(63)] == 2047);
}

TEST_CASE("255 exceptions at all positions of a full tile") {
  std::mt19937 rng(7);
  const auto book = test::parse_codebook(test::codebook_bytes(63, 5, 1));
  for (int round = 0; round < 20; ++round) {
    Tile tile = random_tile(*book, rng, fullest(), 1, 0);
    for (int i = 0; i < 255; ++i)
      tile.exceptions.push_back({i % 64, 1 + (i * 7 + round) % 63, i % 2 ? 2047 : -2048});
    sort_exceptions(tile);
    REQUIRE(tile.exceptions.size() == 255);
    check(*book, tile, random_quant(rng, 65535));
  }
}

TEST_CASE("a part without one of its bytes, or with one more, is damaged") {
  std::mt19937 rng(8);
  for (int round = 0; round < 40; ++round) {
    const auto book = test::random_codebook(rng());
    const Tile tile = random_tile(*book, rng, random_shape(rng), random_int(rng, 1, 6),
                                  round % 3 ? 0 : random_int(rng, 1, 9));
    const Bytes part = part_of(*book, tile);
    REQUIRE(is_sound(*book, tile, part));
    for (std::size_t size = part.size() < 60 ? 0 : part.size() - 60; size < part.size(); ++size)
      REQUIRE_FALSE(is_sound(*book, tile, Bytes(part.data(), part.data() + size)));
    for (const int more : {0, 1, 255})
      for (const std::size_t bytes : {1, 4}) {
        Bytes longer = part;
        longer.insert(longer.end() - static_cast<std::ptrdiff_t>(exception_bytes(tile)), bytes,
                      static_cast<std::uint8_t>(more));
        REQUIRE_FALSE(is_sound(*book, tile, longer));
      }
  }
}

TEST_CASE("a bit set behind the last value is damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(5, 5, 3));
  Tile tile = two_blocks();  // masks of 10 bits, a value of 3: 13 in all
  tile.values[0] = {{2, -4}};
  const Bytes part = part_of(*book, tile);
  REQUIRE(part.size() == 4);
  for (std::size_t bit = 13; bit < 32; ++bit) {
    Bytes changed = part;
    changed[bit / 8] |= static_cast<std::uint8_t>(1 << bit % 8);
    CHECK_FALSE(is_sound(*book, tile, changed));
  }
}

TEST_CASE("a bit set behind the last exception is damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(5, 5, 3));
  for (int count = 1; count < 4; ++count) {
    Tile tile = two_blocks();
    for (int i = 0; i < count; ++i) tile.exceptions.push_back({1, 10 + i, 9});
    const Bytes part = part_of(*book, tile);
    REQUIRE(is_sound(*book, tile, part));
    const std::size_t begin = part.size() - exception_bytes(tile);
    for (std::size_t at = begin + 3 * tile.exceptions.size(); at < part.size(); ++at) {
      Bytes changed = part;
      changed[at] = 0x20;
      CHECK_FALSE(is_sound(*book, tile, changed));
    }
  }
}

TEST_CASE("exceptions that do not ascend by block and position, or come twice, are damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(5, 5, 3));
  for (int first = 1; first < 128; ++first)
    for (int second = 1; second < 128; ++second) {
      if (first % 64 == 0 || second % 64 == 0) continue;
      Tile tile = two_blocks();
      tile.exceptions = {{first / 64, first % 64, 3}, {second / 64, second % 64, 5}};
      REQUIRE(is_sound(*book, tile, part_of(*book, tile)) == (first < second));
    }
}

TEST_CASE("more exceptions than there are bytes for are damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(0, 0, 0));
  const Tile tile = two_blocks();
  CHECK(is_sound(*book, tile, {}));
  Tile some = two_blocks();
  for (int count = 1; count < 127; ++count) {
    some.exceptions.push_back({(count - 1) / 63, 1 + (count - 1) % 63, 2});
    Bytes part = part_of(*book, some);
    REQUIRE(is_sound(*book, some, part));
    while (!part.empty()) {
      part.pop_back();
      REQUIRE_FALSE(is_sound(*book, some, part));
    }
  }
}

TEST_CASE("an exception for the DC, or for a block that is not there, is damage") {
  const auto book = test::parse_codebook(test::codebook_bytes(5, 5, 3));
  for (int block = 0; block < 64; ++block)
    for (const int position : {0, 1, 63}) {
      Tile tile = two_blocks();
      tile.exceptions = {{block, position, 9}};
      Dequantisers ones;
      ones.set_ones();
      const Bytes part = part_of(*book, tile);
      for (const std::uint64_t wanted : {0, 1, 3}) {
        std::vector<std::int16_t> out;
        CHECK(expand(*book, tile, part, ones, wanted, out) == (block < 2 && position > 0));
      }
    }
}

TEST_CASE("any bytes at all are expanded within their memory, alike at every level") {
  std::mt19937 rng(9);
  int sound = 0;
  std::unique_ptr<Codebook> book;
  for (int round = 0; round < 3000; ++round) {
    if (round % 50 == 0) book = test::random_codebook(rng());
    const Tile tile = random_tile(*book, rng, random_shape(rng), 4, 0);
    Bytes part = part_of(*book, tile);
    for (int i = part.empty() ? 0 : random_int(rng, 1, 4); i > 0; --i)
      part[rng() % part.size()] = static_cast<std::uint8_t>(rng());
    sound += is_sound(*book, tile, part);
  }
  CHECK(sound > 30);
}
