#include "core/block_decoder.h"

#include <doctest/doctest.h>

#include "block_records.h"
#include "core/crc32c.h"
#include "core/idct.h"

using namespace fastio;
using test::Bytes;
using test::ForcedSimd;
using test::JpegOptions;
using test::PaddedBytes;
using test::random_int;

namespace {

struct Plane {
  std::int32_t width = 0, height = 0;
  Bytes samples;
  bool operator==(const Plane&) const = default;
};

JpegCoefficients unpacked(const Codebook& book, const Bytes& record) {
  const PaddedBytes bytes(record);
  JpegCoefficients out;
  const Status status = unpack_record(book, bytes.data(), bytes.size(), out);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return out;
}

// A plane by the inverse DCT of its blocks one by one, with all samples of the last ones.
Plane reference_plane(const JpegCoefficients& in, int c, int reduce) {
  const int size = 8 / reduce;
  const std::int32_t across = in.shape.blocks_x(c), down = in.shape.blocks_y(c);
  Plane plane{across * size, down * size, {}};
  plane.samples.resize(static_cast<std::size_t>(plane.width) *
                       static_cast<std::size_t>(plane.height));
  const std::uint16_t* quant = in.shape.quant[in.shape.table[c]];
  const std::int16_t* from = in.blocks[c].data();
  for (std::int32_t y = 0; y < down; ++y)
    for (std::int32_t x = 0; x < across; ++x, from += 64) {
      alignas(64) std::int16_t block[4 * 64] = {};
      std::uint8_t out[8 * 64] = {};
      for (int z = 0; z < 64; ++z)
        block[idct_place(kZigzag[z])] = static_cast<std::int16_t>(from[kZigzag[z]] * quant[z]);
      if (size == 1) {
        idct_dc(block, 1, out);
      } else {
        idct(size, block, 1, out, 64);
      }
      for (int i = 0; i < size; ++i)
        std::copy_n(out + 64 * i, size,
                    plane.samples.data() + static_cast<std::ptrdiff_t>(y * size + i) * plane.width +
                        x * size);
    }
  return plane;
}

Plane cut(const Plane& from, SampleRange x, SampleRange y) {
  Plane out{x.last - x.first, y.last - y.first, {}};
  for (std::int32_t row = y.first; row < y.last; ++row) {
    const std::uint8_t* p = from.samples.data() + static_cast<std::ptrdiff_t>(row) * from.width;
    out.samples.insert(out.samples.end(), p + x.first, p + x.last);
  }
  return out;
}

PlaneRegion whole_region(const BlockShape& shape, int luma, int chroma) {
  PlaneRegion region;
  region.components = shape.components;
  for (int c = 0; c < shape.components; ++c) {
    region.reduce[c] = c > 0 ? chroma : luma;
    region.x[c] = {0, shape.blocks_x(c) * 8 / region.reduce[c]};
    region.y[c] = {0, shape.blocks_y(c) * 8 / region.reduce[c]};
  }
  return region;
}

SampleRange random_range(std::mt19937& rng, std::int32_t size) {
  const int first = random_int(rng, 0, size - 1);
  return {first, random_int(rng, first + 1, rng() % 2 ? size : std::min(size, first + 20))};
}

PlaneRegion random_region(std::mt19937& rng, const BlockShape& shape, int luma, int chroma) {
  PlaneRegion region = whole_region(shape, luma, chroma);
  if (rng() % 5 == 0) region.components = 1;
  for (int c = 0; c < region.components; ++c) {
    region.x[c] = random_range(rng, region.x[c].last);
    region.y[c] = random_range(rng, region.y[c].last);
  }
  return region;
}

// The region's planes, from no more of the record than plan() asked for.
Status decode(BlockDecoder& decoder, const Codebook& book, const Bytes& record,
              const PlaneRegion& region, std::vector<Plane>* planes = nullptr) {
  const BlockHeader header = test::header_of(record);
  const PaddedBytes head(record.data(), header.bytes);
  Status status = decoder.open(book, head.data(), head.size(), record.size());
  REQUIRE(status.ok());
  const RecordReads reads = decoder.plan(region);
  REQUIRE(reads.dc.begin >= header.bytes);
  REQUIRE(reads.dc.end <= header.ac_begin[0]);
  const PaddedBytes dc_bytes(record.data() + reads.dc.begin, reads.dc.size());
  std::vector<PaddedBytes> ac_bytes;
  std::vector<const std::uint8_t*> ac;
  std::size_t end = header.ac_begin[0];
  for (const ByteRange& range : reads.ac) {
    REQUIRE(range.begin >= end);
    end = range.end;
    ac.push_back(ac_bytes.emplace_back(record.data() + range.begin, range.size()).data());
  }
  REQUIRE(end <= header.ac_begin.back());
  PlaneView views[3] = {};
  status = decoder.decode(dc_bytes.data(), ac.data(), views);
  if (!planes || !status.ok()) return status;
  planes->clear();
  for (int c = 0; c < region.components; ++c) {
    Plane plane{region.x[c].last - region.x[c].first, region.y[c].last - region.y[c].first, {}};
    unsigned padding = 0;
    for (std::int32_t y = 0; y < plane.height; ++y) {
      const std::uint8_t* row = views[c].first + y * views[c].stride;
      plane.samples.insert(plane.samples.end(), row, row + plane.width);
      for (std::size_t i = 0; i < kReadPad; ++i) padding += row[plane.width + static_cast<int>(i)];
    }
    REQUIRE(padding != 1u << 31);  // read, that is: the sanitizers tell
    planes->push_back(std::move(plane));
  }
  return status;
}

struct Sample {
  std::unique_ptr<Codebook> book;
  Bytes jpeg, record;

