// The loops of pixel_kernels.h. Each instruction set's file includes this one, which is compiled
// for it: plain loops that compilers turn into vectors, in an unnamed namespace, so that every
// level keeps a copy of its own.

#include <cstddef>
#include <cstdint>

#include "pixel_kernels.h"

#ifdef FASTIO_X86
#include "intrinsics.h"
#endif

namespace fastio {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

#ifdef FASTIO_X86
// A register of each instruction set, as bytes or as 16-bit words.
#if defined(__AVX512BW__)
using Lanes = __m512i;
inline Lanes load(const void* from) { return _mm512_loadu_si512(from); }
inline void store(void* to, Lanes v) { _mm512_storeu_si512(to, v); }
inline Lanes all_words(uint16_t v) { return _mm512_set1_epi16(static_cast<short>(v)); }
inline Lanes all_bytes(uint8_t v) { return _mm512_set1_epi8(static_cast<char>(v)); }
inline Lanes add(Lanes a, Lanes b) { return _mm512_add_epi16(a, b); }
inline Lanes less(Lanes a, Lanes b) { return _mm512_subs_epu16(a, b); }
inline Lanes less_bytes(Lanes a, Lanes b) { return _mm512_subs_epu8(a, b); }
inline Lanes product(Lanes a, Lanes b) { return _mm512_mullo_epi16(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return _mm512_mulhi_epu16(a, b); }
inline Lanes first_words(Lanes v) { return _mm512_unpacklo_epi8(_mm512_setzero_si512(), v); }
inline Lanes last_words(Lanes v) { return _mm512_unpackhi_epi8(_mm512_setzero_si512(), v); }
inline Lanes to_bytes(Lanes a, Lanes b) {
  return _mm512_packus_epi16(_mm512_srli_epi16(a, kFractionBits),
                             _mm512_srli_epi16(b, kFractionBits));
}
inline Lanes high_bytes(Lanes v) { return _mm512_srli_epi16(v, 8); }
#elif defined(__AVX2__)
using Lanes = __m256i;
inline Lanes load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store(void* to, Lanes v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline Lanes all_words(uint16_t v) { return _mm256_set1_epi16(static_cast<short>(v)); }
inline Lanes all_bytes(uint8_t v) { return _mm256_set1_epi8(static_cast<char>(v)); }
inline Lanes add(Lanes a, Lanes b) { return _mm256_add_epi16(a, b); }
inline Lanes less(Lanes a, Lanes b) { return _mm256_subs_epu16(a, b); }
inline Lanes less_bytes(Lanes a, Lanes b) { return _mm256_subs_epu8(a, b); }
inline Lanes product(Lanes a, Lanes b) { return _mm256_mullo_epi16(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return _mm256_mulhi_epu16(a, b); }
inline Lanes first_words(Lanes v) { return _mm256_unpacklo_epi8(_mm256_setzero_si256(), v); }
inline Lanes last_words(Lanes v) { return _mm256_unpackhi_epi8(_mm256_setzero_si256(), v); }
inline Lanes to_bytes(Lanes a, Lanes b) {
  return _mm256_packus_epi16(_mm256_srli_epi16(a, kFractionBits),
                             _mm256_srli_epi16(b, kFractionBits));
}
inline Lanes high_bytes(Lanes v) { return _mm256_srli_epi16(v, 8); }
#else
using Lanes = __m128i;
inline Lanes load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline void store(void* to, Lanes v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }
inline Lanes all_words(uint16_t v) { return _mm_set1_epi16(static_cast<short>(v)); }
inline Lanes all_bytes(uint8_t v) { return _mm_set1_epi8(static_cast<char>(v)); }
inline Lanes add(Lanes a, Lanes b) { return _mm_add_epi16(a, b); }
inline Lanes less(Lanes a, Lanes b) { return _mm_subs_epu16(a, b); }
inline Lanes less_bytes(Lanes a, Lanes b) { return _mm_subs_epu8(a, b); }
inline Lanes product(Lanes a, Lanes b) { return _mm_mullo_epi16(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return _mm_mulhi_epu16(a, b); }
inline Lanes first_words(Lanes v) { return _mm_unpacklo_epi8(_mm_setzero_si128(), v); }
inline Lanes last_words(Lanes v) { return _mm_unpackhi_epi8(_mm_setzero_si128(), v); }
inline Lanes to_bytes(Lanes a, Lanes b) {
  return _mm_packus_epi16(_mm_srli_epi16(a, kFractionBits), _mm_srli_epi16(b, kFractionBits));
}
inline Lanes high_bytes(Lanes v) { return _mm_srli_epi16(v, 8); }
#endif
constexpr size_t kBytes = sizeof(Lanes);
#endif

// The high half of a product: every level has an instruction for it.
inline uint16_t high_half(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>((static_cast<uint32_t>(a) * static_cast<uint32_t>(b)) >> 16);
}

inline uint8_t to_byte(uint16_t v) {  // of kFractionBits, cut off
  v = static_cast<uint16_t>(v >> kFractionBits);
  return static_cast<uint8_t>(v < 255 ? v : 255);
}

// byte << 8, through the steps of PixelScale.
#ifdef FASTIO_X86
inline Lanes scaled(Lanes words, Lanes unit, Lanes factor, Lanes minus, Lanes plus) {
  const Lanes v = high_halves(product(high_bytes(words), unit), factor);
  return add(less(v, minus), plus);
}
#endif

void scale(uint8_t* p, size_t n, const PixelScale& how) {
  const uint16_t unit = how.unit, factor = how.factor, minus = how.less, plus = how.more;
  const uint8_t low = how.low;
  size_t i = 0;
#ifdef FASTIO_X86
  const Lanes lows = all_bytes(low), units = all_words(unit), factors = all_words(factor);
  const Lanes minuses = all_words(minus), pluses = all_words(plus);
  for (; i + kBytes <= n; i += kBytes) {
    const Lanes v = less_bytes(load(p + i), lows);
    store(p + i, to_bytes(scaled(first_words(v), units, factors, minuses, pluses),
                          scaled(last_words(v), units, factors, minuses, pluses)));
  }
#endif
  for (; i < n; ++i) {
    const uint8_t above = p[i] > low ? static_cast<uint8_t>(p[i] - low) : 0;
    const uint16_t v = high_half(static_cast<uint16_t>(above * unit), factor);
    const uint16_t rest = v > minus ? static_cast<uint16_t>(v - minus) : 0;
    p[i] = to_byte(static_cast<uint16_t>(rest + plus));
  }
}

// The last summands stand for what was cut off, and for the rounding of a and b.
void blend(uint8_t* __restrict p, const uint8_t* __restrict q, size_t n, uint16_t a, uint16_t b,
           bool subtract) {
  size_t i = 0;
#ifdef FASTIO_X86
  const Lanes as = all_words(a), bs = all_words(b), more = all_words(subtract ? 2 : 3);
  const auto sum = [&](Lanes v, Lanes w) {
    const Lanes x = high_halves(v, as), y = high_halves(w, bs);
    return add(subtract ? less(x, y) : add(x, y), more);
  };
  for (; i + kBytes <= n; i += kBytes) {
    const Lanes v = load(p + i), w = load(q + i);
    store(p + i, to_bytes(sum(first_words(v), first_words(w)), sum(last_words(v), last_words(w))));
  }
#endif
  for (; i < n; ++i) {
    const uint16_t v = high_half(static_cast<uint16_t>(p[i] << 8), a);
    const uint16_t w = high_half(static_cast<uint16_t>(q[i] << 8), b);
    p[i] = to_byte(subtract ? static_cast<uint16_t>((v > w ? v - w : 0) + 2)
                            : static_cast<uint16_t>(v + w + 3));
  }
}

void bits(uint8_t* p, size_t n, uint8_t threshold, uint8_t invert, uint8_t mask) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t turned = p[i] >= threshold ? static_cast<uint8_t>(p[i] ^ invert) : p[i];
    p[i] = turned & mask;
  }
}

void look_up(uint8_t* p, size_t n, const uint8_t* table) {
  for (size_t i = 0; i < n; ++i) p[i] = table[p[i]];
}

void extremes(const uint8_t* p, size_t n, uint8_t* low, uint8_t* high) {
  uint8_t least = 255, most = 0;
  for (size_t i = 0; i < n; ++i) {
    least = p[i] < least ? p[i] : least;
    most = p[i] > most ? p[i] : most;
  }
  *low = least;
  *high = most;
}

// torchvision's factors (rgb_to_grayscale), in 65536ths.
inline uint8_t luma(uint8_t r, uint8_t g, uint8_t b) {
  const uint16_t y = static_cast<uint16_t>(high_half(static_cast<uint16_t>(r << 8), 19589) +
                                           high_half(static_cast<uint16_t>(g << 8), 38470));
  return static_cast<uint8_t>((y + high_half(static_cast<uint16_t>(b << 8), 7471) + 1) >> 8);
}

constexpr size_t kRun = 4096;  // bytes whose sum fits in 32 bits, many times

uint64_t gray(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n, uint8_t* y) {
  uint64_t total = 0;
  for (size_t begin = 0; begin < n; begin += kRun) {
    const size_t end = begin + kRun < n ? begin + kRun : n;
    uint8_t row[kRun];
    for (size_t i = begin; i < end; ++i) row[i - begin] = luma(r[i], g[i], b[i]);
    uint32_t sum = 0;
    for (size_t i = 0; i < end - begin; ++i) sum += row[i];
    total += sum;
    if (y) __builtin_memcpy(y + begin, row, end - begin);
  }
  return total;
}

// A sample of a colour with the greatest value `high` and the range `range` of its channels (in
// 16ths), whose hue is `at` sixteenths of the range into the circle of six ranges, counted from the
// channel's own begin. See "HSL and HSV", A. R. Smith 1978, in the form without cases; that all is
// multiplied by the range spares the division.
inline uint8_t channel_at(uint16_t at, uint16_t high, uint16_t range) {
  const auto circle = static_cast<uint16_t>(6 * range);
  const auto less = static_cast<uint16_t>(at - circle);  // wraps round where `at` is below
  at = less < at ? less : at;
  const auto rest = static_cast<int16_t>(4 * range - at), here = static_cast<int16_t>(at);
  int16_t t = here < rest ? here : rest;
  t = t < static_cast<int16_t>(range) ? t : static_cast<int16_t>(range);
  t = t > 0 ? t : int16_t{0};
  const auto value = static_cast<uint16_t>(16 * high - static_cast<uint16_t>(t));
  return static_cast<uint8_t>((value + (value >> 8)) >> 4);  // torchvision's 255.999 / 255
}

void turn_hue(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n,
              uint16_t turn) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t red = r[i], green = g[i], blue = b[i];
    uint16_t high = red > green ? red : green, low = red < green ? red : green;
    high = blue > high ? blue : high;
    low = blue < low ? blue : low;
    const auto span = static_cast<uint16_t>(high - low);
    const auto range = static_cast<uint16_t>(16 * span);
    // From red on; red's own hues begin at -1, green's lie around 2, blue's around 4.
    const auto of_red = static_cast<uint16_t>(green - blue + 6 * span);
    const auto of_green = static_cast<uint16_t>(blue - red + 2 * span);
    const auto of_blue = static_cast<uint16_t>(red - green + 4 * span);
    uint16_t hue = high == green ? of_green : of_blue;
    hue = high == red ? of_red : hue;
    // In [0, 7] ranges, and turned by less than 6 more: below 1 << 16 in 16ths.
    auto at = static_cast<uint16_t>(16 * hue);
    const auto circle = static_cast<uint16_t>(6 * range);
    uint16_t less = static_cast<uint16_t>(at - circle);
    at = less < at ? less : at;
    at = static_cast<uint16_t>(at + high_half(static_cast<uint16_t>(range << 3), turn));
    less = static_cast<uint16_t>(at - circle);
    at = less < at ? less : at;
    r[i] = channel_at(static_cast<uint16_t>(at + 5 * range), high, range);
    g[i] = channel_at(static_cast<uint16_t>(at + 3 * range), high, range);
    b[i] = channel_at(static_cast<uint16_t>(at + range), high, range);
  }
}

// The mean of a pixel and its neighbours, the pixel five times: 13 in all. The sum is 13 * 255 at
// most, where (sum + 6) * 5042 / 65536 is (sum + 6) / 13 but for what is cut off.
void near_means(const uint8_t* __restrict above, const uint8_t* __restrict here,
                const uint8_t* __restrict below, size_t width, uint8_t* __restrict out) {
  for (size_t x = 1; x + 1 < width; ++x) {
    const auto top = static_cast<uint16_t>(above[x - 1] + above[x] + above[x + 1]);
    const auto bottom = static_cast<uint16_t>(below[x - 1] + below[x] + below[x + 1]);
    const auto sides = static_cast<uint16_t>(here[x - 1] + here[x + 1]);
    const auto middle = static_cast<uint16_t>(5 * here[x] + 6);
    const auto sum = static_cast<uint16_t>(static_cast<uint16_t>(top + bottom) +
                                           static_cast<uint16_t>(sides + middle));
    out[x] = static_cast<uint8_t>(high_half(sum, 5042));
  }
}

void weigh_some(const uint16_t* const* low, const uint16_t* const* high, const uint16_t* weight,
                int taps, size_t begin, size_t n, uint16_t bias, uint16_t* __restrict out) {
  for (size_t i = begin; i < n; ++i) {
    uint16_t sum = bias;
    for (int k = 0; k < taps; ++k) {
      const auto both = static_cast<uint16_t>(low[k][i] + high[k][i]);
      sum = static_cast<uint16_t>(sum + high_half(both, weight[k]));
    }
    out[i] = sum;
  }
}

#ifdef FASTIO_X86
// Compilers do not keep the sums in registers by themselves.
template <size_t Count>
void weigh_at(const uint16_t* const* low, const uint16_t* const* high, const uint16_t* weight,
              int taps, size_t i, uint16_t bias, uint16_t* __restrict out) {
  constexpr size_t kWords = kBytes / 2;
  Lanes sum[Count];
  for (size_t j = 0; j < Count; ++j) sum[j] = all_words(bias);
  for (int k = 0; k < taps; ++k) {
    const uint16_t *a = low[k] + i, *b = high[k] + i;
    const Lanes w = all_words(weight[k]);
    for (size_t j = 0; j < Count; ++j)
      sum[j] = add(sum[j], high_halves(add(load(a + j * kWords), load(b + j * kWords)), w));
  }
  for (size_t j = 0; j < Count; ++j) store(out + i + j * kWords, sum[j]);
}

// The last pixels are computed twice where they do not fill a register.
void weigh(const uint16_t* const* low, const uint16_t* const* high, const uint16_t* weight,
           int taps, size_t n, uint16_t bias, uint16_t* __restrict out) {
  constexpr size_t kWords = kBytes / 2;
  if (n < kWords) return weigh_some(low, high, weight, taps, 0, n, bias, out);
  size_t i = 0;
  for (; i + 4 * kWords <= n; i += 4 * kWords) weigh_at<4>(low, high, weight, taps, i, bias, out);
  for (; i + kWords <= n; i += kWords) weigh_at<1>(low, high, weight, taps, i, bias, out);
  if (i < n) weigh_at<1>(low, high, weight, taps, n - kWords, bias, out);
}
#else
void weigh(const uint16_t* const* low, const uint16_t* const* high, const uint16_t* weight,
           int taps, size_t n, uint16_t bias, uint16_t* __restrict out) {
  weigh_some(low, high, weight, taps, 0, n, bias, out);
}
#endif

void widen(const uint8_t* p, size_t n, uint16_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>(p[i] << kFractionBits);
}

void narrow(const uint16_t* p, size_t n, uint8_t* out) {
  for (size_t i = 0; i < n; ++i) {
    const int v = (p[i] + (1 << (kFractionBits - 1))) >> kFractionBits;
    out[i] = static_cast<uint8_t>(v > 255 ? 255 : v);
  }
}

// To the nearest whole number, halves to even ones, as nearbyint: |v| is below 1 << 22. What is
// below -1 or above `size` becomes that; what is not a number, -1.
inline int32_t whole(float v, float size) {
  v = v > -1.0f ? v : -1.0f;
  v = v < size ? v : size;
  return static_cast<int32_t>((v + 12582912.0f) - 12582912.0f);
}

void nearest_places(const PixelMap& map, int32_t row, int32_t count, int32_t* __restrict at) {
  const float half_x = map.half_x, half_y = map.half_y;
  const float y = static_cast<float>(row) - half_y;
  const float m0 = map.m[0], m2 = map.m[2], m3 = map.m[3], m5 = map.m[5], m6 = map.m[6];
  const float bx = map.m[1] * y, by = map.m[4] * y, bw = map.m[7] * y;
  const int32_t width = map.width, height = map.height, outside = map.outside;
  const float last_x = static_cast<float>(width), last_y = static_cast<float>(height);
  const bool flat = map.m[6] == 0 && map.m[7] == 0;
  const auto place = [&](float px, float py) {
    const int32_t column = whole(px + half_x, last_x), line = whole(py + half_y, last_y);
    const bool inside = (column >= 0) & (column < width) & (line >= 0) & (line < height);
    return inside ? line * width + column : outside;
  };
  if (flat) {
    for (int32_t i = 0; i < count; ++i) {
      const float x = static_cast<float>(i) - half_x;
      at[i] = place(m0 * x + bx + m2, m3 * x + by + m5);
    }
  } else {
    for (int32_t i = 0; i < count; ++i) {
      const float x = static_cast<float>(i) - half_x;
      const float w = m6 * x + bw + 1.0f;
      at[i] = place((m0 * x + bx + m2) / w, (m3 * x + by + m5) / w);
    }
  }
}

constexpr PixelKernels kLoops = {scale,    blend,      bits,  look_up, extremes, gray,
                                 turn_hue, near_means, weigh, widen,   narrow,   nearest_places};

}  // namespace
}  // namespace fastio
