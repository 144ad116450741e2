// Writes the inputs that the fuzz targets start from: fuzz_seeds OUT [JPEG...]
//
// Small pictures of every sampling, kind and odd size, as JPEGs by libjpeg; their records by our
// own encoder, with both codebooks; and tiles of these. Given files join in as pieces of a few
// tiles, so that the fuzzer's runs stay short.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "../jpeg_files.h"
#include "../parquet_pages.h"
#include "../snappy_streams.h"
#include "core/block_encoder.h"
#include "core/expand.h"
#include "core/jpeg.h"
#include "fuzz_inputs.h"
#include "record_parts.h"

namespace fs = std::filesystem;

namespace fastio::fuzz {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 10;
constexpr std::size_t kTilesARecord = 3;
constexpr std::int32_t kPieceHeight = 48, kPieceWidth = 200;  // of a given file

// The middle of an image.
JpegCoefficients piece_of(const JpegCoefficients& in) {
  JpegCoefficients out;
  out.shape = in.shape;
  out.progressive = in.progressive;
  out.shape.height = std::min(in.shape.height, kPieceHeight);
  out.shape.width = std::min(in.shape.width, kPieceWidth);
  // In blocks of the components that are not component 0: those of the others are a multiple.
  const std::int32_t top = (in.shape.height - out.shape.height) / (16 * in.shape.sub_y);
  const std::int32_t left = (in.shape.width - out.shape.width) / (16 * in.shape.sub_x);
  for (int c = 0; c < in.shape.components; ++c) {
    const int down = c ? 1 : in.shape.sub_y, across = c ? 1 : in.shape.sub_x;
    const auto row = static_cast<std::ptrdiff_t>(64) * in.shape.blocks_x(c);
    for (std::int32_t y = 0; y < out.shape.blocks_y(c); ++y) {
      const auto first = in.blocks[c].begin() + (top * down + y) * row + 64 * left * across;
      out.blocks[c].insert(out.blocks[c].end(), first, first + 64 * out.shape.blocks_x(c));
    }
  }
  return out;
}

class SeedMaker {
 public:
  explicit SeedMaker(const fs::path& out) : out_(out) {
    for (const char* target : {"blocks", "tile", "jpeg", "jpegindex", "parquet", "snappy"})
      fs::create_directories(out_ / target);
  }

  // A piece of a JPEG.
  Status add_piece(const Bytes& jpeg) {
    JpegCoefficients coefficients;
    Status status = read_coefficients(jpeg.data(), jpeg.size(), coefficients);
    Bytes piece;
    if (status.ok()) status = write_jpeg(piece_of(coefficients), piece);
    return status.ok() ? add(piece) : status;
  }

  // A JPEG and what comes of it. Returns why nothing could.
  Status add(const Bytes& jpeg) {
    JpegCoefficients coefficients;
    const Status status = read_coefficients(jpeg.data(), jpeg.size(), coefficients);
    Bytes input = {static_cast<std::uint8_t>(rng_())};
    input.insert(input.end(), jpeg.begin(), jpeg.end());
    write("jpeg", input);
    if (!status.ok()) return status;
    add_index(jpeg);
    for (int book = 0; book < kCodebooks; ++book) {
      Bytes record;
      if (const Status encoded = encoder(book).encode(coefficients, record); !encoded.ok())
        return encoded;
      add_record(record, book);
      add_tiles(record, book);
    }
    return status;
  }

  // A JPEG behind its index, if it has one.
  void add_index(const Bytes& jpeg) {
    JpegDecoder decoder;
    JpegHeader header;
    JpegIndex index;
    if (!decoder.open(jpeg.data(), jpeg.size(), false, header).ok() || !decoder.check(index).ok() ||
        !index.whole())
      return;
    const Bytes bytes = index.bytes();
    Bytes input = {static_cast<std::uint8_t>(rng_()), static_cast<std::uint8_t>(bytes.size()),
                   static_cast<std::uint8_t>(bytes.size() >> 8)};
    input.insert(input.end(), bytes.begin(), bytes.end());
    input.insert(input.end(), jpeg.begin(), jpeg.end());
    write("jpegindex", input);
  }

  // Column chunks with each encoding, nulls in half of them, in pages of both versions.
  void add_chunks() {
    for (std::uint8_t kind = 0; kind < 16; ++kind) {
      constexpr std::size_t kRows = 100;
      const bool nullable = kind & 2, snappy = kind & 4, second = kind & 8;
      std::vector<std::uint32_t> indices, levels, numbers;
      for (std::size_t row = 0; row < kRows; ++row) {
        levels.push_back(!nullable || rng_() % 3 ? 1 : 0);
        if (levels.back()) indices.push_back(rng_() % 32);
      }
      for (std::size_t i = 0; i < 2 * kRows; ++i) numbers.push_back(rng_() % 1000);
      const std::size_t nulls = kRows - indices.size();
      const Bytes bits = nullable ? pages::packed(levels, 1) : Bytes{};
      Bytes packed{5};
      pages::append(packed, pages::packed(indices, 5));
      Bytes chunk{static_cast<std::uint8_t>(kind & 7), 3 * kRows % 256, 3 * kRows / 256};
      pages::append(chunk, pages::dictionary_page(pages::plain(numbers), 32, snappy));
      const auto add = [&](Encoding encoding, const Bytes& some, const Bytes& values,
                           std::size_t null_rows) {
        pages::append(chunk,
                      second ? pages::data_page_v2(kRows, null_rows, encoding, some, values, snappy)
                             : pages::data_page(kRows, encoding, some, values, snappy));
      };
      add(Encoding::rle_dictionary, bits, packed, nulls);
      add(Encoding::plain, bits, pages::plain(numbers), nulls);
      add(
          Encoding::plain_dictionary, nullable ? pages::run_of(1, kRows, 1) : Bytes{},
          [] {
            Bytes one{5};
            pages::append(one, pages::run_of(7, kRows, 5));
            return one;
          }(),
          0);
      write("parquet", chunk);
    }
  }

