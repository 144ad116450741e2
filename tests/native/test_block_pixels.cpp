#include "core/block_pixels.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "block_records.h"
#include "core/store.h"

using namespace fastio;
using test::Bytes;
using test::ForcedSimd;
using test::JpegOptions;
using test::random_int;

namespace {

struct Picture {
  std::int32_t height = 0, width = 0;
  Bytes pixels;
  bool operator==(const Picture&) const = default;
};

struct Options {
  int orientation = 1, denominator = 1, channels = 3;
};

// From the first `size` bytes of a record, in memory of exactly that size; the same at every level.
Status read(const Codebook& book, const Bytes& record, std::size_t size, const Options& o,
            Picture& out) {
  const Bytes bytes(record.data(), record.data() + size);
  Status status;
  for (const Simd level : test::kLevels) {
    const ForcedSimd forced(level);
    BlockPixels reader;
    Picture now;
    status = reader.open(book, bytes.data(), size, record.size(), o.orientation, o.denominator,
                         o.channels);
    if (!status.ok()) return status;
    now.height = reader.height();
    now.width = reader.width();
    now.pixels.resize(static_cast<std::size_t>(now.height) * static_cast<std::size_t>(now.width) *
                      static_cast<std::size_t>(o.channels));
    status = reader.read(now.pixels.data());
    if (status.ok() && level != Simd::portable) REQUIRE(now == out);
    out = std::move(now);
  }
  return status;
}

Picture whole(const Codebook& book, const Bytes& record, const Options& o) {
  Picture out;
  const Status status = read(book, record, record.size(), o, out);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return out;
}

struct Difference {
  double mean = 0;
  int most = 0;
};

Difference difference(const Bytes& a, const Bytes& b) {
  REQUIRE(a.size() == b.size());
  Difference d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    d.mean += std::abs(a[i] - b[i]);
    d.most = std::max(d.most, std::abs(a[i] - b[i]));
  }
  d.mean /= static_cast<double>(std::max<std::size_t>(a.size(), 1));
  return d;
}

struct Sample {
  std::unique_ptr<Codebook> book;
  Bytes jpeg, record;

  Sample(const JpegOptions& o, std::uint32_t seed)
      : book(test::random_codebook(seed)),
        jpeg(test::make_jpeg(o, seed)),
        record(test::record_of(*book, jpeg)) {}
};

}  // namespace

TEST_CASE("a whole image is libjpeg's, but for how colours are rounded") {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    const JpegOptions o = test::random_picture(rng, 70, 300);
    CAPTURE(test::describe(o));
    const Sample s(o, rng());
    const test::Decoded expected = test::decode_fully(s.jpeg, 1);
    const Picture got = whole(*s.book, s.record, {1, 1, expected.channels});
    REQUIRE(got.height == o.height);
    REQUIRE(got.width == o.width);
    const Difference d = difference(got.pixels, expected.pixels);
    if (o.components == 1) {
      CHECK(d.most == 0);
    } else {
      CHECK(d.mean < 0.5);
      CHECK(d.most <= 3);
    }
  }
}

TEST_CASE("luma alone is what a gray image is of") {
  JpegOptions o;
  o.height = 33;
  o.width = 140;
  o.sampling[0] = {2, 2};
  const Sample s(o, 2);
  JpegCoefficients gray = test::read_jpeg(s.jpeg);
  gray.shape.components = 1;
  gray.shape.colour = Colour::gray;
  gray.shape.sub_x = gray.shape.sub_y = 1;
  for (int c : {1, 2}) gray.shape.ids[c] = gray.shape.table[c] = 0, gray.blocks[c].clear();
  gray.metadata.clear();
  const Bytes record = test::encode_record(*s.book, gray);
  for (const int denominator : {1, 2, 4, 8}) {
    const Picture luma = whole(*s.book, s.record, {1, denominator, 1});
    CHECK(luma == whole(*s.book, record, {1, denominator, 1}));
    const Picture three = whole(*s.book, record, {1, denominator, 3});
    for (std::size_t i = 0; i < three.pixels.size(); ++i)
      REQUIRE(three.pixels[i] == luma.pixels[i / 3]);
  }
}

TEST_CASE("reduced images are near libjpeg's, and their sizes round up") {
  std::mt19937 rng(3);
  for (const int denominator : {2, 4, 8})
    for (int round = 0; round < 25; ++round) {
      JpegOptions o = test::random_picture(rng, 90, 300);
      o.noise = 5;
      CAPTURE(test::describe(o));
      CAPTURE(denominator);
      const Sample s(o, rng());
      const test::Decoded expected = test::decode_fully(s.jpeg, denominator);
      const Picture got = whole(*s.book, s.record, {1, denominator, expected.channels});
      REQUIRE(got.height == (o.height + denominator - 1) / denominator);
      REQUIRE(got.width == (o.width + denominator - 1) / denominator);
      const Difference d = difference(got.pixels, expected.pixels);
      if (o.components == 1) CHECK(d.most == 0);
      // Subsampled chroma is reduced more than by libjpeg where the DC section is to suffice, and
      // not interpolated: this picture's colours jump.
      const bool subsampled = o.sampling[0].h * o.sampling[0].v > 1;
      CHECK(d.mean < (!subsampled ? 0.5 : denominator == 8 ? 12 : 5));
    }
}

