#include "core/jpeg.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

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

struct Region {
  Status status;
  Bytes pixels;  // (height, width, channels) of the wanted region
};

Region read_region(JpegDecoder& decoder, const Bytes& file, const Rect& wanted, int denominator) {
  Region out;
  JpegHeader header;
  out.status = decoder.open(file.data(), file.size(), true, header);
  std::int32_t offset = 0, columns = 0;
  if (out.status.ok()) out.status = decoder.begin(wanted, denominator, offset, columns);
  if (out.status.ok()) {
    REQUIRE(offset >= 0);
    REQUIRE(columns >= offset + wanted.width);
    const auto channels = static_cast<std::size_t>(header.components);
    const std::size_t stride = static_cast<std::size_t>(columns) * channels;
    Bytes rows(stride * static_cast<std::size_t>(wanted.height));
    out.status = decoder.read(rows.data(), stride, wanted.height);
    for (std::int32_t y = 0; y < wanted.height; ++y) {
      const auto from =
          rows.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(y) * stride +
                                                     static_cast<std::size_t>(offset) * channels);
      out.pixels.insert(out.pixels.end(), from, from + wanted.width * header.components);
    }
  }
  decoder.finish();
  return out;
}

Bytes part_of(const Decoded& whole, const Rect& r) {
  Bytes out;
  for (int y = r.y; y < r.y + r.height; ++y) {
    const auto from =
        whole.pixels.begin() + static_cast<std::ptrdiff_t>(y * whole.width + r.x) * whole.channels;
    out.insert(out.end(), from, from + r.width * whole.channels);
  }
  return out;
}

// Sizes of one axis: all, an edge, the middle.
void random_range(std::mt19937& rng, int size, std::int32_t& begin, std::int32_t& length) {
  length = random_int(rng, 1, random_int(rng, 0, 1) ? size : std::min(size, 3));
  begin = random_int(rng, 0, 3) == 0 ? (random_int(rng, 0, 1) ? 0 : size - length)
                                     : random_int(rng, 0, size - length);
}

void check_regions(JpegDecoder& decoder, const Bytes& file, std::mt19937& rng, int regions) {
  for (const int denominator : {1, 2, 4, 8}) {
    const Decoded whole = test::decode_fully(file, denominator);
    REQUIRE(whole.ok);
    for (int i = 0; i < regions; ++i) {
      Rect r;
      random_range(rng, whole.height, r.y, r.height);
      random_range(rng, whole.width, r.x, r.width);
      CAPTURE(denominator);
      CAPTURE(r.y);
      CAPTURE(r.x);
      CAPTURE(r.height);
      CAPTURE(r.width);
      const Region got = read_region(decoder, file, r, denominator);
      CAPTURE(got.status.message);
      REQUIRE(got.status.ok());
      REQUIRE(got.pixels == part_of(whole, r));
    }
  }
}

Status check(const Bytes& file) {
  JpegDecoder decoder;
  JpegHeader header;
  const Status status = decoder.open(file.data(), file.size(), true, header);
  JpegIndex index;
  return status.ok() ? decoder.check(index) : status;
}

std::size_t find_marker(const Bytes& file, std::uint8_t marker, std::size_t from = 2) {
  for (std::size_t at = from; at + 1 < file.size(); ++at)
    if (file[at] == 0xFF && file[at + 1] == marker) return at;
  return file.size();
}

void set_size(Bytes& file, std::uint8_t marker, int height, int width) {
  const std::size_t at = find_marker(file, marker) + 5;
  file[at] = static_cast<std::uint8_t>(height >> 8);
  file[at + 1] = static_cast<std::uint8_t>(height);
  file[at + 2] = static_cast<std::uint8_t>(width >> 8);
  file[at + 3] = static_cast<std::uint8_t>(width);
}

JpegOptions gray(int height, int width) {
  JpegOptions o;
  o.height = height;
  o.width = width;
  o.components = 1;
  return o;
}

JpegOptions colour(int height, int width, int h, int v) {
  JpegOptions o;
  o.height = height;
  o.width = width;
  o.sampling[0] = {h, v};
  return o;
}

}  // namespace

