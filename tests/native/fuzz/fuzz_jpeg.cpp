// JPEG files that are not trusted: read_coefficients() ends on all of them, and what it gives goes
// into a block record, out of it and into a JPEG again unchanged. Crops of them end too, and have
// the same bytes on all instruction sets.
//
// The input is one byte that says which codebook, and a file.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/block_decoder.h"
#include "core/jpeg.h"
#include "core/jpeg_coefficients.h"
#include "fuzz_support.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace fastio::fuzz {
namespace {

// A progressive file may have hundreds of scans of a few bytes, each over the whole image.
constexpr std::size_t kMostPixels = std::size_t{2} << 20, kMostProgressive = std::size_t{64} << 10;

// Offsets of what may be markers of segments, up to `most`.
std::vector<std::size_t> find_markers(const std::uint8_t* data, std::size_t size,
                                      std::size_t most) {
  std::vector<std::size_t> found;
  for (std::size_t at = 2; at + 4 <= size && found.size() < most; ++at)
    if (data[at] == 0xFF && data[at + 1] >= 0xC0 && data[at + 1] != 0xFF) found.push_back(at);
  return found;
}

bool is_frame(std::uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

bool too_large(const std::uint8_t* data, std::size_t size) {
  for (const std::size_t at : find_markers(data, size, size)) {
    if (!is_frame(data[at + 1]) || at + 9 > size) continue;
    const std::size_t height = data[at + 5] * 256u + data[at + 6];
    const std::size_t width = data[at + 7] * 256u + data[at + 8];
    const bool one_scan = data[at + 1] <= 0xC1;
    if (height * width > (one_scan ? kMostPixels : kMostProgressive)) return true;
  }
  return false;
}

void require_same(const JpegCoefficients& a, const JpegCoefficients& b, const char* what) {
  const BlockShape &s = a.shape, &t = b.shape;
  require(s.components == t.components && s.colour == t.colour && s.sub_x == t.sub_x &&
              s.sub_y == t.sub_y && s.width == t.width && s.height == t.height,
          what);
  for (int c = 0; c < s.components; ++c) {
    require(s.ids[c] == t.ids[c], what);
    require(std::equal(s.quant[s.table[c]], s.quant[s.table[c]] + 64, t.quant[t.table[c]]), what);
    require(a.blocks[c] == b.blocks[c], what);
  }
  require(a.metadata == b.metadata, what);
}

// read_coefficients() takes no file that a full read by libjpeg refuses.
void require_sound(const Padded& file) {
  JpegDecoder decoder;
  JpegHeader header;
  Status status = decoder.open(file.data(), file.size(), true, header);
  require(status.ok(), "coefficients of a file that does not open");
  JpegIndex index;
  status = decoder.check(index);
  if (!status.ok()) fail("coefficients of a file that does not decode: " + status.message);
}

void round_trip(const JpegCoefficients& in, int book) {
  Bytes record;
  for (const SimdLevel& level : simd_levels()) {
    simd_force(level.features);
    Bytes other;
    const Status status = encoder(book).encode(in, other);
    if (!status.ok()) fail("encode() refuses what a file has: " + status.message);
    require(record.empty() || record == other, "the record differs from level to level");
    record = other;
  }
  const Padded bytes(record.data(), record.size(), kExpandPad, 0xA7);
  JpegCoefficients out;
  Status status = unpack_record(codebook(book), bytes.data(), bytes.size(), out);
  if (!status.ok()) fail("a record that encode() wrote: " + status.message);
  require_same(in, out, "the record is not what the JPEG was");

  out.progressive = in.progressive;
  Bytes jpeg;
  status = write_jpeg(out, jpeg);
  if (!status.ok()) fail("write_jpeg() refuses what a file has: " + status.message);
  JpegCoefficients again;
  status = read_coefficients(jpeg.data(), jpeg.size(), again);
  if (!status.ok()) fail("a JPEG that write_jpeg() wrote: " + status.message);
  require_same(in, again, "the written JPEG is not what the first was");
  require(in.orientation == again.orientation && in.progressive == again.progressive,
          "the written JPEG has another orientation or another kind of scans");
}

// Crops on all levels; and with the index that an earlier one made.
void crops(const Padded& file, int row) {
  JpegIndex index;
  Picture expected;
  for (const SimdLevel& level : simd_levels()) {
    simd_force(level.features);
    const bool first = level.features == Simd::portable;
    ImageRequest request;
    request.found = first ? &index : nullptr;
    Picture got = crop(file, row, request);
    if (!first) {
      require(got.status.code == expected.status.code, "a crop's status differs");
      require(!got.status.ok() || got.pixels == expected.pixels, "a crop's pixels differ");
    }
    expected = std::move(got);
  }
  if (!expected.status.ok()) return;
  ImageRequest request;
  JpegIndex found;
  request.index = &index;
  request.found = &found;
  const Picture from_start = crop(file, row ^ 0x55), from_index = crop(file, row ^ 0x55, request);
  if (!from_start.status.ok()) return;
  require(from_index.status.ok(), "a crop with an index fails");
  require(from_index.pixels == from_start.pixels, "a crop with an index differs");
}

void run(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || too_large(data + 1, size - 1)) return;
  const Padded file(data + 1, size - 1, 0, 0);
  crops(file, data[0]);
  JpegCoefficients coefficients;
  const Status status = read_coefficients(file.data(), file.size(), coefficients);
  if (!status.ok()) return;
  require_sound(file);
  round_trip(coefficients, data[0] & 1);
}

// Changes a field of a frame, scan or table segment.
void change_segment(std::uint8_t* data, std::size_t size, std::mt19937& rng) {
  const std::vector<std::size_t> markers = find_markers(data, size, 40);
  if (markers.empty()) return;
  const std::size_t at = markers[rng() % markers.size()];
  const std::size_t end = std::min<std::size_t>(size, at + (rng() % 2 ? 24 : 200));
  for (unsigned n = 1 + rng() % 3; n > 0; --n)
    data[at + rng() % (end - at)] = static_cast<std::uint8_t>(rng() % 2   ? rng()
                                                              : rng() % 2 ? rng() % 5
                                                                          : 0x11 * (rng() % 5));
}

// Repeats, swaps or removes a segment. Returns the new size.
std::size_t move_segment(std::uint8_t* data, std::size_t size, std::size_t max_size,
                         std::mt19937& rng) {
  const std::vector<std::size_t> markers = find_markers(data, size, 40);
  if (markers.size() < 2) return size;
  const std::size_t from = markers[rng() % markers.size()], to = markers[rng() % markers.size()];
  const std::size_t length =
      std::min<std::size_t>(2 + data[from + 2] * 256u + data[from + 3], size - from);
  Bytes file(data, data + size);
  const Bytes segment(file.begin() + static_cast<long>(from),
                      file.begin() + static_cast<long>(from + length));
  if (rng() % 2) {
    file.erase(file.begin() + static_cast<long>(from),
               file.begin() + static_cast<long>(from + length));
  }
  if (rng() % 4)
    file.insert(file.begin() + static_cast<long>(std::min(to, file.size())), segment.begin(),
                segment.end());
  const std::size_t now = std::min(file.size(), max_size);
  std::copy_n(file.begin(), now, data);
  return now;
}

}  // namespace
}  // namespace fastio::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fastio::fuzz::run(data, size);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace fastio::fuzz;
  std::mt19937 rng(seed);
  const unsigned kind = rng() % 8;
  if (size < 8 || kind < 3) return LLVMFuzzerMutate(data, size, max_size);
  if (kind == 3) return 1 + move_segment(data + 1, size - 1, max_size - 1, rng);
  if (kind == 4) data[0] = static_cast<std::uint8_t>(rng());
  if (kind <= 6) {
    change_segment(data + 1, size - 1, rng);
  } else {
    for (unsigned n = 1 + rng() % 4; n > 0; --n)
      data[1 + rng() % (size - 1)] ^= static_cast<std::uint8_t>(1u << rng() % 8);
  }
  return size;
}
