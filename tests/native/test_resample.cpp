#include "core/resample.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/cpu.h"

using namespace fastio;

namespace {

using Bytes = std::vector<std::uint8_t>;

const Simd kLevels[] = {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon};
const Filter kFilters[] = {Filter::nearest, Filter::bilinear, Filter::bicubic};

class ForceSimd {
 public:
  explicit ForceSimd(Simd level) : before_(simd_active()) { simd_force(level); }
  ~ForceSimd() { simd_force(before_); }

 private:
  Simd before_;
};

std::mt19937& rng() {
  static std::mt19937 engine(20240607);
  return engine;
}

int random_int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng()); }

// An image whose memory is exactly its rows and the padding that kernels may read: the sanitizers
// see every other access.
struct Image {
  int h, w, c;
  Bytes bytes;
  Image(int h, int w, int c) : h(h), w(w), c(c), bytes(static_cast<std::size_t>(h) * w * c) {
    for (auto& b : bytes) b = static_cast<std::uint8_t>(rng()());
    bytes.resize(bytes.size() + kReadPad);
    bytes.shrink_to_fit();
  }
  std::ptrdiff_t stride() const { return static_cast<std::ptrdiff_t>(w) * c; }
  const std::uint8_t* at(int y, int x) const { return bytes.data() + y * stride() + x * c; }
};

Bytes resample(const Image& image, const AxisSpec& x, const AxisSpec& y, Simd level) {
  ForceSimd force(level);
  Resampler resampler;
  resampler.prepare(x, y, image.c);
  const auto row = static_cast<std::size_t>(resampler.x().outputs) * image.c;
  Bytes out(row * resampler.y().outputs);
  resampler.run(image.at(resampler.y().first, resampler.x().first), image.stride(), out.data(),
                static_cast<std::ptrdiff_t>(row));
  return out;
}

Bytes resample_row(const Bytes& row, const AxisSpec& spec) {
  Image image(1, static_cast<int>(row.size()), 1);
  std::copy(row.begin(), row.end(), image.bytes.begin());
  return resample(image, spec, {1, 1}, simd_best());
}

AxisTaps taps_of(const AxisSpec& spec) {
  AxisTaps taps;
  make_taps(spec, &taps);
  return taps;
}

AxisSpec random_axis(int in, int out) {
  AxisSpec spec{in, out};
  spec.filter = kFilters[random_int(0, 2)];
  spec.antialias = random_int(0, 3) > 0;
  spec.mirror = random_int(0, 1) > 0;
  spec.window_begin = random_int(0, out - 1);
  spec.window_size = random_int(1, out - spec.window_begin);
  if (random_int(0, 1)) spec.window_begin = spec.window_size = 0;
  if (random_int(0, 3) == 0) {
    spec.box_begin = random_int(0, 100) * 0.0025 * in;
    spec.box_size = std::max(0.25, random_int(1, 100) * 0.0075 * in);
    spec.box_size = std::min(spec.box_size, in - spec.box_begin);
  }
  return spec;
}

// The definition, in double precision: one output of one axis before rounding.
double reference(const AxisSpec& spec, int output, const std::vector<double>& samples) {
  const double size = spec.box_size != 0 ? spec.box_size : spec.in - spec.box_begin;
  const double scale = size / spec.out;
  const double widen = spec.antialias ? std::max(1.0, scale) : 1.0;
  const double center = spec.box_begin + (output + 0.5) * scale;
  double sum = 0, weights = 0;
  for (int k = 0; k < spec.in; ++k) {
    const double d = std::abs(k + 0.5 - center) / widen;
    double weight = 0;
    if (spec.filter == Filter::bilinear) weight = std::max(0.0, 1 - d);
    if (spec.filter == Filter::bicubic && d < 1) weight = (1.5 * d - 2.5) * d * d + 1;
    if (spec.filter == Filter::bicubic && d >= 1 && d < 2) {
      weight = -0.5 * (((d - 5) * d + 8) * d - 4);
    }
    sum += weight * samples[k];
    weights += weight;
  }
  return sum / weights;
}

const Bytes kRow = {220, 4,  101, 170, 31,  173, 29,  90, 218, 229, 172, 27,
                    30,  95, 19,  112, 121, 108, 253, 16, 255, 25,  175};

}  // namespace

