#include "core/block_encoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "block_records.h"
#include "core/cpu.h"
#include "core/crc32c.h"
#include "jpeg_files.h"

using namespace fastio;
using test::Bytes;

namespace {

int random_int(std::mt19937& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

// A codebook with classes of all lengths, whose values are of few bits or of many.
std::unique_ptr<Codebook> make_codebook(std::uint32_t seed) {
  std::mt19937 rng(seed);
  Bytes bytes(kCodebookBytes, 0);
  for (int c = 0; c < kClasses; ++c) {
    std::uint8_t* of = bytes.data() + c * 65;
    of[0] = static_cast<std::uint8_t>(c == 0 ? 63 : random_int(rng, 0, 63));
    const int most = random_int(rng, 1, random_int(rng, 0, 3) ? 8 : kPlanes);
    of[1] = static_cast<std::uint8_t>(c == 0 ? kPlanes : random_int(rng, 0, kPlanes));
    for (int z = 1; z <= of[0]; ++z)
      of[1 + z] = static_cast<std::uint8_t>(
          c == 0 ? kPlanes : std::max(1, most - z / 6 + random_int(rng, -1, 0)));
  }
  auto book = std::make_unique<Codebook>();
  REQUIRE(book->parse(bytes.data(), bytes.size()).ok());
  return book;
}

// One of class 0 and others with values of so many bits.
std::unique_ptr<Codebook> make_codebook_of(int bits) {
  Bytes bytes(kCodebookBytes, 0);
  for (int c = 0; c < kClasses; ++c) {
    std::uint8_t* of = bytes.data() + c * 65;
    of[0] = 63;
    std::fill(of + 1, of + 65, static_cast<std::uint8_t>(c == 0 ? kPlanes : bits));
  }
  auto book = std::make_unique<Codebook>();
  REQUIRE(book->parse(bytes.data(), bytes.size()).ok());
  return book;
}

// --- A decoder as the format page has it, bit by bit --------------------------------------------

class BitReader {
 public:
  BitReader(const std::uint8_t* begin, const std::uint8_t* end) : at_(begin), end_(end) {}

  int bit() {
    REQUIRE(at_ < end_);
    const int value = *at_ >> used_ & 1;
    if (++used_ == 8) {
      used_ = 0;
      ++at_;
    }
    return value;
  }

  int bits(int count) {
    int value = 0;
    for (int i = 0; i < count; ++i) value |= bit() << i;
    return value;
  }

  // The part ends with the word of its last bit, and zeros fill it up.
  void finish() {
    while (used_ != 0) REQUIRE(bit() == 0);
    REQUIRE(end_ - at_ < 4);
    while (at_ < end_) REQUIRE(*at_++ == 0);
  }

 private:
  const std::uint8_t *at_, *end_;
  int used_ = 0;
};

int sign_extended(int value, int bits) {
  return bits > 0 && value >> (bits - 1) & 1 ? value - (1 << bits) : value;
}

struct TileRow {
  std::vector<int> bases, classes;  // of each component; of each block
  std::vector<std::int16_t> differences;
  int escapes = 0;
};

struct Tile {
  std::vector<int> classes, differences;
  std::vector<std::vector<int>> values;  // of each block, in zigzag order; [0] is not used
  int exceptions = 0;
};

TileRow decode_dc(const Codebook& book, const std::uint8_t* begin, const std::uint8_t* end,
                  int components, int blocks) {
  TileRow row;
  const std::uint8_t* p = begin;
  REQUIRE((end - begin) % 4 == 0);
  REQUIRE(end - begin >= 2 + 2 * components + blocks);
  row.escapes = p[0] | p[1] << 8;
  p += 2;
  for (int c = 0; c < components; ++c, p += 2) row.bases.push_back(p[0] | p[1] << 8);
  row.classes.assign(p, p + blocks);
  const std::uint8_t* escapes = end - part_bytes(2 * static_cast<std::size_t>(row.escapes));
  const std::uint8_t* stream = p + part_bytes(static_cast<std::size_t>(blocks));
  REQUIRE(stream <= escapes);
  BitReader bits(stream, escapes);
  std::vector<std::size_t> escaped;
  for (std::size_t i = 0; i < row.classes.size(); ++i) {
    const int width = book.width[row.classes[i]][0];
    const int value = sign_extended(bits.bits(width), width);
    if (width != 0 && value == -(1 << (width - 1))) escaped.push_back(i);
    row.differences.push_back(static_cast<std::int16_t>(value));
  }
  bits.finish();
  REQUIRE(row.escapes == static_cast<int>(escaped.size()));
  BitReader numbers(escapes, end);
  for (const std::size_t i : escaped)
    row.differences[i] = static_cast<std::int16_t>(numbers.bits(16));
  numbers.finish();
  return row;
}

void decode_ac(const Codebook& book, const std::uint8_t* begin, const std::uint8_t* end,
               Tile& tile) {
  const auto count = static_cast<std::size_t>(tile.exceptions);
  REQUIRE(static_cast<std::size_t>(end - begin) >= part_bytes(3 * count));
  const std::uint8_t* exceptions = end - part_bytes(3 * count);
  BitReader bits(begin, exceptions);
  std::vector<std::vector<int>> masks;
  for (const int c : tile.classes) {
    masks.emplace_back();
    for (const int z : test::class_order(book, c))
      if (bits.bit()) masks.back().push_back(z);
  }
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const std::uint8_t* width = book.width[tile.classes[i]];
    const bool narrow = *std::max_element(width + 1, width + 64) <= 8;
    int sign[64] = {}, magnitude[64] = {};
    for (int j = 0; j < kPlanes; ++j)
      for (const int z : masks[i])
        if (width[z] > j) (j == 0 ? sign[z] : magnitude[z]) |= bits.bit() << std::max(j - 1, 0);
    tile.values.emplace_back(64, 0);
    for (const int z : masks[i]) {
      const int value = sign[z] ? -(magnitude[z] + 1) : magnitude[z] + 1;
      tile.values.back()[static_cast<std::size_t>(z)] =
          narrow ? static_cast<std::int8_t>(value) : value;
    }
  }
  bits.finish();
  BitReader packed(exceptions, end);
  int before = -1;
  for (int i = 0; i < tile.exceptions; ++i) {
    const auto z = static_cast<std::size_t>(packed.bits(6));
    const auto block = static_cast<std::size_t>(packed.bits(6));
    REQUIRE(block < tile.values.size());
    REQUIRE(z != 0);
    REQUIRE(static_cast<int>(64 * block + z) > before);
    before = static_cast<int>(64 * block + z);
    // The stream has no value where there is an exception.
    REQUIRE(std::find(masks[block].begin(), masks[block].end(), static_cast<int>(z)) ==
            masks[block].end());
    tile.values[block][z] = sign_extended(packed.bits(12), 12);
  }
  packed.finish();
}

struct Decoded {
  BlockHeader header;
  JpegCoefficients coefficients;
  std::vector<Tile> tiles;
  int exceptions = 0, most_exceptions = 0, escapes = 0;
};

std::int16_t* block_at(JpegCoefficients& in, int c, std::int32_t y, std::int32_t x) {
  const auto row = static_cast<std::size_t>(y), column = static_cast<std::size_t>(x);
  return in.blocks[c].data() + (row * static_cast<std::size_t>(in.shape.blocks_x(c)) + column) * 64;
}

void place_dc(const TileRow& row, std::int32_t r, JpegCoefficients& out) {
  const BlockShape& shape = out.shape;
  std::size_t i = 0;
  for (int c = 0; c < shape.components; ++c) {
    auto first = static_cast<std::uint16_t>(row.bases[static_cast<std::size_t>(c)]);
    for (int y = 0; y < shape.blocks_in_tile_y(c, r); ++y) {
      std::uint16_t dc = first;
      for (std::int32_t x = 0; x < shape.blocks_x(c); ++x, ++i) {
        dc = static_cast<std::uint16_t>(dc + row.differences[i]);
        if (x == 0) first = dc;
        *block_at(out, c, r * shape.tile_blocks_y(c) + y, x) = static_cast<std::int16_t>(dc);
      }
    }
  }
  REQUIRE(i == row.classes.size());
}

// The tile's blocks in its own order, and where they lie.
std::vector<std::int16_t*> take_tile(const TileRow& row, std::int32_t r, std::int32_t t,
                                     JpegCoefficients& out, Tile& tile) {
  const BlockShape& shape = out.shape;
  std::vector<std::int16_t*> blocks;
  std::int32_t first = 0;
  for (int c = 0; c < shape.components; ++c) {
    for (int y = 0; y < shape.blocks_in_tile_y(c, r); ++y, first += shape.blocks_x(c)) {
      for (int x = 0; x < shape.blocks_in_tile_x(c, t); ++x) {
        const std::int32_t column = t * shape.tile_blocks_x(c) + x;
        tile.classes.push_back(row.classes[static_cast<std::size_t>(first + column)]);
        tile.differences.push_back(row.differences[static_cast<std::size_t>(first + column)]);
        blocks.push_back(block_at(out, c, r * shape.tile_blocks_y(c) + y, column));
      }
    }
  }
  return blocks;
}

Decoded decode(const Codebook& book, const Bytes& record) {
  Decoded out;
  const Status status = parse_header(record.data(), record.size(), record.size(), out.header);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  const BlockShape& shape = out.coefficients.shape = out.header.shape;
  for (int c = 0; c < shape.components; ++c)
    out.coefficients.blocks[c].resize(std::size_t{64} *
                                      static_cast<std::size_t>(shape.blocks_x(c)) *
                                      static_cast<std::size_t>(shape.blocks_y(c)));
  const std::vector<std::size_t>&dc = out.header.dc_begin, &ac = out.header.ac_begin;
  for (std::int32_t r = 0; r < shape.tile_rows(); ++r) {
    const auto row_number = static_cast<std::size_t>(r);
    const auto crc = [&](std::size_t begin, std::size_t end) {
      return crc32c(record.data() + begin, end - begin);
    };
    REQUIRE(crc(dc[row_number], dc[row_number + 1]) == out.header.dc_crc[row_number]);
    for (std::int32_t g = 0; 4 * g < shape.tiles_x(); ++g) {
      const std::size_t number = static_cast<std::size_t>(g * shape.tile_rows() + r);
      REQUIRE(crc(out.header.group_begin(r, g), out.header.group_end(r, g)) ==
              out.header.ac_crc[number]);
    }
    std::int32_t blocks = 0;
    for (std::int32_t t = 0; t < shape.tiles_x(); ++t) blocks += shape.blocks_in_tile(r, t);
    const TileRow row = decode_dc(book, record.data() + dc[row_number],
                                  record.data() + dc[row_number + 1], shape.components, blocks);
    place_dc(row, r, out.coefficients);
    out.escapes += row.escapes;
    for (std::int32_t t = 0; t < shape.tiles_x(); ++t) {
      const std::int32_t across = std::min(4, shape.tiles_x() - t / 4 * 4);
      const auto k = static_cast<std::size_t>(t / 4 * 4 * shape.tile_rows() + r * across + t % 4);
      Tile tile;
      tile.exceptions = out.header.exceptions[k];
      const std::vector<std::int16_t*> places = take_tile(row, r, t, out.coefficients, tile);
      decode_ac(book, record.data() + ac[k], record.data() + ac[k + 1], tile);
      for (std::size_t i = 0; i < places.size(); ++i)
        for (std::size_t z = 1; z < 64; ++z)
          places[i][kZigzag[z]] = static_cast<std::int16_t>(tile.values[i][z]);
      out.exceptions += tile.exceptions;
      out.most_exceptions = std::max(out.most_exceptions, tile.exceptions);
      out.tiles.push_back(std::move(tile));
    }
  }
  out.coefficients.metadata.assign(
      record.end() - static_cast<std::ptrdiff_t>(out.header.metadata_bytes), record.end());
  return out;
}

// --- Round trips --------------------------------------------------------------------------------

constexpr Simd kLevels[] = {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon};

struct ForcedSimd {
  explicit ForcedSimd(Simd level) { simd_force(level); }
  ~ForcedSimd() { simd_force(simd_best()); }
};

// The record, which is the same at every level.
Bytes encode(BlockEncoder& encoder, const JpegCoefficients& in) {
  Bytes record;
  for (const Simd level : kLevels) {
    const ForcedSimd forced(level);
    Bytes again;
    const Status status = encoder.encode(in, again);
    CAPTURE(status.message);
    REQUIRE(status.ok());
    if (level != Simd::portable) REQUIRE(again == record);
    record = std::move(again);
  }
  return record;
}

Decoded check_round_trip(const Codebook& book, BlockEncoder& encoder, const JpegCoefficients& in) {
  Decoded out = decode(book, encode(encoder, in));
  const BlockShape &s = in.shape, &t = out.coefficients.shape;
  CHECK(s.components == t.components);
  CHECK(s.colour == t.colour);
  CHECK(s.sub_x == t.sub_x);
  CHECK(s.sub_y == t.sub_y);
  CHECK(s.height == t.height);
  CHECK(s.width == t.width);
  CHECK(s.tables == t.tables);
  CHECK(in.metadata == out.coefficients.metadata);
  for (int c = 0; c < 3; ++c) {
    CHECK(s.ids[c] == t.ids[c]);
    CHECK(s.table[c] == t.table[c]);
    CHECK(std::equal(s.quant[c], s.quant[c] + 64, t.quant[c]));
    REQUIRE(in.blocks[c] == out.coefficients.blocks[c]);
  }
  return out;
}

JpegCoefficients read(const Bytes& file) {
  JpegCoefficients out;
  const Status status = read_coefficients(file.data(), file.size(), out);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return out;
}

JpegCoefficients blank(int height, int width, int components, int sub_x, int sub_y) {
  JpegCoefficients out;
  out.shape.components = components;
  out.shape.colour = components == 1 ? Colour::gray : Colour::ycbcr;
  out.shape.sub_x = sub_x;
  out.shape.sub_y = sub_y;
  out.shape.height = height;
  out.shape.width = width;
  std::fill(out.shape.quant[0], out.shape.quant[0] + 64, std::uint16_t{1});
  for (int c = 0; c < components; ++c)
    out.blocks[c].assign(std::size_t{64} * static_cast<std::size_t>(out.shape.blocks_x(c)) *
                             static_cast<std::size_t>(out.shape.blocks_y(c)),
                         0);
  return out;
}

// Each value within `most`, one of `rarity` of them not 0.
void fill(JpegCoefficients& in, std::mt19937& rng, int most, int rarity) {
  for (auto& blocks : in.blocks)
    for (auto& value : blocks)
      value = static_cast<std::int16_t>(
          random_int(rng, 1, rarity) == 1 ? random_int(rng, -most, most) : 0);
}

constexpr int kRatios[5][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};

// --- The class of a block, by trying all --------------------------------------------------------

int bit_length(int value) {
  int bits = 0;
  for (; value; value >>= 1) ++bits;
  return bits;
}

// Bits of a block in class c; -1 if it cannot have it.
int block_cost(const Codebook& book, int c, const std::vector<int>& values, int difference) {
  const std::uint8_t* width = book.width[c];
  const int lowest = width[0] ? 1 << (width[0] - 1) : 0;
  if (width[0] == 0 && difference != 0) return -1;
  int cost =
      book.mask_bits[c] + width[0] + (difference == 0 || std::abs(difference) < lowest ? 0 : 16);
  for (int z = 1; z < 64; ++z) {
    const int value = values[static_cast<std::size_t>(z)];
    if (value == 0) continue;
    if (z > book.mask_bits[c]) return -1;
    const int need = std::abs(value) == 128 ? 9 : 1 + bit_length(std::abs(value) - 1);
    cost += need > width[z] ? 24 : width[z];
  }
  return cost;
}

int best_class(const Codebook& book, const std::vector<int>& values, int difference) {
  int best = 0;
  for (int c = 1; c < kClasses; ++c) {
    const int cost = block_cost(book, c, values, difference);
    if (cost >= 0 && cost < block_cost(book, best, values, difference)) best = c;
  }
  return best;
}

}  // namespace

