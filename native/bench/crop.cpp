// Decodes crops of photos on one instruction set, for counting instructions (tools/arm count), and
// prints a checksum of their pixels, which is the same on all instruction sets and processors.
//
//   crop LEVEL blocks|jpeg CODEBOOK CROPS < paths of JPEG files, one a line
//
// LEVEL is "portable", "neon", "avx2", ... Crops are RandomResizedCrop(224) with a flip, with fixed
// seeds. The work that is done once per photo (encoding its record) does not depend on CROPS, so
// the difference between two runs is the cost of the crops.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "core/block_encoder.h"
#include "core/cpu.h"
#include "core/image.h"
#include "core/jpeg_coefficients.h"
#include "support.h"

namespace fastio {
namespace {

constexpr std::int32_t kSize = 224;

struct Photo {
  Buffer data;  // with padding behind it
  std::int32_t height = 0, width = 0;
  int orientation = 1;
};

// Returns false if no record can hold the photo.
bool open_photo(const Codebook& book, const std::string& path, Codec codec, Photo& photo) {
  std::vector<std::uint8_t> bytes = read_all(path);
  JpegCoefficients coefficients;
  Status status = read_coefficients(bytes.data(), bytes.size(), coefficients);
  std::vector<std::uint8_t> record;
  if (status.ok()) status = BlockEncoder(book).encode(coefficients, record);
  if (status.code == Code::foreign) return false;
  require(status, path);
  BlockHeader header;
  require(parse_header(record.data(), record.size(), record.size(), header), path);
  photo.height = header.shape.height;
  photo.width = header.shape.width;
  photo.orientation = coefficients.orientation;
  if (codec == Codec::blocks) bytes = record;
  if (!photo.data.resize(bytes.size())) fail("no memory");
  std::copy(bytes.begin(), bytes.end(), photo.data.data());
  return true;
}

// Not inlined, so that tools/arm can exclude its instructions.
[[gnu::noinline]] std::uint32_t pixel_sum(std::uint32_t sum,
                                          const std::vector<std::uint8_t>& pixels) {
  for (const std::uint8_t pixel : pixels) sum = (sum ^ pixel) * 16777619u;
  return sum;
}

Chain crop_and_flip() {
  Chain chain;
  GeometryStep crop, flip;
  crop.kind = GeometryStep::Kind::random_resized_crop;
  crop.height = crop.width = kSize;
  flip.kind = GeometryStep::Kind::horizontal_flip;
  chain.add(crop);
  chain.add(flip);
  return chain;
}

// Returns the checksum of the pixels of `crops` crops of each photo.
std::uint32_t decode_crops(const std::vector<Photo>& photos, Codec codec, const Codebook& book,
                           int crops) {
  const Chain chain = crop_and_flip();
  ImageCounters counters;
  ImageDecoder decoder(counters);
  ImageTask task;
  task.chain = &chain;
  task.codebook = &book;
  std::vector<std::uint8_t> out(std::size_t{3} * kSize * kSize);
  const auto place = [](void* context, std::int32_t, std::int32_t) { return context; };
  std::uint32_t sums = 0;
  for (int crop = 0; crop < crops; ++crop) {
    task.epoch = static_cast<std::uint64_t>(crop);
    for (std::size_t i = 0; i < photos.size(); ++i) {
      const Photo& photo = photos[i];
      ImageRequest request;
      request.data = photo.data.data();
      request.size = photo.data.size();
      request.codec = codec;
      request.orientation = static_cast<std::uint8_t>(photo.orientation);
      request.height = photo.height;
      request.width = photo.width;
      request.row = static_cast<std::int64_t>(i);
      require(decoder.decode(task, request, place, out.data()), "photo " + std::to_string(i));
      sums = pixel_sum(sums, out);
    }
  }
  return sums;
}

void force(const std::string& name) {
  for (const SimdLevel& level : simd_levels())
    if (level.name == name) return simd_force(level.features);
  fail("this machine has no instruction sets of the name " + name);
}

}  // namespace
}  // namespace fastio

int main(int argc, char** argv) {
  using namespace fastio;
  if (argc != 5) fail("usage: crop LEVEL blocks|jpeg CODEBOOK CROPS < paths of JPEG files");
  force(argv[1]);
  const Codec codec = std::string(argv[2]) == "jpeg" ? Codec::jpeg : Codec::blocks;
  const std::vector<std::uint8_t> bytes = read_all(argv[3]);
  Codebook book;
  require(book.parse(bytes.data(), bytes.size()), argv[3]);
  std::vector<Photo> photos;
  for (std::string path; std::getline(std::cin, path);) {
    Photo photo;
    if (open_photo(book, path, codec, photo)) photos.push_back(std::move(photo));
  }
  const int crops = std::atoi(argv[4]);
  std::printf("%zu photos, %d crops of each, pixels %08x\n", photos.size(), crops,
              decode_crops(photos, codec, book, crops));
}
