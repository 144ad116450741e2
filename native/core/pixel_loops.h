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

// The high half of a product: every level has an instruction for it.
inline uint16_t high_half(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>((static_cast<uint32_t>(a) * static_cast<uint32_t>(b)) >> 16);
}

inline uint8_t to_byte(uint16_t v) {  // of kFractionBits, cut off
  v = static_cast<uint16_t>(v >> kFractionBits);
  return static_cast<uint8_t>(v < 255 ? v : 255);
}

void scale(uint8_t* p, size_t n, const PixelScale& how) {
  const uint16_t unit = how.unit, factor = how.factor, less = how.less, more = how.more;
  const uint8_t low = how.low;
  for (size_t i = 0; i < n; ++i) {
    const uint8_t above = p[i] > low ? static_cast<uint8_t>(p[i] - low) : 0;
    const uint16_t v = high_half(static_cast<uint16_t>(above * unit), factor);
    const uint16_t rest = v > less ? static_cast<uint16_t>(v - less) : 0;
    p[i] = to_byte(static_cast<uint16_t>(rest + more));
  }
}

// The last summands stand for what was cut off, and for the rounding of a and b.
void blend(uint8_t* __restrict p, const uint8_t* __restrict q, size_t n, uint16_t a, uint16_t b,
           bool subtract) {
  if (subtract) {
    for (size_t i = 0; i < n; ++i) {
      const uint16_t v = high_half(static_cast<uint16_t>(p[i] << 8), a);
      const uint16_t w = high_half(static_cast<uint16_t>(q[i] << 8), b);
      p[i] = to_byte(static_cast<uint16_t>((v > w ? v - w : 0) + 2));
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      const uint16_t v = high_half(static_cast<uint16_t>(p[i] << 8), a);
      const uint16_t w = high_half(static_cast<uint16_t>(q[i] << 8), b);
      p[i] = to_byte(static_cast<uint16_t>(v + w + 3));
    }
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
#if defined(__AVX512BW__)
using Lanes = __m512i;
inline Lanes load(const uint16_t* from) { return _mm512_loadu_si512(from); }
inline void store(uint16_t* to, Lanes v) { _mm512_storeu_si512(to, v); }
inline Lanes all(uint16_t v) { return _mm512_set1_epi16(static_cast<short>(v)); }
inline Lanes add(Lanes a, Lanes b) { return _mm512_add_epi16(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return _mm512_mulhi_epu16(a, b); }
#elif defined(__AVX2__)
using Lanes = __m256i;
inline Lanes load(const uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline void store(uint16_t* to, Lanes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v); }
inline Lanes all(uint16_t v) { return _mm256_set1_epi16(static_cast<short>(v)); }
inline Lanes add(Lanes a, Lanes b) { return _mm256_add_epi16(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return _mm256_mulhi_epu16(a, b); }
#else
using Lanes = __m128i;
inline Lanes load(const uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline void store(uint16_t* to, Lanes v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), v); }
inline Lanes all(uint16_t v) { return _mm_set1_epi16(static_cast<short>(v)); }
inline Lanes add(Lanes a, Lanes b) { return _mm_add_epi16(a, b); }
inline Lanes high_halves(Lanes a, Lanes b) { return _mm_mulhi_epu16(a, b); }
#endif

void weigh(const uint16_t* const* low, const uint16_t* const* high, const uint16_t* weight,
           int taps, size_t n, uint16_t bias, uint16_t* __restrict out) {
  constexpr size_t kLanes = sizeof(Lanes) / sizeof(uint16_t), kStep = 4 * kLanes;
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Lanes sum[4] = {all(bias), all(bias), all(bias), all(bias)};
    for (int k = 0; k < taps; ++k) {
      const uint16_t *a = low[k] + i, *b = high[k] + i;
      const Lanes w = all(weight[k]);
      for (size_t j = 0; j < 4; ++j)
        sum[j] = add(sum[j], high_halves(add(load(a + j * kLanes), load(b + j * kLanes)), w));
    }
    for (size_t j = 0; j < 4; ++j) store(out + i + j * kLanes, sum[j]);
  }
  weigh_some(low, high, weight, taps, i, n, bias, out);
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

constexpr PixelKernels kLoops = {scale,    blend,      bits,  look_up, extremes, gray,
                                 turn_hue, near_means, weigh, widen,   narrow};

}  // namespace
}  // namespace fastio
