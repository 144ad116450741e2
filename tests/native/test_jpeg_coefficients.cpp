#include "core/jpeg_coefficients.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/jpeg.h"
#include "jpeg_files.h"

using namespace fastio;
using test::Bytes;
using test::Decoded;
using test::JpegOptions;

namespace {

int random_int(std::mt19937& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

// A copy whose memory ends with its last byte, so that the sanitizers see a read past it.
Bytes exactly(const Bytes& bytes) { return Bytes(bytes.begin(), bytes.end()); }

Status read(const Bytes& file, JpegCoefficients& out) {
  return read_coefficients(file.data(), file.size(), out);
}

Status check(const Bytes& file) {
  JpegDecoder decoder;
  JpegHeader header;
  const Status status = decoder.open(file.data(), file.size(), true, header);
  JpegIndex index;
  return status.ok() ? decoder.check(index) : status;
}

void check_equal(const JpegCoefficients& got, const Decoded& expected) {
  REQUIRE(got.shape.components == static_cast<int>(expected.coefficients.size()));
  for (int c = 0; c < got.shape.components; ++c) {
    CAPTURE(c);
    REQUIRE(got.blocks[c] == expected.coefficients[static_cast<std::size_t>(c)]);
  }
}

void check_equal(const JpegCoefficients& a, const JpegCoefficients& b) {
  const BlockShape &s = a.shape, &t = b.shape;
  CHECK(s.components == t.components);
  CHECK(s.colour == t.colour);
  CHECK(s.sub_x == t.sub_x);
  CHECK(s.sub_y == t.sub_y);
  CHECK(s.width == t.width);
  CHECK(s.height == t.height);
  for (int c = 0; c < 3; ++c) {
    CHECK(s.ids[c] == t.ids[c]);
    CHECK(std::equal(s.quant[s.table[c]], s.quant[s.table[c]] + 64, t.quant[t.table[c]]));
    REQUIRE(a.blocks[c] == b.blocks[c]);
  }
  CHECK(a.metadata == b.metadata);
  CHECK(a.orientation == b.orientation);
  CHECK(a.progressive == b.progressive);
}

JpegOptions sampled(test::Sampling y, test::Sampling b, test::Sampling r) {
  JpegOptions o;
  o.height = 35;
  o.width = 67;
  o.sampling[0] = y;
  o.sampling[1] = b;
  o.sampling[2] = r;
  return o;
}

// What a record can hold of the samplings that libjpeg makes.
bool storable(const JpegOptions& o) {
  if (o.components == 1) return true;
  const int x = o.sampling[0].h / o.sampling[1].h, y = o.sampling[0].v / o.sampling[1].v;
  return o.sampling[1].h == o.sampling[2].h && o.sampling[1].v == o.sampling[2].v &&
         ((x <= 2 && y <= 2) || (x == 4 && y == 1));
}

std::size_t find_marker(const Bytes& file, std::uint8_t marker, std::size_t from = 2) {
  for (std::size_t at = from; at + 1 < file.size(); ++at)
    if (file[at] == 0xFF && file[at + 1] == marker) return at;
  return file.size();
}

void insert(Bytes& file, std::size_t at, const Bytes& what) {
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), what.begin(), what.end());
}

