#include "expand.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "expand_kernels.h"

namespace fastio {
namespace {

// An exception: a value that its class is too narrow for.
struct Exception {
  unsigned block, position;
  std::int16_t value;
};

Exception get_exception(const std::uint8_t* p) {
  const std::uint32_t bits = p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16;
  return {bits & 63, bits >> 6 & 63,
          static_cast<std::int16_t>(static_cast<std::int32_t>(bits << 8) >> 20)};
}

std::int16_t product(std::int16_t a, std::int16_t b) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(a) *
                                   unsigned{static_cast<std::uint16_t>(b)});
}

// One kernel for each level; those for x86 need a pdep that is not microcode.
ExpandKernel* expand_kernel() {
#ifdef FASTIO_X86
  static const bool usable = fast_pdep();
  if (usable && simd_active() == Simd::avx512) return expand_avx512;
  if (usable && simd_active() == Simd::avx2) return expand_avx2;
#endif
  return expand_portable;
}

DcKernel* dc_kernel() {
#ifdef FASTIO_X86
  if (simd_active() == Simd::avx512) return dc_differences_avx512;
  if (simd_active() == Simd::avx2) return dc_differences_avx2;
#endif
  return dc_differences_portable;
}

SumKernel* sum_kernel() {
#ifdef FASTIO_X86
  if (simd_active() == Simd::avx512) return sum_avx512;
  if (simd_active() == Simd::avx2) return sum_avx2;
#endif
  return sum_portable;
}

// The differences of n blocks, and which of them are escapes. Returns the bits that they took;
// stops where these are more than `end`, and has read no more than kExpandPad past it.
std::uint64_t read_differences(const Codebook& book, const std::uint8_t* classes, std::int32_t n,
                               const std::uint8_t* bits, std::uint64_t end, std::int16_t* diff,
                               bool& escapes) {
  DcKernel* const kernel = dc_kernel();
  std::uint64_t position = 0;
  for (std::int32_t i = 0; i < n && position <= end; i += kDcBlocks)
    position =
        kernel(book, classes + i, std::min(n - i, kDcBlocks), bits, position, diff + i, escapes);
  return position;
}

// Whether `used` bits are all that a part of `end` bits has, but for zeros in the last byte.
bool is_whole(const std::uint8_t* bits, std::uint64_t used, std::uint64_t end) {
  if (used > end || end - used > 7) return false;
  return used == end || bits[used >> 3] >> (used & 7) == 0;
}

// Replaces each escape by the 16 bits that stand for it behind the differences. False: damaged.
bool replace_escapes(const Codebook& book, const std::uint8_t* classes, std::int32_t n,
                     const std::uint8_t* bits, std::uint64_t& position, std::uint64_t end,
                     std::int16_t* diff) {
  for (std::int32_t i = 0; i < n; ++i) {
    if (diff[i] != book.dc_escape[classes[i]]) continue;
    if (position + 16 > end) return false;
    const std::uint8_t* p = bits + (position >> 3);
    const std::uint32_t word = p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16;
    diff[i] = static_cast<std::int16_t>(word >> (position & 7));
    position += 16;
  }
  return true;
}

// Differences to DCs, modulo 2^16, in place.
void sum_differences(const BlockRuns& row, const std::uint8_t* bases, std::int16_t* dc) {
  SumKernel* const kernel = sum_kernel();
  int component = -1;
  unsigned start = 0;  // the DC before the block row's first block
  for (int k = 0; k < row.runs; ++k) {
    const BlockRuns::Run& run = row.run[k];
    if (run.component != component) {
      component = run.component;
      start = bases[2 * component] | unsigned{bases[2 * component + 1]} << 8;
    }
    std::int16_t* const block = dc + run.first;
    kernel(block, run.count, static_cast<std::uint16_t>(start));
    start = static_cast<std::uint16_t>(block[0]);
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
  for (int c = 0; c < shape.components; ++c)
    for (int z = 0; z < 64; ++z)
      value[c][kZigzag[z]] = zigzag[c][z] =
          static_cast<std::int16_t>(shape.quant[shape.table[c]][z]);
}

void Dequantisers::set_ones() {
  for (int c = 0; c < 3; ++c)
    for (int z = 0; z < 64; ++z) value[c][z] = zigzag[c][z] = 1;
}

const std::uint8_t* decode_dc(const Codebook& book, const BlockRuns& row, const RecordPart& part,
                              std::int16_t* dc) {
  const int components = row.run[row.runs - 1].component + 1;
  const auto fixed = static_cast<std::size_t>(2 * components + row.blocks);
  if (part.size < fixed) return nullptr;
  const std::uint8_t* classes = part.data + 2 * components;
  const std::uint8_t* bits = part.data + fixed;
  const std::uint64_t end = 8 * (part.size - fixed);
  bool escapes = false;
  std::uint64_t used = read_differences(book, classes, row.blocks, bits, end, dc, escapes);
  if (used > end) return nullptr;
  if (escapes && !replace_escapes(book, classes, row.blocks, bits, used, end, dc)) return nullptr;
  if (!is_whole(bits, used, end)) return nullptr;
  sum_differences(row, part.data, dc);
  return classes;
}

void classes_of_tile(const BlockShape& shape, const BlockRuns& row, const std::uint8_t* classes,
                     const BlockRuns& tile, std::int32_t number, std::uint8_t* out) {
  for (int k = 0; k < tile.runs; ++k) {
    const BlockRuns::Run& run = tile.run[k];
    const std::int32_t x = number * shape.tile_blocks_x(run.component);
    std::memcpy(out + run.first, classes + row.run[k].first + x,
                static_cast<std::size_t>(run.count));
  }
}

bool expand_tile(const Codebook& book, const BlockRuns& tile, const RecordPart& part,
                 const std::uint8_t* classes, const Dequantisers& quant, std::uint64_t wanted,
                 std::int16_t* out) {
  if (part.size < 1) return false;
  const std::uint8_t* exceptions = part.data + 1;
  const int count = part.data[0];
  const std::size_t fixed = 1 + 3 * static_cast<std::size_t>(count);
  if (part.size < fixed) return false;

  ExpandJob job;
  job.book = &book;
  job.bits = part.data + fixed;
  job.end = 8 * (part.size - fixed);
  job.mask_bits = 0;
  for (int i = 0; i < tile.blocks; ++i) job.mask_bits += book.mask_bits[classes[i]];
  if (job.mask_bits > job.end) return false;
  job.classes = classes;
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
  if (!is_whole(job.bits, expand_kernel()(job), job.end)) return false;

  for (int k = 0; k < count; ++k) {
    const Exception e = get_exception(exceptions + 3 * k);
    if (e.position == 0 || static_cast<int>(e.block) >= tile.blocks) return false;
    if (!(wanted >> e.block & 1)) continue;
    int c = 0;
    while (static_cast<int>(e.block) >= job.last[c]) ++c;
    const int natural = kZigzag[e.position];
    out[64 * e.block + static_cast<unsigned>(natural)] = product(e.value, quant.value[c][natural]);
  }
  return true;
}

}  // namespace fastio
