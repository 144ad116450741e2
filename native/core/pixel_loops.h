// The operations of pixel_kernels.h on colours. The file of each instruction set includes this
// header and is compiled for that set. Unless something else is faster, the operations are plain
// loops, which compilers vectorise. The unnamed namespace gives each instruction set its own copy.

#include "pixel_lanes.h"

namespace fastio {
namespace {

void look_up_each(uint8_t* p, size_t n, const uint8_t* table) {
  for (size_t i = 0; i < n; ++i) p[i] = table[p[i]];
}

#if defined(__AVX512BW__)
void look_up(uint8_t* p, size_t n, const uint8_t* table) {
  const Lanes a = load(table), b = load(table + 64), c = load(table + 128), d = load(table + 192);
  size_t i = 0;
  for (; i + kBytes <= n; i += kBytes) {
    const Lanes v = load(p + i);
    const Lanes low = _mm512_permutex2var_epi8(a, v, b), high = _mm512_permutex2var_epi8(c, v, d);
    store(p + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(v), low, high));
  }
  look_up_each(p + i, n - i, table);
}
#elif defined(__AVX2__)
// A shuffle looks up indices in 16 entries and returns 0 for negative indices. The indices into
// each half of the table, which begin at -128 or 0, are therefore reduced by 16 from shuffle to
// shuffle; each shuffle turns the result of the one before it into that of its own part of the
// table.
template <size_t Count>
void look_up_some(uint8_t* p, const uint8_t* steps) {
  Lanes at[Count], found[Count];
  for (size_t j = 0; j < Count; ++j) at[j] = load(p + j * kBytes);
  for (size_t j = 0; j < Count; ++j) found[j] = zeros();
  const Lanes part = all_bytes(16);
  for (int half = 0; half < 2; ++half) {
    Lanes left[Count];
    for (size_t j = 0; j < Count; ++j) left[j] = at[j];
    for (size_t k = 0; k < 8; ++k) {
      const void* from = steps + (half ? 128 : 0) + 16 * k;
      const Lanes table =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
      for (size_t j = 0; j < Count; ++j) {
        found[j] = _mm256_xor_si256(found[j], _mm256_shuffle_epi8(table, left[j]));
        left[j] = _mm256_subs_epi8(left[j], part);
      }
    }
    for (size_t j = 0; j < Count; ++j) at[j] = _mm256_xor_si256(at[j], all_bytes(128));
  }
  for (size_t j = 0; j < Count; ++j) store(p + j * kBytes, found[j]);
}

void look_up(uint8_t* p, size_t n, const uint8_t* table) {
  uint8_t steps[256];
  for (size_t i = 0; i < 256; ++i)
    steps[i] = i % 128 < 16 ? table[i] : static_cast<uint8_t>(table[i] ^ table[i - 16]);
  size_t i = 0;
  for (; i + 4 * kBytes <= n; i += 4 * kBytes) look_up_some<4>(p + i, steps);
  look_up_each(p + i, n - i, table);
}
#else
void look_up(uint8_t* p, size_t n, const uint8_t* table) { look_up_each(p, n, table); }
#endif

// The steps of PixelScale after the first one, for words that are byte << 8.
#ifdef FASTIO_X86
inline Lanes scaled(Lanes words, Lanes unit, Lanes factor, Lanes minus, Lanes plus) {
  const Lanes v = high_halves(product(right_by<8>(words), unit), factor);
  return add(less(v, minus), plus);
}
#endif

void scale_each(uint8_t* p, size_t n, const PixelScale& how) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t above = p[i] > how.low ? static_cast<uint8_t>(p[i] - how.low) : 0;
    const uint16_t v = high_half(static_cast<uint16_t>(above * how.unit), how.factor);
    const uint16_t rest = v > how.less ? static_cast<uint16_t>(v - how.less) : 0;
    p[i] = to_byte(static_cast<uint16_t>(rest + how.more));
  }
}

void scale(uint8_t* p, size_t n, const PixelScale& how) {
  size_t i = 0;
#if defined(__AVX512BW__)
  // Looking up every byte in a table is faster than computing it.
  uint8_t table[256];
  for (size_t v = 0; v < 256; ++v) table[v] = static_cast<uint8_t>(v);
  scale_each(table, 256, how);
  look_up(p, n, table);
  i = n;
#elif defined(FASTIO_X86)
  const Lanes lows = all_bytes(how.low), units = all_words(how.unit);
  const Lanes factors = all_words(how.factor), minuses = all_words(how.less);
  const Lanes pluses = all_words(how.more);
  for (; i + kBytes <= n; i += kBytes) {
    const Lanes v = less_bytes(load(p + i), lows);
    store(p + i, to_bytes(scaled(first_words(v), units, factors, minuses, pluses),
                          scaled(last_words(v), units, factors, minuses, pluses)));
  }
#endif
  scale_each(p + i, n - i, how);
}

