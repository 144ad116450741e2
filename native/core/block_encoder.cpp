#include "block_encoder.h"

#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <string>

#include "block_encoder_kernels.h"
#include "cpu.h"

namespace fastio {
namespace {

constexpr int kExceptionBits = 24, kEscapeBits = 16;
constexpr int kMaxExceptions = 255;  // of a tile
constexpr int kMaxDcBytes = 255;     // of a tile's part
constexpr int kMaxAc = 2047;
constexpr std::uint64_t kDcPosition = 1;
// The bits of a tile whose blocks are all of class 0, and what a BitWriter needs behind them.
constexpr std::size_t kMaxTileBytes = kTileBlocks * (63 + 63 * kPlanes) / 8 + 16;

struct Kernels {
  TakeApartKernel* take_apart = take_apart_portable;
  SearchKernel* search = search_portable;
  PutValuesKernel* put_values = put_values_portable;
};

Kernels choose_kernels() {
  Kernels kernels;
#ifdef FASTIO_X86
  if (simd_active() >= Simd::avx2) {
    kernels.take_apart = take_apart_avx2;
    kernels.search = search_avx2;
    if (fast_pdep()) kernels.put_values = put_values_avx2;
  }
  if (simd_active() >= Simd::avx512) {
    kernels.take_apart = take_apart_avx512;
    kernels.search = search_avx512;
  }
#endif
  return kernels;
}

// What a value of `width` bits costs at position z in class c; -1 if the class cannot have it.
int value_cost(const Codebook& codebook, int c, int z, int width) {
  const int has = codebook.width[c][z];
  if (z > codebook.mask_bits[c] || (z == 0 && has == 0 && width > 0)) return -1;
  return has + (width <= has ? 0 : z == 0 ? kEscapeBits : kExceptionBits);
}

void build_costs(const Codebook& codebook, ClassCosts& costs) {
  int classes[kClasses];
  std::iota(classes, classes + kClasses, 0);
  std::stable_sort(classes, classes + kClasses,
                   [&](int a, int b) { return codebook.mask_bits[a] > codebook.mask_bits[b]; });
  for (int lane = 0; lane < kClasses; ++lane) {
    costs.lane_class[lane] = static_cast<std::uint8_t>(classes[lane]);
    costs.mask[lane] = codebook.mask_bits[classes[lane]];
  }
  for (int z = 0; z < 64; ++z) {
    const auto reach = std::count_if(costs.mask, costs.mask + kClasses,
                                     [&](std::uint8_t last) { return last >= z; });
    costs.groups[z] = static_cast<std::uint8_t>((reach + kGroupLanes - 1) / kGroupLanes);
    for (int width = 0; width <= kEscapeWidth; ++width) {
      int least = 255;  // class 0 can have any value
      for (int c = 0; c < kClasses; ++c) {
        const int cost = value_cost(codebook, c, z, width);
        if (cost >= 0) least = std::min(least, cost);
      }
      for (int lane = 0; lane < kClasses; ++lane) {
        const int cost = value_cost(codebook, classes[lane], z, width);
        costs.value[z][width][lane] = static_cast<std::uint8_t>(cost < 0 ? 255 : cost - least);
      }
    }
  }
}

// Bits of class c's number for a DC difference that hold it; an escape's own number holds none.
int dc_width(int difference) {
  const int magnitude = difference < 0 ? -difference : difference;
  if (magnitude == 0) return 0;
  return magnitude < 1 << (kPlanes - 1) ? 1 + std::bit_width(static_cast<unsigned>(magnitude))
                                        : kEscapeWidth;
}

// What a kernel left open for values of 127 and more. False: one that no record can hold.
bool take_apart_large(const std::int16_t* block, std::uint64_t large, BlockBits& bits) {
  for (int j = 1; j < kPlanes; ++j) bits.plane[j] &= ~large;
  for (; large; large &= large - 1) {
    const int z = std::countr_zero(large);
    const int value = block[kZigzag[z]], magnitude = value < 0 ? -value : value;
    if (magnitude > kMaxAc) return false;
    const std::uint64_t position = std::uint64_t{1} << z;
    for (int j = 1; j < kPlanes; ++j)
      if ((magnitude - 1) >> (j - 1) & 1) bits.plane[j] |= position;
    // The byte of a class without wide values cannot tell 128 from -128.
    if (magnitude == 128) bits.half |= position;
    bits.width[z] = static_cast<std::uint8_t>(
        magnitude == 128 ? 9 : 1 + std::bit_width(static_cast<unsigned>(magnitude - 1)));
  }
  return true;
}

// The search without a limit on the sums.
int search_exactly(const Codebook& codebook, std::uint64_t positions, const std::uint8_t* width) {
  int best = 0, least = 1 << 30;
  for (int c = 0; c < kClasses; ++c) {
    int sum = codebook.mask_bits[c];
    for (std::uint64_t left = positions; left && sum < least; left &= left - 1) {
      const int z = std::countr_zero(left), cost = value_cost(codebook, c, z, width[z]);
      sum += cost < 0 ? least : cost;
    }
    if (sum >= least) continue;
    least = sum;
    best = c;
  }
  return best;
}

int choose_class(const Codebook& codebook, const ClassCosts& costs, const Kernels& kernels,
                 const BlockBits& bits) {
  const std::uint64_t positions = bits.mask | kDcPosition;
  const int last = 63 - std::countl_zero(positions);
  std::uint64_t lanes[kGroups];
  if (kernels.search(costs, positions, bits.width, costs.groups[last], lanes) == 255)
    return search_exactly(codebook, positions, bits.width);
  int best = kClasses;
  for (int g = 0; g < kGroups; ++g)
    for (std::uint64_t left = lanes[g]; left; left &= left - 1)
      best = std::min<int>(best, costs.lane_class[g * kGroupLanes + std::countr_zero(left)]);
  return best;
}

// Positions whose values class c cannot hold.
std::uint64_t exceptions(const Codebook& codebook, int c, const BlockBits& bits, bool large) {
  std::uint64_t out = 0;
  for (int j = 1; j < 8; ++j) out |= bits.plane[j] & ~codebook.has[c][j];
  if (!large) return out;
  for (int j = 8; j < kPlanes; ++j) out |= bits.plane[j] & ~plane_positions(codebook, c, j);
  return out | (bits.half & ~plane_positions(codebook, c, 8));
}

}  // namespace

struct BlockEncoder::State {
  explicit State(const Codebook& book) : codebook(book) { build_costs(book, costs); }

