#include "core/planar.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "planar_reference.h"

using namespace fastio;
using namespace planar_reference;

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
  static std::mt19937 engine(20240611);
  return engine;
}

int random_int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng()); }
int one_of(const std::vector<int>& values) {
  return values[static_cast<std::size_t>(random_int(0, static_cast<int>(values.size()) - 1))];
}

Plane random_plane(int width, int height, bool smooth) {
  Plane plane = {width, height, Bytes(static_cast<std::size_t>(width) * height)};
  int value = 128;
  for (auto& sample : plane.samples) {
    value = std::clamp(value + random_int(-20, 20), 0, 255);
    sample = static_cast<std::uint8_t>(smooth ? value : random_int(0, 1) * 255);
  }
  return plane;
}

std::vector<Plane> random_planes(const Job& job, bool smooth) {
  std::vector<Plane> planes;
  for (int c = 0; c < (job.colour == Colour::gray ? 1 : 3); ++c) {
    planes.push_back(random_plane(stored(job.x, c), stored(job.y, c), smooth));
  }
  return planes;
}

// The part of a plane that a resampler asks for, in memory of exactly the size that may be read,
// filled with 0xEE around the samples.
struct Part {
  std::unique_ptr<std::uint8_t[]> bytes;
  PlaneView view;
  Part(const Plane& plane, SampleRange columns, SampleRange rows) {
    REQUIRE(0 <= columns.first);
    REQUIRE(columns.first < columns.last);
    REQUIRE(columns.last <= plane.width);
    REQUIRE(0 <= rows.first);
    REQUIRE(rows.first < rows.last);
    REQUIRE(rows.last <= plane.height);
    const auto width = static_cast<std::size_t>(columns.last - columns.first);
    const auto height = static_cast<std::size_t>(rows.last - rows.first);
    const std::size_t stride = width + 3, all = stride * (height - 1) + width + kReadPad;
    bytes = std::make_unique<std::uint8_t[]>(all);
    std::fill(bytes.get(), bytes.get() + all, std::uint8_t{0xEE});
    for (std::size_t y = 0; y < height; ++y) {
      const std::uint8_t* from =
          &plane.samples[(rows.first + y) * plane.width + static_cast<std::size_t>(columns.first)];
      std::copy(from, from + width, bytes.get() + y * stride);
    }
    view = {bytes.get(), static_cast<std::ptrdiff_t>(stride)};
  }
};

// The pixels that planes `apart` bytes from each other hold, of rows of `columns` and 5 more bytes,
// which are looked at, too.
Bytes interleaved(const Bytes& planes, std::size_t apart, const Job& job) {
  const auto columns = static_cast<std::size_t>(job.out_columns()), stride = columns + 5;
  Bytes pixels;
  bool untouched = true;  // one assertion for all: 10 million take a second
  for (std::size_t y = 0; y < static_cast<std::size_t>(job.out_rows()); ++y)
    for (std::size_t x = 0; x < stride; ++x)
      for (std::size_t c = 0; c < static_cast<std::size_t>(job.channels); ++c) {
        const std::uint8_t value = planes[c * apart + y * stride + x];
        if (x < columns) pixels.push_back(value);
        if (x >= columns) untouched = untouched && value == 0xA5;
      }
  REQUIRE(untouched);
  return pixels;
}

// Also checks that nothing but the rows' own bytes is written, and that planes hold the same.
Bytes resample_with(PlanarResampler& resampler, const Job& job, const std::vector<Plane>& planes) {
  resampler.prepare(job.x, job.y, job.colour, job.channels);
  std::vector<Part> parts;
  std::vector<PlaneView> views;
  for (int c = 0; c < resampler.planes(); ++c) {
    parts.emplace_back(planes[static_cast<std::size_t>(c)], resampler.columns(c),
                       resampler.rows(c));
    views.push_back(parts.back().view);
  }
  const int row = job.out_columns() * job.channels, stride = row + 5;
  const auto all = static_cast<std::size_t>(stride) * job.out_rows();
  Bytes padded(all, 0xA5), out;
  resampler.run(views.data(), padded.data(), stride);
  for (int i = 0; i < job.out_rows(); ++i) {
    const auto at = padded.begin() + static_cast<std::ptrdiff_t>(i) * stride;
    out.insert(out.end(), at, at + row);
    REQUIRE(std::count(at + row, at + stride, 0xA5) == 5);
  }
  const std::size_t apart = static_cast<std::size_t>(job.out_columns() + 5) * job.out_rows() + 3;
  Bytes apart_planes(apart * job.channels, 0xA5);
  resampler.run(views.data(), apart_planes.data(), job.out_columns() + 5,
                static_cast<std::ptrdiff_t>(apart));
  REQUIRE(interleaved(apart_planes, apart, job) == out);
  return out;
}