TEST_CASE("a record holds a JPEG's coefficients: every sampling, size and quality") {
  const auto book = make_codebook(1);
  BlockEncoder encoder(*book);
  std::mt19937 rng(1);
  for (int round = 0; round < 120; ++round) {
    test::JpegOptions o;
    o.height = random_int(rng, 1, round % 2 ? 67 : 20);
    o.width = random_int(rng, 1, round % 3 ? 131 : 290);
    o.components = random_int(rng, 0, 5) ? 3 : 1;
    o.sampling[0] = {kRatios[round % 5][0], kRatios[round % 5][1]};
    o.quality = random_int(rng, 1, 100);
    o.progressive = random_int(rng, 0, 2) == 0;
    o.restart_interval = random_int(rng, 0, 2);
    o.noise = random_int(rng, 0, 1) ? 3 : 120;
    CAPTURE(test::describe(o));
    check_round_trip(*book, encoder, read(test::make_jpeg(o, rng())));
  }
}

TEST_CASE("images of a few blocks") {
  const auto book = make_codebook(2);
  BlockEncoder encoder(*book);
  std::mt19937 rng(2);
  for (const auto& ratio : kRatios)
    for (const int height : {1, 8, 9, 17})
      for (const int width : {1, 8, 9, 16, 17, 33, 127, 128, 129}) {
        JpegCoefficients in = blank(height, width, 3, ratio[0], ratio[1]);
        fill(in, rng, 5, 4);
        CAPTURE(height);
        CAPTURE(width);
        check_round_trip(*book, encoder, in);
      }
}