// Pixels

TEST_CASE("a region is that part of a full decode: sequential files of any kind, every scale") {
  std::mt19937 rng(1);
  JpegDecoder decoder;
  for (int round = 0; round < 150; ++round) {
    const JpegOptions o = test::random_options(rng);
    CAPTURE(test::describe(o));
    check_regions(decoder, test::make_jpeg(o, rng()), rng, 6);
  }
}

TEST_CASE("a region is that part of a full decode: scans apart, progressive, arithmetic") {
  std::mt19937 rng(2);
  JpegDecoder decoder;
  for (int round = 0; round < 60; ++round) {
    JpegOptions o = test::random_options(rng);
    o.four_tables = false;
    o.apart = round % 4 == 0;
    o.progressive = round % 4 == 1;
    o.arithmetic = round % 4 >= 2;
    if (round % 8 == 3) o.progressive = true;
    CAPTURE(test::describe(o));
    check_regions(decoder, test::make_jpeg(o, rng()), rng, 4);
  }
}

TEST_CASE("every single pixel is that of a full decode") {
  JpegDecoder decoder;
  for (const test::Sampling luma : {test::Sampling{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}}) {
    const JpegOptions o = colour(35, 67, luma.h, luma.v);
    const Bytes file = test::make_jpeg(o, 5);
    CAPTURE(test::describe(o));
    for (const int denominator : {1, 2, 4, 8}) {
      const Decoded whole = test::decode_fully(file, denominator);
      for (std::int32_t y = 0; y < whole.height; ++y)
        for (std::int32_t x = 0; x < whole.width; ++x)
          REQUIRE(read_region(decoder, file, {y, x, 1, 1}, denominator).pixels ==
                  part_of(whole, {y, x, 1, 1}));
    }
  }
}

TEST_CASE("images of a few pixels") {
  std::mt19937 rng(3);
  JpegDecoder decoder;
  for (int height = 1; height <= 18; ++height) {
    for (int width = 1; width <= 18; ++width) {
      const JpegOptions o = colour(height, width, 1 + height % 2, 1 + width % 2);
      CAPTURE(test::describe(o));
      check_regions(decoder, test::make_jpeg(o, rng()), rng, 1);
    }
  }
}

// Damage

TEST_CASE("bytes that are no JPEG are foreign, and none at all are truncated") {
  JpegDecoder decoder;
  JpegHeader header;
  CHECK(decoder.open(nullptr, 0, true, header).code == Code::truncated);
  for (const std::string text : {"h", "hello", "\x89PNG\r\n\x1a\n", "\xFF\xD8", "\xFF\xD8\xFE\xFF"})
    CHECK(
        decoder.open(reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), true, header)
            .code == Code::foreign);
}

TEST_CASE("four components are foreign, but sound") {
  JpegOptions o;
  o.components = 4;
  const Bytes file = test::make_jpeg(o, 1);
  JpegDecoder decoder;
  JpegHeader header;
  CHECK(decoder.open(file.data(), file.size(), true, header).code == Code::foreign);
  CHECK(header.components == 4);
  JpegIndex index;
  CHECK(decoder.check(index).ok());
}