TEST_CASE("taps: weights sum to one and stay inside the source") {
  for (int round = 0; round < 3000; ++round) {
    const int in = random_int(1, random_int(1, 10) == 1 ? 3000 : 60);
    const AxisSpec spec = random_axis(in, random_int(1, random_int(1, 10) == 1 ? 3000 : 60));
    const AxisTaps taps = taps_of(spec);
    REQUIRE(taps.outputs == (spec.window_size ? spec.window_size : spec.out - spec.window_begin));
    REQUIRE(taps.first >= 0);
    REQUIRE(taps.last <= in);
    REQUIRE(taps.pitch % 2 == 0);
    for (int i = 0; i < taps.outputs; ++i) {
      const std::int16_t* weights = &taps.weights[static_cast<std::size_t>(i) * taps.pitch];
      int sum = 0;
      for (int k = 0; k < taps.pitch; ++k) {
        sum += weights[k];
        if (k >= taps.count[i]) REQUIRE(weights[k] == 0);
      }
      REQUIRE(taps.count[i] >= 1);
      REQUIRE(taps.count[i] <= taps.max_count);
      REQUIRE(taps.start[i] >= taps.first);
      REQUIRE(taps.start[i] + taps.count[i] <= taps.last);
      if (taps.count[i] == 1 && taps.shift == 15) {
        REQUIRE(sum == 32767);
      } else {
        REQUIRE(sum == 1 << taps.shift);
      }
    }
  }
}

TEST_CASE("taps: weights use the 16 bits they have") {
  for (int in : {30, 100, 224, 330, 448, 896, 1000, 5000}) {
    const AxisTaps taps = taps_of({in, 224});
    const int largest = *std::max_element(taps.weights.begin(), taps.weights.end());
    CHECK_MESSAGE((largest > 16383 || taps.shift == 22), "in " << in);
  }
}

TEST_CASE("taps: an axis that keeps its size is the identity") {
  for (Filter filter : kFilters) {
    for (int n : {1, 2, 7, 224, 1000}) {
      const AxisTaps taps = taps_of({n, n, 0, 0, filter});
      CHECK(taps.identity);
      CHECK(taps.first == 0);
      CHECK(taps.last == n);
    }
    CHECK_FALSE(taps_of({9, 8, 0, 0, filter}).identity);
    CHECK_FALSE(taps_of({9, 9, 0, 0, filter, true, true}).identity);
  }
}

TEST_CASE("taps: nearest takes the sample that the output's centre falls in") {
  for (int in : {1, 3, 10, 97}) {
    for (int out : {1, 2, 9, 10, 40}) {
      const AxisTaps taps = taps_of({in, out, 0, 0, Filter::nearest});
      for (int i = 0; i < out; ++i) {
        REQUIRE(taps.count[i] == 1);
        REQUIRE(std::abs(taps.start[i] + 0.5 - (i + 0.5) * in / out) <= 0.5 + 1e-9);
      }
    }
  }
}

TEST_CASE("rows come out as Pillow 13 makes them") {
  const auto row = [](int out, Filter filter) {
    return resample_row(kRow, {23, out, 0, 0, filter});
  };
  CHECK(row(5, Filter::nearest) == Bytes{101, 29, 27, 121, 255});
  CHECK(row(5, Filter::bilinear) == Bytes{107, 124, 103, 105, 138});
  CHECK(row(5, Filter::bicubic) == Bytes{104, 128, 103, 102, 139});
  CHECK(row(9, Filter::nearest) == Bytes{4, 170, 29, 218, 27, 19, 121, 16, 25});
  CHECK(row(9, Filter::bilinear) == Bytes{102, 111, 91, 188, 83, 63, 122, 144, 124});
  CHECK(row(9, Filter::bicubic) == Bytes{105, 108, 86, 198, 80, 55, 123, 149, 125});
  CHECK(row(31, Filter::bilinear) == Bytes{220, 88,  38,  108, 159, 89,  77,  164, 57, 62, 127,
                                           218, 227, 200, 135, 27,  29,  61,  78,  21, 85, 116,
                                           118, 109, 206, 154, 55,  232, 107, 83,  175});
  CHECK(row(31, Filter::bicubic) == Bytes{232, 81,  16,  110, 171, 80,  66, 171, 48, 46, 126,
                                          220, 233, 209, 137, 27,  21,  66, 84,  19, 86, 123,
                                          117, 104, 229, 156, 33,  248, 98, 67,  183});
}

