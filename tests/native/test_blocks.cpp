// The header of block records.
#include "core/blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "block_records.h"
#include "core/crc32c.h"

using namespace fastio;
using test::Bytes;
using test::Sampling;

namespace {

struct Parts {
  BlockShape shape;
  BlockLengths lengths;
  Bytes dc, ac, metadata;
};

Bytes random_bytes(std::mt19937& rng, std::size_t size) {
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng());
  return bytes;
}

// Words that the DC part of a tile row has at least: escapes and bases, and classes.
int least_dc_words(const BlockShape& shape, std::int32_t r) {
  return (2 + 2 * shape.components + shape.blocks_in_row(r) + 3) / 4;
}

// Parts of the shortest lengths and a little more, with anything in them.
Parts make_parts(const BlockShape& shape, std::mt19937& rng) {
  Parts parts;
  parts.shape = shape;
  BlockLengths& lengths = parts.lengths;
  std::size_t dc_words = 0, ac_words = 0;
  for (std::int32_t r = 0; r < shape.tile_rows(); ++r) {
    const int words = least_dc_words(shape, r) + test::random_int(rng, 0, 3);
    lengths.dc_words.push_back(static_cast<std::uint16_t>(words));
    dc_words += lengths.dc_words.back();
    for (std::int32_t t = 0; t < shape.tiles_x(); ++t) {
      const int exceptions = rng() % 9 ? test::random_int(rng, 0, 5) : 255;
      lengths.exceptions.push_back(static_cast<std::uint8_t>(exceptions));
      lengths.ac_words.push_back(
          static_cast<std::uint16_t>((3 * exceptions + 3) / 4 + test::random_int(rng, 0, 9)));
      ac_words += lengths.ac_words.back();
    }
  }
  parts.dc = random_bytes(rng, 4 * dc_words);
  parts.ac = random_bytes(rng, 4 * ac_words);
  parts.metadata = random_bytes(rng, static_cast<std::size_t>(test::random_int(rng, 0, 20)));
  return parts;
}

Bytes header_bytes(const Parts& p) {
  Bytes out;
  REQUIRE(write_header(p.shape, p.lengths, p.dc, p.ac, p.metadata, out).ok());
  REQUIRE(out.size() % 4 == 0);
  return out;
}

std::size_t record_bytes(const Parts& p, const Bytes& header) {
  return header.size() + p.dc.size() + p.ac.size() + p.metadata.size();
}

// Parsed from memory of exactly its size.
Status parse(const Bytes& header, std::size_t record_size, BlockHeader& out) {
  const Bytes exact(header.begin(), header.end());
  return parse_header(exact.data(), exact.size(), record_size, out);
}

void set_crc(Bytes& header) {
  const std::uint32_t crc = crc32c(header.data(), header.size() - 4);
  for (std::size_t i = 0; i < 4; ++i)
    header[header.size() - 4 + i] = static_cast<std::uint8_t>(crc >> (8 * i));
}

struct Sample {
  Parts parts;
  Bytes header;
  std::size_t record_size;

  explicit Sample(const BlockShape& shape, std::uint32_t seed = 1) {
    std::mt19937 rng(seed);
    parts = make_parts(shape, rng);
    header = header_bytes(parts);
    record_size = record_bytes(parts, header);
  }
  // With one byte changed, the checksum made to fit.
  Status with(std::size_t at, int value) const {
    Bytes changed = header;
    changed[at] = static_cast<std::uint8_t>(value);
    set_crc(changed);
    BlockHeader out;
    return parse(changed, record_size, out);
  }
};

