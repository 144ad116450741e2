#include "core/image.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "jpeg_files.h"

using namespace fastio;
using test::Bytes;
using test::JpegOptions;
using Kind = GeometryStep::Kind;

namespace {

int random_int(std::mt19937& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

struct Picture {
  std::int32_t height = 0, width = 0;
  int channels = 0;
  Bytes pixels;

  const std::uint8_t* at(std::int32_t y, std::int32_t x) const {
    return pixels.data() + (static_cast<std::ptrdiff_t>(y) * width + x) * channels;
  }
};

// Every output pixel is the source's at source(y, x), or zeros where that is outside.
Picture moved(const Picture& from, std::int32_t height, std::int32_t width,
              const std::function<std::pair<int, int>(int, int)>& source) {
  Picture to{height, width, from.channels, {}};
  for (std::int32_t y = 0; y < height; ++y) {
    for (std::int32_t x = 0; x < width; ++x) {
      const auto [sy, sx] = source(y, x);
      const bool inside = sy >= 0 && sx >= 0 && sy < from.height && sx < from.width;
      for (int c = 0; c < from.channels; ++c)
        to.pixels.push_back(inside ? from.at(sy, sx)[c] : std::uint8_t{0});
    }
  }
  return to;
}

// As the EXIF standard words it: which stored row and column the viewer's (y, x) shows.
Picture upright(const Picture& p, int orientation) {
  const int h = p.height - 1, w = p.width - 1;
  const auto source = [=](int y, int x) -> std::pair<int, int> {
    switch (orientation) {
      case 2:
        return {y, w - x};
      case 3:
        return {h - y, w - x};
      case 4:
        return {h - y, x};
      case 5:
        return {x, y};
      case 6:
        return {h - x, y};
      case 7:
        return {h - x, w - y};
      case 8:
        return {x, w - y};
      default:
        return {y, x};
    }
  };
  return orientation >= 5 ? moved(p, p.width, p.height, source)
                          : moved(p, p.height, p.width, source);
}

Picture with_channels(const Picture& p, int channels) {
  Picture out{p.height, p.width, channels, {}};
  for (std::size_t i = 0; i < p.pixels.size(); i += static_cast<std::size_t>(p.channels)) {
    const std::uint8_t* s = &p.pixels[i];
    if (channels == 1 && p.channels >= 3) {
      out.pixels.push_back(
          static_cast<std::uint8_t>((s[0] * 19595 + s[1] * 38470 + s[2] * 7471 + 0x8000) >> 16));
    } else {
      for (int c = 0; c < channels; ++c) out.pixels.push_back(s[p.channels == 1 ? 0 : c]);
    }
  }
  return out;
}

// A chain that resamples nothing.
Picture applied(const Picture& p, const CropPlan& plan) {
  return moved(p, plan.window_height, plan.window_width, [&](int y, int x) {
    const int wy = plan.window_y + (plan.flip_vertical ? plan.window_height - 1 - y : y);
    const int wx = plan.window_x + (plan.flip_horizontal ? plan.window_width - 1 - x : x);
    const bool kept = wy >= plan.kept_top && wy < plan.kept_bottom && wx >= plan.kept_left &&
                      wx < plan.kept_right;
    return kept ? std::pair(wy, wx) : std::pair(-1, -1);
  });
}

struct Result {
  Status status;
  std::int32_t height = 0, width = 0;
  Bytes out;  // exactly as large as asked for
  std::size_t bytes_a_pixel = 0;
};

void* place(void* context, std::int32_t height, std::int32_t width) {
  auto& result = *static_cast<Result*>(context);
  result.height = height;
  result.width = width;
  result.out.resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                    result.bytes_a_pixel);
  return result.out.data();
}

Result decode(ImageDecoder& decoder, const ImageTask& task, ImageRequest request,
              const Bytes& bytes) {
  Bytes padded(bytes);
  padded.resize(bytes.size() + kReadPad);
  padded.shrink_to_fit();
  request.data = padded.data();
  request.size = bytes.size();
  Result result;
  result.bytes_a_pixel = store_bytes(task.store, 1, 1, task.channels);
  result.status = decoder.decode(task, request, place, &result);
  return result;
}

Picture decoded(const Bytes& file) {
  test::Decoded whole = test::decode_fully(file, 1);
  return {whole.height, whole.width, whole.channels, std::move(whole.pixels)};
}

GeometryStep sized(Kind kind, std::int32_t height, std::int32_t width) {
  GeometryStep s;
  s.kind = kind;
  s.height = height;
  s.width = width;
  return s;
}

GeometryStep random_step(std::mt19937& rng, int largest) {
  static constexpr Kind kKinds[] = {Kind::center_crop, Kind::random_crop, Kind::horizontal_flip,
                                    Kind::vertical_flip};
  GeometryStep s =
      sized(kKinds[rng() % 4], random_int(rng, 1, largest), random_int(rng, 1, largest));
  s.padding = random_int(rng, 0, 20);
  return s;
}

struct Bench {
  ImageCounters counters;
  ImageDecoder decoder{counters};
};

}  // namespace

