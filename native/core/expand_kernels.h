// The interface between expand.cpp and the kernels of each instruction set: plain data and plain
// functions.
#pragma once

#include "expand.h"

namespace fastio {

// The arguments of expand_tile(). It has checked that the masks of all blocks lie within the bits.
struct ExpandJob {
  const Codebook* book;
  const std::uint8_t* bits;     // the masks of all blocks, then their values
  std::uint64_t mask_bits;      // the number of bits of all masks
  std::uint64_t end;            // the number of all bits
  const std::uint8_t* classes;  // of each block
  const std::int16_t* dcs;      // of each block: its DC
  int first[3], last[3];        // the blocks [first, last) of each component
  const Dequantisers* quant;
  std::uint64_t wanted;
  std::int16_t* out;
};

// Expands the wanted blocks, with their DCs. Returns the number of bits of all masks and values; if
// this exceeds job.end, stops. A block's values take at most 95 bytes, so it is enough to compare
// after each block to stay within kExpandPad.
using ExpandKernel = std::uint64_t(const ExpandJob& job);

ExpandKernel expand_portable;

// Returns the number of bits of the masks of n <= kTileBlocks blocks with these classes.
using MaskBitsKernel = std::uint64_t(const Codebook& book, const std::uint8_t* classes, int n);

MaskBitsKernel mask_bits_portable;

// Decodes n DC differences, n <= kDcBlocks, of blocks with these classes from LSB-first bits at
// `position`. Returns the position after them. Does not replace escapes; sets bits of
// `escapes` for them, and maybe for others.
inline constexpr std::int32_t kDcBlocks = 64;
using DcKernel = std::uint64_t(const Codebook& book, const std::uint8_t* classes, int n,
                               const std::uint8_t* bits, std::uint64_t position, std::int16_t* diff,
                               std::uint64_t& escapes);

// Computes prefix sums in place, modulo 2^16: dc[i] becomes start + dc[0] + ... + dc[i].
using SumKernel = void(std::int16_t* dc, std::int32_t n, std::uint16_t start);

DcKernel dc_differences_portable;
SumKernel sum_portable;

#ifdef FASTIO_X86
ExpandKernel expand_avx2;  // the three expand kernels need kPdep
ExpandKernel expand_avx512bw;
ExpandKernel expand_avx512;
MaskBitsKernel mask_bits_avx512;
DcKernel dc_differences_avx2;
DcKernel dc_differences_avx512bw;
DcKernel dc_differences_avx512;
SumKernel sum_avx2;
SumKernel sum_avx512bw;
SumKernel sum_avx512;
#endif
#ifdef FASTIO_ARM64
ExpandKernel expand_neon;
ExpandKernel expand_sve2;  // needs kBdep
DcKernel dc_differences_neon;
SumKernel sum_neon;
#endif

}  // namespace fastio
