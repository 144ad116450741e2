#include "chain.h"

#include <algorithm>
#include <utility>

namespace fastio {
namespace {

// The most pixels of an image that is rotated, sheared or warped: kernels use 32-bit positions.
constexpr std::int64_t kMostMoved = std::int64_t{1} << 30;

bool is_flip(const GeometryStep& step) {
  return step.kind == GeometryStep::Kind::horizontal_flip ||
         step.kind == GeometryStep::Kind::vertical_flip;
}

bool within(double value, double low, double high) {  // also false for NaN
  return value >= low && value <= high;
}

// Checks an operation that was drawn for an image of height x width, and updates the size if it
// pads. The numbers come from Python, so those that determine which bytes are read and written are
// checked here.
Status check(const DrawnOp& drawn, std::int32_t& height, std::int32_t& width) {
  const auto& v = drawn.numbers;
  const auto refused = [&](const char* what) {
    return Status::error(Code::unsupported, what + std::string(": the image has ") +
                                                std::to_string(height) + " x " +
                                                std::to_string(width) + " pixels");
  };
  switch (drawn.op) {
    case PixelOp::gaussian_blur:
      if (!within(v[0], 1, kMaxAxis) || !within(v[1], 1, kMaxAxis) ||
          static_cast<int>(v[0]) / 2 >= width || static_cast<int>(v[1]) / 2 >= height)
        return refused("GaussianBlur's kernel is too large");
      break;
    case PixelOp::affine:
    case PixelOp::perspective:
      if (std::int64_t{height} * width > kMostMoved)
        return refused("the image is too large for an affine or perspective transform");
      break;
    case PixelOp::posterize:
      if (!within(v[0], 0, 8))
        return refused("Posterize got a number of bits that is not in [0, 8]");
      break;
    case PixelOp::erase:
      if (!within(v[0], 0, height) || !within(v[1], 0, width) || !within(v[2], 0, height - v[0]) ||
          !within(v[3], 0, width - v[1]))
        return refused("a box to erase lies outside of the image");
      break;
    case PixelOp::pad: {
      for (std::size_t side = 0; side < 4; ++side)
        if (!within(v[side], 0, kMaxAxis))
          return refused("Pad got a size that is negative or too large");
      if (!within(v[4], 0, 3)) return refused("Pad got an unknown mode");
      const auto mode = static_cast<PadMode>(v[4]);
      const bool mirrors = mode == PadMode::reflect || mode == PadMode::symmetric;
      const int edge = mode == PadMode::reflect ? 1 : 0;
      if (mirrors && (std::max(v[0], v[2]) > width - edge || std::max(v[1], v[3]) > height - edge))
        return refused("Pad would mirror more pixels than there are");
      if (width + v[0] + v[2] > kMaxAxis || height + v[1] + v[3] > kMaxAxis)
        return refused("Pad would make the image too large");
      width += static_cast<std::int32_t>(v[0] + v[2]);
      height += static_cast<std::int32_t>(v[1] + v[3]);
      break;
    }
    default:
      break;
  }
  return Status::okay();
}

}  // namespace

void Chain::add(const GeometryStep& step) {
  const std::uint32_t number = steps_++;
  const bool joins_first =
      stages_.empty() ||
      (is_flip(step) && std::all_of(stages_.begin(), stages_.end(), [](const Stage& stage) {
         return !stage.is_crop && stage.node.commutes_with_flips();
       }));
  if (joins_first && first_.add(step, number).ok()) return;
  if (!stages_.empty() && stages_.back().is_crop && stages_.back().geometry.add(step, number).ok())
    return;
  Stage stage;
  stage.is_crop = true;
  static_cast<void>(stage.geometry.add(step, number));  // the first step of a geometry always fits
  stages_.push_back(std::move(stage));
}

void Chain::add(AugmentNode node) { stages_.push_back({steps_++, std::move(node), {}, false}); }

void Chain::to_gray() {
  AugmentNode gray, one;
  gray.op = PixelOp::grayscale;
  one.op = PixelOp::one_channel;
  AugmentNode both;
  both.kind = AugmentNode::Kind::sequence;
  both.children = {gray, one};
  add(std::move(both));
  to_gray_ = true;
}

void Chain::erase_at_end(AugmentNode node) {
  erasing_.push_back({steps_++, std::move(node), {}, false});
}

Status Chain::draw(std::int32_t height, std::int32_t width, std::uint64_t seed, std::uint64_t epoch,
                   std::int64_t row, DrawnChain& out) const {
  out.ops.clear();
  out.crops.clear();
  out.erased.clear();
  Status status = first_.plan(height, width, seed, epoch, row, out.crop);
  out.height = out.crop.window_height;
  out.width = out.crop.window_width;
  for (const Stage& stage : stages_) {
    if (!status.ok()) return status;
    if (stage.is_crop) {
      CropPlan plan;
      status = stage.geometry.plan(out.height, out.width, seed, epoch, row, plan);
      out.ops.push_back({PixelOp::crop, {static_cast<double>(out.crops.size())}, {}});
      out.height = plan.window_height;
      out.width = plan.window_width;
      out.crops.push_back(plan);
      continue;
    }
    DrawStream stream(seed, epoch, row, stage.step);
    const std::size_t begin = out.ops.size();
    fastio::draw(stage.node, out.height, out.width, stream, out.ops);
    for (std::size_t i = begin; i < out.ops.size() && status.ok(); ++i)
      status = check(out.ops[i], out.height, out.width);
  }
  for (const Stage& stage : erasing_) {
    DrawStream stream(seed, epoch, row, stage.step);
    fastio::draw(stage.node, out.height, out.width, stream, out.erased);
  }
  for (std::size_t i = 0; i < out.erased.size() && status.ok(); ++i) {
    status = check(out.erased[i], out.height, out.width);
    if (out.erased[i].op != PixelOp::erase)
      status = Status::error(Code::unsupported, "the last steps of a chain can only erase boxes");
  }
  return status;
}

}  // namespace fastio