void bits(uint8_t* p, size_t n, uint8_t threshold, uint8_t invert, uint8_t mask) {
  for (size_t i = 0; i < n; ++i) {
    const uint8_t turned = p[i] >= threshold ? static_cast<uint8_t>(p[i] ^ invert) : p[i];
    p[i] = turned & mask;
  }
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

// torchvision's factors (rgb_to_grayscale), in units of 1/65536.
constexpr uint16_t kRed = 19589, kGreen = 38470, kBlue = 7471;

inline uint8_t luma(uint8_t r, uint8_t g, uint8_t b) {
  const uint16_t y = static_cast<uint16_t>(high_half(static_cast<uint16_t>(r << 8), kRed) +
                                           high_half(static_cast<uint16_t>(g << 8), kGreen));
  return static_cast<uint8_t>((y + high_half(static_cast<uint16_t>(b << 8), kBlue) + 1) >> 8);
}

#ifdef FASTIO_X86
// Returns the luma, with 8 fractional bits, of channels that are bytes << 8.
inline Lanes lumas(Lanes r, Lanes g, Lanes b) {
  const Lanes both = add(high_halves(r, all_words(kRed)), high_halves(g, all_words(kGreen)));
  return add(both, add(high_halves(b, all_words(kBlue)), all_words(1)));
}
#endif

uint64_t gray(const uint8_t* r, const uint8_t* g, const uint8_t* b, size_t n, uint8_t* y) {
  uint64_t total = 0;
  size_t i = 0;
#ifdef FASTIO_X86
  Lanes sums = zeros();
  for (; i + kBytes <= n; i += kBytes) {
    const Lanes red = load(r + i), green = load(g + i), blue = load(b + i);
    const Lanes first = lumas(first_words(red), first_words(green), first_words(blue));
    const Lanes last = lumas(last_words(red), last_words(green), last_words(blue));
    const Lanes found = to_bytes<8>(first, last);
    sums = add_quads(sums, byte_sums(found));
    if (y) store(y + i, found);
  }
  uint64_t parts[kBytes / 8];
  store(parts, sums);
  for (const uint64_t part : parts) total += part;
#endif
  for (; i < n; ++i) {
    const uint8_t found = luma(r[i], g[i], b[i]);
    total += found;
    if (y) y[i] = found;
  }
  return total;
}

// The last summands compensate for truncation, and for the rounding of a and b.
inline uint8_t blended(uint8_t v, uint8_t gray, uint16_t a, uint16_t b, bool subtract) {
  const uint16_t x = high_half(static_cast<uint16_t>(v << 8), a);
  const uint16_t y = high_half(static_cast<uint16_t>(gray << 8), b);
  return to_byte(subtract ? static_cast<uint16_t>((x > y ? x - y : 0) + 2)
                          : static_cast<uint16_t>(x + y + 3));
}

void saturate(uint8_t* __restrict r, uint8_t* __restrict g, uint8_t* __restrict b, size_t n,
              uint16_t own, uint16_t of_gray, bool subtract) {
  size_t i = 0;
#ifdef FASTIO_X86
  const Lanes owns = all_words(own), grays = all_words(of_gray), whole = all_words(0xff00);
  const Lanes more = all_words(subtract ? 2 : 3);
  const auto sum = [&](Lanes v, Lanes y) {
    const Lanes x = high_halves(v, owns);
    return add(subtract ? less(x, y) : add(x, y), more);
  };
  for (; i + kBytes <= n; i += kBytes) {
    const Lanes red = load(r + i), green = load(g + i), blue = load(b + i);
    const Lanes r0 = first_words(red), g0 = first_words(green), b0 = first_words(blue);
    const Lanes r1 = last_words(red), g1 = last_words(green), b1 = last_words(blue);
    const Lanes y0 = high_halves(bits_of(lumas(r0, g0, b0), whole), grays);
    const Lanes y1 = high_halves(bits_of(lumas(r1, g1, b1), whole), grays);
    store(r + i, to_bytes(sum(r0, y0), sum(r1, y1)));
    store(g + i, to_bytes(sum(g0, y0), sum(g1, y1)));
    store(b + i, to_bytes(sum(b0, y0), sum(b1, y1)));
  }
#endif
  for (; i < n; ++i) {
    const uint8_t y = luma(r[i], g[i], b[i]);
    r[i] = blended(r[i], y, own, of_gray, subtract);
    g[i] = blended(g[i], y, own, of_gray, subtract);
    b[i] = blended(b[i], y, own, of_gray, subtract);
  }
}

// Returns a channel of a colour. high: the greatest channel. range: the greatest minus the least
// channel, in units of 1/16. at: the hue, relative to the channel's own origin, on a circle of
// 6 * range: hues are multiplied by the range, which saves the division. This is the form without
// cases of the conversion from HSV (A. R. Smith, "Color gamut transform pairs", 1978).
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
    // The hue, starting at red: colours with the most red are around 0 (here 6), with the most
    // green around 2, and with the most blue around 4.
    const auto of_red = static_cast<uint16_t>(green - blue + 6 * span);
    const auto of_green = static_cast<uint16_t>(blue - red + 2 * span);
    const auto of_blue = static_cast<uint16_t>(red - green + 4 * span);
    uint16_t hue = high == green ? of_green : of_blue;
    hue = high == red ? of_red : hue;
    // At most 7 ranges, plus a rotation by less than 6 ranges: in units of 1/16, below 1 << 16.
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

void mix_in(float* __restrict sum, const uint8_t* __restrict p, size_t n, float weight) {
  for (size_t i = 0; i < n; ++i) sum[i] += weight * static_cast<float>(p[i]);
}

void mixed(const float* __restrict sum, size_t n, uint8_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const float v = sum[i] < 255.0f ? sum[i] : 255.0f;
    out[i] = static_cast<uint8_t>(static_cast<int32_t>(v));
  }
}

void mirror(uint8_t* p, size_t n) {
  size_t i = 0;
#ifdef FASTIO_X86
  for (; 2 * (i + kBytes) <= n; i += kBytes) {
    const Lanes first = load(p + i), last = load(p + n - kBytes - i);
    store(p + i, mirrored_bytes(last));
    store(p + n - kBytes - i, mirrored_bytes(first));
  }
#endif
  for (; i < n / 2; ++i) {
    const uint8_t first = p[i];
    p[i] = p[n - 1 - i];
    p[n - 1 - i] = first;
  }
}

}  // namespace
}  // namespace fastio
