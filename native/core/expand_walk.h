// The loop over the blocks of a tile, for the kernels of ARM. The kernels of AVX2 and AVX-512 have
// their own loops: AVX2 needs two passes, and with AVX-512 expansion takes 1% longer with this one.
#pragma once

#include "expand_bits.h"
#include "expand_kernels.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or built in: see CMakeLists.txt.

// Calls, for each block,
//   kernel.skip(cls, mask): returns the number of bits of the values of a block that is not wanted;
//   kernel.read(cls, mask, position, out): writes a block but its DC, whose values begin at
//     `position`, and returns the position after them;
// and calls kernel.begin(quant) before the blocks of each component.
template <typename Kernel>
[[gnu::always_inline]] inline u64 walk_blocks(const ExpandJob& job, Kernel&& kernel) {
  // Copies: otherwise the compiler has to assume that stores to `out` change the job.
  const Codebook& book = *job.book;
  const std::uint8_t *const bits = job.bits, *const classes = job.classes;
  const std::int16_t* const dcs = job.dcs;
  const u64 wanted = job.wanted, end = job.end;
  std::int16_t* const blocks = job.out;
  u64 masks = 0, values = job.mask_bits;
  for (int c = 0; c < 3; ++c) {
    kernel.begin(job.quant->value[c]);
    for (int i = job.first[c], last = job.last[c]; i < last; ++i) {
      const int cls = classes[i];
      const unsigned length = book.mask_bits[cls];
      const u64 mask = (bits64(bits, masks) & ((u64{1} << length) - 1)) << 1;
      masks += length;
      if (wanted >> i & 1) {
        values = kernel.read(cls, mask, values, blocks + 64 * i);
        blocks[64 * i] = dcs[i];
      } else {
        values += kernel.skip(cls, mask);
      }
      if (values > end) return values;
    }
  }
  return values;
}

}  // namespace
}  // namespace fastio
