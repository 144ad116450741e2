// Codebooks, and tiles of them, that are not trusted: Codebook::parse(), decode_dc() and
// expand_tile() on every SIMD level, with exactly the memory that they are promised.
//
// The input is kTileSelectors bytes (see Wanted), sixteen classes, mended into a codebook in most
// runs, the DC part of a tile row and the AC part of one of its tiles.
#include <algorithm>
#include <cstring>
#include <new>
#include <random>

#include "core/expand.h"
#include "fuzz_inputs.h"
#include "fuzz_support.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace fastio::fuzz {
namespace {

constexpr int kSamplings[] = {0, 0x11, 0x21, 0x22, 0x12, 0x41};  // 0: gray
constexpr std::int16_t kUntouched = 0x5A5A;

// What the selectors say.
struct Wanted {
  const std::uint8_t* s;

  bool mends() const { return (s[0] & 3) != 3; }
  bool ships() const { return s[0] & 4; }  // the codebook that ships instead of the input's
  bool all() const { return s[0] & 8; }
  BlockShape shape() const {
    BlockShape shape;
    const int sampling = kSamplings[s[1] % 6];
    shape.components = sampling ? 3 : 1;
    shape.colour = sampling ? Colour::ycbcr : Colour::gray;
    shape.sub_x = sampling ? sampling >> 4 : 1;
    shape.sub_y = sampling ? sampling & 15 : 1;
    shape.width = 1 + 2 * s[2];
    shape.height = 1 + s[3] % 16;
    for (int z = 0; z < 64; ++z)
      shape.quant[0][z] = static_cast<std::uint16_t>(s[13] ? 1 + s[13] * 257 * z / 64 : 1);
    return shape;
  }
  std::uint64_t blocks() const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, s + 5, 8);
    return all() ? ~std::uint64_t{0} : bits;
  }
  // In most runs a multiple of 4.
  std::size_t whole(std::size_t bytes) const { return mends() ? bytes / 4 * 4 : bytes; }
  std::size_t dc_bytes() const { return whole(s[14] | std::size_t{s[15]} << 8); }
  int exceptions() const { return s[16]; }
};

// Room for whole blocks, aligned as they must be, and for nothing else.
class Blocks {
 public:
  explicit Blocks(int count)
      : size_(64 * static_cast<std::size_t>(count)),
        data_(new (std::align_val_t{64}) std::int16_t[size_]) {
    std::fill(data_, data_ + size_, kUntouched);
  }
  ~Blocks() { ::operator delete[](data_, std::align_val_t{64}); }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  std::int16_t* data() { return data_; }

 private:
  std::size_t size_;
  std::int16_t* data_;
};

struct Tile {
  const Codebook& book;
  const BlockShape& shape;
  const Dequantisers& quant;
  std::uint64_t wanted;
  std::int32_t number;
  int exceptions;
};

void expand(const Tile& tile, const BlockRuns& row, const std::uint8_t* classes,
            const Padded& bytes, Outcome& out) {
  BlockRuns runs;
  runs.set_tile(tile.shape, 0, tile.number);
  Bytes own(static_cast<std::size_t>(runs.blocks + kTileColumns));
  take_tile(tile.shape, row, classes, runs, tile.number, own.data());
  Blocks blocks(runs.blocks);
  const std::vector<std::int16_t> dcs(static_cast<std::size_t>(runs.blocks), 77);
  const bool sound = expand_tile(tile.book, runs, {bytes.data(), bytes.size(), tile.exceptions},
                                 own.data(), dcs.data(), tile.quant, tile.wanted, blocks.data());
  out.add(sound ? "a sound tile" : "a damaged tile", Status::okay());
  for (int i = 0; i < runs.blocks; ++i) {
    const std::int16_t* block = blocks.data() + 64 * i;
    if (tile.wanted >> i & 1) {
      if (!sound) continue;
      require(block[0] == 77, "expand_tile() writes a block without its DC");
      out.add("a block", block, 128);
    } else {
      require(std::all_of(block, block + 64, [](std::int16_t v) { return v == kUntouched; }),
              "expand_tile() writes a block that is not wanted");
    }
  }
}

