#include "block_encoder.h"

#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <string>

#include "block_encoder_kernels.h"
#include "cpu.h"
#include "expand.h"

namespace fastio {
namespace {

constexpr int kExceptionBits = 24, kEscapeBits = 16;
constexpr int kMaxExceptions = 255;  // of a tile
constexpr int kMaxAc = 2047;
constexpr std::uint64_t kDcPosition = 1;
// The bytes that a BitWriter needs after its bits, and the most bytes of a tile: that of blocks of
// class 0 only.
constexpr std::size_t kWriterPad = 16;
constexpr std::size_t kMaxTileBytes = kTileBlocks * (63 + 63 * kPlanes) / 8 + kWriterPad;

struct Kernels {
  TakeApartKernel* take_apart;
  SearchKernel* search;
  PutValuesKernel* put_values;
};

Kernels choose_kernels() {
  static constexpr Choice<Kernels> kChoices[] = {
#ifdef FASTIO_X86
      {kAvx512 | kPdep, {take_apart_avx512, search_avx512, put_values_avx2}},
      {kAvx512, {take_apart_avx512, search_avx512, put_values_portable}},
      {kAvx2 | kPdep, {take_apart_avx2, search_avx2, put_values_avx2}},
      {kAvx2, {take_apart_avx2, search_avx2, put_values_portable}},
#endif
      {0, {take_apart_portable, search_portable, put_values_portable}}};
  return choose(kChoices);
}

// Returns the bits that a value of `width` bits at zigzag index z costs in class c, or -1 if the
// class cannot represent it.
int value_cost(const Codebook& codebook, int c, int z, int width) {
  const int has = codebook.width[c][z];
  if (z > codebook.mask_bits[c] || (z == 0 && has == 0 && width > 0)) return -1;
  if (width <= has) return has;
  return z == 0 ? has + kEscapeBits : kExceptionBits;
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
      int least = 255;  // replaced at least by class 0, which can represent any value
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

// Returns the least width of a DC difference's field that can hold this difference, or kEscapeWidth
// if no field can. The lowest number of each width is reserved for escapes.
int dc_width(int difference) {
  const int magnitude = difference < 0 ? -difference : difference;
  if (magnitude == 0) return 0;
  return magnitude < 1 << (kPlanes - 1) ? 1 + std::bit_width(static_cast<unsigned>(magnitude))
                                        : kEscapeWidth;
}

// Corrects the bits of the values at positions `large` of `order`, for which kernels give wrong
// ones (see TakeApartKernel). Returns false if no record can hold one of these values.
bool take_apart_large(const std::int16_t* block, const std::uint8_t* order, std::uint64_t large,
                      BlockBits& bits) {
  for (int j = 1; j < kPlanes; ++j) bits.plane[j] &= ~large;
  for (; large; large &= large - 1) {
    const int z = std::countr_zero(large);
    const int value = block[order[z]], magnitude = value < 0 ? -value : value;
    if (magnitude > kMaxAc) return false;
    const std::uint64_t position = std::uint64_t{1} << z;
    for (int j = 1; j < kPlanes; ++j)
      if ((magnitude - 1) >> (j - 1) & 1) bits.plane[j] |= position;
    // 8 bits cannot tell 128 from -128, so only classes with wide values represent a magnitude of
    // 128.
    if (magnitude == 128) bits.half |= position;
    bits.width[z] = static_cast<std::uint8_t>(
        magnitude == 128 ? 9 : 1 + std::bit_width(static_cast<unsigned>(magnitude - 1)));
  }
  return true;
}

// Returns the class that costs least: the search for blocks whose sums do not fit the kernels'
// bytes.
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

// Returns the class that makes a block shortest; of several, the lowest one.
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

// Returns the ranks whose values class c cannot hold. bits: by rank. large: whether
// take_apart_large() was needed.
std::uint64_t exceptions(const Codebook& codebook, int c, const BlockBits& bits, bool large) {
  std::uint64_t out = 0;
  for (int j = 1; j < 8; ++j) out |= bits.plane[j] & ~codebook.has[c][j];
  if (!large) return out;
  for (int j = 8; j < kPlanes; ++j) out |= bits.plane[j] & ~plane_ranks(codebook, c, j);
  return out | (bits.half & ~plane_ranks(codebook, c, 8));
}

// Returns the zigzag indices of ranks of class c.
std::uint64_t positions_of(const Codebook& codebook, int c, std::uint64_t ranks) {
  std::uint64_t out = 0;
  for (; ranks; ranks &= ranks - 1)
    out |= std::uint64_t{1} << kZigzagInverse[codebook.natural[c][std::countr_zero(ranks)]];
  return out;
}

// Appends zeros up to the next multiple of 4 bytes.
void pad_part(std::vector<std::uint8_t>& bytes) { bytes.resize(part_bytes(bytes.size())); }

// Computes the DC differences of a tile row, along each block row. The first block of a block row
// is predicted by the first block of the row above. In the first block row, its difference is 0,
// because its DC is the component's base.
void take_differences(const JpegCoefficients& in, const BlockRuns& row, std::int16_t* out) {
  int above = 0;
  for (int k = 0; k < row.runs; ++k) {
    const BlockRuns::Run& run = row.run[k];
    const int c = run.component;
    const std::size_t stride = std::size_t{64} * static_cast<std::size_t>(run.count);
    const bool first = k == 0 || row.run[k - 1].component != c;
    const std::int16_t* block = in.blocks[c].data() + static_cast<std::size_t>(run.y) * stride;
    int before = first ? block[0] : above;
    above = block[0];
    for (std::int32_t i = 0; i < run.count; ++i, block += 64) {
      out[run.first + i] = static_cast<std::int16_t>(block[0] - before);
      before = block[0];
    }
  }
}

}  // namespace

struct BlockEncoder::State {
  explicit State(const Codebook& book) : codebook(book) { build_costs(book, costs); }