void check_round_trip(const BlockShape& shape, std::mt19937& rng) {
  const Parts p = make_parts(shape, rng);
  const Bytes header = header_bytes(p);
  BlockHeader out;
  const Status status = parse(header, record_bytes(p, header), out);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  REQUIRE(out.bytes == header.size());
  CHECK(out.bytes <= header_bytes_bound(shape.height, shape.width));
  CHECK(out.shape.components == shape.components);
  CHECK(out.shape.colour == shape.colour);
  CHECK(out.shape.sub_x == shape.sub_x);
  CHECK(out.shape.sub_y == shape.sub_y);
  CHECK(out.shape.height == shape.height);
  CHECK(out.shape.width == shape.width);
  CHECK(out.shape.tables == shape.tables);
  for (int c = 0; c < shape.components; ++c) {
    CHECK(out.shape.ids[c] == shape.ids[c]);
    CHECK(out.shape.table[c] == shape.table[c]);
  }
  for (int k = 0; k < shape.tables; ++k)
    REQUIRE(std::equal(shape.quant[k], shape.quant[k] + 64, out.shape.quant[k]));
  CHECK(out.metadata_bytes == p.metadata.size());
  CHECK(out.metadata_crc == crc32c(p.metadata.data(), p.metadata.size()));

  std::size_t dc = header.size(), ac = dc + p.dc.size(), k = 0, group = 0;
  REQUIRE(out.dc_begin.size() == p.lengths.dc_words.size() + 1);
  REQUIRE(out.ac_begin.size() == p.lengths.ac_words.size() + 1);
  REQUIRE(out.exceptions == p.lengths.exceptions);
  for (std::size_t r = 0; r < p.lengths.dc_words.size(); ++r) {
    const std::size_t bytes = 4 * std::size_t{p.lengths.dc_words[r]};
    REQUIRE(out.dc_begin[r] == dc);
    REQUIRE(out.dc_crc[r] == crc32c(p.dc.data() + dc - header.size(), bytes));
    dc += bytes;
  }
  // Groups of four tiles of a row, one column of groups after the other.
  for (std::int32_t first = 0; first < shape.tiles_x(); first += 4)
    for (std::int32_t r = 0; r < shape.tile_rows(); ++r, ++group) {
      const std::size_t begin = ac;
      for (std::int32_t t = first; t < std::min(first + 4, shape.tiles_x()); ++t, ++k) {
        REQUIRE(shape.tile_number(r, t) == k);
        REQUIRE(out.ac_begin[k] == ac);
        ac += 4 * std::size_t{p.lengths.ac_words[k]};
      }
      REQUIRE(shape.group_number(r, first / 4) == group);
      REQUIRE(out.group_begin(r, first / 4) == begin);
      REQUIRE(out.group_end(r, first / 4) == ac);
      const std::uint8_t* bytes = p.ac.data() + (begin - header.size() - p.dc.size());
      REQUIRE(out.ac_crc[group] == crc32c(bytes, ac - begin));
    }
  REQUIRE(out.ac_crc.size() == group);
  CHECK(out.dc_begin.back() == dc);
  CHECK(out.ac_begin.back() == ac);
  CHECK(out.record_bytes() == record_bytes(p, header));
}

}  // namespace

TEST_CASE("headers of all shapes are read as they were written") {
  std::mt19937 rng(1);
  for (int round = 0; round < 200; ++round) {
    const Sampling sampling = test::kSamplings[rng() % 5];
    BlockShape shape = test::make_shape(test::random_int(rng, 1, 300),
                                        test::random_int(rng, 1, 600), rng() % 4 ? 3 : 1, sampling);
    shape.tables = test::random_int(rng, 1, 3);
    if (shape.components == 3 && rng() % 3 == 0) shape.colour = Colour::rgb;
    for (int c = 0; c < shape.components; ++c) {
      shape.table[c] = static_cast<std::uint8_t>(test::random_int(rng, 0, shape.tables - 1));
      shape.ids[c] = static_cast<std::uint8_t>(rng());
    }
    for (auto& table : shape.quant) {
      const int most = rng() % 2 ? 255 : 65535;
      for (auto& value : table) value = static_cast<std::uint16_t>(test::random_int(rng, 1, most));
    }
    check_round_trip(shape, rng);
  }
}

