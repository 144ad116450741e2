// Plain loops over the columns, then over the rows, written so that compilers vectorise them: they
// multiply 16-bit values, and store the transpose of their results.
#include "idct_kernels.h"

namespace fastio {
namespace {

// Unsigned, because sums wrap to 32 bits. Products always fit.
using Sum = std::uint32_t;

inline Sum times(std::int16_t value, std::int16_t weight) {
  return static_cast<Sum>(static_cast<std::int32_t>(value) * weight);
}

inline Sum times(std::int16_t low, std::int16_t high, IdctPair weights) {
  return times(low, weights.low) + times(high, weights.high);
}

inline std::int16_t drop(Sum sum, int shift) {
  return static_cast<std::int16_t>(static_cast<std::int32_t>(sum) >> shift);
}

// One pass of size 8: in[k][i] is coefficient k of vector i, out[i][k] its output k. Results wrap
// to 16 bits.
template <int kShift, std::int32_t kBias>
void pass8(const std::int16_t (*in)[8], std::int16_t (*out)[8]) {
  for (int i = 0; i < 8; ++i) {
    const std::int16_t x0 = in[0][i], x1 = in[1][i], x2 = in[2][i], x3 = in[3][i];
    const std::int16_t x4 = in[4][i], x5 = in[5][i], x6 = in[6][i], x7 = in[7][i];
    const Sum t0 = times(x0, x4, kIdct8Even04[0]) + kBias;
    const Sum t1 = times(x0, x4, kIdct8Even04[1]) + kBias;
    const Sum t2 = times(x2, x6, kIdct8Even26[0]);
    const Sum t3 = times(x2, x6, kIdct8Even26[1]);
    const Sum e0 = t0 + t2, e1 = t1 + t3, e2 = t1 - t3, e3 = t0 - t2;
    const Sum o0 = times(x1, x5, kIdct8Odd15[0]) + times(x3, x7, kIdct8Odd37[0]);
    const Sum o1 = times(x1, x5, kIdct8Odd15[1]) + times(x3, x7, kIdct8Odd37[1]);
    const Sum o2 = times(x1, x5, kIdct8Odd15[2]) + times(x3, x7, kIdct8Odd37[2]);
    const Sum o3 = times(x1, x5, kIdct8Odd15[3]) + times(x3, x7, kIdct8Odd37[3]);
    out[i][0] = drop(e0 + o0, kShift);
    out[i][1] = drop(e1 + o1, kShift);
    out[i][2] = drop(e2 + o2, kShift);
    out[i][3] = drop(e3 + o3, kShift);
    out[i][4] = drop(e3 - o3, kShift);
    out[i][5] = drop(e2 - o2, kShift);
    out[i][6] = drop(e1 - o1, kShift);
    out[i][7] = drop(e0 - o0, kShift);
  }
}

// One pass of size 4. Does not read in[4].
template <int kVectors, int kShift, std::int32_t kBias>
void pass4(const std::int16_t (*in)[kVectors], std::int16_t (*out)[4]) {
  for (int i = 0; i < kVectors; ++i) {
    const std::int16_t x0 = in[0][i], x1 = in[1][i], x2 = in[2][i], x3 = in[3][i];
    const std::int16_t x5 = in[5][i], x6 = in[6][i], x7 = in[7][i];
    const Sum t0 = times(x0, kIdct4Even04.low) + kBias;
    const Sum t2 = times(x2, x6, kIdct4Even26);
    const Sum e0 = t0 + t2, e1 = t0 - t2;
    const Sum o0 = times(x1, x5, kIdct4Odd15[0]) + times(x3, x7, kIdct4Odd37[0]);
    const Sum o1 = times(x1, x5, kIdct4Odd15[1]) + times(x3, x7, kIdct4Odd37[1]);
    out[i][0] = drop(e0 + o0, kShift);
    out[i][1] = drop(e1 + o1, kShift);
    out[i][2] = drop(e1 - o1, kShift);
    out[i][3] = drop(e0 - o0, kShift);
  }
}

// One pass of size 2. Does not read in[2], in[4] and in[6].
template <int kVectors, int kShift, std::int32_t kBias>
void pass2(const std::int16_t (*in)[kVectors], std::int16_t (*out)[2]) {
  for (int i = 0; i < kVectors; ++i) {
    const Sum e = kBias - times(in[0][i], kIdct2MinusEven04.low);
    const Sum o = times(in[1][i], in[5][i], kIdct2Odd15) + times(in[3][i], in[7][i], kIdct2Odd37);
    out[i][0] = drop(e + o, kShift);
    out[i][1] = drop(e - o, kShift);
  }
}

// Loads the rows of a block.
void load(const std::int16_t* block, std::int16_t (&rows)[8][8]) {
  for (int k = 0; k < 4; ++k) {
    for (int x = 0; x < 8; ++x) {
      rows[k][x] = block[16 * k + 2 * x];
      rows[k + 4][x] = block[16 * k + 2 * x + 1];
    }
  }
}

template <int kSize>
void store(const std::int16_t (*samples)[kSize], std::uint8_t* out, std::ptrdiff_t stride) {
  for (int y = 0; y < kSize; ++y) {
    std::uint8_t* row = out + y * stride;
    for (int x = 0; x < kSize; ++x) {
      const std::int16_t value = samples[y][x];
      const std::int16_t low = value < 0 ? std::int16_t{0} : value;
      row[x] = static_cast<std::uint8_t>(low > 255 ? std::int16_t{255} : low);
    }
  }
}

}  // namespace

void idct8_portable(const std::int16_t* blocks, int count, std::uint8_t* out,
                    std::ptrdiff_t stride) {
  for (int b = 0; b < count; ++b, blocks += 64, out += 8) {
    std::int16_t in[8][8], columns[8][8], samples[8][8];
    load(blocks, in);
    pass8<kIdct8.columns, idct_bias_columns(kIdct8)>(in, columns);
    pass8<kIdct8.rows, idct_bias_rows(kIdct8)>(columns, samples);
    store<8>(samples, out, stride);
  }
}

void idct4_portable(const std::int16_t* blocks, int count, std::uint8_t* out,
                    std::ptrdiff_t stride) {
  for (int b = 0; b < count; ++b, blocks += 64, out += 4) {
    std::int16_t in[8][8], columns[8][4], samples[4][4];
    load(blocks, in);
    pass4<8, kIdct4.columns, idct_bias_columns(kIdct4)>(in, columns);
    pass4<4, kIdct4.rows, idct_bias_rows(kIdct4)>(columns, samples);
    store<4>(samples, out, stride);
  }
}

void idct2_portable(const std::int16_t* blocks, int count, std::uint8_t* out,
                    std::ptrdiff_t stride) {
  for (int b = 0; b < count; ++b, blocks += 64, out += 2) {
    std::int16_t in[8][8], columns[8][2], samples[2][2];
    load(blocks, in);
    pass2<8, kIdct2.columns, idct_bias_columns(kIdct2)>(in, columns);
    pass2<2, kIdct2.rows, idct_bias_rows(kIdct2)>(columns, samples);
    store<2>(samples, out, stride);
  }
}

}  // namespace fastio
