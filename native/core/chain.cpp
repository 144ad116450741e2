#include "chain.h"

#include <algorithm>
#include <utility>

namespace fastio {
namespace {

bool is_flip(const GeometryStep& step) {
  return step.kind == GeometryStep::Kind::horizontal_flip ||
         step.kind == GeometryStep::Kind::vertical_flip;
}

// Checks operations drawn for an image of height x width, whose size padding changes.
Status check(const DrawnOp& drawn, std::int32_t& height, std::int32_t& width) {
  const auto& v = drawn.numbers;
  const std::string size = std::to_string(height) + " x " + std::to_string(width) + " pixels";
  if (drawn.op == PixelOp::gaussian_blur &&
      (static_cast<int>(v[0]) / 2 >= width || static_cast<int>(v[1]) / 2 >= height))
    return Status::error(Code::unsupported, "GaussianBlur's kernel is too large for " + size);
  if (drawn.op != PixelOp::pad) return Status::okay();
  const auto mode = static_cast<PadMode>(v[4]);
  const bool mirrors = mode == PadMode::reflect || mode == PadMode::symmetric;
  const int edge = mode == PadMode::reflect ? 1 : 0;
  if (mirrors && (std::max(v[0], v[2]) > width - edge || std::max(v[1], v[3]) > height - edge))
    return Status::error(Code::unsupported, "Pad mirrors more than " + size);
  width += static_cast<std::int32_t>(v[0] + v[2]);
  height += static_cast<std::int32_t>(v[1] + v[3]);
  if (width < 1 || height < 1 || width > kMaxAxis || height > kMaxAxis)
    return Status::error(Code::unsupported, "Pad gives an impossible size to " + size);
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
  return status;
}

}  // namespace fastio
