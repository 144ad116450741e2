// idct_quads.h, compiled with VBMI and VNNI.
#include "idct_quads.h"

namespace fastio {

void idct8_avx512(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  transform_blocks8(blocks, count, out, stride);
}

void idct4_avx512(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  transform_blocks4(blocks, count, out, stride);
}

void idct2_avx512(const std::int16_t* blocks, int count, std::uint8_t* out, std::ptrdiff_t stride) {
  transform_blocks2(blocks, count, out, stride);
}

}  // namespace fastio
