// Indexes of JPEGs that are not trusted: an index that was parsed can be used by a scan safely, and
// decoding a crop with any index ends.
//
// The input is a byte that chooses the crop, two that say how many bytes the index has, the index,
// and a file.
#include <random>

#include "core/jpeg_index.h"
#include "fuzz_support.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace fastio::fuzz {
namespace {

constexpr std::size_t kHeader = 3;
constexpr std::int64_t kMostPixels = 1 << 20;

void require_usable(const JpegIndex& index) {
  require(!index.points.empty(), "an index without points");
  require(index.points.size() <= index.scan.all_points(), "too many points");
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < index.points.size(); ++i) {
    const JpegIndex::Point& point = index.points[i];
    const std::uint64_t bit = std::uint64_t{point.byte} * 8 + point.bit;
    require(point.bit < 8 && point.byte < index.scan.bytes, "a point outside of the scan");
    require(i == 0 ? bit == 0 : bit > last, "a point that is not behind the one before");
    last = bit;
  }
  const std::vector<std::uint8_t> bytes = index.bytes();
  JpegIndex again;
  require(again.read(bytes.data(), bytes.size()), "bytes() writes what read() refuses");
  require(again.scan == index.scan && again.bytes() == bytes, "an index that changes");
}

void run(const std::uint8_t* data, std::size_t size) {
  if (size < kHeader) return;
  const std::size_t length = std::min<std::size_t>(data[1] | data[2] << 8, size - kHeader);
  const Padded bytes(data + kHeader, length, 0, 0);
  JpegIndex index;
  if (!index.read(bytes.data(), bytes.size())) return;
  require_usable(index);
  const Padded file(data + kHeader + length, size - kHeader - length, Buffer::kPad, 0);
  ImageRequest request;
  JpegIndex found;
  request.index = &index;
  request.found = &found;
  static_cast<void>(crop(file, data[0], request, kMostPixels));
}

}  // namespace
}  // namespace fastio::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fastio::fuzz::run(data, size);
  return 0;
}

// Changes the index far more often than the file.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace fastio::fuzz;
  std::mt19937 rng(seed);
  if (size <= kHeader + 8 || rng() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t length = std::min<std::size_t>(data[1] | data[2] << 8, size - kHeader);
  data[0] = static_cast<std::uint8_t>(rng());
  for (unsigned n = 1 + rng() % 3; n > 0 && length > 0; --n) {
    std::uint8_t& byte = data[kHeader + rng() % length];
    byte = static_cast<std::uint8_t>(rng() % 2 ? rng() : byte ^ 1u << rng() % 8);
  }
  return size;
}