TEST_CASE("a box that begins and ends between samples comes out as Pillow makes it") {
  AxisSpec spec{23, 7};
  spec.box_begin = 2.5;
  spec.box_size = 16.75;
  CHECK(resample_row(kRow, spec) == Bytes{112, 87, 174, 117, 54, 94, 145});
}

TEST_CASE("one axis is its definition, rounded") {
  for (int round = 0; round < 400; ++round) {
    const int in = random_int(1, 80);
    AxisSpec spec = random_axis(in, random_int(1, 80));
    if (spec.filter == Filter::nearest) spec.filter = Filter::bilinear;
    Bytes row(in);
    for (auto& b : row) b = static_cast<std::uint8_t>(rng()());
    const Bytes got = resample_row(row, spec);
    const std::vector<double> samples(row.begin(), row.end());
    const int n = static_cast<int>(got.size());
    for (int i = 0; i < n; ++i) {
      const double exact =
          reference(spec, spec.window_begin + (spec.mirror ? n - 1 - i : i), samples);
      REQUIRE(std::abs(got[i] - std::clamp(exact, 0.0, 255.0)) < 0.52);
    }
  }
}

TEST_CASE("constant images stay constant") {
  for (int value : {0, 1, 128, 254, 255}) {
    for (int out : {1, 7, 16, 100, 300}) {
      for (Filter filter : kFilters) {
        const Bytes row =
            resample_row(Bytes(97, static_cast<std::uint8_t>(value)), {97, out, 0, 0, filter});
        CHECK(std::count(row.begin(), row.end(), value) == out);
      }
    }
  }
}

TEST_CASE("a window is that part of the whole") {
  const Image image(60, 80, 3);
  AxisSpec x{80, 50}, y{60, 31};
  const Bytes whole = resample(image, x, y, simd_best());
  x.window_begin = 11;
  x.window_size = 23;
  y.window_begin = 4;
  y.window_size = 20;
  const Bytes part = resample(image, x, y, simd_best());
  REQUIRE(part.size() == 20u * 23 * 3);
  for (int i = 0; i < 20; ++i) {
    const auto from = whole.begin() + ((i + 4) * 50 + 11) * 3;
    CHECK(std::equal(from, from + 23 * 3, part.begin() + i * 23 * 3));
  }
}

TEST_CASE("mirroring an axis reverses it") {
  for (int c : {1, 3, 4}) {
    const Image image(40, 70, c);
    AxisSpec x{70, 37}, y{40, 25};
    const Bytes plain = resample(image, x, y, simd_best());
    x.mirror = y.mirror = true;
    const Bytes mirrored = resample(image, x, y, simd_best());
    for (int i = 0; i < 25; ++i) {
      for (int j = 0; j < 37 * c; ++j) {
        const int from = ((24 - i) * 37 + 36 - j / c) * c + j % c;
        REQUIRE(mirrored[static_cast<std::size_t>(i) * 37 * c + j] == plain[from]);
      }
    }
  }
}

TEST_CASE("all paths give equal bytes on random images") {
  for (int round = 0; round < 600; ++round) {
    const int most = round % 20 == 0 ? 700 : 90;
    const Image image(random_int(1, most), random_int(1, most),
                      std::vector<int>{1, 3, 3, 4}[random_int(0, 3)]);
    const AxisSpec x = random_axis(image.w, random_int(1, most));
    const AxisSpec y = random_axis(image.h, random_int(1, most));
    const Bytes expected = resample(image, x, y, Simd::portable);
    CAPTURE(image.h);
    CAPTURE(image.w);
    CAPTURE(image.c);
    REQUIRE(resample(image, x, y, Simd::avx2) == expected);
    REQUIRE(resample(image, x, y, Simd::avx512bw) == expected);
    REQUIRE(resample(image, x, y, Simd::avx512) == expected);
    REQUIRE(resample(image, x, y, Simd::neon) == expected);
  }
}