TEST_CASE("orientations are those of the upright image") {
  std::mt19937 rng(4);
  for (const int denominator : {1, 2, 8})
    for (const int channels : {1, 3})
      for (int orientation = 1; orientation <= 8; ++orientation) {
        JpegOptions o;
        o.height = random_int(rng, 1, 50);
        o.width = random_int(rng, 1, 180);
        o.sampling[0] = {2, 1};
        const Sample s(o, rng());
        const Picture stored = whole(*s.book, s.record, {1, denominator, channels});
        const Picture got = whole(*s.book, s.record, {orientation, denominator, channels});
        Bytes expected(stored.pixels.size());
        orient(stored.pixels.data(), stored.width * channels, stored.height, stored.width, channels,
               orientation, expected.data(), got.width * channels);
        REQUIRE(got.height == (orientation >= 5 ? stored.width : stored.height));
        REQUIRE(got.width == (orientation >= 5 ? stored.height : stored.width));
        REQUIRE(got.pixels == expected);
      }
}

TEST_CASE(
    "at an eighth the header and the DC section are enough, at other sizes all but metadata") {
  std::mt19937 rng(5);
  for (int round = 0; round < 20; ++round) {
    const Sample s(test::random_picture(rng, 50, 200), rng());
    const BlockHeader header = test::header_of(s.record);
    const std::size_t ac = header.ac_begin[0], metadata = header.ac_begin.back();
    Picture got;
    REQUIRE(read(*s.book, s.record, ac, {1, 8, 3}, got).ok());
    CHECK(got == whole(*s.book, s.record, {1, 8, 3}));
    CHECK(read(*s.book, s.record, ac - 1, {1, 8, 3}, got).code == Code::truncated);
    for (const int denominator : {1, 2, 4}) {
      REQUIRE(read(*s.book, s.record, metadata, {1, denominator, 3}, got).ok());
      CHECK(got == whole(*s.book, s.record, {1, denominator, 3}));
      CHECK(read(*s.book, s.record, ac, {1, denominator, 3}, got).code == Code::truncated);
    }
    CHECK(read(*s.book, s.record, header.bytes - 1, {1, 8, 3}, got).code == Code::truncated);
    CHECK(read(*s.book, s.record, 0, {1, 8, 3}, got).code == Code::truncated);
  }
}

TEST_CASE("a damaged record is an error") {
  JpegOptions o;
  o.height = 20;
  o.width = 150;
  const Sample s(o, 6);
  const BlockHeader header = test::header_of(s.record);
  for (std::size_t at = 0; at < s.record.size(); at += 3) {
    Bytes damaged = s.record;
    damaged[at] ^= 1;
    Picture got;
    const bool used = at < header.ac_begin.back();
    REQUIRE(read(*s.book, damaged, damaged.size(), {}, got).ok() == !used);
    const bool used_at_an_eighth = at < header.ac_begin[0];
    REQUIRE(read(*s.book, damaged, damaged.size(), {1, 8, 3}, got).ok() == !used_at_an_eighth);
  }
}

TEST_CASE("the longest edges at every size") {
  const auto book = test::random_codebook(7);
  for (const auto& [height, width] : std::vector<std::pair<int, int>>{{1, 65535}, {65535, 1}})
    for (const int components : {1, 3})
      for (const test::Sampling sampling : {test::Sampling{2, 2}, {4, 1}}) {
        JpegCoefficients in;
        in.shape = test::make_shape(height, width, components, sampling);
        for (int c = 0; c < components; ++c) {
          in.blocks[c].resize(std::size_t{64} * static_cast<std::size_t>(in.shape.blocks_x(c)) *
                              static_cast<std::size_t>(in.shape.blocks_y(c)));
          for (std::size_t i = 0; i < in.blocks[c].size(); i += 64)
            in.blocks[c][i] = static_cast<std::int16_t>(c == 0 ? i / 64 % 1000 : 0);
        }
        const Bytes record = test::encode_record(*book, in);
        for (const int denominator : {1, 2, 4, 8}) {
          const Picture got = whole(*book, record, {1, denominator, 1});
          CHECK(got.height == (height + denominator - 1) / denominator);
          CHECK(got.width == (width + denominator - 1) / denominator);
          // The last sample is of the last block.
          const int last = std::clamp((8191 % 1000 + 4) / 8 + 128, 0, 255);
          CHECK(got.pixels.back() == last);
          CHECK(got.pixels[0] == 128);
          whole(*book, record, {6, denominator, 3});
        }
      }
}