TEST_CASE("crops, padding, flips and orientations are those of the whole picture") {
  std::mt19937 rng(1);
  Bench bench;
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    const JpegOptions o = test::random_options(rng);
    const Bytes file = test::make_jpeg(o, rng());
    Chain chain;
    for (int i = random_int(rng, 0, 3); i > 0; --i) chain.add(random_step(rng, 60));
    ImageTask task;
    task.chain = &chain;
    task.channels = rng() % 4 == 0 ? 1 : 3;
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    request.row = round;
    CAPTURE(test::describe(o));
    CAPTURE(int{request.orientation});
    const Result got = decode(bench.decoder, task, request, file);
    const Picture whole = upright(decoded(file), request.orientation);
    DrawnChain drawn;
    const Status planned = chain.draw(whole.height, whole.width, 0, 0, round, drawn);
    REQUIRE(got.status.code == planned.code);
    if (!planned.ok()) continue;
    const Picture expected = with_channels(applied(whole, drawn.crop), task.channels);
    REQUIRE(got.height == expected.height);
    REQUIRE(got.width == expected.width);
    REQUIRE(got.out == expected.pixels);
    ++compared;
  }
  CHECK(compared > 100);
}

TEST_CASE("a raw image is what a JPEG of the same pixels would be") {
  std::mt19937 rng(2);
  Bench bench;
  for (int round = 0; round < 200; ++round) {
    Picture p{random_int(rng, 1, 40), random_int(rng, 1, 40), 0, {}};
    p.channels = std::vector<int>{1, 3, 4}[rng() % 3];
    p.pixels = test::picture(p.height, p.width, p.channels, 100, rng());
    Chain chain;
    for (int i = random_int(rng, 0, 2); i > 0; --i) chain.add(random_step(rng, 30));
    ImageTask task;
    task.chain = &chain;
    task.channels = rng() % 2 ? 1 : 3;
    ImageRequest request;
    request.codec = Codec::raw;
    request.height = p.height;
    request.width = p.width;
    request.channels = p.channels;
    request.orientation = static_cast<std::uint8_t>(random_int(rng, 1, 8));
    request.row = round;
    const Result got = decode(bench.decoder, task, request, p.pixels);
    const Picture whole = upright(p, request.orientation);
    DrawnChain drawn;
    if (!chain.draw(whole.height, whole.width, 0, 0, round, drawn).ok()) continue;
    REQUIRE(got.status.ok());
    REQUIRE(got.out == with_channels(applied(whole, drawn.crop), task.channels).pixels);
  }
}