TEST_CASE("the smallest and the longest images have headers") {
  std::mt19937 rng(2);
  for (const Sampling sampling : test::kSamplings)
    for (const int components : {1, 3})
      for (const auto& [height, width] :
           std::vector<std::pair<int, int>>{{1, 1}, {1, 65535}, {65535, 1}, {65535, 129}}) {
        CAPTURE(height);
        CAPTURE(width);
        check_round_trip(test::make_shape(height, width, components, sampling), rng);
      }
}

TEST_CASE("tiles have every block once, and at most 64") {
  for (const Sampling sampling : test::kSamplings)
    for (const int components : {1, 3})
      for (const int height : {1, 7, 8, 9, 16, 17, 24, 100})
        for (const int width : {1, 8, 9, 32, 33, 127, 128, 129, 136, 256, 400}) {
          const BlockShape s = test::make_shape(height, width, components, sampling);
          std::int32_t all = 0;
          for (int c = 0; c < components; ++c) all += s.blocks_x(c) * s.blocks_y(c);
          for (std::int32_t r = 0; r < s.tile_rows(); ++r) {
            std::int32_t in_row = 0;
            for (std::int32_t t = 0; t < s.tiles_x(); ++t) {
              for (int c = 0; c < components; ++c) {
                REQUIRE(s.blocks_in_tile_x(c, t) >= 1);
                REQUIRE(s.blocks_in_tile_y(c, r) >= 1);
              }
              REQUIRE(s.blocks_in_tile(r, t) <= kTileBlocks);
              in_row += s.blocks_in_tile(r, t);
            }
            REQUIRE(in_row == s.blocks_in_row(r));
            all -= in_row;
          }
          REQUIRE(all == 0);
        }
}

TEST_CASE("the bound of header and DC section holds whatever the sampling") {
  for (const Sampling sampling : test::kSamplings)
    for (const int components : {1, 3})
      for (const int height : {1, 9, 100})
        for (const int width : {1, 129, 500}) {
          BlockShape shape = test::make_shape(height, width, components, sampling);
          shape.tables = 3;
          for (auto& table : shape.quant) table[63] = 256;
          Sample sample(shape);
          std::size_t dc = 0;
          for (std::int32_t r = 0; r < shape.tile_rows(); ++r) {
            const auto blocks = static_cast<std::size_t>(shape.blocks_in_row(r));
            // All of them escapes.
            dc += 2 + 2 * static_cast<std::size_t>(components) + part_bytes(blocks) +
                  part_bytes((blocks * kPlanes + 7) / 8) + part_bytes(2 * blocks);
          }
          CHECK(sample.header.size() <= header_bytes_bound(height, width));
          CHECK(sample.header.size() + dc <= dc_bytes_bound(height, width));
        }
  CHECK(header_bytes_bound(0, 0) >= 1024);
}

TEST_CASE("a header that is cut short is truncated, at every byte") {
  BlockShape shape = test::make_shape(70, 300, 3, {2, 2});
  shape.tables = 2;
  shape.quant[1][5] = 999;
  const Sample sample(shape);
  for (std::size_t size = 0; size < sample.header.size(); ++size) {
    const Bytes part(sample.header.begin(),
                     sample.header.begin() + static_cast<std::ptrdiff_t>(size));
    BlockHeader out;
    REQUIRE(parse(part, sample.record_size, out).code == Code::truncated);
    REQUIRE(parse(part, size, out).code == Code::truncated);
  }
}

TEST_CASE("a record of another size than its parts is corrupt") {
  const Sample sample(test::make_shape(70, 300, 3, {2, 2}));
  BlockHeader out;
  REQUIRE(parse(sample.header, sample.record_size, out).ok());
  CHECK(parse(sample.header, sample.record_size - 1, out).code == Code::corrupt);
  CHECK(parse(sample.header, sample.record_size + 1, out).code == Code::corrupt);
  CHECK(parse(sample.header, sample.header.size(), out).code == Code::corrupt);
  CHECK(parse(sample.header, SIZE_MAX, out).code == Code::corrupt);
}