// Random coefficients that any JPEG may have.
JpegCoefficients random_coefficients(std::mt19937& rng, int height, int width, int components,
                                     int sub_x, int sub_y) {
  JpegCoefficients out;
  BlockShape& shape = out.shape;
  shape.components = components;
  shape.colour = components == 1 ? Colour::gray : Colour::ycbcr;
  shape.sub_x = sub_x;
  shape.sub_y = sub_y;
  shape.height = height;
  shape.width = width;
  shape.tables = components == 1 ? 1 : random_int(rng, 1, 3);
  for (int k = 0; k < shape.tables; ++k)
    for (auto& value : shape.quant[k])
      value = static_cast<std::uint16_t>(random_int(rng, 1, random_int(rng, 0, 1) ? 255 : 65535));
  for (int c = 0; c < components; ++c) {
    shape.ids[c] = static_cast<std::uint8_t>(c + 1);
    shape.table[c] = static_cast<std::uint8_t>(c % shape.tables);
    out.blocks[c].assign(std::size_t{64} * static_cast<std::size_t>(shape.blocks_x(c)) *
                             static_cast<std::size_t>(shape.blocks_y(c)),
                         0);
    for (std::size_t i = 0; i < out.blocks[c].size(); ++i) {
      if (i % 64 != 0 && random_int(rng, 0, 2) != 0) continue;
      out.blocks[c][i] = static_cast<std::int16_t>(
          random_int(rng, 0, 9) == 0 ? random_int(rng, -1023, 1023) : random_int(rng, -3, 3));
    }
  }
  return out;
}

}  // namespace

// Reading

TEST_CASE("coefficients are those that libjpeg reads: files of any kind") {
  std::mt19937 rng(1);
  int stored = 0;
  for (int round = 0; round < 500; ++round) {
    JpegOptions o = test::random_options(rng);
    if (random_int(rng, 0, 2) == 0) {
      o.apart = random_int(rng, 0, 1);
      o.progressive = !o.apart;
      o.four_tables = false;
    }
    CAPTURE(test::describe(o));
    const Bytes file = exactly(test::make_jpeg(o, rng()));
    JpegCoefficients got;
    const Status status = read(file, got);
    CAPTURE(status.message);
    if (!storable(o)) {
      REQUIRE(status.code == Code::foreign);
      continue;
    }
    REQUIRE(status.ok());
    REQUIRE(got.shape.check().ok());
    CHECK(got.progressive == o.progressive);
    check_equal(got, test::decode_coefficients(file));
    ++stored;
  }
  CHECK(stored > 100);
}

TEST_CASE("sampling factors count by their ratio") {
  struct Case {
    test::Sampling y, b, r;
    int x_ratio, y_ratio;  // 0: foreign
  };
  for (const Case& c : std::vector<Case>{{{1, 1}, {1, 1}, {1, 1}, 1, 1},
                                         {{1, 3}, {1, 3}, {1, 3}, 1, 1},
                                         {{3, 1}, {3, 1}, {3, 1}, 1, 1},
                                         {{2, 1}, {1, 1}, {1, 1}, 2, 1},
                                         {{2, 2}, {1, 2}, {1, 2}, 2, 1},
                                         {{2, 2}, {1, 1}, {1, 1}, 2, 2},
                                         {{4, 1}, {2, 1}, {2, 1}, 2, 1},
                                         {{1, 2}, {1, 1}, {1, 1}, 1, 2},
                                         {{2, 2}, {2, 1}, {2, 1}, 1, 2},
                                         {{4, 1}, {1, 1}, {1, 1}, 4, 1},
                                         {{1, 4}, {1, 1}, {1, 1}, 0, 0},
                                         {{4, 2}, {1, 1}, {1, 1}, 0, 0},
                                         {{3, 1}, {1, 1}, {1, 1}, 0, 0},
                                         {{1, 1}, {2, 1}, {2, 1}, 0, 0},
                                         {{2, 2}, {1, 1}, {2, 1}, 0, 0},
                                         {{2, 2}, {1, 2}, {1, 1}, 0, 0}}) {
    const JpegOptions o = sampled(c.y, c.b, c.r);
    CAPTURE(test::describe(o));
    const Bytes file = test::make_jpeg(o, 2);
    JpegCoefficients got;
    const Status status = read(file, got);
    if (c.x_ratio == 0) {
      CHECK(status.code == Code::foreign);
      continue;
    }
    REQUIRE(status.ok());
    CHECK(got.shape.sub_x == c.x_ratio);
    CHECK(got.shape.sub_y == c.y_ratio);
    check_equal(got, test::decode_coefficients(file));
  }
}