TEST_CASE("all paths give equal bytes at the extremes") {
  const struct {
    int h, w, out_h, out_w;
  } sizes[] = {{1, 1, 1, 1},      {1, 1, 224, 224}, {1, 300, 224, 224},  {300, 1, 224, 224},
               {5, 7, 250, 350},  {5000, 3, 1, 2},  {3, 5000, 2, 1},     {3, 5000, 1, 16},
               {2, 65535, 1, 40}, {2, 40, 1, 4000}, {65535, 2, 30, 6},   {900, 900, 100, 110},
               {64, 64, 64, 17},  {17, 64, 64, 64}, {400, 130, 40, 120}, {3, 65535, 2, 65535}};
  for (const auto& size : sizes) {
    for (int c : {1, 3, 4}) {
      const Image image(size.h, size.w, c);
      for (Filter filter : kFilters) {
        AxisSpec x{size.w, size.out_w, 0, 0, filter}, y{size.h, size.out_h, 0, 0, filter};
        x.mirror = c == 3;
        const Bytes expected = resample(image, x, y, Simd::portable);
        CAPTURE(size.h);
        CAPTURE(size.w);
        CAPTURE(c);
        REQUIRE(resample(image, x, y, Simd::avx2) == expected);
        REQUIRE(resample(image, x, y, Simd::avx512bw) == expected);
        REQUIRE(resample(image, x, y, Simd::avx512) == expected);
        REQUIRE(resample(image, x, y, Simd::neon) == expected);
      }
    }
  }
}

TEST_CASE("rows may come in stripes") {
  const Image image(50, 61, 3);
  const AxisTaps taps = taps_of({61, 40});
  for (Simd level : kLevels) {
    ForceSimd force(level);
    HorizontalPlan plan;
    plan.build(taps, 3);
    Bytes whole(50 * 120), stripes(50 * 120);
    horizontal(plan, image.at(0, taps.first), image.stride(), 50, whole.data(), 120);
    for (int y = 0, n = 0; y < 50; y += n) {
      n = std::min(50 - y, random_int(0, 9));
      horizontal(plan, image.at(y, taps.first), image.stride(), n, stripes.data() + y * 120, 120);
    }
    CHECK(stripes == whole);
  }
}

TEST_CASE("only the rows' own bytes are written") {
  for (int round = 0; round < 200; ++round) {
    const int c = std::vector<int>{1, 3, 4}[random_int(0, 2)];
    const Image image(random_int(1, 40), random_int(1, 90), c);
    const AxisSpec x = random_axis(image.w, random_int(1, 90));
    const AxisSpec y = random_axis(image.h, random_int(1, 40));
    const Bytes expected = resample(image, x, y, Simd::portable);
    for (Simd level : kLevels) {
      ForceSimd force(level);
      Resampler resampler;
      resampler.prepare(x, y, c);
      const int row = resampler.x().outputs * c, stride = row + 7, rows = resampler.y().outputs;
      Bytes out(static_cast<std::size_t>(stride) * rows, 0xA5);
      resampler.run(image.at(resampler.y().first, resampler.x().first), image.stride(), out.data(),
                    stride);
      for (int i = 0; i < rows; ++i) {
        const auto at = out.begin() + static_cast<std::ptrdiff_t>(i) * stride;
        REQUIRE(std::equal(at, at + row, expected.begin() + static_cast<std::ptrdiff_t>(i) * row));
        REQUIRE(std::count(at + row, at + stride, 0xA5) == 7);
      }
    }
  }
}