TEST_CASE("a file cut anywhere is an error or gives the pixels that were there") {
  JpegDecoder decoder;
  for (const bool progressive : {false, true}) {
    JpegOptions o = colour(33, 41, 2, 2);
    o.progressive = progressive;
    const Bytes file = test::make_jpeg(o, 7);
    const Decoded whole = test::decode_fully(file, 1);
    for (std::size_t size = 0; size < file.size(); ++size) {
      const Bytes cut =
          exactly(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
      CAPTURE(size);
      REQUIRE_FALSE(check(cut).ok());
      const Rect top{0, 0, 9, 41};
      const Region got = read_region(decoder, cut, top, 1);
      if (got.status.ok()) {
        REQUIRE(got.pixels == part_of(whole, top));
      } else {
        REQUIRE(got.status.code == (size < 4 && size > 0 ? Code::foreign : Code::truncated));
      }
    }
    REQUIRE(read_region(decoder, file, {0, 0, 33, 41}, 1).pixels == whole.pixels);
  }
}

TEST_CASE("a baseline file without its end marker decodes, but is not sound") {
  Bytes file = test::make_jpeg(colour(33, 41, 2, 2), 7);
  const Decoded whole = test::decode_fully(file, 1);
  file.resize(file.size() - 2);
  JpegDecoder decoder;
  const Region got = read_region(decoder, exactly(file), {0, 0, 33, 41}, 1);
  CHECK(got.status.ok());
  CHECK(got.pixels == whole.pixels);
  CHECK(check(file).code == Code::truncated);
}

TEST_CASE("a header that promises more pixels than the bytes can hold is refused at once") {
  for (const bool progressive : {false, true}) {
    JpegOptions o;
    o.progressive = progressive;
    Bytes file = test::make_jpeg(o, 1);
    set_size(file, progressive ? 0xC2 : 0xC0, 65500, 65500);
    CHECK(check(file).code == Code::truncated);
    set_size(file, progressive ? 0xC2 : 0xC0, 0, 16);
    CHECK(check(file).code == Code::corrupt);
    set_size(file, progressive ? 0xC2 : 0xC0, 16, 0);
    CHECK(check(file).code == Code::corrupt);
  }
}

TEST_CASE("a blank image that takes two bits a block is not refused") {
  JpegOptions o = gray(4000, 4000);
  o.noise = 0;
  o.optimise = true;
  o.quality = 1;
  JpegDecoder decoder;
  CHECK(check(test::make_jpeg(o, 4)).ok());
}

TEST_CASE("coefficients that would fill the memory are refused") {
  JpegOptions o;
  o.progressive = true;
  Bytes file = test::make_jpeg(o, 1);
  set_size(file, 0xC2, 65500, 65500);
  file.resize(file.size() - 2);
  file.resize(file.size() + 9'000'000);
  CHECK(check(file).code == Code::memory);
}

TEST_CASE("a file of endless scans is refused") {
  JpegOptions o = gray(16, 16);
  o.progressive = true;
  const Bytes file = test::make_jpeg(o, 1);
  const std::size_t first = find_marker(file, 0xDA), second = find_marker(file, 0xC4, first);
  Bytes many(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(second));
  for (int i = 0; i < 1000; ++i)
    many.insert(many.end(), file.begin() + static_cast<std::ptrdiff_t>(first),
                file.begin() + static_cast<std::ptrdiff_t>(second));
  many.insert(many.end(), {0xFF, 0xD9});
  CHECK(check(many).code == Code::corrupt);
  JpegDecoder decoder;
  CHECK(read_region(decoder, many, {0, 0, 1, 1}, 1).status.code == Code::corrupt);
}

TEST_CASE("lost, doubled and displaced restart markers cost what they cost in libjpeg") {
  std::mt19937 rng(11);
  JpegDecoder decoder;
  int resumed = 0;
  for (int round = 0; round < 400; ++round) {
    JpegOptions o = gray(random_int(rng, 9, 80), random_int(rng, 9, 80));
    o.restart_interval = random_int(rng, 1, 6);
    const Bytes file = test::make_jpeg(o, rng());
    // The scan as intervals, and markers between them.
    std::vector<Bytes> intervals(1);
    std::vector<std::uint8_t> markers;
    const std::size_t begin = find_marker(file, 0xDA) + 10;
    for (std::size_t at = begin; at + 2 < file.size(); ++at) {
      if (file[at] == 0xFF && file[at + 1] != 0) {
        markers.push_back(file[++at]);
        intervals.emplace_back();
      } else {
        intervals.back().push_back(file[at]);
      }
    }
    if (markers.empty()) continue;
    for (int edits = random_int(rng, 1, 2); edits > 0; --edits) {
      const auto which =
          static_cast<std::size_t>(random_int(rng, 0, static_cast<int>(markers.size()) - 1));
      const auto other =
          static_cast<std::size_t>(random_int(rng, 0, static_cast<int>(markers.size()) - 1));
      switch (random_int(rng, 0, 4)) {
        case 0:  // lost: 1 stands for none here
          markers[which] = 1;
          break;
        case 1:
          std::swap(markers[which], markers[other]);
          break;
        case 2:
          markers[which] = static_cast<std::uint8_t>(0xD0 + random_int(rng, 0, 7));
          break;
        case 3:  // an interval is lost with its marker
          intervals[which].clear();
          markers[which] = 1;
          break;
        case 4:  // a marker that means nothing
          markers[which] = 0x02;
          break;
      }
    }
    Bytes damaged(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(begin));
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      damaged.insert(damaged.end(), intervals[i].begin(), intervals[i].end());
      if (i < markers.size() && markers[i] != 1) damaged.insert(damaged.end(), {0xFF, markers[i]});
    }
    damaged.insert(damaged.end(), {0xFF, 0xD9});
    const Decoded whole = test::decode_fully(damaged, 1);
    const Region got = read_region(decoder, exactly(damaged), {0, 0, o.height, o.width}, 1);
    CAPTURE(round);
    REQUIRE(got.status.ok());
    REQUIRE(got.pixels == whole.pixels);
    resumed += whole.warnings > 0;
  }
  CHECK(resumed > 200);
}