  Sample(const JpegOptions& o, std::uint32_t seed)
      : book(test::random_codebook(seed)),
        jpeg(test::make_jpeg(o, seed)),
        record(test::record_of(*book, jpeg)) {}
};

void set_crc(Bytes& record, std::size_t at, std::size_t begin, std::size_t end) {
  const std::uint32_t crc = crc32c(record.data() + begin, end - begin);
  for (std::size_t i = 0; i < 4; ++i) record[at + i] = static_cast<std::uint8_t>(crc >> (8 * i));
}

// Makes all checksums fit what the record has.
void mend(Bytes& record) {
  const BlockHeader header = test::header_of(record);
  const std::size_t rows = header.dc_crc.size(), groups = header.ac_crc.size();
  const std::size_t at = header.bytes - 8 - 4 * (rows + groups);
  for (std::size_t r = 0; r < rows; ++r)
    set_crc(record, at + 4 * r, header.dc_begin[r], header.dc_begin[r + 1]);
  for (std::int32_t g = 0; g < header.shape.group_columns(); ++g)
    for (std::int32_t r = 0; r < header.shape.tile_rows(); ++r)
      set_crc(record, at + 4 * (rows + header.shape.group_number(r, g)), header.group_begin(r, g),
              header.group_end(r, g));
  set_crc(record, header.bytes - 8, header.ac_begin.back(), record.size());
  set_crc(record, header.bytes - 4, 0, header.bytes - 4);
}

JpegOptions small_picture() {
  JpegOptions o;
  o.height = 40;
  o.width = 150;
  o.sampling[0] = {2, 2};
  return o;
}

}  // namespace

TEST_CASE("a record is unpacked to the coefficients and metadata of its JPEG") {
  std::mt19937 rng(1);
  for (int round = 0; round < 60; ++round) {
    const Sample s(test::random_picture(rng, 70, 300), rng());
    const JpegCoefficients in = test::read_jpeg(s.jpeg), out = unpacked(*s.book, s.record);
    REQUIRE(out.metadata == in.metadata);
    REQUIRE_FALSE(out.metadata.empty());
    CHECK(out.shape.components == in.shape.components);
    CHECK(out.shape.colour == in.shape.colour);
    for (int c = 0; c < 3; ++c) REQUIRE(out.blocks[c] == in.blocks[c]);
    Bytes file;
    REQUIRE(write_jpeg(out, file).ok());
    REQUIRE(test::decode_fully(file, 1).pixels == test::decode_fully(s.jpeg, 1).pixels);
  }
}

