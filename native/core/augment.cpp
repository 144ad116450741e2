#include "augment.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fastio {
namespace {

constexpr std::array<std::string_view, 23> kNames = {
    "brightness",      "contrast",      "saturation",    "hue",          "sharpness",
    "posterize",       "solarize",      "invert",        "autocontrast", "equalize",
    "grayscale",       "one_channel",   "gaussian_blur", "affine",       "perspective",
    "flip_horizontal", "flip_vertical", "erase",         "pad",          "crop",
    "mix_begin",       "mix_add",       "mix_end"};

// Draws a number.
double value_of(const Spread& spread, std::int32_t height, std::int32_t width, DrawStream& stream) {
  double value = spread.values[0];
  if (spread.range) {
    value = stream.between(spread.values[0], spread.values[1]);
  } else if (spread.values.size() > 1) {
    const auto count = static_cast<std::int32_t>(spread.values.size());
    value = spread.values[static_cast<std::size_t>(stream.whole_below(count))];
  }
  if (spread.sign && stream.word() >> 31) value = -value;
  if (spread.unit == Spread::Unit::width) value *= width;
  if (spread.unit == Spread::Unit::height) value *= height;
  if (spread.whole == Spread::Whole::cut) value = std::trunc(value);
  if (spread.whole == Spread::Whole::rounded) value = std::nearbyint(value);
  return value + spread.offset;
}

// torchvision's RandomErasing.get_params: ten attempts, then nothing is erased.
void draw_erasing(const AugmentNode& node, std::int32_t height, std::int32_t width,
                  DrawStream& stream, std::vector<DrawnOp>& out) {
  const double area = static_cast<double>(height) * width;
  const auto& scale = node.numbers[0].values;
  const auto& ratio = node.numbers[1].values;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * stream.between(scale[0], scale[1]);
    const double aspect = std::exp(stream.between(std::log(ratio[0]), std::log(ratio[1])));
    const double h = std::nearbyint(std::sqrt(target * aspect));
    const double w = std::nearbyint(std::sqrt(target / aspect));
    if (!(h < height && w < width)) continue;
    const auto box_h = static_cast<std::int32_t>(h), box_w = static_cast<std::int32_t>(w);
    DrawnOp drawn{PixelOp::erase, {}, node.fill};
    const std::int32_t top = stream.whole_below(height - box_h + 1);
    drawn.numbers = {double(top), double(stream.whole_below(width - box_w + 1)), h, w};
    const std::uint64_t high = stream.word();
    drawn.key = high << 32 | stream.word();
    out.push_back(drawn);
    return;
  }
}

// torchvision's RandomPerspective.get_params.
void draw_perspective(const AugmentNode& node, std::int32_t height, std::int32_t width,
                      DrawStream& stream, std::vector<DrawnOp>& out) {
  const double distortion = node.numbers[0].values[0];
  const auto reach = [distortion](std::int32_t size) {
    return static_cast<std::int32_t>(distortion * (size / 2)) + 1;
  };
  const std::int32_t x = reach(width), y = reach(height);
  const auto at = [&stream](std::int32_t begin, std::int32_t count) {
    return static_cast<double>(begin + stream.whole_below(count));
  };
  DrawnOp drawn{PixelOp::perspective, {}, node.fill};
  for (std::size_t corner = 0; corner < 4; ++corner) {
    const bool right = corner == 1 || corner == 2, bottom = corner >= 2;
    drawn.numbers[2 * corner] = at(right ? width - x : 0, x);
    drawn.numbers[2 * corner + 1] = at(bottom ? height - y : 0, y);
  }
  out.push_back(drawn);
}