  Status add_block(const std::int16_t* block, std::int16_t difference);
  Status add_tile(const JpegCoefficients& in, std::int32_t r, std::int32_t t);
  Status finish_dc(const std::int16_t* bases, int components);
  void finish_ac();

  const Codebook& codebook;
  ClassCosts costs;
  Kernels kernels;

  // The tile at work.
  int blocks = 0, count = 0;  // of the tile, and of those that are done
  int dc_bits = 0, dc_limit = 0;
  BlockBits bits[kTileBlocks];
  std::uint8_t classes[kTileBlocks];
  std::int16_t differences[kTileBlocks];
  std::vector<std::uint8_t> exceptions;  // 3 bytes each
  std::uint8_t scratch[kMaxTileBytes];

  // The record's parts.
  std::vector<std::uint8_t> dc_bytes, dc, ac;
  std::vector<std::uint16_t> ac_bytes;
};

// Takes the next block of the tile apart and chooses its class.
Status BlockEncoder::State::add_block(const std::int16_t* block, std::int16_t difference) {
  BlockBits& b = bits[count];
  const std::uint64_t large = kernels.take_apart(block, b);
  if (large && !take_apart_large(block, large, b))
    return Status::error(Code::foreign, "AC coefficients of more than 11 bits");
  b.width[0] = static_cast<std::uint8_t>(dc_width(difference));
  int c = choose_class(codebook, costs, kernels, b);
  std::uint64_t outside = fastio::exceptions(codebook, c, b, large != 0);
  const auto dc_cost = [&](int of) { return value_cost(codebook, of, 0, b.width[0]); };
  // Where the tile's counts would overflow: class 0, which needs no exceptions, and no escapes but
  // for differences that need one in every class.
  const bool many =
      exceptions.size() / 3 + static_cast<std::size_t>(std::popcount(outside)) > kMaxExceptions;
  const bool long_dc = dc_bits + dc_cost(c) + kPlanes * (blocks - count - 1) > dc_limit;
  if (many || (long_dc && dc_cost(0) < dc_cost(c))) {
    c = 0;
    outside = 0;
  }
  dc_bits += dc_cost(c);
  for (int j = 0; outside && j < kPlanes; ++j) b.plane[j] &= ~outside;
  for (; outside; outside &= outside - 1) {
    const int z = std::countr_zero(outside), value = block[kZigzag[z]] & 0xFFF;
    exceptions.push_back(static_cast<std::uint8_t>(count | z << 6));
    exceptions.push_back(static_cast<std::uint8_t>(z >> 2 | value << 4));
    exceptions.push_back(static_cast<std::uint8_t>(value >> 4));
  }
  classes[count] = static_cast<std::uint8_t>(c);
  differences[count] = difference;
  ++count;
  return Status::okay();
}

Status BlockEncoder::State::add_tile(const JpegCoefficients& in, std::int32_t r, std::int32_t t) {
  const BlockShape& shape = in.shape;
  std::int16_t bases[3];
  blocks = shape.blocks_in_tile(r, t);
  count = dc_bits = 0;
  dc_limit = 8 * (kMaxDcBytes - 2 * shape.components - blocks);
  exceptions.clear();
  for (int c = 0; c < shape.components; ++c) {
    const int rows = shape.blocks_in_tile_y(c, r), columns = shape.blocks_in_tile_x(c, t);
    const std::size_t stride = std::size_t{64} * static_cast<std::size_t>(shape.blocks_x(c));
    const std::int16_t* row = in.blocks[c].data() +
                              static_cast<std::size_t>(r * shape.tile_blocks_y(c)) * stride +
                              static_cast<std::size_t>(t * shape.tile_blocks_x(c)) * 64;
    std::int16_t above = bases[c] = row[0];
    for (int y = 0; y < rows; ++y, row += stride) {
      std::int16_t before = above;
      above = row[0];
      for (const std::int16_t* block = row; block < row + columns * 64; block += 64) {
        const Status status = add_block(block, static_cast<std::int16_t>(block[0] - before));
        if (!status.ok()) return status;
        before = block[0];
      }
    }
  }
  const Status status = finish_dc(bases, shape.components);
  if (status.ok()) finish_ac();
  return status;
}

Status BlockEncoder::State::finish_dc(const std::int16_t* bases, int components) {
  if (dc_bits > dc_limit)
    return Status::error(Code::foreign, "a tile with too many large DC differences");
  const std::size_t before = dc.size();
  for (int c = 0; c < components; ++c) {
    dc.push_back(static_cast<std::uint8_t>(bases[c]));
    dc.push_back(static_cast<std::uint8_t>(bases[c] >> 8));
  }
  dc.insert(dc.end(), classes, classes + count);
  BitWriter to(scratch);
  for (int i = 0; i < count; ++i) {
    const int has = codebook.dc_bits[classes[i]];
    const std::uint64_t one = 1;
    to.put(bits[i].width[0] <= has ? static_cast<std::uint64_t>(differences[i]) & ((one << has) - 1)
                                   : one << (has - 1),
           has);
  }
  for (int i = 0; i < count; ++i)
    if (bits[i].width[0] > codebook.dc_bits[classes[i]])
      to.put(static_cast<std::uint16_t>(differences[i]), kEscapeBits);
  dc.insert(dc.end(), scratch, to.finish());
  dc_bytes.push_back(static_cast<std::uint8_t>(dc.size() - before));
  return Status::okay();
}

void BlockEncoder::State::finish_ac() {
  const std::size_t before = ac.size();
  ac.push_back(static_cast<std::uint8_t>(exceptions.size() / 3));
  ac.insert(ac.end(), exceptions.begin(), exceptions.end());
  BitWriter to(scratch);
  for (int i = 0; i < count; ++i) to.put(bits[i].mask >> 1, codebook.mask_bits[classes[i]]);
  kernels.put_values(codebook, bits, classes, count, to);
  ac.insert(ac.end(), scratch, to.finish());
  ac_bytes.push_back(static_cast<std::uint16_t>(ac.size() - before));
}

BlockEncoder::BlockEncoder(const Codebook& codebook) : state_(std::make_unique<State>(codebook)) {}

BlockEncoder::~BlockEncoder() = default;

Status BlockEncoder::encode(const JpegCoefficients& in, std::vector<std::uint8_t>& record) try {
  Status status = in.shape.check();
  for (int c = 0; status.ok() && c < in.shape.components; ++c)
    if (in.blocks[c].size() !=
        std::size_t{64} * in.shape.blocks_x(c) * static_cast<std::size_t>(in.shape.blocks_y(c)))
      status = Status::error(Code::corrupt, "coefficients of another number of blocks");
  State& s = *state_;
  s.kernels = choose_kernels();
  s.dc.clear();
  s.ac.clear();
  s.dc_bytes.clear();
  s.ac_bytes.clear();
  for (std::int32_t r = 0; status.ok() && r < in.shape.tile_rows(); ++r)
    for (std::int32_t t = 0; status.ok() && t < in.shape.tiles_x(); ++t)
      status = s.add_tile(in, r, t);
  if (status.ok())
    status = write_header(in.shape, s.dc_bytes, s.ac_bytes, s.dc, s.ac, in.metadata, record);
  if (!status.ok()) return status;
  record.reserve(record.size() + s.dc.size() + s.ac.size() + in.metadata.size());
  record.insert(record.end(), s.dc.begin(), s.dc.end());
  record.insert(record.end(), s.ac.begin(), s.ac.end());
  record.insert(record.end(), in.metadata.begin(), in.metadata.end());
  return status;
} catch (const std::bad_alloc&) {
  return Status::error(Code::memory, "out of memory");
}

}  // namespace fastio