void decode(const Tile& tile, const Padded& dc, const Padded& ac, Outcome& out) {
  BlockRuns row;
  row.set_row(tile.shape, 0);
  const auto blocks = static_cast<std::size_t>(row.blocks);
  const std::unique_ptr<std::int16_t[]> values(new std::int16_t[blocks]);
  const std::uint8_t* classes =
      decode_dc(tile.book, row, {dc.data(), dc.size()}, tile.quant, values.get());
  out.add(classes ? "a sound row" : "a damaged row", Status::okay());
  if (classes) out.add("DCs", values.get(), 2 * blocks);
  // A tile's AC part has to stand on its own: its classes may be any.
  Bytes any(blocks + kTileColumns);
  for (std::size_t i = 0; i < blocks; ++i) any[i] = i < dc.size() ? dc.data()[i] : 0;
  expand(tile, row, classes ? classes : any.data(), ac, out);
}

// The input's codebook, at times a byte or two short.
bool parse(const Wanted& wanted, const std::uint8_t* data, Codebook& out) {
  const Bytes bytes = long_codebook(data + kTileSelectors, wanted.mends());
  const Padded exact(bytes.data(), bytes.size() - (wanted.mends() ? 0 : data[4] % 3), 0, 0);
  const Status status = out.parse(exact.data(), exact.size());
  require(status.ok() || !wanted.mends(), "parse() refuses a codebook");
  return status.ok();
}

void run(const std::uint8_t* data, std::size_t size) {
  if (size < kTileSelectors + kShortBytes) return;
  const Wanted wanted{data};
  static Codebook own;
  if (!wanted.ships() && !parse(wanted, data, own)) return;

  const BlockShape shape = wanted.shape();
  Dequantisers quant;
  quant.set(shape);
  const Tile tile{wanted.ships() ? codebook(0) : own,
                  shape,
                  quant,
                  wanted.blocks(),
                  data[4] % shape.tiles_x(),
                  wanted.exceptions()};
  const std::uint8_t* dc = data + kTileSelectors + kShortBytes;
  const auto left = static_cast<std::size_t>(data + size - dc);
  const std::size_t dc_bytes = std::min(left, wanted.dc_bytes());
  Outcome first;
  std::uint8_t filler = 0;
  for (const auto& [name, level] : simd_levels()) {
    simd_force(level);
    Outcome outcome;
    decode(tile, Padded(dc, dc_bytes, kExpandPad, filler),
           Padded(dc + dc_bytes, wanted.whole(left - dc_bytes), kExpandPad, filler),
           level == Simd::portable ? first : outcome);
    if (level != Simd::portable) first.require_equal(outcome, name);
    filler ^= 0xA7;
  }
  simd_force(simd_best());
}

}  // namespace
}  // namespace fastio::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fastio::fuzz::run(data, size);
  return 0;
}

// Mutates one of the input's pieces, the others staying where they are.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace fastio::fuzz;
  std::mt19937 rng(seed);
  constexpr std::size_t kHead = kTileSelectors + kShortBytes;
  if (size <= kHead || rng() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t begins[] = {0, kTileSelectors, kHead,
                                std::min(size, kHead + Wanted{data}.dc_bytes()), size};
  const std::size_t k = rng() % 4, begin = begins[k], end = begins[k + 1];
  const std::size_t room =
      k < 2 ? end - begin : std::min(end - begin + 64, max_size - size + end - begin);
  Bytes piece(data + begin, data + end), rest(data + end, data + size);
  piece.resize(std::max<std::size_t>(room, 1));
  piece.resize(LLVMFuzzerMutate(piece.data(), end - begin, piece.size()));
  if (k < 2) piece.resize(end - begin);
  if (k == 2) {
    data[14] = static_cast<std::uint8_t>(piece.size());
    data[15] = static_cast<std::uint8_t>(piece.size() >> 8);
  }
  const std::size_t now = std::min(begin + piece.size() + rest.size(), max_size);
  piece.insert(piece.end(), rest.begin(), rest.end());
  std::copy_n(piece.begin(), now - begin, data + begin);
  return now;
}
