// expand_words.h, compiled with VBMI.
#include "expand_words.h"

namespace fastio {

std::uint64_t expand_avx512(const ExpandJob& job) { return expand_blocks(job); }

std::uint64_t dc_differences_avx512(const Codebook& book, const std::uint8_t* classes, int n,
                                    const std::uint8_t* bits, std::uint64_t position,
                                    std::int16_t* diff, bool& escapes) {
  return differences(book, classes, n, bits, position, diff, escapes);
}

void sum_avx512(std::int16_t* dc, std::int32_t n, std::uint16_t start) { sum_up(dc, n, start); }

}  // namespace fastio