TEST_CASE("gray files of any factors have one block after another") {
  for (const test::Sampling factors : {test::Sampling{1, 1}, {2, 2}, {4, 1}, {1, 3}}) {
    JpegOptions o = sampled(factors, {1, 1}, {1, 1});
    o.components = 1;
    const Bytes file = test::make_jpeg(o, 3);
    JpegCoefficients got;
    REQUIRE(read(file, got).ok());
    CHECK(got.shape.colour == Colour::gray);
    CHECK(got.shape.sub_x * got.shape.sub_y == 1);
    CHECK(got.blocks[0].size() == std::size_t{9} * 5 * 64);
    CHECK(got.blocks[1].empty());
    check_equal(got, test::decode_coefficients(file));
  }
}

TEST_CASE("the colour is what libjpeg takes it for") {
  std::mt19937 rng(4);
  JpegCoefficients in = random_coefficients(rng, 20, 20, 3, 1, 1);
  JpegCoefficients got;
  Bytes file;
  REQUIRE(write_jpeg(in, file).ok());
  REQUIRE(read(file, got).ok());
  CHECK(got.shape.colour == Colour::ycbcr);
  const std::string names = "RGB";
  std::copy(names.begin(), names.end(), in.shape.ids);
  REQUIRE(write_jpeg(in, file).ok());
  REQUIRE(read(file, got).ok());
  CHECK(got.shape.colour == Colour::rgb);
  CHECK(std::equal(names.begin(), names.end(), got.shape.ids));
}

TEST_CASE("quantisation tables that components share are kept once, with values of 16 bits") {
  std::mt19937 rng(5);
  JpegCoefficients in = random_coefficients(rng, 20, 20, 3, 2, 2);
  in.shape.tables = 2;
  for (auto& value : in.shape.quant[0]) value = 1;
  for (auto& value : in.shape.quant[1]) value = 65535;
  in.shape.table[0] = 1;
  in.shape.table[1] = in.shape.table[2] = 0;
  Bytes file;
  REQUIRE(write_jpeg(in, file).ok());
  JpegCoefficients got;
  REQUIRE(read(file, got).ok());
  CHECK(got.shape.tables == 2);
  CHECK(got.shape.table[0] == 0);
  CHECK(got.shape.table[2] == 1);
  check_equal(got, in);
}

TEST_CASE("a quantisation table that is defined again holds for the scans that follow") {
  JpegOptions o = sampled({1, 1}, {1, 1}, {1, 1});
  o.apart = true;
  Bytes file = test::make_jpeg(o, 6);
  const std::size_t second = find_marker(file, 0xDA, find_marker(file, 0xDA) + 1);
  const std::size_t third = find_marker(file, 0xDA, second + 1);
  Bytes table = {0xFF, 0xDB, 0, 67, 1};
  table.resize(5 + 64, 9);
  insert(file, third, table);
  JpegCoefficients got;
  REQUIRE(read(file, got).ok());
  CHECK(got.shape.tables == 3);
  CHECK(got.shape.table[1] == 1);
  CHECK(got.shape.table[2] == 2);
  CHECK(got.shape.quant[1][5] != 9);
  CHECK(got.shape.quant[2][5] == 9);
}

TEST_CASE("a table that is defined after the scan changes nothing") {
  const Bytes file = test::make_jpeg(sampled({2, 2}, {1, 1}, {1, 1}), 6);
  JpegCoefficients before, got;
  REQUIRE(read(file, before).ok());
  Bytes longer = file;
  Bytes table = {0xFF, 0xDB, 0, 67, 0};
  table.resize(5 + 64, 9);
  insert(longer, file.size() - 2, table);
  REQUIRE(read(longer, got).ok());
  check_equal(got, before);
}