TEST_CASE("shape, quantisers and metadata of a record") {
  const auto book = make_codebook(3);
  BlockEncoder encoder(*book);
  std::mt19937 rng(3);
  for (int round = 0; round < 30; ++round) {
    JpegCoefficients in = blank(9, 20, 3, 2, 1);
    in.shape.tables = random_int(rng, 1, 3);
    in.shape.colour = round % 2 ? Colour::rgb : Colour::ycbcr;
    for (int k = 0; k < in.shape.tables; ++k)
      for (auto& value : in.shape.quant[k])
        value = static_cast<std::uint16_t>(random_int(rng, 1, (round + k) % 2 ? 255 : 65535));
    for (int c = 0; c < 3; ++c) {
      in.shape.ids[c] = static_cast<std::uint8_t>(rng());
      in.shape.table[c] = static_cast<std::uint8_t>(random_int(rng, 0, in.shape.tables - 1));
    }
    in.metadata.resize(static_cast<std::size_t>(random_int(rng, 0, 99)));
    for (auto& byte : in.metadata) byte = static_cast<std::uint8_t>(rng());
    check_round_trip(*book, encoder, in);
  }
}

TEST_CASE("coefficients of any size") {
  const auto book = make_codebook(4);
  BlockEncoder encoder(*book);
  std::mt19937 rng(4);
  for (const int most : {0, 1, 2, 7, 8, 126, 127, 128, 129, 255, 1023, 2047})
    for (const int rarity : {1, 2, 9, 60}) {
      JpegCoefficients in = blank(30, 150, 3, 2, 2);
      fill(in, rng, most, rarity);
      CAPTURE(most);
      CAPTURE(rarity);
      check_round_trip(*book, encoder, in);
    }
}