TEST_CASE("planes and floats hold the values of interleaved bytes") {
  const Bytes file = test::make_jpeg(JpegOptions{.height = 20, .width = 33}, 1);
  Chain chain;
  chain.add(sized(Kind::center_crop, 25, 18));
  Bench bench;
  ImageTask task;
  task.chain = &chain;
  const Result bytes = decode(bench.decoder, task, {}, file);
  REQUIRE(bytes.status.ok());
  for (const Layout layout : {Layout::hwc, Layout::chw}) {
    for (const Element element : {Element::u8, Element::f32}) {
      task.store.layout = layout;
      task.store.element = element;
      for (int c = 0; c < 3; ++c) {
        task.store.scale[c] = 0.5f * static_cast<float>(c + 1);
        task.store.bias[c] = static_cast<float>(c);
      }
      const Result got = decode(bench.decoder, task, {}, file);
      REQUIRE(got.status.ok());
      for (std::size_t pixel = 0; pixel < 25 * 18; ++pixel) {
        for (std::size_t c = 0; c < 3; ++c) {
          const std::size_t at = layout == Layout::hwc ? pixel * 3 + c : c * 25 * 18 + pixel;
          const std::uint8_t sample = bytes.out[pixel * 3 + c];
          if (element == Element::u8) {
            REQUIRE(got.out[at] == sample);
          } else {
            float value;
            std::memcpy(&value, got.out.data() + at * sizeof value, sizeof value);
            REQUIRE(value ==
                    std::fma(static_cast<float>(sample), task.store.scale[c], task.store.bias[c]));
          }
        }
      }
    }
  }
}

TEST_CASE("a crop that is shrunk a lot is close to the same crop of the whole picture, shrunk") {
  std::mt19937 rng(3);
  Bench bench;
  for (const int orientation : {1, 2, 3, 4, 5, 6, 7, 8}) {
    JpegOptions o;
    o.height = 403;
    o.width = 301;
    o.sampling[0] = {1 + orientation % 2, 2};
    o.quality = 95;
    o.noise = 4;
    const Bytes file = test::make_jpeg(o, rng());
    Chain chain;
    chain.add(sized(Kind::random_resized_crop, 17, 13));
    ImageTask task;
    task.chain = &chain;
    const Picture whole = upright(decoded(file), orientation);
    for (int row = 0; row < 6; ++row) {
      ImageRequest request;
      request.orientation = static_cast<std::uint8_t>(orientation);
      request.row = row;
      const Result reduced = decode(bench.decoder, task, request, file);
      request.codec = Codec::raw;
      request.orientation = 1;
      request.height = whole.height;
      request.width = whole.width;
      const Result exact = decode(bench.decoder, task, request, whole.pixels);
      REQUIRE(reduced.status.ok());
      REQUIRE(exact.status.ok());
      double difference = 0;
      for (std::size_t i = 0; i < exact.out.size(); ++i)
        difference += std::abs(exact.out[i] - reduced.out[i]);
      CAPTURE(orientation);
      CHECK(difference / static_cast<double>(exact.out.size()) < 2.5);
    }
  }
}

TEST_CASE("any chain on any picture stays within its memory") {
  std::mt19937 rng(4);
  Bench bench;
  static constexpr Filter kFilters[] = {Filter::nearest, Filter::bilinear, Filter::bicubic};
  for (int round = 0; round < 600; ++round) {
    JpegOptions o = test::random_options(rng);
    if (round % 10 == 0) o.height *= 10;
    if (round % 10 == 1) o.width *= 10;
    o.progressive = round % 7 == 0 && !o.four_tables;
    const Bytes file = test::make_jpeg(o, rng());
    Chain chain;
    bool resized = false;
    for (int i = random_int(rng, 1, 4); i > 0; --i) {
      GeometryStep s = random_step(rng, 90);
      if (!resized && rng() % 2) {
        resized = true;
        s.kind = rng() % 2 ? Kind::resize : Kind::random_resized_crop;
        if (s.kind == Kind::resize && rng() % 2) s.width = 0;
        s.max_size = s.width == 0 && rng() % 2 ? s.height + 5 : 0;
        s.filter = kFilters[rng() % 3];
        s.antialias = rng() % 4 != 0;
      }
      chain.add(s);
    }
    ImageTask task;
    task.chain = &chain;
    task.channels = rng() % 3 == 0 ? 1 : 3;
    task.store.layout = rng() % 2 ? Layout::hwc : Layout::chw;
    task.store.element = rng() % 2 ? Element::u8 : Element::f32;
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(rng() % 9);
    request.row = round;
    const Result got = decode(bench.decoder, task, request, file);
    CAPTURE(got.status.message);
    REQUIRE((got.status.ok() || got.status.code == Code::unsupported));
  }
}