TEST_CASE("planes of a whole record are the inverse DCT of its coefficients, at every size") {
  std::mt19937 rng(2);
  BlockDecoder decoder;
  for (int round = 0; round < 24; ++round) {
    const Sample s(test::random_picture(rng, 70, 300), rng());
    const JpegCoefficients in = unpacked(*s.book, s.record);
    for (const int luma : {1, 2, 4, 8})
      for (const int chroma : {1, 2, 4, 8})
        for (const Simd level : test::kLevels) {
          const ForcedSimd forced(level);
          std::vector<Plane> planes;
          REQUIRE(decode(decoder, *s.book, s.record, whole_region(in.shape, luma, chroma), &planes)
                      .ok());
          for (int c = 0; c < in.shape.components; ++c)
            REQUIRE(planes[static_cast<std::size_t>(c)] ==
                    reference_plane(in, c, c > 0 ? chroma : luma));
        }
  }
}

TEST_CASE("regions are cut out of the whole planes, whatever their place, size and reduction") {
  std::mt19937 rng(3);
  BlockDecoder decoder;
  for (int round = 0; round < 25; ++round) {
    const Sample s(test::random_picture(rng, 90, 500), rng());
    const JpegCoefficients in = unpacked(*s.book, s.record);
    for (int i = 0; i < 40; ++i) {
      const ForcedSimd forced(test::kLevels[rng() % std::size(test::kLevels)]);
      const PlaneRegion region =
          random_region(rng, in.shape, 1 << random_int(rng, 0, 3), 1 << random_int(rng, 0, 3));
      std::vector<Plane> planes;
      REQUIRE(decode(decoder, *s.book, s.record, region, &planes).ok());
      for (int c = 0; c < region.components; ++c)
        REQUIRE(planes[static_cast<std::size_t>(c)] ==
                cut(reference_plane(in, c, region.reduce[c]), region.x[c], region.y[c]));
    }
  }
}

TEST_CASE("an eighth of every plane takes no byte of the AC section") {
  const Sample s(small_picture(), 4);
  BlockDecoder decoder;
  REQUIRE(decoder.open(*s.book, s.record.data(), s.record.size(), s.record.size()).ok());
  const RecordReads& reads = decoder.plan(whole_region(decoder.shape(), 8, 8));
  CHECK(reads.ac.empty());
  CHECK(reads.dc.begin == decoder.header().bytes);
  CHECK(reads.dc.end == decoder.header().ac_begin[0]);
  CHECK(decoder.plan(whole_region(decoder.shape(), 8, 4)).ac.size() == 1);
}

TEST_CASE(
    "a region takes its tile rows of the DC section, and the groups of four tiles it touches") {
  JpegOptions o = small_picture();
  o.height = 16 * 9;
  o.width = 128 * 4 * 3 + 60;  // four columns of groups, the last of one tile
  const Sample s(o, 5);
  BlockDecoder decoder;
  REQUIRE(decoder.open(*s.book, s.record.data(), s.record.size(), s.record.size()).ok());
  const BlockHeader& header = decoder.header();
  const auto plan = [&](SampleRange x, SampleRange y) {
    PlaneRegion region;
    region.x[0] = x;
    region.y[0] = y;
    return decoder.plan(region);
  };
  const auto same = [](const ByteRange& range, std::size_t begin, std::size_t end) {
    return range.begin == begin && range.end == end;
  };

  const RecordReads one = plan({520, 530}, {16 * 3, 16 * 5});
  CHECK(same(one.dc, header.dc_begin[3], header.dc_begin[5]));
  REQUIRE(one.ac.size() == 1);
  CHECK(same(one.ac[0], header.group_begin(3, 1), header.group_end(4, 1)));

  const RecordReads two = plan({1023, 1025}, {16 * 8, 16 * 9});
  REQUIRE(two.ac.size() == 2);
  CHECK(same(two.ac[0], header.group_begin(8, 1), header.group_end(8, 1)));
  CHECK(same(two.ac[1], header.group_begin(8, 2), header.group_end(8, 2)));

  // All rows of columns that follow each other are one range, and so is all of the record.
  const RecordReads tall = plan({600, 1100}, {0, 16 * 9});
  REQUIRE(tall.ac.size() == 1);
  CHECK(same(tall.ac[0], header.group_begin(0, 1), header.group_end(8, 2)));
  const RecordReads all = plan({0, o.width}, {0, o.height});
  REQUIRE(all.ac.size() == 1);
  CHECK(same(all.ac[0], header.ac_begin[0], header.ac_begin.back()));
}