TEST_CASE("metadata is what stands before the first scan, verbatim and in order") {
  JpegOptions o = sampled({2, 2}, {1, 1}, {1, 1});
  o.apart = true;
  Bytes file = test::make_jpeg(o, 7);
  const Bytes jfif(file.begin() + 2, file.begin() + 20);
  const Bytes exif = {0xFF, 0xE1, 0,    34, 'E', 'x', 'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0,
                      1,    0,    0x12, 1,  3,   0,   1,   0,   0, 0, 6,   0,   0,  0, 0, 0, 0, 0};
  const Bytes comment = {0xFF, 0xFE, 0, 5, 'a', 0xFF, 'b'}, empty = {0xFF, 0xEF, 0, 2};
  const std::size_t second = find_marker(file, 0xDA, find_marker(file, 0xDA) + 1);
  insert(file, second, comment);
  const std::size_t first = find_marker(file, 0xDA);
  insert(file, first, empty);
  insert(file, first, comment);
  insert(file, first, {0xFF, 0xFF});  // fill bytes
  insert(file, 20, exif);
  JpegCoefficients got;
  REQUIRE(read(file, got).ok());
  Bytes expected = jfif;
  for (const Bytes& part : {exif, comment, empty})
    expected.insert(expected.end(), part.begin(), part.end());
  CHECK(got.metadata == expected);
  CHECK(got.orientation == 6);
}

TEST_CASE("what no record can hold is foreign") {
  JpegCoefficients got;
  JpegOptions o;
  SUBCASE("four components") { o.components = 4; }
  SUBCASE("two components") { o.components = 2; }
  SUBCASE("arithmetic coding") { o.arithmetic = true; }
  CHECK(read(test::make_jpeg(o, 8), got).code ==
        (o.components == 3 && !o.arithmetic ? Code::ok : Code::foreign));
}

TEST_CASE("12 bits a sample and lossless coding are foreign") {
  JpegCoefficients got;
  Bytes file = test::make_jpeg({}, 8);
  file[find_marker(file, 0xC0) + 4] = 12;
  CHECK(read(file, got).code == Code::foreign);
  file[find_marker(file, 0xC0) + 4] = 8;
  file[find_marker(file, 0xC0) + 1] = 0xC3;
  CHECK(read(file, got).code == Code::foreign);
}

TEST_CASE("a quantiser of 0 is foreign") {
  Bytes file = test::make_jpeg({}, 8);
  file[find_marker(file, 0xDB) + 10] = 0;
  JpegCoefficients got;
  CHECK(read(file, got).code == Code::foreign);
}

TEST_CASE("a progressive file that lacks scans, and is smoothed therefore, is foreign") {
  JpegOptions o;
  o.progressive = true;
  Bytes file = test::make_jpeg(o, 9);
  std::size_t last = 0;
  for (std::size_t at = 2; (at = find_marker(file, 0xDA, at)) < file.size(); ++at) last = at;
  file.resize(last);
  file.insert(file.end(), {0xFF, 0xD9});
  REQUIRE(check(file).ok());
  JpegCoefficients got;
  CHECK(read(file, got).code == Code::foreign);
}

// Damage

TEST_CASE("bytes that are no JPEG") {
  JpegCoefficients got;
  CHECK(read({}, got).code == Code::truncated);
  CHECK(read({'h', 'e', 'l', 'l', 'o'}, got).code == Code::foreign);
}

TEST_CASE("an image without a height, which a DNL marker would give, is refused") {
  Bytes file = test::make_jpeg({}, 1);
  file[find_marker(file, 0xC0) + 5] = file[find_marker(file, 0xC0) + 6] = 0;
  JpegCoefficients got;
  CHECK(read(file, got).code == Code::corrupt);
}

TEST_CASE("coefficients that would fill the memory are refused") {
  for (const bool progressive : {false, true}) {
    JpegOptions o;
    o.progressive = progressive;
    Bytes file = test::make_jpeg(o, 1);
    const std::size_t at = find_marker(file, progressive ? 0xC2 : 0xC0) + 5;
    file[at] = file[at + 2] = 0xFF;
    file[at + 1] = file[at + 3] = 0xDC;
    file.resize(file.size() - 2);
    file.resize(file.size() + 9'000'000);
    JpegCoefficients got;
    CHECK(read(file, got).code == Code::memory);
  }
}