TEST_CASE("planes hold what interleaved pixels do, and nothing else is written, on every path") {
  for (int round = 0; round < 300; ++round) {
    const int c = std::vector<int>{1, 3, 4}[random_int(0, 2)];
    const Image image(random_int(1, 90), random_int(1, 90), c);
    // Every pass alone, both in either order, and none.
    const bool same_x = random_int(0, 3) == 0, same_y = random_int(0, 3) == 0;
    const AxisSpec x =
        same_x ? AxisSpec{image.w, image.w} : random_axis(image.w, random_int(1, 70));
    const AxisSpec y =
        same_y ? AxisSpec{image.h, image.h} : random_axis(image.h, random_int(1, 40));
    const Bytes expected = resample(image, x, y, Simd::portable);
    for (Simd level : kLevels) {
      ForceSimd force(level);
      Resampler resampler;
      resampler.prepare(x, y, c);
      const int columns = resampler.x().outputs, rows = resampler.y().outputs;
      const int stride = columns + 7, plane = stride * rows + 2;
      Bytes out(static_cast<std::size_t>(plane) * c, 0xA5), wanted = out;
      for (int i = 0; i < rows * columns * c; ++i)
        wanted[i % c * plane + i / c / columns * stride + i / c % columns] = expected[i];
      resampler.run(image.at(resampler.y().first, resampler.x().first), image.stride(), out.data(),
                    stride, plane);
      REQUIRE(out == wanted);
    }
  }
}

TEST_CASE("negative strides turn images upside down") {
  const Image image(30, 40, 3);
  for (Simd level : kLevels) {
    ForceSimd force(level);
    Resampler resampler;
    resampler.prepare({40, 24}, {30, 20}, 3);
    Bytes flipped(20 * 72);
    resampler.run(image.at(29, 0), -image.stride(), flipped.data(), 72);
    AxisSpec y{30, 20};
    y.mirror = true;
    Bytes expected(20 * 72);
    resampler.prepare({40, 24}, y, 3);
    resampler.run(image.at(0, 0), image.stride(), expected.data() + 19 * 72, -72);
    // Source and result were turned over, so the second is the first with its rows reversed twice.
    for (int i = 0; i < 20; ++i) {
      CHECK(std::equal(flipped.begin() + i * 72, flipped.begin() + (i + 1) * 72,
                       expected.begin() + (19 - i) * 72));
    }
  }
}

TEST_CASE("columns come first where the height shrinks by more than twice as much, as in Pillow") {
  CHECK(vertical_first({400, 224}, {577, 224}));
  CHECK_FALSE(vertical_first({400, 224}, {576, 224}));
  CHECK(vertical_first({60, 50}, {81, 60}));
  CHECK_FALSE(vertical_first({60, 50}, {80, 60}));
  CHECK(vertical_first({100, 224}, {225, 224}));
  CHECK_FALSE(vertical_first({100, 224}, {200, 224}));
}

TEST_CASE("a Resampler does its two passes in Pillow's order") {
  for (int height : {60, 400}) {
    const Image image(height, 90, 3);
    Resampler resampler;
    resampler.prepare({90, 50}, {height, 40}, 3);
    Bytes got(40 * 150), expected(40 * 150);
    resampler.run(image.at(0, 0), image.stride(), got.data(), 150);

    const AxisTaps x = taps_of({90, 50}), y = taps_of({height, 40});
    HorizontalPlan plan;
    plan.build(x, 3);
    if (vertical_first({90, 50}, {height, 40})) {
      Bytes middle(40 * 270 + kReadPad);
      vertical(y, image.at(0, 0), image.stride(), 270, middle.data(), 270);
      horizontal(plan, middle.data(), 270, 40, expected.data(), 150);
    } else {
      Bytes middle(static_cast<std::size_t>(height) * 150);
      horizontal(plan, image.at(0, 0), image.stride(), height, middle.data(), 150);
      vertical(y, middle.data(), 150, 150, expected.data(), 150);
    }
    CHECK(got == expected);
  }
}

TEST_CASE("a Resampler can be used again for any other image") {
  Resampler kept;
  for (int round = 0; round < 60; ++round) {
    const int c = std::vector<int>{1, 3, 4}[random_int(0, 2)];
    const Image image(random_int(1, 200), random_int(1, 200), c);
    const AxisSpec x = random_axis(image.w, random_int(1, 100));
    const AxisSpec y = random_axis(image.h, random_int(1, 100));
    ForceSimd force(kLevels[random_int(0, 4)]);
    kept.prepare(x, y, c);
    const int row = kept.x().outputs * c;
    Bytes got(static_cast<std::size_t>(row) * kept.y().outputs);
    kept.run(image.at(kept.y().first, kept.x().first), image.stride(), got.data(), row);
    REQUIRE(got == resample(image, x, y, simd_active()));
  }
}