TEST_CASE("no bit of a header can change unnoticed") {
  BlockShape shape = test::make_shape(20, 200, 3, {2, 1});
  shape.tables = 3;
  shape.quant[2][0] = 300;
  const Sample sample(shape);
  for (std::size_t bit = 0; bit < 8 * sample.header.size(); ++bit) {
    Bytes changed = sample.header;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
    BlockHeader out;
    REQUIRE_FALSE(parse(changed, sample.record_size, out).ok());
  }
}

TEST_CASE("another version is not supported") {
  const Sample sample(test::make_shape(8, 8, 1, {1, 1}));
  for (int version = 0; version < 256; ++version)
    CHECK(sample.with(0, version).code == (version == 1 ? Code::ok : Code::unsupported));
}

TEST_CASE("fields of the header out of their ranges are corrupt") {
  const Sample gray(test::make_shape(8, 8, 1, {1, 1})), colour(test::make_shape(8, 8, 3, {1, 1}));
  for (int value = 0; value < 256; ++value) {
    CAPTURE(value);
    CHECK((gray.with(1, value).ok()) == (value == 0));  // flags
    CHECK((colour.with(1, value).ok()) == (value == 0));
    if (value == 0 || value > 2)  // colour, and with it the number of components
      CHECK((gray.with(2, value).ok()) == (value == 0));
    CHECK((colour.with(2, value).ok()) == (value == 1 || value == 2));
    const bool sampling =
        value == 0x11 || value == 0x21 || value == 0x22 || value == 0x12 || value == 0x41;
    CHECK((gray.with(3, value).ok()) == (value == 0x11));
    CHECK((colour.with(3, value).ok()) == sampling);
    for (const std::size_t at : {9, 10}) CHECK((gray.with(at, value).ok()) == (value == 0));
    for (const std::size_t at : {8, 9, 10}) CHECK(colour.with(at, value).ok());  // identifiers
    for (const std::size_t at : {11, 12, 13}) {                                  // tables
      CHECK((gray.with(at, value).ok()) == (value == 0));
      CHECK((colour.with(at, value).ok()) == (value == 0));
    }
    CHECK((colour.with(14, value).ok()) == (value == 1));
    CHECK((colour.with(15, value).ok()) == (value == 0));  // more bytes than there are, or corrupt
  }
}

TEST_CASE("a component's table is one of those that are there") {
  for (int tables = 1; tables <= 3; ++tables) {
    BlockShape shape = test::make_shape(8, 8, 3, {1, 1});
    shape.tables = tables;
    const Sample sample(shape);
    for (int value = 0; value < 6; ++value)
      for (const std::size_t at : {11, 12, 13})
        CHECK(sample.with(at, value).ok() == (value < tables));
    for (int wide = 1 << tables; wide < 256; ++wide)
      CHECK(sample.with(15, wide).code == Code::corrupt);
  }
}

TEST_CASE("an image without rows or columns is corrupt") {
  const Sample sample(test::make_shape(8, 8, 1, {1, 1}));
  CHECK(sample.with(4, 0).code == Code::corrupt);
  CHECK(sample.with(6, 0).code == Code::corrupt);
}

TEST_CASE("a quantiser of 0 is corrupt") {
  BlockShape shape = test::make_shape(8, 8, 3, {1, 1});
  shape.tables = 2;
  std::fill(shape.quant[1], shape.quant[1] + 64, std::uint16_t{0x100});
  const Sample sample(shape);
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(sample.with(20 + i, 0).code == Code::corrupt);
    CHECK(sample.with(20 + 64 + 2 * i + 1, 0).code == Code::corrupt);
    CHECK(sample.with(20 + 64 + 2 * i, 1).ok());
  }
}

