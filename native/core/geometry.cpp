#include "geometry.h"

#include <algorithm>
#include <cmath>

#include "rng.h"

namespace fastio {
namespace {

// The random words of one step of a row's chain. attempt: the number of the try in rejection
// sampling.
struct Draws {
  std::uint64_t seed, epoch;
  std::int64_t row;
  std::uint32_t step;

  Philox operator()(std::uint32_t attempt) const {
    const auto r = static_cast<std::uint64_t>(row);
    return philox(seed, {static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(r >> 32),
                         static_cast<std::uint32_t>(epoch), step << 8 | attempt});
  }
};

struct Box {
  std::int32_t y, x, height, width;
};

// Rounds to an integer in [1, most].
std::int32_t rounded(double value, std::int32_t most) {
  return static_cast<std::int32_t>(std::clamp(std::nearbyint(value), 1.0, double(most)));
}

// torchvision.transforms.RandomResizedCrop.get_params: ten attempts, then a central crop.
Box random_resized_box(const GeometryStep& step, std::int32_t height, std::int32_t width,
                       const Draws& draws) {
  const double area = static_cast<double>(height) * width;
  const double log_ratio[2] = {std::log(step.ratio[0]), std::log(step.ratio[1])};
  for (std::uint32_t attempt = 0; attempt < 10; ++attempt) {
    const Philox u = draws(attempt);
    const double target = area * uniform(u[0], step.scale[0], step.scale[1]);
    const double aspect = std::exp(uniform(u[1], log_ratio[0], log_ratio[1]));
    const double w = std::nearbyint(std::sqrt(target * aspect));
    const double h = std::nearbyint(std::sqrt(target / aspect));
    if (!(w >= 1 && h >= 1 && w <= width && h <= height)) continue;  // also true for NaN
    const auto box_h = static_cast<std::int32_t>(h), box_w = static_cast<std::int32_t>(w);
    return {below(u[2], height - box_h + 1), below(u[3], width - box_w + 1), box_h, box_w};
  }
  const double in_ratio = static_cast<double>(width) / height;
  std::int32_t h = height, w = width;
  if (in_ratio < step.ratio[0]) {
    h = rounded(w / step.ratio[0], height);
  } else if (in_ratio > step.ratio[1]) {
    w = rounded(h * step.ratio[1], width);
  }
  return {(height - h) / 2, (width - w) / 2, h, w};
}

// torchvision's _compute_resized_output_size, if the size is one number.
void shorter_edge_size(const GeometryStep& step, std::int32_t& height, std::int32_t& width) {
  const std::int32_t shorter = std::min(height, width), longer = std::max(height, width);
  std::int64_t new_short = step.height;
  std::int64_t new_long = static_cast<std::int64_t>(step.height) * longer / shorter;
  if (step.max_size > 0 && new_long > step.max_size) {
    new_short = static_cast<std::int64_t>(step.max_size) * new_short / new_long;
    new_long = step.max_size;
  }
  constexpr std::int64_t kLargest = 1 << 20;
  const auto s = static_cast<std::int32_t>(std::clamp<std::int64_t>(new_short, 1, kLargest));
  const auto l = static_cast<std::int32_t>(std::clamp<std::int64_t>(new_long, 1, kLargest));
  const bool tall = width <= height;
  width = tall ? s : l;
  height = tall ? l : s;
}

// torchvision.transforms.CenterCrop along one axis: returns the window's offset, which is negative
// if the image is padded.
std::int32_t center_offset(std::int32_t size, std::int32_t wanted) {
  if (size < wanted) return -((wanted - size) / 2);
  return static_cast<std::int32_t>(std::nearbyint((size - wanted) / 2.0));
}

// Crops the window to `box`, which is relative to the window after flips.
void crop_window(CropPlan& plan, const Box& box) {
  plan.kept_top = std::max(plan.kept_top, plan.window_y);
  plan.kept_left = std::max(plan.kept_left, plan.window_x);
  plan.kept_bottom = std::min(plan.kept_bottom, plan.window_y + plan.window_height);
  plan.kept_right = std::min(plan.kept_right, plan.window_x + plan.window_width);
  plan.window_y += plan.flip_vertical ? plan.window_height - box.height - box.y : box.y;
  plan.window_x += plan.flip_horizontal ? plan.window_width - box.width - box.x : box.x;
  plan.window_height = box.height;
  plan.window_width = box.width;
}

// Plans to resample the window, which becomes the crop, to height x width. The window has no
// padding (see Geometry::add).
void resample_window(CropPlan& plan, const GeometryStep& step, std::int32_t height,
                     std::int32_t width) {
  plan.crop_y += plan.window_y;
  plan.crop_x += plan.window_x;
  plan.crop_height = plan.window_height;
  plan.crop_width = plan.window_width;
  plan.out_height = plan.window_height = plan.kept_bottom = height;
  plan.out_width = plan.window_width = plan.kept_right = width;
  plan.window_y = plan.window_x = plan.kept_top = plan.kept_left = 0;
  plan.filter = step.filter;
  plan.antialias = step.antialias;
}

Status apply(const GeometryStep& step, const Draws& draws, CropPlan& plan) {
  const std::int32_t h = plan.window_height, w = plan.window_width;
  switch (step.kind) {
    case GeometryStep::Kind::random_resized_crop:
      crop_window(plan, random_resized_box(step, h, w, draws));
      resample_window(plan, step, step.height, step.width);
      break;
    case GeometryStep::Kind::resize: {
      std::int32_t new_h = h, new_w = w;
      if (step.width > 0) {
        new_h = step.height;
        new_w = step.width;
      } else {
        shorter_edge_size(step, new_h, new_w);
      }
      resample_window(plan, step, new_h, new_w);
      break;
    }
    case GeometryStep::Kind::center_crop:
      crop_window(plan, {center_offset(h, step.height), center_offset(w, step.width), step.height,
                         step.width});
      break;
    case GeometryStep::Kind::random_crop: {
      const std::int32_t free_y = h + 2 * step.padding - step.height;
      const std::int32_t free_x = w + 2 * step.padding - step.width;
      if (free_y < 0 || free_x < 0)
        return Status::error(Code::unsupported, "RandomCrop of " + std::to_string(step.height) +
                                                    " x " + std::to_string(step.width) +
                                                    " does not fit into " + std::to_string(h) +
                                                    " x " + std::to_string(w) + " pixels");
      const Philox u = draws(0);
      crop_window(plan, {below(u[0], free_y + 1) - step.padding,
                         below(u[1], free_x + 1) - step.padding, step.height, step.width});
      break;
    }
    case GeometryStep::Kind::horizontal_flip:
      if (uniform(draws(0)[0], 0.0, 1.0) < step.probability)
        plan.flip_horizontal = !plan.flip_horizontal;
      break;
    case GeometryStep::Kind::vertical_flip:
      if (uniform(draws(0)[0], 0.0, 1.0) < step.probability)
        plan.flip_vertical = !plan.flip_vertical;
      break;
  }
  return Status::okay();
}

}  // namespace

Status Geometry::add(const GeometryStep& step, std::uint32_t number) {
  using Kind = GeometryStep::Kind;
  if (step.kind == Kind::random_resized_crop || step.kind == Kind::resize) {
    if (resampled_ || may_pad_)
      return Status::error(Code::unsupported, "this would resample the image twice");
    resampled_ = true;
  }
  may_pad_ |=
      step.kind == Kind::center_crop || (step.kind == Kind::random_crop && step.padding > 0);
  steps_.push_back({step, number});
  return Status::okay();
}

Status Geometry::plan(std::int32_t height, std::int32_t width, std::uint64_t seed,
                      std::uint64_t epoch, std::int64_t row, CropPlan& out) const {
  out = CropPlan{};
  out.crop_height = out.out_height = out.window_height = out.kept_bottom = height;
  out.crop_width = out.out_width = out.window_width = out.kept_right = width;
  for (const Numbered& numbered : steps_) {
    const Draws draws{seed, epoch, row, numbered.number};
    if (Status status = apply(numbered.step, draws, out); !status.ok()) return status;
  }
  return Status::okay();
}

}  // namespace fastio
