// The maps of pixel_kernels.h: they make rows of images that are rotated, sheared or transformed in
// perspective. See pixel_loops.h for how they are compiled.

#include "pixel_lanes.h"

namespace fastio {
namespace {

void frame_row(const uint8_t* __restrict r, const uint8_t* __restrict g,
               const uint8_t* __restrict b, size_t n, uint32_t* __restrict out) {
  for (size_t i = 0; i < n; ++i)
    out[i] = static_cast<uint32_t>(r[i]) | static_cast<uint32_t>(g[i]) << 8 |
             static_cast<uint32_t>(b[i]) << 16 | 0xff000000u;
}

void split_row(const uint32_t* __restrict pixels, size_t n, uint8_t* __restrict r,
               uint8_t* __restrict g, uint8_t* __restrict b) {
  for (size_t i = 0; i < n; ++i) r[i] = static_cast<uint8_t>(pixels[i]);
  if (!g) return;
  for (size_t i = 0; i < n; ++i) g[i] = static_cast<uint8_t>(pixels[i] >> 8);
  for (size_t i = 0; i < n; ++i) b[i] = static_cast<uint8_t>(pixels[i] >> 16);
}

// Calls `place` with (i, x, y) for the first n pixels of a row. (x, y) is the point of the image
// from which pixel i comes, in units of 1 / `scale` pixels from the pixel (-begin, -begin). Points
// outside of the frame are moved to its edge, and those that are NaN to its first row or column.
template <typename Place>
inline void for_points(const PixelMap& map, int32_t row, int32_t n, float begin, float scale,
                       Place&& place) {
  const float m0 = map.m[0], m2 = map.m[2], m3 = map.m[3], m5 = map.m[5], m6 = map.m[6];
  const float begin_x = map.begin_x, y = static_cast<float>(row) + map.begin_y;
  const float x_row = map.m[1] * y, y_row = map.m[4] * y, w_row = map.m[7] * y;
  const float half_x = map.half_x * scale, half_y = map.half_y * scale;
  const float add = (begin - 0.5f) * scale, first = (begin - 1.0f) * scale;
  const float last_x = (static_cast<float>(map.width) + begin) * scale;
  const float last_y = (static_cast<float>(map.height) + begin) * scale;
  const auto at = [=](float v, float half, float last) {
    v = (v + 1.0f) * half + add;
    v = v > first ? v : first;
    return v < last ? v : last;
  };
  if (map.projective) {
    for (int32_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(i) + begin_x;
      const float w = m6 * x + w_row + 1.0f;
      place(i, at((m0 * x + x_row + m2) / w - 1.0f, half_x, last_x),
            at((m3 * x + y_row + m5) / w - 1.0f, half_y, last_y));
    }
  } else {
    for (int32_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(i) + begin_x;
      place(i, at(m0 * x + x_row + m2, half_x, last_x), at(m3 * x + y_row + m5, half_y, last_y));
    }
  }
}

// Prevents the vectorisation of a loop that collects single numbers, which would make it slower.
template <typename T>
inline void one_by_one(T& value) {
  asm("" : "+r"(value));
}

void nearest_row(const PixelMap& map, int32_t row, int32_t n, const WarpRow& scratch,
                 uint32_t* __restrict out) {
  // If a float is added to kWhole, it is rounded (halves to even), and the last bits of the sum are
  // the integer. kWholeBits are the bits of kWhole.
  constexpr float kWhole = 3 << 22;
  constexpr uint32_t kWholeBits = 0x4b400000;
  int32_t* __restrict const at = scratch.at;
  const auto stride = static_cast<uint32_t>(map.stride);
  const uint32_t less = (kWholeBits - 1) * stride + kWholeBits - 1;
  for_points(map, row, n, 0.0f, 1.0f, [=](int32_t i, float x, float y) {
    const auto column = __builtin_bit_cast(uint32_t, x + kWhole);
    const auto line = __builtin_bit_cast(uint32_t, y + kWhole);
    at[i] = static_cast<int32_t>(line * stride + column - less);
  });
  const uint32_t* __restrict const frame = map.frame;
  for (int32_t i = 0; i < n; ++i) {
    uint32_t pixel = frame[at[i]];
    one_by_one(pixel);
    out[i] = pixel;
  }
}

// For each point, computes the first of the four pixels around it, and the distances of the point
// from this pixel to the right and down.
void places_between(const PixelMap& map, int32_t row, int32_t n, const WarpRow& scratch) {
  constexpr int kBits = 14;  // two places less than 31: the largest images have 1 << 16 columns
  const int32_t stride = map.stride;
  int32_t* __restrict const at = scratch.at;
  int16_t* __restrict const right = scratch.right;
  int16_t* __restrict const down = scratch.down;
  for_points(map, row, n, 1.0f, 1 << kBits, [=](int32_t i, float x, float y) {
    const auto column = static_cast<int32_t>(x), line = static_cast<int32_t>(y);
    at[i] = (line >> kBits) * stride + (column >> kBits);
    right[i] = static_cast<int16_t>((column & ((1 << kBits) - 1)) << (15 - kBits));
    down[i] = static_cast<int16_t>((line & ((1 << kBits) - 1)) << (15 - kBits));
  });
}

#ifdef FASTIO_X86
// a + (b - a) * share of words with kFractionBits fractional bits; share is in 1 / (1 << 15).
inline Lanes between(Lanes a, Lanes b, Lanes share) { return add(a, fraction(minus(b, a), share)); }

template <bool Filled>
void blend_lanes(const PixelMap& map, size_t n, const WarpRow& scratch, uint32_t* __restrict out) {
  constexpr size_t kPixels = kBytes / 8;  // pixels of four words in a register
  const Lanes fill = all_quads(map.fill), half = all_words(1 << (kFractionBits - 1));
  const auto words = [&](Lanes tl, Lanes tr, Lanes bl, Lanes br, size_t at) {
    constexpr int kBits = 8 - kFractionBits;
    const Lanes right = four_each(scratch.right + at), down = four_each(scratch.down + at);
    const Lanes top = between(right_by<kBits>(tl), right_by<kBits>(tr), right);
    const Lanes bottom = between(right_by<kBits>(bl), right_by<kBits>(br), right);
    Lanes v = between(top, bottom, down);
    if (Filled) {
      const Lanes inside = fourth_words(v);
      v = between(fill, v, add(inside, right_by<8>(inside)));
    }
    return add(v, half);
  };
  for (size_t i = 0; i < n; i += 2 * kPixels) {
    const Lanes a = load(scratch.top + i), b = load(scratch.top + i + kPixels);
    const Lanes c = load(scratch.bottom + i), d = load(scratch.bottom + i + kPixels);
    const Lanes tl = even_dwords(a, b), tr = odd_dwords(a, b);
    const Lanes bl = even_dwords(c, d), br = odd_dwords(c, d);
    const Lanes first =
        words(first_words(tl), first_words(tr), first_words(bl), first_words(br), i);
    const Lanes last =
        words(last_words(tl), last_words(tr), last_words(bl), last_words(br), i + kPixels);
    store(out + i, in_order(to_bytes(first, last)));
  }
}

void blend(const PixelMap& map, size_t n, const WarpRow& scratch, uint32_t* out) {
  return map.filled ? blend_lanes<true>(map, n, scratch, out)
                    : blend_lanes<false>(map, n, scratch, out);
}
#else
inline int between(int a, int b, int share) { return a + (((b - a) * share + (1 << 14)) >> 15); }

void blend(const PixelMap& map, size_t n, const WarpRow& scratch, uint32_t* out) {
  const auto part = [](uint64_t from, int c) {
    return static_cast<int>(from >> (8 * c) & 255) << kFractionBits;
  };
  for (size_t i = 0; i < n; ++i) {
    const uint64_t top = scratch.top[i], bottom = scratch.bottom[i];
    int v[4];
    for (int c = 0; c < 4; ++c)
      v[c] =
          between(between(part(top, c), part(top, c + 4), scratch.right[i]),
                  between(part(bottom, c), part(bottom, c + 4), scratch.right[i]), scratch.down[i]);
    const int inside = v[3] + (v[3] >> 8);
    uint32_t pixel = 0;
    for (int c = 0; c < 4; ++c) {
      const int fill = static_cast<int>(map.fill >> (16 * c) & 0xffff);
      const int sum =
          (map.filled ? between(fill, v[c], inside) : v[c]) + (1 << (kFractionBits - 1));
      pixel |= static_cast<uint32_t>(sum >> kFractionBits) << (8 * c);
    }
    out[i] = pixel;
  }
}

#endif

void between_row(const PixelMap& map, int32_t row, int32_t n, const WarpRow& scratch,
                 uint32_t* __restrict out) {
  places_between(map, row, n, scratch);
  const uint32_t* const frame = map.frame;
  const int32_t* __restrict const at = scratch.at;
  uint64_t* __restrict const top = scratch.top, * __restrict const bottom = scratch.bottom;
  const int32_t stride = map.stride;
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t* const from = frame + at[i];
    __builtin_memcpy(top + i, from, sizeof(uint64_t));
    __builtin_memcpy(bottom + i, from + stride, sizeof(uint64_t));
  }
  blend(map, static_cast<size_t>(n), scratch, out);
}

}  // namespace
}  // namespace fastio