Bytes resample(const Job& job, const std::vector<Plane>& planes, Simd level) {
  ForceSimd force(level);
  PlanarResampler resampler;
  return resample_with(resampler, job, planes);
}

PlanarAxis random_axis(int most, int sub, const int* reduce) {
  PlanarAxis axis;
  axis.size = random_int(1, most);
  axis.sub = sub;
  std::copy(reduce, reduce + 2, axis.reduce);
  axis.spec.in = random_int(1, axis.size);
  axis.begin = one_of({0, random_int(0, axis.size - axis.spec.in), axis.size - axis.spec.in});
  axis.spec.out = random_int(0, 9) ? random_int(1, most) : axis.spec.in;
  axis.spec.mirror = random_int(0, 1) > 0;
  if (random_int(0, 2) == 0) {
    axis.spec.window_begin = random_int(0, axis.spec.out - 1);
    axis.spec.window_size = random_int(1, axis.spec.out - axis.spec.window_begin);
  }
  return axis;
}

Job random_job(int most) {
  Job job;
  job.colour = static_cast<Colour>(random_int(0, 2));
  job.channels = one_of({1, 3, 3});
  int reduce[2] = {1, 1};
  if (random_int(0, 2) == 0) reduce[0] = reduce[1] = one_of({2, 4, 8});
  if (random_int(0, 4) == 0) reduce[1] = one_of({1, 2, 4, 8});
  job.x = random_axis(most, one_of({1, 2, 2, 4}), reduce);
  job.y = random_axis(most, one_of({1, 2, 2, 4}), reduce);
  job.x.spec.filter = job.y.spec.filter = kFilters[random_int(0, 2)];
  job.x.spec.antialias = job.y.spec.antialias = random_int(0, 3) > 0;
  return job;
}

std::string describe(const Job& job) {
  std::string text = "colour " + std::to_string(static_cast<int>(job.colour)) + ", channels " +
                     std::to_string(job.channels);
  for (const PlanarAxis* axis : {&job.x, &job.y}) {
    const AxisSpec& s = axis->spec;
    text += "; size " + std::to_string(axis->size) + " crop " + std::to_string(axis->begin) + "+" +
            std::to_string(s.in) + " to " + std::to_string(s.out) + " window " +
            std::to_string(s.window_begin) + "+" + std::to_string(s.window_size) + " filter " +
            std::to_string(static_cast<int>(s.filter)) + (s.antialias ? " antialias" : "") +
            (s.mirror ? " mirror" : "") + " sub " + std::to_string(axis->sub) + " reduce " +
            std::to_string(axis->reduce[0]) + "/" + std::to_string(axis->reduce[1]);
  }
  return text;
}

double worst_error(const Bytes& got, const Doubles& exact) {
  REQUIRE(got.size() == exact.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - exact[i]));
  return worst;
}

Job plain_job(int in, int out, int sub, Filter filter = Filter::bilinear) {
  Job job;
  for (PlanarAxis* axis : {&job.x, &job.y}) {
    axis->size = axis->spec.in = in;
    axis->spec.out = out;
    axis->spec.filter = filter;
    axis->sub = sub;
  }
  return job;
}

}  // namespace

TEST_CASE("planar: the result is the definition, rounded") {
  for (int round = 0; round < 1500; ++round) {
    const Job job = random_job(round % 50 == 0 ? 600 : 70);
    const auto planes = random_planes(job, random_int(0, 1) > 0);
    const double worst = worst_error(resample(job, planes, simd_best()), reference(job, planes));
    CAPTURE(describe(job));
    REQUIRE(worst < 0.7);
  }
}

TEST_CASE("planar: next to all values are the definition's nearest") {
  for (Filter filter : kFilters) {
    for (int out : {37, 64, 90}) {
      const Job job = plain_job(81, out, 2, filter);
      const auto planes = random_planes(job, true);
      const Bytes got = resample(job, planes, simd_best());
      const Doubles exact = reference(job, planes);
      double off = 0;
      for (std::size_t i = 0; i < got.size(); ++i) off += std::abs(got[i] - exact[i]) > 0.51;
      CHECK(off / static_cast<double>(got.size()) < 0.03);
    }
  }
}

TEST_CASE("planar: every sampling, reduced size and filter is the definition, rounded") {
  for (int sub_x : {1, 2, 4}) {
    for (int sub_y : {1, 2, 4}) {
      for (int reduce : {1, 2, 4, 8}) {
        for (int chroma_reduce : {1, 2, 4, 8}) {
          Job job = plain_job(67, 21, sub_x, kFilters[random_int(0, 2)]);
          job.y.sub = sub_y;
          for (PlanarAxis* axis : {&job.x, &job.y}) {
            axis->reduce[0] = reduce;
            axis->reduce[1] = chroma_reduce;
          }
          const auto planes = random_planes(job, true);
          CAPTURE(describe(job));
          REQUIRE(worst_error(resample(job, planes, simd_best()), reference(job, planes)) < 0.7);
        }
      }
    }
  }
}