TEST_CASE("damaged files decode or fail, and leave the decoder as good as new") {
  std::mt19937 rng(12);
  JpegDecoder decoder;
  const Bytes good = test::make_jpeg(colour(40, 40, 2, 2), 1);
  const Decoded expected = test::decode_fully(good, 1);
  for (int round = 0; round < 1500; ++round) {
    JpegOptions o = test::random_options(rng);
    o.height = std::min(o.height, 50);
    o.width = std::min(o.width, 50);
    o.progressive = round % 5 == 0 && !o.four_tables;
    Bytes file = test::make_jpeg(o, rng());
    for (int edits = random_int(rng, 1, 6); edits > 0 && file.size() > 4; --edits) {
      const auto at =
          static_cast<std::ptrdiff_t>(random_int(rng, 2, static_cast<int>(file.size()) - 1));
      switch (random_int(rng, 0, 5)) {
        case 0:
          file[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(rng());
          break;
        case 1:
          file[static_cast<std::size_t>(at)] ^= static_cast<std::uint8_t>(1 << rng() % 8);
          break;
        case 2:
          file.erase(file.begin() + at);
          break;
        case 3: {
          static constexpr std::uint8_t kMarkers[] = {0xD0, 0xD1, 0xD7, 0xD9, 0xDA, 0xC4,
                                                      0xDB, 0xDD, 0xC0, 0xC2, 0xFF, 0x01};
          file.insert(file.begin() + at, {0xFF, kMarkers[rng() % 12]});
          break;
        }
        case 4:
          file.resize(static_cast<std::size_t>(at));
          break;
        case 5:
          file.insert(file.begin() + at, file.begin() + at / 2, file.begin() + at);
          break;
      }
    }
    file = exactly(file);
    static_cast<void>(check(file));
    JpegHeader header;
    const int denominator = 1 << rng() % 4;
    if (decoder.open(file.data(), file.size(), true, header).ok()) {
      Rect r;
      random_range(rng, std::min(999, (header.height + denominator - 1) / denominator), r.y,
                   r.height);
      random_range(rng, std::min(999, (header.width + denominator - 1) / denominator), r.x,
                   r.width);
      static_cast<void>(read_region(decoder, file, r, denominator));
    }
    if (round % 10 == 0)
      REQUIRE(read_region(decoder, good, {0, 0, 40, 40}, 1).pixels == expected.pixels);
  }
}

TEST_CASE("a file that lacks a table never gets that of the file before") {
  JpegOptions o = gray(32, 32);
  o.quality = 20;
  const Bytes file = test::make_jpeg(o, 1);
  o.optimise = true;
  o.quality = 95;
  const Bytes before = test::make_jpeg(o, 2);
  for (const std::uint8_t marker : {0xDB, 0xC4}) {
    Bytes lacking = file;
    for (std::size_t at; (at = find_marker(lacking, marker)) < lacking.size();) {
      const auto begin = lacking.begin() + static_cast<std::ptrdiff_t>(at);
      lacking.erase(begin, begin + 2 + lacking[at + 2] * 256 + lacking[at + 3]);
    }
    JpegDecoder fresh, used;
    const Rect all{0, 0, 32, 32};
    const Region expected = read_region(fresh, lacking, all, 1);
    REQUIRE(read_region(used, before, all, 1).status.ok());
    const Region got = read_region(used, lacking, all, 1);
    CHECK(got.status.code == expected.status.code);
    CHECK(got.pixels == expected.pixels);
  }
}

TEST_CASE("asking for more rows than there are is an error") {
  const Bytes file = test::make_jpeg(gray(9, 9), 1);
  JpegDecoder decoder;
  JpegHeader header;
  REQUIRE(decoder.open(file.data(), file.size(), true, header).ok());
  std::int32_t offset = 0, columns = 0;
  REQUIRE(decoder.begin({0, 0, 9, 9}, 1, offset, columns).ok());
  Bytes rows(200);
  CHECK_FALSE(decoder.read(rows.data(), 10, 10).ok());
}

TEST_CASE("a decoder can be finished at any time") {
  JpegDecoder decoder;
  decoder.finish();
  const Bytes file = test::make_jpeg(gray(9, 9), 1);
  JpegHeader header;
  REQUIRE(decoder.open(file.data(), file.size(), true, header).ok());
  decoder.finish();
  decoder.finish();
  CHECK(read_region(decoder, file, {8, 8, 1, 1}, 1).status.ok());
}

// Orientation

namespace {

// An APP1 segment whose TIFF structure is `tiff`.
Bytes with_exif(const Bytes& tiff) {
  Bytes out = {0xFF, 0xD8, 0xFF, 0xE1, 0, static_cast<std::uint8_t>(tiff.size() + 8)};
  for (const char c : {'E', 'x', 'i', 'f', '\0', '\0'}) out.push_back(static_cast<std::uint8_t>(c));
  out.insert(out.end(), tiff.begin(), tiff.end());
  return out;
}

const Bytes kLittle = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 0x01, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0};
const Bytes kBig = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, 8, 0, 0};