TEST_CASE(
    "parts shorter than their blocks or exceptions need are corrupt, though the sum is right") {
  Parts parts = Sample(test::make_shape(24, 300, 3, {1, 1})).parts;
  const auto status = [&](Parts p) {
    std::size_t dc = 0, ac = 0;
    for (const std::size_t words : p.lengths.dc_words) dc += 4 * words;
    for (const std::size_t words : p.lengths.ac_words) ac += 4 * words;
    p.dc.resize(dc);
    p.ac.resize(ac);
    const Bytes header = header_bytes(p);
    BlockHeader out;
    return parse(header, record_bytes(p, header), out);
  };
  for (std::size_t r = 0; r < 3; ++r) {
    Parts changed = parts;
    changed.lengths.dc_words[r] =
        static_cast<std::uint16_t>(least_dc_words(parts.shape, static_cast<std::int32_t>(r)));
    CHECK(status(changed).ok());
    --changed.lengths.dc_words[r];
    CHECK(status(changed).code == Code::corrupt);
  }
  for (std::size_t k = 0; k < parts.lengths.ac_words.size(); ++k)
    for (const int exceptions : {0, 1, 2, 4, 5, 255}) {
      Parts changed = parts;
      const int least = (3 * exceptions + 3) / 4;
      changed.lengths.exceptions[k] = static_cast<std::uint8_t>(exceptions);
      changed.lengths.ac_words[k] = static_cast<std::uint16_t>(least);
      CHECK(status(changed).ok());
      if (least == 0) continue;
      --changed.lengths.ac_words[k];
      CHECK(status(changed).code == Code::corrupt);
    }
}

TEST_CASE("bytes behind the lengths, up to a multiple of 4, are zero") {
  for (const int width : {1, 129, 300, 400}) {
    const Sample sample(test::make_shape(8, width, 1, {1, 1}));
    const auto tiles = static_cast<std::size_t>(sample.parts.shape.tiles_x());
    const std::size_t end = 20 + 64 + 2 + 3 * tiles;
    for (std::size_t at = end; at < part_bytes(end); ++at)
      CHECK(sample.with(at, 1).code == Code::corrupt);
  }
}

TEST_CASE("parts that are no image's are not written") {
  const Parts sound = Sample(test::make_shape(24, 300, 3, {1, 1})).parts;
  const auto code = [](const Parts& p) {
    Bytes out;
    return write_header(p.shape, p.lengths, p.dc, p.ac, p.metadata, out).code;
  };
  REQUIRE(code(sound) == Code::ok);
  Parts parts = sound;
  parts.lengths.dc_words.pop_back();
  CHECK(code(parts) == Code::corrupt);
  parts = sound;
  parts.lengths.ac_words.push_back(1);
  CHECK(code(parts) == Code::corrupt);
  parts = sound;
  parts.lengths.exceptions.pop_back();
  CHECK(code(parts) == Code::corrupt);
  parts = sound;
  parts.shape.sub_x = 3;
  CHECK(code(parts) == Code::corrupt);
}

TEST_CASE("a header read over another leaves nothing of it") {
  const Sample large(test::make_shape(200, 700, 3, {2, 2})),
      small(test::make_shape(8, 8, 1, {1, 1}));
  BlockHeader used, fresh;
  REQUIRE(parse(large.header, large.record_size, used).ok());
  REQUIRE(parse(small.header, small.record_size, used).ok());
  REQUIRE(parse(small.header, small.record_size, fresh).ok());
  CHECK(used.dc_begin == fresh.dc_begin);
  CHECK(used.ac_begin == fresh.ac_begin);
  CHECK(used.dc_crc == fresh.dc_crc);
  CHECK(used.ac_crc == fresh.ac_crc);
  CHECK(used.record_bytes() == fresh.record_bytes());
}
