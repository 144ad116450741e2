// The interface between resample.cpp and the kernels of each instruction set: plain data and plain
// functions. (Files for an instruction set must not instantiate inline functions that other files
// share, such as those of std::vector; see CMakeLists.txt.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// A group is 16 adjacent output values (channels of pixels, interleaved), which the AVX-512 kernel
// computes together. Pair p of taps of all 16 lies in the loads * 64 bytes from
// group_base + 2 * p * channels on; LaneIndex has the positions in these bytes.
struct alignas(64) LaneIndex {
  std::uint8_t byte[64];  // dword l: [first tap of lane l, ignored, second tap, ignored]
};
struct alignas(64) LaneWeights {
  std::int16_t weight[32];  // dword l: the pair of weights of lane l
};

// The tables of a HorizontalPlan. All outputs have the same number of taps, of which some are
// zeros. Windows do not extend past the last source sample that is needed, if there are enough
// samples.
struct HorizontalTables {
  int channels;
  int shift;
  std::int32_t outputs;
  std::int32_t taps;            // AVX-512: a multiple of 2; AVX2 and NEON: of 4
  const std::int32_t* offset;   // (outputs,) bytes from src to the first tap
  const std::int16_t* weights;  // (outputs, taps)

  // For AVX-512, which does not use offset and weights.
  std::int32_t groups;
  int loads;                         // 1 or 2
  const std::int32_t* group_output;  // (groups,) first output value; groups may overlap
  const std::int32_t* group_base;    // (groups,) bytes from src
  const LaneIndex* group_index;      // (groups,)
  const LaneWeights* group_weights;  // (groups, taps / 2)
};

using HorizontalKernel = void(const HorizontalTables& tables, const std::uint8_t* src,
                              std::ptrdiff_t src_stride, std::int32_t rows, std::uint8_t* dst,
                              std::ptrdiff_t dst_stride);

// Computes one output row from `count` >= 2 source rows. weights has an even number of entries; if
// `count` is odd, the last one is 0.
using VerticalKernel = void(const std::uint8_t* src, std::ptrdiff_t src_stride,
                            const std::int16_t* weights, std::int32_t count, int shift,
                            std::size_t row_bytes, std::uint8_t* dst);

HorizontalKernel horizontal_portable;
VerticalKernel vertical_portable;

#ifdef FASTIO_X86
HorizontalKernel horizontal_avx2;
VerticalKernel vertical_avx2;
HorizontalKernel horizontal_avx512;  // needs groups
VerticalKernel vertical_avx512;
#endif
#ifdef FASTIO_ARM64
HorizontalKernel horizontal_neon;
VerticalKernel vertical_neon;
#endif

}  // namespace fastio