  // Tiles are encoded row by row, but the record has one column of groups after the other.
  struct GroupColumn {
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint16_t> words;
    std::vector<std::uint8_t> exceptions;
  };

  void begin(const BlockShape& shape);
  std::uint64_t take_apart(const std::int16_t* block, int c, BlockBits& b);
  Status add_block(const std::int16_t* block, std::int16_t difference);
  Status add_tile(const JpegCoefficients& in, std::int32_t r, std::int32_t t);
  Status add_row(const JpegCoefficients& in, std::int32_t r);
  void finish_ac(GroupColumn& column);
  void finish_dc(const JpegCoefficients& in, std::int32_t r);
  void join_columns();

  const Codebook& codebook;
  ClassCosts costs;
  Kernels kernels;

  // The current tile.
  int count = 0;  // the blocks that are done
  BlockBits bits[kTileBlocks];
  std::uint8_t classes[kTileBlocks];
  std::vector<std::uint8_t> exceptions;  // 3 bytes each
  std::uint8_t scratch[kMaxTileBytes];

  // The current tile row, whose blocks have the order of the DC section.
  BlockRuns row;
  std::vector<std::uint8_t> row_classes;
  std::vector<std::int16_t> row_differences, row_escapes;
  std::vector<std::uint8_t> row_bits;