TEST_CASE("each value alone, at each position") {
  const auto book = make_codebook(5);
  BlockEncoder encoder(*book);
  JpegCoefficients in = blank(8 * 63, 8 * 34, 1, 1, 1);
  static constexpr int kValues[17] = {1,   2,   3,   4,   5,   64,  65,   126, 127,
                                      128, 129, 130, 255, 256, 257, 1024, 2047};
  for (int z = 1; z < 64; ++z)
    for (int i = 0; i < 34; ++i)
      in.blocks[0][static_cast<std::size_t>((z - 1) * 34 + i) * 64 + kZigzag[z]] =
          static_cast<std::int16_t>(i % 2 ? -kValues[i / 2] : kValues[i / 2]);
  check_round_trip(*book, encoder, in);
}

TEST_CASE("DC values and differences of 16 bits") {
  const auto book = make_codebook(6);
  BlockEncoder encoder(*book);
  std::mt19937 rng(6);
  for (const int most : {1, 100, 2047, 2048, 4000, 32767}) {
    JpegCoefficients in = blank(64, 300, 3, 2, 2);
    for (auto& blocks : in.blocks)
      for (std::size_t i = 0; i < blocks.size(); i += 64)
        blocks[i] = static_cast<std::int16_t>(random_int(rng, -most - 1, most));
    CAPTURE(most);
    const Decoded out = check_round_trip(*book, encoder, in);
    if (most > 2048) CHECK(out.escapes > 0);
  }
}

