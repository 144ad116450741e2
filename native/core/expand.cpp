#include "expand.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu.h"
#include "expand_kernels.h"
#include "idct.h"

namespace fastio {
namespace {

// An exception: a coefficient that needs more bits than its block's class has at this index.
struct Exception {
  unsigned block, position;
  std::int16_t value;

  unsigned order() const { return block << 6 | position; }
};

Exception get_exception(const std::uint8_t* p) {
  const std::uint32_t bits = p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16;
  return {bits >> 6 & 63, bits & 63,
          static_cast<std::int16_t>(static_cast<std::int32_t>(bits << 8) >> 20)};
}

// Returns a * b modulo 2^16.
std::int16_t product(std::int16_t a, std::int16_t b) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(a) *
                                   unsigned{static_cast<std::uint16_t>(b)});
}

constexpr Choice<ExpandKernel*> kExpand[] = {
#ifdef FASTIO_X86
    {kAvx512 | kPdep, expand_avx512},
    {kAvx512bw | kPdep, expand_avx512bw},
    {kAvx2 | kPdep, expand_avx2},
#endif
#ifdef FASTIO_ARM64
    {kNeon | kBdep, expand_sve2},
    {kNeon, expand_neon},
#endif
    {0, expand_portable}};

constexpr Choice<MaskBitsKernel*> kMaskBits[] = {
#ifdef FASTIO_X86
    {kAvx512, mask_bits_avx512},
#endif
    {0, mask_bits_portable}};

constexpr Choice<DcKernel*> kDcDifferences[] = {
#ifdef FASTIO_X86
    {kAvx512, dc_differences_avx512},
    {kAvx512bw, dc_differences_avx512bw},
    {kAvx2, dc_differences_avx2},
#endif
#ifdef FASTIO_ARM64
    {kNeon, dc_differences_neon},
#endif
    {0, dc_differences_portable}};

constexpr Choice<SumKernel*> kSum[] = {
#ifdef FASTIO_X86
    {kAvx512, sum_avx512},
    {kAvx512bw, sum_avx512bw},
    {kAvx2, sum_avx2},
#endif
#ifdef FASTIO_ARM64
    {kNeon, sum_neon},
#endif
    {0, sum_portable}};

std::uint32_t load32(const std::uint8_t* p) {
  return p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}

// Whether a part of `end` bits, a multiple of 32, has exactly `used` bits and then only zeros to
// fill the last word.
bool is_whole(const std::uint8_t* bits, std::uint64_t used, std::uint64_t end) {
  if (used > end || end - used > 31) return false;
  return used == end || load32(bits + (end >> 3) - 4) >> (used & 31) == 0;
}

// Whether the padding after `bytes` bytes of a part, up to a multiple of 4, is zeros.
bool is_filled(const std::uint8_t* begin, std::size_t bytes) {
  return is_whole(begin, 8 * bytes, 8 * part_bytes(bytes));
}

// The differences that escapes stand for, two bytes each.
struct Escapes {
  const std::uint8_t *next, *end;

  // Replaces each escape among n differences by its number. maybe: as bits, those that may be
  // escapes. Returns false if there are too few numbers.
  bool replace(const Codebook& book, const std::uint8_t* classes, std::int32_t n,
               std::uint64_t maybe, std::int16_t* diff) {
    for (; maybe; maybe &= maybe - 1) {
      const std::int32_t i = std::countr_zero(maybe);
      if (i >= n) break;
      if (diff[i] != book.dc_escape[classes[i]]) continue;
      if (next == end) return false;
      diff[i] = static_cast<std::int16_t>(next[0] | next[1] << 8);
      next += 2;
    }
    return true;
  }
};

// Decodes the differences of n blocks, with escapes replaced. Returns the number of bits that they
// take, or more than `end` if they do not fit `end` bits or if there are too few escapes. Reads at
// most kExpandPad bytes past the end.
std::uint64_t read_differences(const Codebook& book, const std::uint8_t* classes, std::int32_t n,
                               const std::uint8_t* bits, std::uint64_t end, Escapes& escapes,
                               std::int16_t* diff) {
  DcKernel* const kernel = choose(kDcDifferences);
  std::uint64_t position = 0;
  for (std::int32_t i = 0; i < n && position <= end; i += kDcBlocks) {
    const std::int32_t some = std::min(n - i, kDcBlocks);
    std::uint64_t maybe = 0;
    position = kernel(book, classes + i, some, bits, position, diff + i, maybe);
    if (!escapes.replace(book, classes + i, some, maybe, diff + i)) return end + 1;
  }
  return position;
}

// Computes DCs from differences, in place: sums them modulo 2^16, and dequantises the sums. bases:
// 16 bits for each component.
void sum_differences(const BlockRuns& row, const std::uint8_t* bases, const Dequantisers& quant,
                     std::int16_t* dc) {
  SumKernel* const kernel = choose(kSum);
  int component = -1;
  unsigned start = 0;  // the predictor of the block row's first block
  for (int k = 0; k < row.runs; ++k) {
    const BlockRuns::Run& run = row.run[k];
    if (run.component != component) {
      component = run.component;
      start = bases[2 * component] | unsigned{bases[2 * component + 1]} << 8;
    }
    std::int16_t* const block = dc + run.first;
    kernel(block, run.count, static_cast<std::uint16_t>(start));
    start = static_cast<std::uint16_t>(block[0]);
    const std::int16_t q = quant.value[component][0];
    for (std::int32_t i = 0; i < run.count; ++i) block[i] = product(block[i], q);
  }
}

}  // namespace

