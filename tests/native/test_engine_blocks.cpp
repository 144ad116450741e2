// Block records through the engine: small ones are read whole, large ones in the parts that the
// crop needs.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "block_images.h"
#include "core/engine.h"
#include "core/image_slot.h"

using namespace fastio;
using namespace std::chrono_literals;
using test::Bytes;
using test::JpegOptions;
using test::sized;
using Kind = GeometryStep::Kind;
namespace fs = std::filesystem;

namespace {

constexpr auto kLong = 10min;  // a test that waits so long hangs
constexpr std::size_t kReadWhole = 48 << 10;

class TemporaryFile {
 public:
  explicit TemporaryFile(const Bytes& bytes) {
    std::string name = (fs::temp_directory_path() / "fastio-blocks-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    ::close(fd);
    path = name;
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  ~TemporaryFile() { fs::remove(path); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path;
};

// Records of pictures, with other bytes between them.
struct Shard {
  std::shared_ptr<const Codebook> book = test::random_codebook(1);
  std::vector<Bytes> records;
  std::vector<std::size_t> begin;
  std::vector<BlockShape> shapes;
  Bytes bytes = Bytes(77, 0xC3);

  // `size`: of the record, which metadata fill up; 0: whatever it comes to.
  void add(const JpegOptions& o, std::size_t size = 0) {
    JpegCoefficients in =
        test::read_jpeg(test::make_jpeg(o, static_cast<std::uint32_t>(begin.size())));
    Bytes record = test::encode_record(*book, in);
    if (size > 0) {
      REQUIRE(record.size() <= size);
      in.metadata.resize(in.metadata.size() + size - record.size(), 0x55);
      record = test::encode_record(*book, in);
      REQUIRE(record.size() == size);
    }
    begin.push_back(bytes.size());
    shapes.push_back(in.shape);
    bytes.insert(bytes.end(), record.begin(), record.end());
    bytes.resize(bytes.size() + 13, 0xC3);
    records.push_back(std::move(record));
  }

  ImageReads reads() const {
    ImageReads r;
    for (std::size_t i = 0; i < records.size(); ++i) {
      r.file.push_back(0);
      r.offset.push_back(static_cast<std::int64_t>(begin[i]));
      r.length.push_back(static_cast<std::int64_t>(records[i].size()));
      r.codec.push_back(static_cast<std::uint8_t>(Codec::blocks));
      r.orientation.push_back(static_cast<std::uint8_t>(1 + i % 8));
      r.height.push_back(shapes[i].height);
      r.width.push_back(shapes[i].width);
      r.row.push_back(static_cast<std::int64_t>(i));
    }
    return r;
  }
};

JpegOptions sized_picture(int height, int width, double noise) {
  JpegOptions o;
  o.height = height;
  o.width = width;
  o.sampling[0] = {2, 2};
  o.quality = 90;
  o.noise = noise;
  return o;
}

// Two records below the limit and two above it.
const Shard& mixed() {
  static const Shard shard = [] {
    Shard s;
    s.add(sized_picture(60, 80, 5));
    s.add(sized_picture(600, 500, 60));
    s.add(sized_picture(100, 300, 5));
    s.add(sized_picture(400, 900, 60));
    REQUIRE(s.records[0].size() < kReadWhole);
    REQUIRE(s.records[1].size() > kReadWhole);
    REQUIRE(s.records[2].size() < kReadWhole);
    REQUIRE(s.records[3].size() > kReadWhole);
    return s;
  }();
  return shard;
}

std::shared_ptr<const Chain> chain_of(const std::vector<GeometryStep>& steps) {
  auto chain = std::make_shared<Chain>();
  for (const GeometryStep& step : steps) chain->add(step);
  return chain;
}

struct Outcome {
  std::vector<Status> status;
  std::vector<Bytes> pixels;
  std::uint64_t bytes = 0;  // read
};

// A batch of these rows from a file of these bytes.
Outcome run(const Bytes& file, const ImageReads& reads, std::shared_ptr<const Codebook> book,
            std::shared_ptr<const Chain> chain, int threads = 2) {
  const TemporaryFile on_disk(file);
  const auto files = std::make_shared<FileSet>(true);
  files->add({on_disk.path});
  Engine engine(threads);
  const auto slot =
      std::make_shared<ImageSlot>(files, std::vector{SlotView{chain}}, book, ImageTask{}, reads);
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  Outcome out;
  for (std::size_t row = 0; row < slot->rows(); ++row) {
    out.status.push_back(slot->status(row));
    const OwnedImage image = slot->take(row);
    const auto size =
        static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width) * 3;
    const bool ok = slot->status(row).ok();
    out.pixels.emplace_back(image.pixels.get(), image.pixels.get() + (ok ? size : 0));
  }
  out.bytes = engine.counters().bytes;
  return out;
}

// What one row's record gives from memory.
Bytes from_memory(const Shard& shard, const ImageReads& reads, std::size_t row,
                  const Chain& chain) {
  ImageTask task;
  task.chain = &chain;
  task.codebook = shard.book.get();
  ImageRequest request;
  request.orientation = reads.orientation[row];
  request.row = reads.row[row];
  test::Bench bench;
  const test::Result result = bench.decode(task, request, Codec::blocks, shard.records[row]);
  REQUIRE(result.status.ok());
  return result.out;
}

ImageReads only(const ImageReads& all, std::size_t row) {
  ImageReads r;
  r.file = {all.file[row]};
  r.offset = {all.offset[row]};
  r.length = {all.length[row]};
  r.codec = {all.codec[row]};
  r.orientation = {1};
  r.height = {all.height[row]};
  r.width = {all.width[row]};
  r.row = {all.row[row]};
  return r;
}

}  // namespace

TEST_CASE("records read whole or in parts give the pixels that they give from memory") {
  const Shard& shard = mixed();
  const ImageReads reads = shard.reads();
  for (const auto& steps :
       std::vector<std::vector<GeometryStep>>{{},
                                              {sized(Kind::random_resized_crop, 64, 48)},
                                              {sized(Kind::random_crop, 30, 40)},
                                              {sized(Kind::resize, 9, 8)},
                                              {sized(Kind::center_crop, 1000, 3)}})
    for (const int threads : {1, 3}) {
      const auto chain = chain_of(steps);
      const Outcome got = run(shard.bytes, reads, shard.book, chain, threads);
      for (std::size_t row = 0; row < 4; ++row) {
        REQUIRE(got.status[row].ok());
        REQUIRE(got.pixels[row] == from_memory(shard, reads, row, *chain));
      }
    }
}

TEST_CASE("of a large record no more is read than a crop or a thumbnail needs") {
  const Shard& shard = mixed();
  const BlockHeader header = test::header_of(shard.records[1]);
  const ImageReads reads = only(shard.reads(), 1);
  const std::size_t head = header_bytes_bound(600, 500);
  const Outcome crop =
      run(shard.bytes, reads, shard.book, chain_of({sized(Kind::center_crop, 16, 16)}));
  CHECK(crop.bytes < head + shard.records[1].size() / 8);
  const Outcome eighth =
      run(shard.bytes, reads, shard.book, chain_of({sized(Kind::resize, 30, 30)}));
  CHECK(eighth.bytes == head + header.ac_begin[0] - header.bytes);
}

TEST_CASE("a narrow crop of a wide photo reads its groups of tiles, not whole tile rows") {
  Shard shard;
  shard.add(sized_picture(600, 3600, 30), 0);
  const BlockHeader header = test::header_of(shard.records[0]);
  const Outcome crop = run(shard.bytes, only(shard.reads(), 0), shard.book,
                           chain_of({sized(Kind::center_crop, 100, 100)}));
  REQUIRE(crop.status[0].ok());
  // 248 to 350 down, 1748 to 1852 across, with the samples that chroma is interpolated from.
  const std::int32_t first = 248 / 16, last = 350 / 16, column = 1800 / 512;
  const std::size_t head = header_bytes_bound(600, 3600);
  const std::size_t dc = header.dc_begin[last + 1] - header.dc_begin[first];
  const std::size_t groups = header.group_end(last, column) - header.group_begin(first, column);
  CHECK(crop.bytes == head + dc + groups);
  std::size_t rows = 0;
  for (std::int32_t g = 0; g < header.shape.group_columns(); ++g)
    rows += header.group_end(last, g) - header.group_begin(first, g);
  CHECK(crop.bytes * 3 < head + dc + rows);
}

TEST_CASE("a record of 48 KiB is read whole, one of a byte more in parts") {
  Shard shard;
  shard.add(sized_picture(200, 200, 20), kReadWhole);
  shard.add(sized_picture(200, 200, 20), kReadWhole + 1);
  const auto chain = chain_of({sized(Kind::center_crop, 20, 20)});
  CHECK(run(shard.bytes, only(shard.reads(), 0), shard.book, chain).bytes == kReadWhole);
  CHECK(run(shard.bytes, only(shard.reads(), 1), shard.book, chain).bytes < kReadWhole / 2);
}

TEST_CASE("padding alone takes nothing of a large record but its header") {
  const Shard& shard = mixed();
  GeometryStep corner = sized(Kind::random_crop, 1, 1);
  corner.padding = 30000;  // the picture is one part in 10,000 of it
  const Outcome zero = run(shard.bytes, only(shard.reads(), 1), shard.book, chain_of({corner}));
  REQUIRE(zero.status[0].ok());
  CHECK(zero.pixels[0] == Bytes(3, 0));
  CHECK(zero.bytes == header_bytes_bound(600, 500));
}

TEST_CASE("columns that name another size than a large record do not matter") {
  const Shard& shard = mixed();
  const auto chain = chain_of({sized(Kind::random_resized_crop, 50, 50)});
  ImageReads reads = only(shard.reads(), 1);
  const Bytes right = run(shard.bytes, reads, shard.book, chain).pixels[0];
  for (const auto& [height, width] :
       std::vector<std::pair<int, int>>{{1, 1}, {0, 0}, {-3, 9}, {65535, 65535}}) {
    reads.height[0] = height;
    reads.width[0] = width;
    const Outcome got = run(shard.bytes, reads, shard.book, chain);
    REQUIRE(got.status[0].ok());
    CHECK(got.pixels[0] == right);
  }
}

TEST_CASE("damage to a large record matters where the crop is") {
  const Shard& shard = mixed();
  const BlockHeader header = test::header_of(shard.records[1]);
  const ImageReads reads = only(shard.reads(), 1);
  const auto chain = chain_of({sized(Kind::center_crop, 32, 32)});
  const auto code = [&](std::size_t at) {
    Bytes damaged = shard.bytes;
    damaged[shard.begin[1] + at] ^= 1;
    return run(damaged, reads, shard.book, chain).status[0].code;
  };
  const std::size_t row = 300 / 16, tiles = 4;
  CHECK(code(header.bytes - 9) == Code::corrupt);
  CHECK(code(0) == Code::unsupported);
  CHECK(code(header.dc_begin[row] + 5) == Code::corrupt);
  CHECK(code(header.dc_begin[row + 9] + 5) == Code::ok);
  CHECK(code(header.ac_begin[row * tiles]) == Code::corrupt);
  CHECK(code(header.ac_begin[2 * tiles]) == Code::ok);
  CHECK(code(header.ac_begin.back()) == Code::ok);  // metadata
}

TEST_CASE("a file cut short within a record is an error as far as it matters") {
  const Shard& shard = mixed();
  const auto chain = chain_of({sized(Kind::center_crop, 32, 32)});
  for (const std::size_t row : {0, 1}) {
    const ImageReads reads = only(shard.reads(), row);
    const std::size_t begin = shard.begin[row], size = shard.records[row].size();
    for (const std::size_t left : {std::size_t{0}, std::size_t{1}, std::size_t{19}, size / 100,
                                   size / 20, size / 4, size / 3}) {
      const Bytes part(shard.bytes.data(), shard.bytes.data() + begin + left);
      CHECK(run(part, reads, shard.book, chain).status[0].code == Code::truncated);
    }
  }
  const Bytes all_but_one(shard.bytes.data(),
                          shard.bytes.data() + shard.begin[1] + shard.records[1].size() - 1);
  CHECK(run(all_but_one, only(shard.reads(), 1), shard.book, chain).status[0].ok());
}

TEST_CASE("offsets and lengths that are no record's are errors, and neighbours are whole") {
  const Shard& shard = mixed();
  const auto chain = chain_of({sized(Kind::random_resized_crop, 20, 20)});
  const ImageReads sound = shard.reads();
  const Outcome expected = run(shard.bytes, sound, shard.book, chain);
  constexpr std::int64_t kMost = INT64_MAX;
  const auto check = [&](std::int64_t offset, std::int64_t length, Code code) {
    ImageReads reads = sound;
    reads.offset[1] = offset;
    reads.length[1] = length;
    const Outcome got = run(shard.bytes, reads, shard.book, chain);
    CAPTURE(offset);
    CAPTURE(length);
    CAPTURE(got.status[1].message);
    CHECK(got.status[1].code == code);
    for (const std::size_t row : {0, 2, 3}) CHECK(got.pixels[row] == expected.pixels[row]);
  };
  const std::int64_t offset = sound.offset[1], length = sound.length[1];
  check(offset, length, Code::ok);
  check(offset, length + 1, Code::corrupt);
  check(offset, length - 1, Code::corrupt);
  check(offset, kMost, Code::corrupt);
  check(offset - 1, length, Code::unsupported);
  check(-1, length, Code::corrupt);
  check(kMost, length, Code::truncated);
  check(static_cast<std::int64_t>(shard.bytes.size()), length, Code::truncated);
  check(offset, -2, Code::corrupt);
  check(offset, 0, Code::truncated);
}

TEST_CASE("the checksum column is not of block records, which have their own") {
  const Shard& shard = mixed();
  ImageReads reads = shard.reads();
  reads.crc32c.assign(4, 12345);
  const Outcome got =
      run(shard.bytes, reads, shard.book, chain_of({sized(Kind::center_crop, 9, 9)}));
  for (const Status& status : got.status) CHECK(status.ok());
}

TEST_CASE("block records of a batch without a codebook are errors") {
  const Shard& shard = mixed();
  const Outcome got = run(shard.bytes, shard.reads(), nullptr, chain_of({}));
  for (const Status& status : got.status) CHECK(status.code == Code::corrupt);
}