TEST_CASE("a DC difference that reads as an escape is one") {
  const auto book = make_codebook(7);
  BlockEncoder encoder(*book);
  for (int bits = 0; bits <= 15; ++bits) {
    JpegCoefficients in = blank(8, 16, 1, 1, 1);
    for (const int difference : {-(1 << bits), 1 << bits, (1 << bits) - 1}) {
      in.blocks[0][64] = static_cast<std::int16_t>(difference);
      check_round_trip(*book, encoder, in);
    }
  }
}

TEST_CASE("a block has the class that makes it shortest, the first of equals") {
  std::mt19937 rng(8);
  for (std::uint32_t seed = 10; seed < 14; ++seed) {
    const auto book = make_codebook(seed);
    BlockEncoder encoder(*book);
    for (const int most : {1, 3, 20, 140, 2047}) {
      JpegCoefficients in = blank(24, 256, 1, 1, 1);
      // Blocks of any density, so that few values make an exception and sums are of any size.
      for (std::size_t at = 0; at < in.blocks[0].size(); at += 64) {
        const int last = random_int(rng, 0, 63), rarity = random_int(rng, 1, 5);
        for (int z = 0; z <= last; ++z)
          if (random_int(rng, 1, rarity) == 1)
            in.blocks[0][at + kZigzag[z]] = static_cast<std::int16_t>(
                random_int(rng, 0, 9) ? random_int(rng, -3, 3) : random_int(rng, -most, most));
      }
      const Decoded out = check_round_trip(*book, encoder, in);
      for (const Tile& tile : out.tiles) {
        if (tile.exceptions > 200) continue;
        for (std::size_t i = 0; i < tile.classes.size(); ++i)
          REQUIRE(tile.classes[i] == best_class(*book, tile.values[i], tile.differences[i]));
      }
    }
  }
}