TEST_CASE("the longest edges there are") {
  Bench bench;
  JpegOptions o;
  o.height = 1;
  o.width = 65500;
  o.components = 1;
  const Bytes wide = test::make_jpeg(o, 1);
  ImageTask task;
  task.channels = 1;
  for (const auto& [height, width] :
       std::vector<std::pair<int, int>>{{65535, 1}, {1, 65535}, {3, 3}}) {
    Chain chain;
    chain.add(sized(Kind::resize, height, width));
    task.chain = &chain;
    CHECK(decode(bench.decoder, task, {}, wide).status.ok());
  }
  Chain shorter;  // would be 65535 x 65500 times as much
  shorter.add(sized(Kind::resize, 65535, 0));
  task.chain = &shorter;
  CHECK(decode(bench.decoder, task, {}, wide).status.code == Code::unsupported);
  Chain padded;
  padded.add(sized(Kind::center_crop, 65535, 10));
  task.chain = &padded;
  CHECK(decode(bench.decoder, task, {}, wide).status.ok());
}

TEST_CASE("raw images whose bytes are not their size are corrupt") {
  const Chain chain;
  ImageTask task;
  task.chain = &chain;
  Bench bench;
  const auto code = [&](std::int32_t height, std::int32_t width, int channels, std::size_t size) {
    ImageRequest request;
    request.codec = Codec::raw;
    request.height = height;
    request.width = width;
    request.channels = channels;
    return decode(bench.decoder, task, request, Bytes(size)).status.code;
  };
  CHECK(code(4, 5, 3, 60) == Code::ok);
  CHECK(code(4, 5, 3, 59) == Code::corrupt);
  CHECK(code(4, 5, 3, 61) == Code::corrupt);
  CHECK(code(4, 5, 2, 40) == Code::corrupt);
  CHECK(code(0, 5, 3, 0) == Code::corrupt);
  CHECK(code(-4, -5, 3, 60) == Code::corrupt);
  CHECK(code(1 << 30, 1 << 30, 4, 0) == Code::corrupt);
  CHECK(code(65536, 1, 1, 65536) == Code::corrupt);
  CHECK(code(2147483647, 2147483647, 4, 4) == Code::corrupt);
}

TEST_CASE("codecs and orientations that no writer makes are errors, not crashes") {
  const Chain chain;
  ImageTask task;
  task.chain = &chain;
  Bench bench;
  const Bytes file = test::make_jpeg(JpegOptions{.height = 9, .width = 14}, 1);
  for (int codec = 2; codec < 256; ++codec) {
    ImageRequest request;
    request.codec = static_cast<Codec>(codec);
    CHECK_FALSE(decode(bench.decoder, task, request, file).status.ok());
  }
  for (int orientation = 9; orientation < 256; ++orientation) {
    ImageRequest request;
    request.orientation = static_cast<std::uint8_t>(orientation);
    CHECK(decode(bench.decoder, task, request, file).status.code == Code::corrupt);
  }
}

TEST_CASE("a size that is refused ends the image, and the next one is whole") {
  const Chain chain;
  ImageTask task;
  task.chain = &chain;
  Bench bench;
  const Bytes file = test::make_jpeg(JpegOptions{.height = 9, .width = 14}, 1);
  Bytes padded = file;
  padded.resize(file.size() + kReadPad);
  ImageRequest request;
  request.data = padded.data();
  request.size = file.size();
  const auto refuse = [](void*, std::int32_t, std::int32_t) -> void* { return nullptr; };
  CHECK(bench.decoder.decode(task, request, refuse, nullptr).code == Code::unsupported);
  CHECK(decode(bench.decoder, task, {}, file).out == decoded(file).pixels);
  CHECK(bench.counters.images.load() == 1);
}
