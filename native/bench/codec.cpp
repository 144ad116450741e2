// Times the parts of the block codec on photos and prints JSON. benchmarks/codec.py builds and runs
// it, and says what the figures mean.
//
//   codec CODEBOOK ROUNDS CROPS [LEVEL] < paths of JPEG files, one a line
//
// With a level (portable, avx2, ...), only whole crops are timed, on that level: for profiling, and
// for comparing two builds.
//
// Everything is in memory. A round runs every part on every instruction set of the machine, so that
// changes of the clock rate affect all alike. The results of each round are printed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/block_decoder.h"
#include "core/block_encoder.h"
#include "core/cpu.h"
#include "core/crc32c.h"
#include "core/expand.h"
#include "core/idct.h"
#include "core/image.h"
#include "core/jpeg_coefficients.h"
#include "support.h"

namespace fastio {
namespace {

constexpr std::int32_t kSize = 224;  // the size of the resized crops, in pixels
constexpr std::uint64_t kSeed = 0;   // the seed of the crops
constexpr int kIdctRepeats = 4;      // repetitions of a tile per measurement
constexpr double kShrinks[] = {1, 2, 4, 8};
const char* const kShrinkNames[] = {"below 1", "1 to 2", "2 to 4", "4 to 8", "8 and more"};

// Milliseconds or nanoseconds of every round: figures[part][level].
using Figures = std::map<std::string, std::map<std::string, std::vector<double>>>;

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

// A tile, with the arguments of expand_tile().
struct Tile {
  BlockRuns runs;
  TilePart part;
  std::uint8_t classes[kTileBlocks + kTileColumns];
  std::int16_t dcs[kTileBlocks + kTileColumns];
};

struct TileRow {
  BlockRuns runs;
  RowPart part;
};

struct Photo {
  std::string path;
  std::vector<std::uint8_t> jpeg;
  Buffer record;  // with padding behind it
  BlockHeader header;
  int orientation = 1;
  Dequantisers quant;
  std::vector<TileRow> rows;
  std::vector<Tile> tiles;
};

// Finds the rows and tiles of the photo's record.
void find_parts(const Codebook& book, Photo& photo) {
  const BlockHeader& header = photo.header;
  const std::uint8_t* record = photo.record.data();
  std::vector<std::int16_t> dc;
  for (std::int32_t r = 0; r < header.shape.tile_rows(); ++r) {
    const auto row = static_cast<std::size_t>(r);
    TileRow& whole = photo.rows.emplace_back();
    whole.runs.set_row(header.shape, r);
    whole.part = {record + header.dc_begin[row], header.dc_begin[row + 1] - header.dc_begin[row]};
    dc.resize(static_cast<std::size_t>(whole.runs.blocks + kTileColumns));
    const std::uint8_t* classes = decode_dc(book, whole.runs, whole.part, photo.quant, dc.data());
    if (!classes) fail(photo.path + ": its record does not decode");
    for (std::int32_t t = 0; t < header.shape.tiles_x(); ++t) {
      const std::size_t k = header.shape.tile_number(r, t);
      Tile& tile = photo.tiles.emplace_back();
      tile.runs.set_tile(header.shape, r, t);
      tile.part = {record + header.ac_begin[k], header.ac_begin[k + 1] - header.ac_begin[k],
                   header.exceptions[k]};
      take_tile(header.shape, whole.runs, classes, tile.runs, t, tile.classes);
      take_tile(header.shape, whole.runs, dc.data(), tile.runs, t, tile.dcs);
    }
  }
}

// Returns null if no record can hold the photo.
std::unique_ptr<Photo> open_photo(const Codebook& book, const std::string& path) {
  auto photo = std::make_unique<Photo>();
  photo->path = path;
  photo->jpeg = read_all(path);
  JpegCoefficients coefficients;
  Status status = read_coefficients(photo->jpeg.data(), photo->jpeg.size(), coefficients);
  std::vector<std::uint8_t> record;
  if (status.ok()) status = BlockEncoder(book).encode(coefficients, record);
  if (status.code == Code::foreign) return nullptr;
  require(status, path);
  if (!photo->record.resize(record.size())) fail("no memory");
  std::copy(record.begin(), record.end(), photo->record.data());
  require(parse_header(record.data(), record.size(), record.size(), photo->header), path);
  photo->orientation = coefficients.orientation;
  photo->quant.set(photo->header.shape);
  find_parts(book, *photo);
  return photo;
}

// The photos, the parts that are timed, and the counts that do not depend on the level.
class Bench {
 public:
  Bench(const std::string& codebook, int crops) : crops_(crops) {
    const std::vector<std::uint8_t> bytes = read_all(codebook);
    require(book_.parse(bytes.data(), bytes.size()), codebook);
    GeometryStep crop, flip;
    crop.kind = GeometryStep::Kind::random_resized_crop;
    crop.height = crop.width = kSize;
    flip.kind = GeometryStep::Kind::horizontal_flip;
    chain_.add(crop);
    chain_.add(flip);
  }