TEST_CASE("a second scan of a file that says it has one is an error, as in libjpeg") {
  Bytes file = test::make_jpeg({}, 1);
  const std::size_t scan = find_marker(file, 0xDA);
  const Bytes again(file.begin() + static_cast<std::ptrdiff_t>(scan), file.end() - 2);
  insert(file, file.size() - 2, again);
  JpegCoefficients got;
  CHECK(check(file).code == Code::corrupt);
  CHECK(read(file, got).code == Code::corrupt);
}

TEST_CASE("a file cut anywhere is an error") {
  for (const bool progressive : {false, true}) {
    JpegOptions o = sampled({2, 2}, {1, 1}, {1, 1});
    o.progressive = progressive;
    o.restart_interval = progressive ? 0 : 3;
    const Bytes file = test::make_jpeg(o, 7);
    JpegCoefficients got;
    for (std::size_t size = 0; size < file.size(); ++size) {
      const Bytes cut =
          exactly(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
      CAPTURE(size);
      REQUIRE(read(cut, got).code == check(cut).code);
    }
    REQUIRE(read(file, got).ok());
  }
}

TEST_CASE("damaged files are errors as JpegDecoder::check() has it, or give what libjpeg reads") {
  std::mt19937 rng(12);
  JpegCoefficients got;
  int sound = 0, damaged = 0, foreign = 0;
  for (int round = 0; round < 3000; ++round) {
    JpegOptions o = sampled({2, 2}, {1, 1}, {1, 1});
    o.sampling[0] = {random_int(rng, 1, 2), random_int(rng, 1, 2)};
    o.height = random_int(rng, 1, 50);
    o.width = random_int(rng, 1, 50);
    o.components = random_int(rng, 0, 3) ? 3 : 1;
    o.restart_interval = random_int(rng, 0, 2);
    o.optimise = random_int(rng, 0, 1);
    o.progressive = round % 5 == 0;
    Bytes file = test::make_jpeg(o, rng());
    for (int edits = random_int(rng, 1, 3); edits > 0 && file.size() > 4; --edits) {
      const auto at = random_int(rng, 2, static_cast<int>(file.size()) - 1);
      switch (random_int(rng, 0, 3)) {
        case 0:
          file[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1 << rng() % 8);
          break;
        case 1:
          file.erase(file.begin() + at);
          break;
        case 2: {
          static constexpr std::uint8_t kMarkers[] = {0xD0, 0xD1, 0xD7, 0xD9, 0xDA, 0xC4,
                                                      0xDB, 0xDD, 0xC0, 0xC2, 0xFF, 0x01};
          file.insert(file.begin() + at, {0xFF, kMarkers[rng() % 12]});
          break;
        }
        case 3:
          file[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(rng());
          break;
      }
    }
    file = exactly(file);
    const Status status = read(file, got);
    CAPTURE(round);
    CAPTURE(test::describe(o));
    CAPTURE(status.message);
    if (status.code == Code::foreign) {
      ++foreign;
      continue;
    }
    const Status expected = check(file);
    CAPTURE(expected.message);
    REQUIRE(status.code == expected.code);
    if (status.ok()) {
      check_equal(got, test::decode_coefficients(file));
      Bytes again;
      REQUIRE(write_jpeg(got, again).ok());
    }
    ++(status.ok() ? sound : damaged);
  }
  CHECK(sound > 500);
  CHECK(damaged > 500);
  CHECK(foreign < 500);
}

// Writing

TEST_CASE("what is written reads as it was: any shape, quantisers, ids, metadata") {
  std::mt19937 rng(20);
  const Bytes metadata = {0xFF, 0xEE, 0, 4, 1, 2, 0xFF, 0xFE, 0, 2, 0xFF, 0xE3, 0, 3, 0xFF};
  for (int round = 0; round < 300; ++round) {
    static constexpr int kRatios[5][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};
    const auto& ratio = kRatios[round % 5];
    const bool gray = round % 6 == 0;
    JpegCoefficients in = random_coefficients(
        rng, random_int(rng, 1, round % 2 ? 8 : 67), random_int(rng, 1, round % 3 ? 20 : 131),
        gray ? 1 : 3, gray ? 1 : ratio[0], gray ? 1 : ratio[1]);
    in.progressive = random_int(rng, 0, 1);
    if (random_int(rng, 0, 1)) in.metadata = metadata;
    for (int c = 0; c < in.shape.components; ++c)
      in.shape.ids[c] = static_cast<std::uint8_t>(random_int(rng, 0, 60) * 4 + c);
    CAPTURE(round);
    Bytes file;
    REQUIRE(write_jpeg(in, file).ok());
    const Decoded libjpeg = test::decode_coefficients(file);
    CHECK(libjpeg.warnings == 0);
    check_equal(in, libjpeg);
    JpegCoefficients got;
    const Status status = read(exactly(file), got);
    CAPTURE(status.message);
    REQUIRE(status.ok());
    check_equal(got, in);
  }
}

TEST_CASE("a file that is written again has the pixels that it had") {
  std::mt19937 rng(21);
  for (int round = 0; round < 100; ++round) {
    JpegOptions o = test::random_options(rng);
    o.progressive = round % 3 == 0 && !o.four_tables;
    const Bytes file = test::make_jpeg(o, rng());
    JpegCoefficients coefficients;
    if (!read(file, coefficients).ok()) continue;
    CAPTURE(test::describe(o));
    Bytes again;
    REQUIRE(write_jpeg(coefficients, again).ok());
    REQUIRE(test::decode_fully(again, 1).pixels == test::decode_fully(file, 1).pixels);
  }
}

TEST_CASE("no markers are added") {
  std::mt19937 rng(22);
  JpegCoefficients in = random_coefficients(rng, 9, 9, 3, 1, 1);
  for (const Colour colour : {Colour::ycbcr, Colour::rgb}) {
    in.shape.colour = colour;
    Bytes file;
    REQUIRE(write_jpeg(in, file).ok());
    CHECK(file[2] == 0xFF);
    CHECK(file[3] == 0xDB);
  }
}

TEST_CASE("coefficients at the limits of a JPEG") {
  std::mt19937 rng(23);
  JpegCoefficients in = random_coefficients(rng, 32, 32, 1, 1, 1);
  for (std::size_t i = 0; i < in.blocks[0].size(); ++i) {
    const bool up = (i / 64 + i) % 2;
    in.blocks[0][i] = static_cast<std::int16_t>(i % 64 ? (up ? 1023 : -1023) : up ? 1023 : -1024);
  }
  Bytes file;
  REQUIRE(write_jpeg(in, file).ok());
  JpegCoefficients got;
  REQUIRE(read(file, got).ok());
  check_equal(got, in);
  in.blocks[0][1] = 1024;
  CHECK(write_jpeg(in, file).code == Code::unsupported);
  in.blocks[0][1] = 0;
  in.blocks[0][64] = 4000;
  CHECK(write_jpeg(in, file).code == Code::unsupported);
}

TEST_CASE("parts that contradict each other are not written") {
  std::mt19937 rng(24);
  const JpegCoefficients good = random_coefficients(rng, 9, 9, 3, 1, 1);
  Bytes file;
  JpegCoefficients in = good;
  in.blocks[1].pop_back();
  CHECK(write_jpeg(in, file).code == Code::corrupt);
  in = good;
  in.shape.sub_x = 3;
  CHECK(write_jpeg(in, file).code == Code::corrupt);
  for (const Bytes& metadata : {Bytes{0xFF},
                                {0xFF, 0xE0, 0},
                                {0xFF, 0xE0, 0, 1},
                                {0xFF, 0xE0, 0, 3},
                                {0xFF, 0xDB, 0, 2},
                                {0xFF, 0xE0, 0, 2, 0},
                                {0xFE, 0xE0, 0, 2}}) {
    in = good;
    in.metadata = metadata;
    CHECK(write_jpeg(in, file).code == Code::corrupt);
  }
}