TEST_CASE("128 is an exception in a class of 8 bits, whose byte cannot tell it from -128") {
  const auto book = make_codebook_of(8);
  BlockEncoder encoder(*book);
  JpegCoefficients in = blank(8, 8, 1, 1, 1);
  for (std::size_t i = 1; i < 64; ++i) in.blocks[0][i] = i % 2 ? 127 : -127;
  in.blocks[0][1] = 128;
  in.blocks[0][8] = -128;
  const Decoded out = check_round_trip(*book, encoder, in);
  CHECK(out.tiles[0].classes[0] == 1);
  CHECK(out.exceptions == 2);
}

TEST_CASE("a tile with too many exceptions has blocks of class 0 instead") {
  const auto book = make_codebook_of(1);
  BlockEncoder encoder(*book);
  JpegCoefficients in = blank(16, 128, 3, 2, 2);
  for (auto& blocks : in.blocks)
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (i % 64 != 0) blocks[i] = static_cast<std::int16_t>(i % 64 < 10 ? 300 : 1);
  const Decoded out = check_round_trip(*book, encoder, in);
  CHECK(out.most_exceptions == 252);  // 28 blocks of 9
  const std::vector<int>& classes = out.tiles[0].classes;
  CHECK(std::count(classes.begin(), classes.end(), 1) == 28);
  CHECK(std::count(classes.begin(), classes.end(), 0) == 20);
}

TEST_CASE("a flat image takes its classes and little else") {
  const auto book = make_codebook(9);
  BlockEncoder encoder(*book);
  JpegCoefficients in = blank(160, 256, 3, 2, 2);
  for (auto& blocks : in.blocks)
    for (std::size_t i = 0; i < blocks.size(); i += 64) blocks[i] = -77;
  const Decoded out = check_round_trip(*book, encoder, in);
  CHECK(out.exceptions == 0);
  CHECK(out.escapes == 0);
}

TEST_CASE("AC coefficients of more than 11 bits are foreign") {
  const auto book = make_codebook(1);
  BlockEncoder encoder(*book);
  JpegCoefficients in = blank(8, 8, 1, 1, 1);
  Bytes record;
  for (const int value : {2048, -2048, 32767, -32768}) {
    in.blocks[0][63] = static_cast<std::int16_t>(value);
    CHECK(encoder.encode(in, record).code == Code::foreign);
  }
  in.blocks[0][63] = -2047;
  check_round_trip(*book, encoder, in);
}

TEST_CASE("parts that contradict each other are not encoded") {
  const auto book = make_codebook(1);
  BlockEncoder encoder(*book);
  JpegCoefficients in = blank(8, 8, 1, 1, 1);
  Bytes record;
  in.blocks[0].resize(128);
  CHECK(encoder.encode(in, record).code == Code::corrupt);
  in.blocks[0].resize(64);
  in.shape.height = 0;
  CHECK(encoder.encode(in, record).code == Code::corrupt);
}

TEST_CASE("an encoder depends on nothing that it encoded before") {
  const auto book = make_codebook(1);
  BlockEncoder used(*book), fresh(*book);
  std::mt19937 rng(30);
  JpegCoefficients other = blank(99, 300, 3, 2, 2), in = blank(40, 40, 3, 1, 1);
  fill(other, rng, 900, 2);
  fill(in, rng, 9, 3);
  encode(used, other);
  other.blocks[0][1] = 5000;
  Bytes record;
  REQUIRE_FALSE(used.encode(other, record).ok());
  CHECK(encode(used, in) == encode(fresh, in));
}
