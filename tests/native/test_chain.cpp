// Chains of operations on pixels, on images of all small sizes: every instruction set gives the
// same bytes, and under the sanitizers no byte is read or written that is not the image's.
#include "core/chain.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/cpu.h"
#include "core/image.h"

using namespace fastio;
using Kind = AugmentNode::Kind;

namespace {

using Bytes = std::vector<std::uint8_t>;

class Dice {
 public:
  explicit Dice(std::uint32_t seed) : rng_(seed) {}
  int whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  double number(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(rng_);
  }
  bool one_in(int n) { return whole(1, n) == 1; }
  template <typename T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(whole(0, static_cast<int>(values.size()) - 1))];
  }

 private:
  std::mt19937 rng_;
};

AugmentNode op(PixelOp op, const std::vector<double>& numbers = {}) {
  AugmentNode node;
  node.op = op;
  for (const double number : numbers) node.numbers.push_back({{number}});
  return node;
}

AugmentNode parent(Kind kind, std::vector<AugmentNode> children) {
  AugmentNode node;
  node.kind = kind;
  for (std::size_t i = 1; i <= children.size(); ++i)
    node.cumulated.push_back(static_cast<double>(i) / static_cast<double>(children.size()));
  node.children = std::move(children);
  return node;
}

AugmentNode random_move(Dice& dice) {
  AugmentNode node;
  if (dice.one_in(2)) {
    node.kind = Kind::perspective;
    node.numbers = {{{dice.number(0, 1)}}};
  } else {
    node =
        op(PixelOp::affine, {dice.number(-400, 400), dice.number(-50, 50), dice.number(-50, 50),
                             dice.one_in(4) ? 1 : dice.number(0.01, 20), dice.number(-90, 90),
                             dice.one_in(2) ? 0 : dice.number(-90, 90), dice.number(-30, 30), 0});
    if (dice.one_in(10)) node.numbers[static_cast<std::size_t>(dice.whole(0, 7))].values = {1e308};
  }
  node.fill.value = {12, 250, 99};
  node.fill.given = dice.one_in(2);
  node.fill.bilinear = dice.one_in(2);
  return node;
}

// Any operation that keeps the image's size.
AugmentNode random_op(Dice& dice) {
  switch (dice.whole(0, 13)) {
    case 0:
    case 1:
      return random_move(dice);
    case 2: {
      AugmentNode node;
      node.kind = Kind::erase_area;
      node.numbers = {{{0, 1}, true}, {{0.1, 10}, true}};
      return node;
    }
    case 3:
      return op(PixelOp::gaussian_blur,
                {2.0 * dice.whole(0, 4) + 1, 2.0 * dice.whole(0, 4) + 1, dice.number(0.05, 5)});
    case 4:
      return op(PixelOp::posterize, {double(dice.whole(0, 8))});
    case 5:
      return op(PixelOp::solarize, {dice.number(0, 256)});
    case 6:
      return op(PixelOp::hue, {dice.number(-0.5, 0.5)});
    case 7:
      return op(
          dice.of<PixelOp>({PixelOp::invert, PixelOp::autocontrast, PixelOp::equalize,
                            PixelOp::grayscale, PixelOp::flip_horizontal, PixelOp::flip_vertical}));
    default:
      return op(dice.of<PixelOp>({PixelOp::brightness, PixelOp::contrast, PixelOp::saturation,
                                  PixelOp::sharpness}),
                {dice.one_in(5) ? dice.number(2, 100) : dice.number(0, 2)});
  }
}

AugmentNode random_tree(Dice& dice, int depth) {
  if (depth == 0 || dice.one_in(3)) return random_op(dice);
  std::vector<AugmentNode> children;
  for (int i = dice.whole(1, 3); i > 0; --i) children.push_back(random_tree(dice, depth - 1));
  AugmentNode node =
      parent(dice.of<Kind>({Kind::sequence, Kind::apply, Kind::choice, Kind::order, Kind::repeat}),
             std::move(children));
  node.probability = 0.7;
  node.count = dice.whole(1, 3);
  return node;
}

AugmentNode random_mix(Dice& dice) {
  AugmentNode node = parent(Kind::mix, {random_op(dice)});
  node.width = dice.whole(1, 3);
  node.count = dice.whole(-1, 2);
  return node;
}

AugmentNode random_pad(Dice& dice) {
  std::vector<double> numbers;
  for (int side = 0; side < 4; ++side) numbers.push_back(dice.whole(0, 9));
  numbers.push_back(dice.whole(0, 3));
  return op(PixelOp::pad, numbers);
}

GeometryStep random_geometry(Dice& dice) {
  using Step = GeometryStep::Kind;
  GeometryStep step;
  step.kind = dice.of<Step>({Step::random_resized_crop, Step::resize, Step::center_crop,
                             Step::random_crop, Step::horizontal_flip, Step::vertical_flip});
  step.height = dice.whole(1, 40);
  step.width = dice.whole(1, 40);
  step.padding = dice.whole(0, 8);
  step.antialias = dice.one_in(2);
  return step;
}

