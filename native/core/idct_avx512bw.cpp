// idct_quads.h, compiled for AVX-512 without VBMI and VNNI.
#include "idct_quads.h"

namespace fastio {

void idct8_avx512bw(const std::int16_t* blocks, int count, std::uint8_t* out,
                    std::ptrdiff_t stride) {
  transform_blocks8(blocks, count, out, stride);
}

void idct4_avx512bw(const std::int16_t* blocks, int count, std::uint8_t* out,
                    std::ptrdiff_t stride) {
  transform_blocks4(blocks, count, out, stride);
}

void idct2_avx512bw(const std::int16_t* blocks, int count, std::uint8_t* out,
                    std::ptrdiff_t stride) {
  transform_blocks2(blocks, count, out, stride);
}

}  // namespace fastio
