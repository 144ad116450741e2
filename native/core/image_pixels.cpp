// The functions of ImageDecoder for views that are made from pixels: those of raw images, and those
// of JPEGs that libjpeg decodes. Only the region that the views need is read. It is turned upright
// and its channels are converted before it is resampled.
#include <algorithm>
#include <cmath>

#include "image.h"
#include "image_parts.h"

namespace fastio {
namespace {

// Returns the largest reduction that leaves at least twice as many samples as outputs along both
// axes. The antialiasing filter then still does most of the work, and the result differs little
// from that of a full decode (Pillow's thumbnail() uses the same limit, its reducing_gap).
int reduction(const CropPlan& plan) {
  if (!plan.antialias || plan.filter == Filter::nearest) return 1;
  int denominator = 1;
  while (denominator < 8 && plan.crop_height / 4 >= denominator * plan.out_height &&
         plan.crop_width / 4 >= denominator * plan.out_width)
    denominator *= 2;
  return denominator;
}

std::int32_t reduced(std::int32_t size, int denominator) {
  return (size + denominator - 1) / denominator;
}

// Returns the smallest rectangle that contains both.
Rect joined(const Rect& a, const Rect& b) {
  const std::int32_t y = std::min(a.y, b.y), x = std::min(a.x, b.x);
  return {y, x, std::max(a.y + a.height, b.y + b.height) - y,
          std::max(a.x + a.width, b.x + b.width) - x};
}

// Maps a rectangle of the upright image, which has height x width pixels, to the stored image.
Rect stored_rect(Rect upright, std::int32_t height, std::int32_t width, int orientation) {
  if (mirrors_y(orientation)) upright.y = height - upright.y - upright.height;
  if (mirrors_x(orientation)) upright.x = width - upright.x - upright.width;
  if (!swaps_axes(orientation)) return upright;
  return {upright.x, upright.y, upright.width, upright.height};
}

}  // namespace

// Decodes the views that are not made from planes: those of raw images, and of JPEGs by libjpeg.
Status ImageDecoder::decode_pixels(const ImageTask& task, const ImageRequest& request,
                                   const Reading& reading) {
  Rect all;
  for (std::size_t i = 0; i < count_; ++i) {
    const View& view = views_[i];
    if (!view.by_planes && !view.empty) all = all.height ? joined(all, view.region) : view.region;
  }
  Pixels pixels;
  Status status;
  if (all.height) status = read_region(request, reading, all, pixels);
  for (std::size_t i = 0; i < count_ && status.ok(); ++i) {
    View& view = views_[i];
    if (view.by_planes) continue;
    Pixels own = pixels;
    if (!view.empty)
      own.first += (view.region.y - all.y) * own.stride +
                   std::ptrdiff_t{view.region.x - all.x} * reading.channels;
    status = finish(task, reading, own, view);
  }
  return status;
}

// Plans an axis of the upright image. The crop is [begin, begin + size) of `limit` samples, all at
// the decoded scale.
Status ImageDecoder::plan_axis(const Reading& reading, const CropPlan& plan, bool vertical,
                               double begin, double size, std::int32_t limit, Axis& axis) const {
  const std::int32_t out = vertical ? plan.out_height : plan.out_width;
  const std::int32_t window = vertical ? plan.window_y : plan.window_x;
  const std::int32_t window_size = vertical ? plan.window_height : plan.window_width;
  const bool mirror = vertical ? plan.flip_vertical : plan.flip_horizontal;
  const std::int32_t first = std::max(window, vertical ? plan.kept_top : plan.kept_left);
  const std::int32_t last =
      std::min(window + window_size, vertical ? plan.kept_bottom : plan.kept_right);
  const auto low = static_cast<std::int32_t>(std::floor(begin));
  const auto high = std::min(static_cast<std::int32_t>(std::ceil(begin + size)), limit);
  if (out > kMaxAxis || high - low > kMaxAxis)
    return Status::error(Code::unsupported, "an edge is longer than 65535 pixels");
  axis.crop_begin = low;
  axis.zeros_before = mirror ? window + window_size - last : first - window;
  axis.empty = first >= last;
  axis.padded = last - first != window_size;
  axis.spec.in = high - low;
  axis.spec.out = out;
  axis.spec.window_begin = first;
  axis.spec.window_size = last - first;
  axis.spec.filter = plan.filter;
  axis.spec.antialias = plan.antialias;
  axis.spec.mirror = mirror;
  if (reading.denominator > 1) {
    axis.spec.box_begin = begin - low;
    axis.spec.box_size = std::min(size, axis.spec.in - axis.spec.box_begin);
  }
  return Status::okay();
}

Status ImageDecoder::plan(const ImageRequest& request, Reading& reading) {
  if (request.codec == Codec::jpeg) {
    reading.denominator = 8;
    for (std::size_t i = 0; i < count_; ++i)
      if (!views_[i].by_planes)
        reading.denominator = std::min(reading.denominator, reduction(views_[i].plan));
  }
  if (reading.source_channels == 1) reading.channels = 1;
  Status status;
  for (std::size_t i = 0; i < count_ && status.ok(); ++i)
    if (!views_[i].by_planes) status = plan_pixels(reading, views_[i]);
  return status;
}

// Plans view.plan for an image of pixels, which is in memory or is decoded to memory.
Status ImageDecoder::plan_pixels(const Reading& reading, View& view) {
  const CropPlan& plan = view.plan;
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? reading.stored_width : reading.stored_height;
  const std::int32_t width = swap ? reading.stored_height : reading.stored_width;
  // The last sample of a reduced image, at the stored right and bottom edges, may stand for fewer
  // pixels. If the upright axis is reversed, that sample is the first one.
  const int d = reading.denominator;
  const std::int32_t down = reduced(height, d), across = reduced(width, d);
  const double slack_y = mirrors_y(reading.orientation) ? double(down) * d - height : 0;
  const double slack_x = mirrors_x(reading.orientation) ? double(across) * d - width : 0;
  Axis y, x;
  Status status = plan_axis(reading, plan, true, (plan.crop_y + slack_y) / d,
                            double(plan.crop_height) / d, down, y);
  if (!status.ok()) return status;
  status = plan_axis(reading, plan, false, (plan.crop_x + slack_x) / d, double(plan.crop_width) / d,
                     across, x);
  if (!status.ok()) return status;
  view.top = y.zeros_before;
  view.left = x.zeros_before;
  view.empty = y.empty || x.empty;
  view.padded = y.padded || x.padded;
  if (view.empty) return status;

  view.resampler.prepare(x.spec, y.spec, reading.channels);
  const AxisTaps& rows = view.resampler.y();
  const AxisTaps& columns = view.resampler.x();
  view.region = {y.crop_begin + rows.first, x.crop_begin + columns.first, rows.last - rows.first,
                 columns.last - columns.first};
  return status;
}

// Reads the pixels of a rectangle of the upright image, converted to reading.channels.
Status ImageDecoder::read_region(const ImageRequest& request, const Reading& reading,
                                 const Rect& upright, Pixels& out) {
  const bool swap = swaps_axes(reading.orientation);
  const int d = reading.denominator;
  const std::int32_t down = reduced(swap ? reading.stored_width : reading.stored_height, d);
  const std::int32_t across = reduced(swap ? reading.stored_height : reading.stored_width, d);
  const Rect region = stored_rect(upright, down, across, reading.orientation);
  const std::ptrdiff_t channels = reading.source_channels;
  if (request.codec == Codec::raw && request.planar && channels > 1) {
    const Status status = interleave(request, reading, region, out);
    if (!status.ok()) return status;
  } else if (request.codec == Codec::raw) {
    out.stride = reading.stored_width * channels;
    out.first = request.data + region.y * out.stride + region.x * channels;
  } else {
    const Stopwatch watch(counters_.decode_ns);
    std::int32_t offset = 0, columns = 0;
    Status status = jpeg_.begin(region, d, offset, columns);
    if (!status.ok()) return status;
    out.stride = columns * channels;
    const auto stride = static_cast<std::size_t>(out.stride);
    if (!block_.resize(stride * static_cast<std::size_t>(region.height))) return no_memory();
    status = jpeg_.read(block_.data(), stride, region.height);
    if (!status.ok()) return status;
    out.first = block_.data() + offset * channels;
  }
  if (reading.orientation == 1 && reading.source_channels == reading.channels)
    return Status::okay();
  const Stopwatch watch(counters_.resample_ns);
  Status status = turn_upright(reading, upright, out);
  return status.ok() ? convert(reading, upright, out) : status;
}

// Reads the pixels of a rectangle of a stored image whose channels are planes.
Status ImageDecoder::interleave(const ImageRequest& request, const Reading& reading,
                                const Rect& region, Pixels& out) {
  const std::ptrdiff_t channels = reading.source_channels, width = reading.stored_width;
  const std::ptrdiff_t plane = width * reading.stored_height;
  out.stride = region.width * channels;
  if (!block_.resize(static_cast<std::size_t>(out.stride * region.height))) return no_memory();
  for (std::int32_t y = 0; y < region.height; ++y) {
    const std::uint8_t* from = request.data + (region.y + y) * width + region.x;
    std::uint8_t* to = block_.data() + y * out.stride;
    for (std::int32_t x = 0; x < region.width; ++x, ++from, to += channels)
      for (std::ptrdiff_t c = 0; c < channels; ++c) to[c] = from[c * plane];
  }
  out.first = block_.data();
  return Status::okay();
}

Status ImageDecoder::turn_upright(const Reading& reading, const Rect& upright, Pixels& pixels) {
  if (reading.orientation == 1) return Status::okay();
  const bool swap = swaps_axes(reading.orientation);
  const std::ptrdiff_t stride = std::ptrdiff_t{upright.width} * reading.source_channels;
  if (!upright_.resize(static_cast<std::size_t>(stride) * static_cast<std::size_t>(upright.height)))
    return no_memory();
  orient(pixels.first, pixels.stride, swap ? upright.width : upright.height,
         swap ? upright.height : upright.width, reading.source_channels, reading.orientation,
         upright_.data(), stride);
  pixels = {upright_.data(), stride};
  return Status::okay();
}

Status ImageDecoder::convert(const Reading& reading, const Rect& upright, Pixels& pixels) {
  if (reading.source_channels == reading.channels) return Status::okay();
  const auto width = static_cast<std::size_t>(upright.width);
  const std::size_t stride = width * static_cast<std::size_t>(reading.channels);
  if (!packed_.resize(stride * static_cast<std::size_t>(upright.height))) return no_memory();
  for (std::int32_t y = 0; y < upright.height; ++y)
    convert_channels(pixels.first + y * pixels.stride, width, reading.source_channels,
                     reading.channels, packed_.data() + static_cast<std::size_t>(y) * stride);
  pixels = {packed_.data(), static_cast<std::ptrdiff_t>(stride)};
  return Status::okay();
}

// Resamples a view and stores it. pixels: those of the view's region.
Status ImageDecoder::finish(const ImageTask& task, const Reading& reading, const Pixels& pixels,
                            View& view) {
  const Stopwatch watch(counters_.resample_ns);
  Window window;
  const Status status = place_result(task, reading, view, window);
  if (!status.ok()) return status;
  if (!view.empty)
    view.resampler.run(pixels.first, pixels.stride, window.first, window.stride, window.plane);
  return deliver(task, reading, window, view);
}

}  // namespace fastio