Chain random_chain(Dice& dice) {
  Chain chain;
  for (int i = dice.whole(1, 5); i > 0; --i) {
    switch (dice.whole(0, 7)) {
      case 0:
      case 1:
        chain.add(random_geometry(dice));
        break;
      case 2:
        chain.add(random_pad(dice));
        break;
      case 3:
        chain.add(random_mix(dice));
        break;
      default:
        chain.add(random_tree(dice, 3));
    }
  }
  if (dice.one_in(4)) chain.to_gray();
  return chain;
}

// Memory of exactly the size that is asked for, so that a byte too many is noticed.
struct Result {
  std::size_t pixel_bytes = 0;
  Bytes bytes;
};

void* place(void* context, std::int32_t height, std::int32_t width) {
  auto& result = *static_cast<Result*>(context);
  result.bytes = Bytes(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                       result.pixel_bytes);
  return result.bytes.data();
}

Status run(const ImageTask& task, const ImageRequest& request, Result& result) {
  ImageCounters counters;
  ImageDecoder decoder(counters);
  result.pixel_bytes = store_bytes(task.store, 1, 1, task.out_channels(0));
  return decoder.decode(task, request, place, &result);
}

// A raw image, which is followed by the bytes that decoders may read.
ImageRequest random_image(Dice& dice, Bytes& pixels) {
  ImageRequest request;
  request.codec = Codec::raw;
  request.orientation = static_cast<std::uint8_t>(dice.whole(1, 8));
  request.height = dice.whole(1, dice.one_in(3) ? 200 : 24);
  request.width = dice.whole(1, dice.one_in(3) ? 200 : 24);
  request.channels = dice.of<int>({1, 3, 4});
  request.row = dice.whole(0, 1000);
  request.size = static_cast<std::size_t>(request.height * request.width * request.channels);
  pixels.resize(request.size + Buffer::kPad);
  for (std::size_t i = 0; i < request.size; ++i)
    pixels[i] = static_cast<std::uint8_t>(dice.whole(0, 255));
  request.data = pixels.data();
  return request;
}

ImageTask random_task(Dice& dice, const Chain& chain) {
  ImageTask task;
  task.chain = &chain;
  task.seed = static_cast<std::uint64_t>(dice.whole(0, 1000));
  task.channels = dice.one_in(4) && chain.channels(3) == 3 ? 1 : 3;
  task.store.layout = dice.of<Layout>({Layout::hwc, Layout::chw});
  task.store.element = dice.of<Element>({Element::u8, Element::f32});
  return task;
}

DrawnChain drawn_of(AugmentNode node, Status& status, bool at_end = false) {
  Chain chain;
  if (at_end) {
    chain.erase_at_end(std::move(node));
  } else {
    chain.add(std::move(node));
  }
  DrawnChain drawn;
  status = chain.draw(20, 30, 1, 2, 3, drawn);
  return drawn;
}

}  // namespace

TEST_CASE("chains of any operations give the same bytes on every level") {
  int done = 0;
  for (std::uint32_t round = 0; round < 1500; ++round) {
    CAPTURE(round);
    Dice dice(round);
    const Chain chain = random_chain(dice);
    Bytes pixels;
    const ImageRequest request = random_image(dice, pixels);
    const ImageTask task = random_task(dice, chain);
    simd_force(Simd::portable);
    Result expected;
    const Status first = run(task, request, expected);
    for (const Simd level : {Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon}) {
      simd_force(level);
      Result result;
      const Status status = run(task, request, result);
      REQUIRE(status.code == first.code);
      if (status.ok()) REQUIRE(result.bytes == expected.bytes);
    }
    done += first.ok();
  }
  simd_force(simd_best());
  CHECK(done > 1000);
}

TEST_CASE("numbers that lead out of an image are refused before a pixel is touched") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const double wild[] = {kNan, -1, 1e9, 1e300, -1e300, std::numeric_limits<double>::infinity()};
  const std::vector<AugmentNode> sound = {
      op(PixelOp::erase, {1, 2, 3, 4}), op(PixelOp::pad, {1, 2, 3, 4, 2}),
      op(PixelOp::gaussian_blur, {3, 5, 1}), op(PixelOp::posterize, {3})};
  for (const AugmentNode& node : sound) {
    Status status;
    drawn_of(node, status);
    REQUIRE(status.ok());
    const std::size_t places = node.op == PixelOp::gaussian_blur ? 2 : node.numbers.size();
    for (std::size_t i = 0; i < places; ++i)
      for (const double number : wild) {
        AugmentNode other = node;
        other.numbers[i].values[0] = number;
        drawn_of(other, status);
        CAPTURE(name_of(node.op));
        CAPTURE(number);
        REQUIRE(status.code == Code::unsupported);
      }
  }
}

TEST_CASE("boxes beyond an image, and anything else but boxes at the end, are refused") {
  Status status;
  drawn_of(op(PixelOp::erase, {0, 0, 20, 30}), status, true);
  REQUIRE(status.ok());
  for (const auto& box : {std::vector<double>{1, 0, 20, 30}, {0, 1, 20, 30}, {0, 0, 21, 30}}) {
    drawn_of(op(PixelOp::erase, box), status, true);
    REQUIRE(status.code == Code::unsupported);
  }
  drawn_of(op(PixelOp::affine, {0, 0, 5, 5, 0, 0, 0, 0}), status, true);
  REQUIRE(status.code == Code::unsupported);
}