TEST_CASE("only the groups of tiles that a region touches are read and checked") {
  JpegOptions o = small_picture();
  o.width = 1200;
  const Sample s(o, 13);
  const BlockHeader header = test::header_of(s.record);
  PlaneRegion region;
  region.x[0] = {530, 1020};
  region.y[0] = {0, 20};
  BlockDecoder decoder;
  std::vector<Plane> sound, planes;
  REQUIRE(decode(decoder, *s.book, s.record, region, &sound).ok());
  for (std::int32_t r = 0; r < header.shape.tile_rows(); ++r)
    for (std::int32_t g = 0; g < header.shape.group_columns(); ++g)
      for (const std::size_t at : {header.group_begin(r, g), header.group_end(r, g) - 1}) {
        Bytes damaged = s.record;
        damaged[at] ^= 4;
        const Status status = decode(decoder, *s.book, damaged, region, &planes);
        REQUIRE(status.code == (g == 1 && r < 2 ? Code::corrupt : Code::ok));
        if (status.ok()) REQUIRE(planes == sound);
        JpegCoefficients out;
        const PaddedBytes bytes(damaged);
        REQUIRE(unpack_record(*s.book, bytes.data(), bytes.size(), out).code == Code::corrupt);
      }
}

TEST_CASE("every damaged byte of the parts that a region takes is noticed, others do no harm") {
  const Sample s(small_picture(), 6);
  const BlockHeader header = test::header_of(s.record);
  BlockDecoder decoder;
  PlaneRegion region = whole_region(header.shape, 1, 1);
  for (int c = 0; c < 3; ++c) region.y[c] = {8, c == 0 ? 24 : 12};  // the first two tile rows
  std::vector<Plane> sound, planes;
  REQUIRE(decode(decoder, *s.book, s.record, region, &sound).ok());
  const RecordReads reads = decoder.plan(region);
  REQUIRE(reads.ac.size() == 1);
  const auto within = [](const ByteRange& range, std::size_t at) {
    return at >= range.begin && at < range.end;
  };
  for (std::size_t at = header.bytes; at < s.record.size(); ++at) {
    Bytes damaged = s.record;
    damaged[at] ^= 0x10;
    const bool taken = within(reads.dc, at) || within(reads.ac[0], at);
    const Status status = decode(decoder, *s.book, damaged, region, &planes);
    REQUIRE(status.code == (taken ? Code::corrupt : Code::ok));
    if (!taken) REQUIRE(planes == sound);
  }
}

TEST_CASE("no bit of a record can change without unpacking noticing") {
  JpegOptions o = small_picture();
  o.height = 20;
  o.width = 30;
  const Sample s(o, 7);
  JpegCoefficients out;
  for (std::size_t bit = 0; bit < 8 * s.record.size(); ++bit) {
    Bytes changed = s.record;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
    const PaddedBytes bytes(changed);
    REQUIRE_FALSE(unpack_record(*s.book, bytes.data(), bytes.size(), out).ok());
  }
  for (std::size_t size = 0; size < s.record.size(); ++size) {
    const PaddedBytes bytes(s.record.data(), size);
    REQUIRE_FALSE(unpack_record(*s.book, bytes.data(), bytes.size(), out).ok());
  }
}

