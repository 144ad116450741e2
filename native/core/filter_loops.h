// The filters of pixel_kernels.h: sharpness and Gaussian blur. See pixel_loops.h.

#include "pixel_lanes.h"

namespace fastio {
namespace {

template <bool Subtract>
inline uint8_t sharpened(uint8_t v, uint16_t around, const PixelSharpen& how) {
  const uint16_t x = high_half(static_cast<uint16_t>(v << 8), how.own);
  const uint16_t y = high_half(static_cast<uint16_t>(around << 5), how.around);
  const int both = Subtract ? (x > y ? x - y : 0) : x + y;
  return to_byte(static_cast<uint16_t>(both + how.more));
}

// here: the pixels of a row. sums: for each column, the sum of its three pixels around the row.
template <bool Subtract>
void sharpen_row(const uint8_t* here, const uint16_t* sums, size_t width, const PixelSharpen& how,
                 uint8_t* out) {
  size_t x = 1;
#ifdef FASTIO_X86
  const Lanes owns = all_words(how.own), arounds = all_words(how.around);
  const Lanes more = all_words(how.more);
  const auto some = [&](size_t at) {
    const Lanes pixels = words_at(here + at);
    const Lanes columns = add(add(load(sums + at - 1), load(sums + at)), load(sums + at + 1));
    const Lanes v = high_halves(left_by<8>(pixels), owns);
    const Lanes y = high_halves(left_by<5>(minus(columns, pixels)), arounds);
    store_bytes(out + at, right_by<kFractionBits>(add(Subtract ? less(v, y) : add(v, y), more)));
  };
  if (width >= kWords + 2) {
    for (; x + kWords < width; x += kWords) some(x);
    some(width - 1 - kWords);  // overlaps the registers before
    return;
  }
#endif
  for (; x + 1 < width; ++x) {
    const int around = sums[x - 1] + sums[x] + sums[x + 1] - here[x];
    out[x] = sharpened<Subtract>(here[x], static_cast<uint16_t>(around), how);
  }
}

void add_rows(const uint8_t* above, const uint8_t* here, const uint8_t* below, size_t width,
              uint16_t* sums) {
  size_t x = 0;
#ifdef FASTIO_X86
  const auto some = [&](size_t at) {
    store(sums + at, add(add(words_at(above + at), words_at(here + at)), words_at(below + at)));
  };
  if (width >= kWords) {
    for (; x + kWords <= width; x += kWords) some(x);
    return some(width - kWords);
  }
#endif
  for (; x < width; ++x) sums[x] = static_cast<uint16_t>(above[x] + here[x] + below[x]);
}

void sharpen(const uint8_t* above, const uint8_t* here, const uint8_t* below, size_t width,
             const PixelSharpen& how, uint16_t* sums, uint8_t* out) {
  add_rows(above, here, below, width, sums);
  if (how.subtract) {
    sharpen_row<true>(here, sums, width, how, out);
  } else {
    sharpen_row<false>(here, sums, width, how, out);
  }
}

void weigh_each(const PixelTaps& taps, size_t n, uint16_t* words, uint8_t* bytes) {
  for (size_t i = 0; i < n; ++i) {
    uint16_t sum = taps.bias;
    for (int k = 0; k < taps.count; ++k) {
      const auto both = static_cast<uint16_t>(taps.low[k][i] + taps.high[k][i]);
      sum = static_cast<uint16_t>(sum + high_half(both, taps.weight[k]));
    }
    if (words) words[i] = sum;
    if (bytes) bytes[i] = to_byte(sum);
  }
}

#ifdef FASTIO_X86
// Written so that the sums stay in registers, which compilers do not achieve by themselves.
template <size_t Count>
void weigh_at(const PixelTaps& taps, size_t i, uint16_t* words, uint8_t* bytes) {
  Lanes sum[Count];
  const Lanes bias = all_words(taps.bias), first = all_words(taps.weight[0]);
  for (size_t j = 0; j < Count; ++j) {
    const Lanes v = load(taps.low[0] + i + j * kWords);
    sum[j] = add(bias, high_halves(add(v, v), first));
  }
  for (int k = 1; k < taps.count; ++k) {
    const uint16_t *a = taps.low[k] + i, *b = taps.high[k] + i;
    const Lanes w = all_words(taps.weight[k]);
    for (size_t j = 0; j < Count; ++j)
      sum[j] = add(sum[j], high_halves(add(load(a + j * kWords), load(b + j * kWords)), w));
  }
  for (size_t j = 0; j < Count; ++j) {
    if (words) store(words + i + j * kWords, sum[j]);
    if (bytes) store_bytes(bytes + i + j * kWords, right_by<kFractionBits>(sum[j]));
  }
}

// Computes all positions with registers, and some of the last ones twice if n is not a multiple of
// the registers' size. Returns false, and does nothing, if n is too small.
template <size_t Count>
bool weigh_by(const PixelTaps& taps, size_t n, uint16_t* words, uint8_t* bytes) {
  constexpr size_t kSome = Count * kWords;
  if (n < kSome) return false;
  for (size_t i = 0; i < n; i += kSome)
    weigh_at<Count>(taps, i + kSome <= n ? i : n - kSome, words, bytes);
  return true;
}

void weigh(const PixelTaps& taps, size_t n, uint16_t* words, uint8_t* bytes) {
  if (!weigh_by<4>(taps, n, words, bytes) && !weigh_by<1>(taps, n, words, bytes))
    weigh_each(taps, n, words, bytes);
}
#else
void weigh(const PixelTaps& taps, size_t n, uint16_t* words, uint8_t* bytes) {
  weigh_each(taps, n, words, bytes);
}
#endif

void widen(const uint8_t* p, size_t n, uint16_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>(p[i] << kFractionBits);
}

}  // namespace
}  // namespace fastio