  // Sound streams, each with the size that it has.
  void add_streams() {
    for (int n = 0; n < 32; ++n) {
      std::size_t size;
      const Bytes stream = snappy::random_stream(rng_, size);
      if (size > 0xFFFF) continue;
      Bytes input{static_cast<std::uint8_t>(size), static_cast<std::uint8_t>(size >> 8)};
      pages::append(input, stream);
      write("snappy", input);
    }
  }

  int written() const { return written_; }

 private:
  void write(const char* target, const Bytes& bytes) {
    if (bytes.size() > kMostBytes) return;
    std::ofstream file(out_ / target / std::to_string(written_++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file) fail("cannot write into " + out_.string());
  }

  Bytes selectors(std::size_t count) {
    Bytes bytes(count);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(rng_());
    return bytes;
  }

  void add_record(const Bytes& record, int book) {
    Bytes input = selectors(kSelectors);
    input[0] = static_cast<std::uint8_t>((input[0] & ~7) | book << 2);
    input.insert(input.end(), record.begin(), record.end());
    write("blocks", input);
  }

  void add_tiles(const Bytes& record, int book) {
    RecordParts parts;
    if (!take_apart(record.data(), record.size(), parts)) return;
    const auto below = [&](std::int32_t bound) {
      return static_cast<std::int32_t>(rng_() % static_cast<unsigned>(bound));
    };
    for (std::size_t n = 0; n < kTilesARecord; ++n)
      add_tile(parts, book, below(parts.shape.tile_rows()), below(parts.shape.tiles_x()));
  }

  void add_tile(const RecordParts& parts, int book, std::int32_t row, std::int32_t t) {
    const BlockShape& shape = parts.shape;
    const std::size_t k = shape.tile_number(row, t);
    const Bytes &dc = parts.dc[static_cast<std::size_t>(row)], &ac = parts.ac[k];
    constexpr int kSamplings[] = {0, 0x11, 0x21, 0x22, 0x12, 0x41};
    const int sampling = shape.components == 1 ? 0 : shape.sub_x << 4 | shape.sub_y;
    Bytes input = selectors(kTileSelectors);
    input[0] = static_cast<std::uint8_t>(book == 0 ? 4 : 0);
    for (std::uint8_t i = 0; i < 6; ++i)
      if (kSamplings[i] == sampling) input[1] = i;
    input[2] = static_cast<std::uint8_t>(std::min(shape.width / 2, 255));
    input[3] = static_cast<std::uint8_t>(std::min(shape.height - row * 8 * shape.sub_y, 16) - 1);
    input[4] = static_cast<std::uint8_t>(t);
    input[14] = static_cast<std::uint8_t>(dc.size());
    input[15] = static_cast<std::uint8_t>(dc.size() >> 8);
    input[16] = parts.exceptions[k];
    const Bytes& classes = codebook_bytes(1);
    input.insert(input.end(), classes.begin(), classes.begin() + kShortBytes);
    input.insert(input.end(), dc.begin(), dc.end());
    input.insert(input.end(), ac.begin(), ac.end());
    write("tile", input);
  }

  fs::path out_;
  std::mt19937 rng_{1};
  int written_ = 0;
};

// Every sampling that a record can hold, and gray.
void add_made(SeedMaker& maker) {
  constexpr test::Sampling kSamplings[] = {{0, 0}, {1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};
  constexpr struct {
    int height, width;
  } kSizes[] = {{1, 1}, {9, 7}, {16, 16}, {17, 129}, {33, 31}, {64, 96}, {40, 300}, {130, 5}};
  constexpr int kQualities[] = {5, 40, 75, 90, 98, 100};
  std::mt19937 rng(2);
  int n = 0;
  for (const test::Sampling& sampling : kSamplings) {
    for (const auto& size : kSizes) {
      test::JpegOptions o;
      o.height = size.height;
      o.width = size.width;
      o.components = sampling.h ? 3 : 1;
      if (sampling.h) o.sampling[0] = sampling;
      o.quality = kQualities[n % 6];
      o.noise = n % 4 == 0 ? 120 : 3 + n % 30;
      o.progressive = n % 3 == 0;
      o.apart = n % 5 == 1 && !o.progressive;
      o.restart_interval = n % 7 == 2 ? 3 : 0;
      if (n % 11 == 5) o.level = n % 2 ? 255 : 0;
      const Status status = maker.add(test::make_jpeg(o, static_cast<std::uint32_t>(n)));
      if (!status.ok()) fail(test::describe(o) + ": " + status.message);
      ++n;
    }
  }
  // Files of which a record can hold some only.
  for (int k = 0; k < 24; ++k)
    static_cast<void>(maker.add(test::make_jpeg(test::random_options(rng), rng())));
}

}  // namespace
}  // namespace fastio::fuzz

int main(int count, char** arguments) {
  using namespace fastio;
  if (count < 2) {
    std::cerr << "usage: fuzz_seeds OUT [JPEG...]\n";
    return 2;
  }
  fuzz::SeedMaker maker(arguments[1]);
  fuzz::add_made(maker);
  maker.add_chunks();
  maker.add_streams();
  int photos = 0;
  for (int i = 2; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    const fuzz::Bytes bytes{std::istreambuf_iterator<char>(file), {}};
    photos += maker.add_piece(bytes).ok();
  }
  std::cout << "seeds: " << maker.written() << " files";
  if (count > 2) std::cout << ", " << photos << " of " << count - 2 << " given photos among them";
  std::cout << '\n';
}