TEST_CASE("damage with checksums that fit is an error or other pixels, alike for both readers") {
  std::mt19937 rng(8);
  BlockDecoder decoder;
  int sound = 0;
  std::unique_ptr<Sample> s;
  for (int round = 0; round < 400; ++round) {
    if (round % 20 == 0) s = std::make_unique<Sample>(test::random_picture(rng, 40, 300), rng());
    Bytes damaged = s->record;
    const std::size_t begin = test::header_of(damaged).bytes;
    for (int i = random_int(rng, 1, 3); i > 0; --i)
      damaged[begin + rng() % (damaged.size() - begin)] = static_cast<std::uint8_t>(rng());
    mend(damaged);
    const PaddedBytes bytes(damaged);
    JpegCoefficients out;
    const Status status = unpack_record(*s->book, bytes.data(), bytes.size(), out);
    REQUIRE((status.ok() || status.code == Code::corrupt));
    for (const Simd level : test::kLevels) {
      const ForcedSimd forced(level);
      std::vector<Plane> planes;
      const PlaneRegion region = whole_region(test::header_of(damaged).shape, 1, 1);
      REQUIRE(decode(decoder, *s->book, damaged, region, &planes).code == status.code);
      for (int c = 0; status.ok() && c < out.shape.components; ++c)
        REQUIRE(planes[static_cast<std::size_t>(c)] == reference_plane(out, c, 1));
    }
    sound += status.ok();
  }
  CHECK(sound > 20);
}

TEST_CASE("a record read with another codebook stays within its memory") {
  std::mt19937 rng(9);
  BlockDecoder decoder;
  for (int round = 0; round < 60; ++round) {
    const Sample s(test::random_picture(rng, 40, 300), rng());
    const auto other = test::random_codebook(rng());
    const Status status =
        decode(decoder, *other, s.record, whole_region(test::header_of(s.record).shape, 1, 1));
    CHECK((status.ok() || status.code == Code::corrupt));
  }
}

TEST_CASE("a decoder gives memory back and goes on") {
  const Sample s(small_picture(), 10);
  BlockDecoder decoder;
  const PlaneRegion region = whole_region(test::header_of(s.record).shape, 1, 1);
  std::vector<Plane> before, after;
  REQUIRE(decode(decoder, *s.book, s.record, region, &before).ok());
  decoder.shrink(0);
  REQUIRE(decode(decoder, *s.book, s.record, region, &after).ok());
  CHECK(before == after);
}

TEST_CASE("the longest images there are") {
  BlockDecoder decoder;
  const auto book = test::random_codebook(11);
  for (const auto& [height, width] : std::vector<std::pair<int, int>>{{1, 65535}, {65535, 1}})
    for (const test::Sampling sampling : {test::Sampling{1, 1}, {2, 2}, {4, 1}}) {
      std::mt19937 rng(12);
      JpegCoefficients in;
      in.shape = test::make_shape(height, width, 3, sampling);
      for (int c = 0; c < 3; ++c) {
        in.blocks[c].resize(std::size_t{64} * static_cast<std::size_t>(in.shape.blocks_x(c)) *
                            static_cast<std::size_t>(in.shape.blocks_y(c)));
        for (auto& value : in.blocks[c])
          value = static_cast<std::int16_t>(rng() % 9 ? 0 : random_int(rng, -9, 9));
      }
      const Bytes record = test::encode_record(*book, in);
      REQUIRE(unpacked(*book, record).blocks[1] == in.blocks[1]);
      const PlaneRegion region = random_region(rng, in.shape, 1, 1);
      std::vector<Plane> planes;
      REQUIRE(decode(decoder, *book, record, region, &planes).ok());
      for (int c = 0; c < region.components; ++c)
        REQUIRE(planes[static_cast<std::size_t>(c)] ==
                cut(reference_plane(in, c, 1), region.x[c], region.y[c]));
    }
}