// Draws a gamma variate, with the density x^(alpha - 1) e^-x, and returns its logarithm, because
// variates of a small alpha underflow. G. Marsaglia and W. W. Tsang, "A simple method for
// generating gamma variables", 2000.
double log_gamma_variate(double alpha, DrawStream& stream) {
  const auto open = [&stream] { return (stream.word() + 0.5) * 0x1p-32; };
  if (alpha == 1) return std::log(-std::log(open()));
  if (alpha < 1) {
    const double larger = log_gamma_variate(alpha + 1, stream);
    return larger + std::log(open()) / alpha;
  }
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (int attempt = 0; attempt < 16; ++attempt) {
    constexpr double kTurn = 6.283185307179586;
    const double x = std::sqrt(-2 * std::log(open())) * std::cos(kTurn * open());
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v > 0 && std::log(open()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return std::log(d * v);
  }
  return std::log(d);  // after 16 rejections, each with a probability below 1/20
}

// Draws weights that sum to 1 from the symmetric Dirichlet distribution with parameter alpha.
std::vector<double> dirichlet(std::size_t count, double alpha, DrawStream& stream) {
  std::vector<double> weights(count);
  for (double& weight : weights) weight = log_gamma_variate(alpha, stream);
  const double most = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - most);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

void draw_mix(const AugmentNode& node, std::int32_t height, std::int32_t width, DrawStream& stream,
              std::vector<DrawnOp>& out) {
  const std::vector<double> both = dirichlet(2, node.alpha, stream);
  const auto chains = static_cast<std::size_t>(node.width);
  const std::vector<double> weights = dirichlet(chains, node.alpha, stream);
  out.push_back({PixelOp::mix_begin, {both[0]}, {}});
  for (std::size_t chain = 0; chain < chains; ++chain) {
    const int depth = node.count > 0 ? node.count : 1 + stream.whole_below(3);
    for (int i = 0; i < depth; ++i) draw(node.children[0], height, width, stream, out);
    out.push_back({PixelOp::mix_add, {both[1] * weights[chain]}, {}});
  }
  out.push_back({PixelOp::mix_end, {}, {}});
}

void draw_in_order(const AugmentNode& node, std::int32_t height, std::int32_t width,
                   DrawStream& stream, std::vector<DrawnOp>& out) {
  std::vector<std::size_t> order(node.children.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1],
              order[static_cast<std::size_t>(stream.whole_below(static_cast<int>(left)))]);
  for (const std::size_t i : order) draw(node.children[i], height, width, stream, out);
}

}  // namespace

std::string_view name_of(PixelOp op) { return kNames[static_cast<std::size_t>(op)]; }

bool op_named(std::string_view name, PixelOp& op) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  op = static_cast<PixelOp>(found - kNames.begin());
  return found != kNames.end();
}

bool AugmentNode::commutes_with_flips() const {
  if (kind == Kind::erase_area || kind == Kind::perspective) return false;
  if (kind == Kind::op && (op == PixelOp::affine || op == PixelOp::erase)) return false;
  return std::all_of(children.begin(), children.end(),
                     [](const AugmentNode& child) { return child.commutes_with_flips(); });
}

void draw(const AugmentNode& node, std::int32_t height, std::int32_t width, DrawStream& stream,
          std::vector<DrawnOp>& out) {
  using Kind = AugmentNode::Kind;
  const auto draw_all = [&] {
    for (const AugmentNode& child : node.children) draw(child, height, width, stream, out);
  };
  switch (node.kind) {
    case Kind::op: {
      DrawnOp drawn{node.op, {}, node.fill};
      for (std::size_t i = 0; i < node.numbers.size(); ++i)
        drawn.numbers[i] = value_of(node.numbers[i], height, width, stream);
      out.push_back(drawn);
      break;
    }
    case Kind::sequence:
      draw_all();
      break;
    case Kind::apply:
      if (stream.between(0, 1) < node.probability) draw_all();
      break;
    case Kind::choice: {
      const double at = stream.between(0, 1);
      std::size_t i = 0;
      while (i + 1 < node.children.size() && at >= node.cumulated[i]) ++i;
      draw(node.children[i], height, width, stream, out);
      break;
    }
    case Kind::order:
      draw_in_order(node, height, width, stream, out);
      break;
    case Kind::repeat:
      for (int i = 0; i < node.count; ++i) draw_all();
      break;
    case Kind::mix:
      draw_mix(node, height, width, stream, out);
      break;
    case Kind::erase_area:
      draw_erasing(node, height, width, stream, out);
      break;
    case Kind::perspective:
      draw_perspective(node, height, width, stream, out);
      break;
  }
}

}  // namespace fastio
