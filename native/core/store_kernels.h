// The interface between store.cpp and the kernels of each instruction set: plain functions on rows
// (see resample_kernels.h for why).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// Splits interleaved pixels into `channels` (3 or 4) planes.
using SplitKernel = void(const std::uint8_t* src, std::size_t pixels, int channels,
                         std::uint8_t* const* planes);

// The factors of a ScaleKernel.
struct ScaleSpec {
  const float* scale;          // (channels,)
  const float* bias;           // (channels,)
  const float (*values)[256];  // (channels,) the result of each byte; for the portable kernel only
};

// Computes dst[i] = fma(src[i], scale[i % channels], bias[i % channels]). channels: 1, 3 or 4.
// count: a multiple of channels.
using ScaleKernel = void(const std::uint8_t* src, std::size_t count, int channels,
                         const ScaleSpec& spec, float* dst);

SplitKernel split_portable;
ScaleKernel scale_portable;

#ifdef FASTIO_X86
SplitKernel split_avx2;
SplitKernel split_avx512;
ScaleKernel scale_avx2;
#endif
#ifdef FASTIO_ARM64
SplitKernel split_neon;
ScaleKernel scale_neon;
#endif

}  // namespace fastio