TEST_CASE("planar: the smallest planes") {
  for (int width : {1, 2, 3, 4, 5, 6}) {
    for (int height : {1, 2, 3, 5}) {
      for (int sub : {1, 2, 4}) {
        for (int out : {1, 2, 7, 40}) {
          Job job = plain_job(width, out, sub);
          job.y.size = job.y.spec.in = height;
          const auto planes = random_planes(job, false);
          CAPTURE(describe(job));
          REQUIRE(worst_error(resample(job, planes, simd_best()), reference(job, planes)) < 0.7);
        }
      }
    }
  }
}

TEST_CASE("planar: an image that keeps its size keeps its values") {
  for (Colour colour : {Colour::gray, Colour::rgb}) {
    for (Filter filter : kFilters) {
      Job job = plain_job(45, 45, 1, filter);
      job.colour = colour;
      const auto planes = random_planes(job, false);
      const Bytes got = resample(job, planes, simd_best());
      for (std::size_t i = 0; i < got.size(); ++i) {
        REQUIRE(got[i] == planes[colour == Colour::rgb ? i % 3 : 0].samples[i / 3]);
      }
    }
  }
}

TEST_CASE("planar: constant images stay constant, however much they shrink") {
  const int sizes[][2] = {{97, 1}, {97, 7}, {97, 31}, {97, 200}, {1500, 3}, {1500, 40}, {300, 20}};
  for (const auto& size : sizes) {
    for (Filter filter : kFilters) {
      for (int value : {0, 1, 77, 128, 254, 255}) {
        Job job = plain_job(size[0], size[1], 2, filter);
        job.y = plain_job(size[0] / 3, size[1], 2, filter).y;
        job.colour = value % 2 ? Colour::rgb : Colour::ycbcr;
        auto planes = random_planes(job, true);
        for (std::size_t c = 0; c < 3; ++c) {
          const int level = c > 0 && job.colour == Colour::ycbcr ? 128 : value;
          auto& samples = planes[c].samples;
          std::fill(samples.begin(), samples.end(), static_cast<std::uint8_t>(level));
        }
        const Bytes got = resample(job, planes, simd_best());
        CAPTURE(describe(job));
        REQUIRE(std::count(got.begin(), got.end(), value) == static_cast<int>(got.size()));
      }
    }
  }
}

TEST_CASE("planar: a window is that part of the whole") {
  Job job = plain_job(90, 50, 2);
  const auto planes = random_planes(job, true);
  const Bytes whole = resample(job, planes, simd_best());
  job.x.spec.window_begin = 11;
  job.x.spec.window_size = 23;
  job.y.spec.window_begin = 4;
  job.y.spec.window_size = 20;
  const Bytes part = resample(job, planes, simd_best());
  REQUIRE(part.size() == 20u * 23 * 3);
  for (int i = 0; i < 20; ++i) {
    const auto from = whole.begin() + ((i + 4) * 50 + 11) * 3;
    CHECK(std::equal(from, from + 23 * 3, part.begin() + i * 23 * 3));
  }
}

TEST_CASE("planar: mirroring an axis reverses it") {
  for (int channels : {1, 3}) {
    Job job = plain_job(70, 37, 2);
    job.channels = channels;
    const auto planes = random_planes(job, true);
    const Bytes plain = resample(job, planes, simd_best());
    job.x.spec.mirror = job.y.spec.mirror = true;
    const Bytes mirrored = resample(job, planes, simd_best());
    for (int i = 0; i < 37; ++i) {
      for (int j = 0; j < 37; ++j) {
        const auto at = plain.begin() + ((36 - i) * 37 + 36 - j) * channels;
        REQUIRE(std::equal(at, at + channels, mirrored.begin() + (i * 37 + j) * channels));
      }
    }
  }
}

TEST_CASE("planar: gray in three channels is gray three times") {
  Job job = plain_job(50, 41, 1);
  job.colour = Colour::gray;
  const auto planes = random_planes(job, true);
  const Bytes three = resample(job, planes, simd_best());
  job.channels = 1;
  const Bytes one = resample(job, planes, simd_best());
  for (std::size_t i = 0; i < three.size(); ++i) REQUIRE(three[i] == one[i / 3]);
}