  // The record's parts.
  std::vector<std::uint8_t> dc, ac;
  std::vector<GroupColumn> columns;
  BlockLengths lengths;
};

// Splits a block into bit planes, ordered by the ranks of class c. Returns the ranks whose values
// the class cannot hold.
std::uint64_t BlockEncoder::State::take_apart(const std::int16_t* block, int c, BlockBits& b) {
  const std::uint8_t* order = codebook.natural[c];
  const std::uint64_t large = kernels.take_apart(block, order, b);
  if (large) take_apart_large(block, order, large, b);
  return fastio::exceptions(codebook, c, b, large != 0);
}

// Chooses the class of the next block of the tile, and splits it into bit planes.
Status BlockEncoder::State::add_block(const std::int16_t* block, std::int16_t difference) {
  BlockBits& b = bits[count];
  const std::uint64_t large = kernels.take_apart(block, kZigzag, b);
  if (large && !take_apart_large(block, kZigzag, large, b))
    return Status::error(Code::foreign, "AC coefficients of more than 11 bits");
  b.width[0] = static_cast<std::uint8_t>(dc_width(difference));
  int c = choose_class(codebook, costs, kernels, b);
  std::uint64_t outside = take_apart(block, c, b);
  // If the tile would have too many exceptions, use class 0, which needs none.
  if (exceptions.size() / 3 + static_cast<std::size_t>(std::popcount(outside)) > kMaxExceptions) {
    c = 0;
    outside = take_apart(block, c, b);
  }
  // The stream has no bits for exceptions: it represents their positions as 0.
  b.mask &= ~outside;
  for (int j = 0; outside && j < kPlanes; ++j) b.plane[j] &= ~outside;
  outside = positions_of(codebook, c, outside);
  for (; outside; outside &= outside - 1) {
    const int z = std::countr_zero(outside), value = block[kZigzag[z]] & 0xFFF;
    exceptions.push_back(static_cast<std::uint8_t>(z | count << 6));
    exceptions.push_back(static_cast<std::uint8_t>(count >> 2 | value << 4));
    exceptions.push_back(static_cast<std::uint8_t>(value >> 4));
  }
  classes[count++] = static_cast<std::uint8_t>(c);
  return Status::okay();
}

Status BlockEncoder::State::add_tile(const JpegCoefficients& in, std::int32_t r, std::int32_t t) {
  const BlockShape& shape = in.shape;
  BlockRuns tile;
  tile.set_tile(shape, r, t);
  count = 0;
  exceptions.clear();
  for (int k = 0; k < tile.runs; ++k) {
    const BlockRuns::Run& run = tile.run[k];
    const int c = run.component;
    const std::int32_t x = t * shape.tile_blocks_x(c);
    const std::int16_t* block =
        in.blocks[c].data() +
        64 * (static_cast<std::size_t>(run.y) * static_cast<std::size_t>(shape.blocks_x(c)) +
              static_cast<std::size_t>(x));
    const std::size_t place = static_cast<std::size_t>(row.run[k].first + x);
    for (std::int32_t i = 0; i < run.count; ++i, block += 64) {
      const Status status = add_block(block, row_differences[place + static_cast<std::size_t>(i)]);
      if (!status.ok()) return status;
    }
    std::copy_n(classes + run.first, run.count, row_classes.data() + place);
  }
  finish_ac(columns[static_cast<std::size_t>(t / kGroupTiles)]);
  return Status::okay();
}

Status BlockEncoder::State::add_row(const JpegCoefficients& in, std::int32_t r) {
  row.set_row(in.shape, r);
  row_differences.resize(static_cast<std::size_t>(row.blocks));
  row_classes.resize(static_cast<std::size_t>(row.blocks));
  take_differences(in, row, row_differences.data());
  for (std::int32_t t = 0; t < in.shape.tiles_x(); ++t) {
    const Status status = add_tile(in, r, t);
    if (!status.ok()) return status;
  }
  finish_dc(in, r);
  return Status::okay();
}

void BlockEncoder::State::finish_dc(const JpegCoefficients& in, std::int32_t r) {
  const auto fits = [&](std::size_t i) {
    return dc_width(row_differences[i]) <= codebook.dc_bits[row_classes[i]];
  };
  const std::size_t before = dc.size();
  const auto put16 = [&](std::int16_t number) {
    dc.push_back(static_cast<std::uint8_t>(number));
    dc.push_back(static_cast<std::uint8_t>(number >> 8));
  };
  row_escapes.clear();
  row_bits.resize(row_classes.size() * kPlanes / 8 + kWriterPad);
  BitWriter to(row_bits.data());
  for (std::size_t i = 0; i < row_classes.size(); ++i) {
    const int has = codebook.dc_bits[row_classes[i]];
    const std::uint64_t one = 1;
    const auto difference = static_cast<std::uint64_t>(std::int64_t{row_differences[i]});
    to.put(fits(i) ? difference & ((one << has) - 1) : one << (has - 1), has);
    if (!fits(i)) row_escapes.push_back(row_differences[i]);
  }
  put16(static_cast<std::int16_t>(row_escapes.size()));
  for (int c = 0; c < in.shape.components; ++c)
    put16(in.blocks[c][std::size_t{64} * static_cast<std::size_t>(r * in.shape.tile_blocks_y(c)) *
                       static_cast<std::size_t>(in.shape.blocks_x(c))]);
  dc.insert(dc.end(), row_classes.begin(), row_classes.end());
  pad_part(dc);
  dc.insert(dc.end(), row_bits.data(), to.finish());
  pad_part(dc);
  for (const std::int16_t difference : row_escapes) put16(difference);
  pad_part(dc);
  lengths.dc_words.push_back(static_cast<std::uint16_t>((dc.size() - before) / 4));
}

void BlockEncoder::State::finish_ac(GroupColumn& column) {
  const std::size_t before = column.bytes.size();
  BitWriter to(scratch);
  for (int i = 0; i < count; ++i) to.put(bits[i].mask >> 1, codebook.mask_bits[classes[i]]);
  kernels.put_values(codebook, bits, classes, count, to);
  column.bytes.insert(column.bytes.end(), scratch, to.finish());
  pad_part(column.bytes);
  column.bytes.insert(column.bytes.end(), exceptions.begin(), exceptions.end());
  pad_part(column.bytes);
  column.words.push_back(static_cast<std::uint16_t>((column.bytes.size() - before) / 4));
  column.exceptions.push_back(static_cast<std::uint8_t>(exceptions.size() / 3));
}

void BlockEncoder::State::begin(const BlockShape& shape) {
  kernels = choose_kernels();
  dc.clear();
  ac.clear();
  lengths.dc_words.clear();
  lengths.ac_words.clear();
  lengths.exceptions.clear();
  columns.resize(static_cast<std::size_t>(shape.group_columns()));
  for (GroupColumn& column : columns) {
    column.bytes.clear();
    column.words.clear();
    column.exceptions.clear();
  }
}

void BlockEncoder::State::join_columns() {
  for (const GroupColumn& column : columns) {
    ac.insert(ac.end(), column.bytes.begin(), column.bytes.end());
    lengths.ac_words.insert(lengths.ac_words.end(), column.words.begin(), column.words.end());
    lengths.exceptions.insert(lengths.exceptions.end(), column.exceptions.begin(),
                              column.exceptions.end());
  }
}

BlockEncoder::BlockEncoder(const Codebook& codebook) : state_(std::make_unique<State>(codebook)) {}

BlockEncoder::~BlockEncoder() = default;

Status BlockEncoder::encode(const JpegCoefficients& in, std::vector<std::uint8_t>& record) try {
  Status status = in.shape.check();
  for (int c = 0; status.ok() && c < in.shape.components; ++c)
    if (in.blocks[c].size() !=
        std::size_t{64} * in.shape.blocks_x(c) * static_cast<std::size_t>(in.shape.blocks_y(c)))
      status = Status::error(Code::corrupt, "the number of blocks does not match the image's size");
  if (!status.ok()) return status;
  State& s = *state_;
  s.begin(in.shape);
  for (std::int32_t r = 0; status.ok() && r < in.shape.tile_rows(); ++r) status = s.add_row(in, r);
  if (!status.ok()) return status;
  s.join_columns();
  status = write_header(in.shape, s.lengths, s.dc, s.ac, in.metadata, record);
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