int orientation_of(const Bytes& file) {
  const Bytes exact = exactly(file);
  return exif_orientation(exact.data(), exact.size());
}

}  // namespace

TEST_CASE("the orientation of both byte orders is read") {
  CHECK(orientation_of(with_exif(kLittle)) == 6);
  CHECK(orientation_of(with_exif(kBig)) == 8);
}

TEST_CASE("an orientation that makes no sense, or is damaged, is upright") {
  for (std::size_t size = 0; size < kLittle.size(); ++size) {
    const Bytes cut(kLittle.begin(), kLittle.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(orientation_of(with_exif(cut)) == 1);
  }
  const Bytes whole = with_exif(kBig);
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK(orientation_of(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))) ==
          1);
  for (const int value : {0, 9, 255}) {
    Bytes tiff = kLittle;
    tiff[18] = static_cast<std::uint8_t>(value);
    CHECK(orientation_of(with_exif(tiff)) == 1);
  }
  Bytes far = kLittle;
  far[4] = far[5] = far[6] = far[7] = 0xFF;
  CHECK(orientation_of(with_exif(far)) == 1);
}

TEST_CASE("any bytes have an orientation") {
  std::mt19937 rng(13);
  for (int round = 0; round < 20000; ++round) {
    Bytes file = with_exif(round % 2 ? kLittle : kBig);
    for (int edits = random_int(rng, 1, 4); edits > 0; --edits)
      file[2 + rng() % (file.size() - 2)] =
          static_cast<std::uint8_t>(rng() % 3 ? rng() % 4 : rng());
    file.resize(file.size() - rng() % 4);
    const int orientation = orientation_of(file);
    REQUIRE(orientation >= 1);
    REQUIRE(orientation <= 8);
  }
}