TEST_CASE("planar: one channel of YCbCr reads Y alone") {
  Job job = plain_job(50, 41, 2);
  job.channels = 1;
  PlanarResampler resampler;
  resampler.prepare(job.x, job.y, job.colour, job.channels);
  CHECK(resampler.planes() == 1);
  auto planes = random_planes(job, true);
  const Bytes from_colour = resample(job, planes, simd_best());
  job.colour = Colour::gray;
  CHECK(resample(job, planes, simd_best()) == from_colour);
}

TEST_CASE("planar: only samples near the crop are asked for") {
  Job job = plain_job(400, 100, 2);
  job.x.begin = 100;
  job.x.spec.in = 100;
  PlanarResampler resampler;
  resampler.prepare(job.x, job.y, job.colour, job.channels);
  CHECK(resampler.columns(0).first == 100);
  CHECK(resampler.columns(0).last == 200);
  CHECK(resampler.columns(1).first == 49);
  CHECK(resampler.columns(2).last == 101);
  CHECK(resampler.rows(1).first == 0);
  CHECK(resampler.rows(1).last == 200);
}

TEST_CASE("planar: all paths give equal bytes on random images") {
  for (int round = 0; round < 3000; ++round) {
    const Job job = random_job(round % 40 == 0 ? 900 : 120);
    const auto planes = random_planes(job, random_int(0, 1) > 0);
    const Bytes expected = resample(job, planes, Simd::portable);
    CAPTURE(describe(job));
    REQUIRE(resample(job, planes, Simd::avx2) == expected);
    REQUIRE(resample(job, planes, Simd::avx512bw) == expected);
    REQUIRE(resample(job, planes, Simd::avx512) == expected);
    REQUIRE(resample(job, planes, Simd::neon) == expected);
  }
}

TEST_CASE("planar: all paths give equal bytes at the extremes") {
  const struct {
    int h, w, out_h, out_w;
  } sizes[] = {{1, 1, 224, 224},   {1, 300, 224, 224},  {300, 1, 224, 224},   {5, 7, 250, 350},
               {3, 5000, 2, 1},    {5000, 3, 1, 2},     {2, 65535, 1, 40},    {65535, 2, 30, 6},
               {2, 65535, 2, 1},   {65535, 2, 1, 2},    {2, 40, 1, 4000},     {900, 900, 100, 110},
               {64, 64, 64, 17},   {400, 130, 40, 120}, {3, 65535, 2, 65535}, {200, 200, 16, 16},
               {150, 150, 33, 31}, {90, 260, 64, 64}};
  for (const auto& size : sizes) {
    for (Filter filter : kFilters) {
      for (bool antialias : {true, false}) {
        Job job = plain_job(size.w, size.out_w, 2, filter);
        job.y = plain_job(size.h, size.out_h, 2, filter).y;
        job.x.spec.antialias = job.y.spec.antialias = antialias;
        const auto planes = random_planes(job, false);
        const Bytes expected = resample(job, planes, Simd::portable);
        CAPTURE(describe(job));
        REQUIRE(resample(job, planes, Simd::avx2) == expected);
        REQUIRE(resample(job, planes, Simd::avx512bw) == expected);
        REQUIRE(resample(job, planes, Simd::avx512) == expected);
        REQUIRE(resample(job, planes, Simd::neon) == expected);
      }
    }
  }
}

TEST_CASE("planar: rows may come in any order of memory") {
  const Job job = plain_job(40, 30, 1);
  const auto planes = random_planes(job, true);
  const Bytes expected = resample(job, planes, simd_best());
  PlanarResampler resampler;
  resampler.prepare(job.x, job.y, job.colour, job.channels);
  std::vector<Bytes> turned;
  std::vector<PlaneView> views;
  for (const Plane& plane : planes) {
    Bytes bytes;
    for (int y = 39; y >= 0; --y) {
      const auto row = plane.samples.begin() + y * 40;
      bytes.insert(bytes.end(), row, row + 40);
    }
    bytes.resize(bytes.size() + kReadPad);
    turned.push_back(bytes);
  }
  for (const Bytes& bytes : turned) views.push_back({bytes.data() + 39 * 40, -40});
  Bytes got(expected.size());
  resampler.run(views.data(), got.data() + 29 * 90, -90);
  for (int i = 0; i < 30; ++i) {
    CHECK(std::equal(got.begin() + i * 90, got.begin() + (i + 1) * 90,
                     expected.begin() + (29 - i) * 90));
  }
}

TEST_CASE("planar: a resampler can be used again for any other image") {
  PlanarResampler kept;
  for (int round = 0; round < 200; ++round) {
    const Job job = random_job(150);
    const auto planes = random_planes(job, true);
    ForceSimd force(kLevels[random_int(0, 4)]);
    CAPTURE(describe(job));
    REQUIRE(resample_with(kept, job, planes) == resample(job, planes, simd_active()));
  }
}