void BlockRuns::set_tile(const BlockShape& shape, std::int32_t row, std::int32_t tile) {
  runs = blocks = 0;
  for (int c = 0; c < shape.components; ++c) add(shape, c, row, shape.blocks_in_tile_x(c, tile));
}

void BlockRuns::set_row(const BlockShape& shape, std::int32_t row) {
  runs = blocks = 0;
  for (int c = 0; c < shape.components; ++c) add(shape, c, row, shape.blocks_x(c));
}

void BlockRuns::add(const BlockShape& shape, int component, std::int32_t row, std::int32_t count) {
  const std::int32_t down = shape.blocks_in_tile_y(component, row);
  for (std::int32_t i = 0; i < down; ++i, blocks += count)
    run[runs++] = {component, row * shape.tile_blocks_y(component) + i, blocks, count};
}

void Dequantisers::set(const BlockShape& shape) {
  for (int c = 0; c < 3; ++c) {
    bytes[c] = true;
    if (c >= shape.components) continue;
    const std::uint16_t* quant = shape.quant[shape.table[c]];
    for (int z = 0; z < 64; ++z)
      value[c][idct_place(kZigzag[z])] = static_cast<std::int16_t>(quant[z]);
    bytes[c] = *std::max_element(quant, quant + 64) < 256;
  }
}

void Dequantisers::set_ones() {
  for (int c = 0; c < 3; ++c) {
    std::fill_n(value[c], 64, std::int16_t{1});
    bytes[c] = true;
  }
}

const std::uint8_t* decode_dc(const Codebook& book, const BlockRuns& row, const RowPart& part,
                              const Dequantisers& quant, std::int16_t* dc) {
  const int components = row.run[row.runs - 1].component + 1;
  const auto blocks = static_cast<std::size_t>(row.blocks);
  const auto head = static_cast<std::size_t>(2 + 2 * components);
  if (part.size % 4 != 0 || part.size < head + part_bytes(blocks)) return nullptr;
  const std::size_t count = part.data[0] | std::size_t{part.data[1]} << 8;
  const std::uint8_t* classes = part.data + head;
  const std::uint8_t* bits = classes + part_bytes(blocks);
  const auto left = static_cast<std::size_t>(part.data + part.size - bits);
  if (left < part_bytes(2 * count)) return nullptr;
  const std::uint64_t end = 8 * (left - part_bytes(2 * count));
  const std::uint8_t* numbers = bits + end / 8;
  Escapes escapes{numbers, numbers + 2 * count};
  const std::uint64_t used = read_differences(book, classes, row.blocks, bits, end, escapes, dc);
  if (!is_whole(bits, used, end) || escapes.next != escapes.end) return nullptr;
  if (!is_filled(classes, blocks) || !is_filled(numbers, 2 * count)) return nullptr;
  sum_differences(row, part.data + 2, quant, dc);
  return classes;
}

bool expand_tile(const Codebook& book, const BlockRuns& tile, const TilePart& part,
                 const std::uint8_t* classes, const std::int16_t* dcs, const Dequantisers& quant,
                 std::uint64_t wanted, std::int16_t* out) {
  const std::size_t exception_bytes = 3 * static_cast<std::size_t>(part.exceptions);
  if (part.size % 4 != 0 || part.size < part_bytes(exception_bytes)) return false;

  ExpandJob job;
  job.book = &book;
  job.bits = part.data;
  job.end = 8 * (part.size - part_bytes(exception_bytes));
  job.mask_bits = choose(kMaskBits)(book, classes, tile.blocks);
  if (job.mask_bits > job.end) return false;
  job.classes = classes;
  job.dcs = dcs;
  job.quant = &quant;
  job.wanted = wanted;
  job.out = out;
  int owner[3] = {0, 0, 0};
  for (int c = 0; c < 3; ++c) job.first[c] = job.last[c] = 0;
  for (int k = 0; k < tile.runs; ++k) {
    const BlockRuns::Run& run = tile.run[k];
    if (!owner[run.component]++) job.first[run.component] = run.first;
    job.last[run.component] = run.first + run.count;
  }
  if (!is_whole(job.bits, choose(kExpand)(job), job.end)) return false;

  const std::uint8_t* exceptions = part.data + job.end / 8;
  unsigned before = 0;  // the order of block 0's DC, which cannot have an exception
  int c = 0;
  for (int k = 0; k < part.exceptions; ++k) {
    const Exception e = get_exception(exceptions + 3 * k);
    if (e.order() <= before || e.position == 0 || static_cast<int>(e.block) >= tile.blocks)
      return false;
    before = e.order();
    if (!(wanted >> e.block & 1)) continue;
    while (static_cast<int>(e.block) >= job.last[c]) ++c;
    const int place = idct_place(kZigzag[e.position]);
    out[64 * e.block + static_cast<unsigned>(place)] = product(e.value, quant.value[c][place]);
  }
  return is_filled(exceptions, exception_bytes);
}

}  // namespace fastio