  void add(const std::string& path) {
    std::unique_ptr<Photo> photo = open_photo(book_, path);
    if (!photo) {
      ++foreign_;
      return;
    }
    jpeg_bytes_ += photo->jpeg.size();
    record_bytes_ += photo->record.size();
    for (const TileRow& row : photo->rows) blocks_ += static_cast<std::size_t>(row.runs.blocks);
    photos_.push_back(std::move(photo));
  }

  void measure(const SimdLevel& level, bool crops_only) {
    simd_force(level.features);
    level_ = level.name;
    if (crops_only) return time_crops();
    time_dc();
    time_expand();
    for (const int size : {8, 4, 2}) time_idct(size);
    time_crops();
    time_encoding();
  }

  void print() const;

 private:
  struct Moved {
    double record = 0, coefficients = 0, planes = 0;
  };

  void note(const std::string& part, double value) { figures_[part][level_].push_back(value); }
  void time_dc();
  void time_expand();
  void time_idct(int size);
  void time_crops();
  void time_encoding();
  CropPlan crop_plan(std::size_t photo, int crop) const;
  void count_moved(const Photo& photo, const CropPlan& plan, Moved& moved) const;
  Moved moved() const;

  double per_block(double ns) const { return ns / static_cast<double>(blocks_); }
  double per_image_ms(double ns) const { return ns / 1e6 / static_cast<double>(photos_.size()); }

