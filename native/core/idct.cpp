#include "idct.h"

#include <algorithm>

#include "cpu.h"
#include "idct_kernels.h"

namespace fastio {
namespace {

struct Kernels {
  IdctKernel *size8, *size4, *size2;
};

constexpr Choice<Kernels> kChoices[] = {
#ifdef FASTIO_X86
    {kAvx512, {idct8_avx512, idct4_avx512, idct2_avx512}},
    {kAvx512bw, {idct8_avx512bw, idct4_avx512bw, idct2_avx512bw}},
    {kAvx2, {idct8_avx2, idct4_avx2, idct2_avx2}},
#endif
#ifdef FASTIO_ARM64
    {kNeon, {idct8_neon, idct4_neon, idct2_neon}},
#endif
    {0, {idct8_portable, idct4_portable, idct2_portable}}};

}  // namespace

void idct(int size, const std::int16_t* blocks, int count, std::uint8_t* out,
          std::ptrdiff_t stride) {
  const Kernels& k = choose(kChoices);
  IdctKernel* const kernel = size == 8 ? k.size8 : size == 4 ? k.size4 : k.size2;
  kernel(blocks, count, out, stride);
}

void idct_dc(const std::int16_t* dc, int count, std::uint8_t* out) {
  for (int i = 0; i < count; ++i) {
    // (dc + 4) >> 3 in 16 bits without overflow, so that compilers vectorise it with 16-bit lanes.
    const auto mean = static_cast<std::int16_t>(((dc[i] >> 2) + 1) >> 1);
    const auto level = std::min(std::max(mean, std::int16_t{-128}), std::int16_t{127});
    out[i] = static_cast<std::uint8_t>(level + 128);
  }
}

}  // namespace fastio