  int crops_;
  Codebook book_;
  Chain chain_;
  std::vector<std::unique_ptr<Photo>> photos_;
  std::uint64_t digest_ = 0;  // a hash of all crops' pixels, equal at every level and round
  std::size_t blocks_ = 0, jpeg_bytes_ = 0, record_bytes_ = 0;
  int foreign_ = 0;
  const char* level_ = "";
  Figures figures_;
  std::map<std::string, std::size_t> crops_of_shrink_;
};

void Bench::time_dc() {
  std::vector<std::int16_t> dc;
  double ns = 0;
  for (const auto& photo : photos_) {
    for (const TileRow& row : photo->rows)
      dc.resize(std::max(dc.size(), static_cast<std::size_t>(row.runs.blocks)));
    const auto start = std::chrono::steady_clock::now();
    for (const TileRow& row : photo->rows)
      if (!decode_dc(book_, row.runs, row.part, photo->quant, dc.data())) fail(photo->path);
    ns += since(start);
  }
  note("dc ns/block", per_block(ns));
}

void Bench::time_expand() {
  alignas(64) std::int16_t out[64 * kTileBlocks];
  double ns = 0;
  for (const auto& photo : photos_) {
    const auto start = std::chrono::steady_clock::now();
    for (const Tile& tile : photo->tiles)
      if (!expand_tile(book_, tile.runs, tile.part, tile.classes, tile.dcs, photo->quant,
                       ~std::uint64_t{0}, out))
        fail(photo->path);
    ns += since(start);
  }
  note("expand ns/block", per_block(ns));
}

// The coefficients of a tile are in the L1 cache, as in the decoder.
void Bench::time_idct(int size) {
  alignas(64) static std::int16_t blocks[64 * (kTileBlocks + 4)];
  constexpr std::ptrdiff_t kStride = 8 * kTileColumns + 2 * kIdctSlack;
  alignas(64) static std::uint8_t out[8 * kStride];
  double ns = 0;
  for (const auto& photo : photos_) {
    for (const Tile& tile : photo->tiles) {
      if (!expand_tile(book_, tile.runs, tile.part, tile.classes, tile.dcs, photo->quant,
                       ~std::uint64_t{0}, blocks))
        fail(photo->path);
      const auto start = std::chrono::steady_clock::now();
      for (int repeat = 0; repeat < kIdctRepeats; ++repeat)
        for (int k = 0; k < tile.runs.runs; ++k)
          idct(size, blocks + 64 * tile.runs.run[k].first, tile.runs.run[k].count, out, kStride);
      ns += since(start) / kIdctRepeats;
    }
  }
  note("idct " + std::to_string(size) + " ns/block", per_block(ns));
}

CropPlan Bench::crop_plan(std::size_t photo, int crop) const {
  const BlockShape& shape = photos_[photo]->header.shape;
  const bool swap = photos_[photo]->orientation >= 5;
  DrawnChain drawn;
  require(chain_.draw(swap ? shape.width : shape.height, swap ? shape.height : shape.width, kSeed,
                      static_cast<std::uint64_t>(crop), static_cast<std::int64_t>(photo), drawn),
          photos_[photo]->path);
  return drawn.crop;
}

const char* shrink_name(const CropPlan& plan) {
  const double shrink = std::min(plan.crop_height, plan.crop_width) / double(kSize);
  return kShrinkNames[std::upper_bound(std::begin(kShrinks), std::end(kShrinks), shrink) -
                      std::begin(kShrinks)];
}

// Times whole images, decoded as by the loader's threads, but without reading files.
void Bench::time_crops() {
  ImageCounters counters;
  ImageDecoder decoder(counters);
  ImageTask task;
  task.chain = &chain_;
  task.codebook = &book_;
  task.seed = kSeed;
  std::vector<std::uint8_t> out(std::size_t{3} * kSize * kSize);
  const auto place = [](void* context, std::int32_t, std::int32_t) { return context; };
  std::map<std::string, double> ns_of_shrink;
  std::uint64_t digest = 1;
  crops_of_shrink_.clear();
  double ns = 0;
  for (int crop = 0; crop < crops_; ++crop) {
    task.epoch = static_cast<std::uint64_t>(crop);
    for (std::size_t i = 0; i < photos_.size(); ++i) {
      const Photo& photo = *photos_[i];
      ImageRequest request;
      request.data = photo.record.data();
      request.size = photo.record.size();
      request.codec = Codec::blocks;
      request.orientation = static_cast<std::uint8_t>(photo.orientation);
      request.height = photo.header.shape.height;
      request.width = photo.header.shape.width;
      request.row = static_cast<std::int64_t>(i);
      const auto start = std::chrono::steady_clock::now();
      require(decoder.decode(task, request, place, out.data()), photo.path);
      const double spent = since(start);
      const char* shrink = shrink_name(crop_plan(i, crop));
      digest = digest * 31 + crc32c(out.data(), out.size());
      ns += spent;
      ns_of_shrink[shrink] += spent;
      ++crops_of_shrink_[shrink];
    }
  }
  if (digest_ && digest_ != digest) fail(std::string("other pixels with ") + level_);
  digest_ = digest;
  note("crop ms", per_image_ms(ns) / crops_);
  note("region decode ms", per_image_ms(double(counters.decode_ns.load())) / crops_);
  note("resample ms", per_image_ms(double(counters.resample_ns.load())) / crops_);
  for (const auto& [shrink, spent] : ns_of_shrink)
    note("crop ms, shrink " + shrink, spent / 1e6 / static_cast<double>(crops_of_shrink_[shrink]));
}

void Bench::time_encoding() {
  BlockEncoder encoder(book_);  // made for the active instruction set
  JpegCoefficients coefficients;
  std::vector<std::uint8_t> record;
  double read_ns = 0, encode_ns = 0;
  for (const auto& photo : photos_) {
    auto start = std::chrono::steady_clock::now();
    require(read_coefficients(photo->jpeg.data(), photo->jpeg.size(), coefficients), photo->path);
    read_ns += since(start);
    start = std::chrono::steady_clock::now();
    require(encoder.encode(coefficients, record), photo->path);
    encode_ns += since(start);
  }
  note("read coefficients ms", per_image_ms(read_ns));
  note("encode ms", per_image_ms(encode_ns));
}

// Counts the bytes that a crop reads and writes in memory if no plane is decoded at a reduced size.
// This does not depend on the orientation and on flips.
void Bench::count_moved(const Photo& photo, const CropPlan& plan, Moved& moved) const {
  const BlockShape& shape = photo.header.shape;
  PlanarAxis x, y;
  x.spec.in = std::min(plan.crop_width, shape.width);
  y.spec.in = std::min(plan.crop_height, shape.height);
  x.spec.out = y.spec.out = kSize;
  x.begin = std::min(plan.crop_x, shape.width - x.spec.in);
  y.begin = std::min(plan.crop_y, shape.height - y.spec.in);
  x.size = shape.width;
  y.size = shape.height;
  x.sub = shape.sub_x;
  y.sub = shape.sub_y;
  PlanarResampler resampler;
  resampler.prepare(x, y, shape.colour, 3);
  PlaneRegion region;
  region.components = resampler.planes();
  for (int c = 0; c < region.components; ++c) {
    region.x[c] = resampler.columns(c);
    region.y[c] = resampler.rows(c);
    const auto blocks = [](SampleRange r) { return (r.last + 7) / 8 - r.first / 8; };
    const double taken = double(blocks(region.x[c])) * blocks(region.y[c]);
    moved.coefficients += taken * 64 * sizeof(std::int16_t);
    moved.planes += taken * 64;
  }
  BlockDecoder decoder;
  require(decoder.open(book_, photo.record.data(), photo.record.size(), photo.record.size()),
          photo.path);
  const RecordReads& reads = decoder.plan(region);
  moved.record += double(photo.header.bytes + reads.dc.size());
  for (const ByteRange& range : reads.ac) moved.record += double(range.size());
}

Bench::Moved Bench::moved() const {
  Moved sum;
  for (int crop = 0; crop < crops_; ++crop)
    for (std::size_t i = 0; i < photos_.size(); ++i)
      count_moved(*photos_[i], crop_plan(i, crop), sum);
  const double images = double(photos_.size()) * crops_;
  return {sum.record / images, sum.coefficients / images, sum.planes / images};
}

void Bench::print() const {
  const auto photos = static_cast<double>(photos_.size());
  const Moved bytes = moved();
  std::printf("{\"photos\": %zu, \"foreign\": %d, \"crops\": %d, \"size\": %d,\n", photos_.size(),
              foreign_, crops_, kSize);
  std::printf(" \"blocks\": %.0f, \"jpeg_bytes\": %.0f, \"record_bytes\": %.0f,\n",
              double(blocks_) / photos, double(jpeg_bytes_) / photos,
              double(record_bytes_) / photos);
  std::printf(
      " \"moved_bytes\": {\"record\": %.0f, \"coefficients\": %.0f, \"planes\": %.0f, "
      "\"result\": %d},\n",
      bytes.record, bytes.coefficients, bytes.planes, 3 * kSize * kSize);
  std::printf(" \"crops_of_shrink\": {");
  const char* comma = "";
  for (const auto& [shrink, count] : crops_of_shrink_) {
    std::printf("%s\"%s\": %zu", comma, shrink.c_str(), count);
    comma = ", ";
  }
  std::printf("},\n \"rounds\": {");
  comma = "";
  for (const auto& [part, levels] : figures_) {
    std::printf("%s\n  \"%s\": {", comma, part.c_str());
    comma = "";
    for (const auto& [level, values] : levels) {
      std::printf("%s\"%s\": [", comma, level.c_str());
      for (std::size_t i = 0; i < values.size(); ++i)
        std::printf("%s%.6g", i ? ", " : "", values[i]);
      std::printf("]");
      comma = ", ";
    }
    std::printf("}");
    comma = ",";
  }
  std::printf("}}\n");
}

int run(const std::string& codebook, int rounds, int crops, const std::string& only) {
  Bench bench(codebook, crops);
  for (std::string path; std::getline(std::cin, path);) bench.add(path);
  for (int round = 0; round < rounds; ++round)
    for (const SimdLevel& level : simd_levels())
      if (only.empty() || only == level.name) bench.measure(level, !only.empty());
  bench.print();
  return 0;
}

}  // namespace
}  // namespace fastio

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "codec CODEBOOK ROUNDS CROPS [LEVEL] < paths of JPEG files\n");
    return 2;
  }
  return fastio::run(argv[1], std::max(1, std::atoi(argv[2])), std::max(1, std::atoi(argv[3])),
                     argc == 5 ? argv[4] : "");
}
