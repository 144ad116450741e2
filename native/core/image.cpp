#include "image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "image_parts.h"

namespace fastio {
namespace {

// Returns ITU-R 601-2 luma, in Pillow's fixed point (Convert.c, rgb2l).
std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >>
                                   16);
}

// Converts the channels of pixels: from 3 or 4 to 1 or 3 (before resampling), or from 1 to 3 (after
// it).
void convert_channels(const std::uint8_t* src, std::size_t pixels, int from, int to,
                      std::uint8_t* dst) {
  for (std::size_t i = 0; i < pixels; ++i, src += from, dst += to) {
    if (to == 1) {
      dst[0] = luma(src);
    } else if (from == 1) {
      dst[0] = dst[1] = dst[2] = src[0];
    } else {
      std::memcpy(dst, src, 3);
    }
  }
}

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

Status ImageDecoder::decode(const ImageTask& task, const ImageRequest& request, Place place,
                            void* context) {
  Reading reading;
  reading.channels = task.channels;
  Status status = open(task, request, reading);
  if (status.ok())
    status = check_pixels(reading.stored_height, reading.stored_width, task.max_pixels);
  if (status.ok()) status = draw(task, request, reading);
  if (status.ok()) divide_views(request, reading);
  if (status.ok()) status = plan_planes(request, reading);
  Reading of_pixels = reading;
  if (status.ok()) status = plan(request, of_pixels);
  if (status.ok()) status = this->place(place, context);
  if (status.ok()) status = decode_planes(task, request, reading);
  if (status.ok()) status = decode_pixels(task, request, of_pixels);
  jpeg_.finish();
  shrink();
  if (status.ok()) counters_.images.add(1);
  return status;
}

// Frees buffers that are larger than kKeep, as after an unusually large image.
void ImageDecoder::shrink() {
  for (Buffer* buffer : {&block_, &upright_, &packed_, &result_, &moved_, &stored_, &header_, &dc_})
    buffer->shrink(kKeep);
  for (Buffer& buffer : ac_) buffer.shrink(kKeep / ac_.size());
  blocks_.shrink(kKeep);
  pixels_.shrink(kKeep);
}

// Decides which views are made from planes. This does not depend on the other views, so that a view
// always has the same pixels.
void ImageDecoder::divide_views(const ImageRequest& request, Reading& reading) {
  if (request.codec == Codec::jpeg) reading.shape = jpeg_.planes();
  for (std::size_t i = 0; i < count_; ++i) {
    View& view = views_[i];
    view.by_planes = reading.shape && (request.codec == Codec::blocks || view.plan.resamples());
  }
}

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

// Draws the transforms of every view.
Status ImageDecoder::draw(const ImageTask& task, const ImageRequest& request,
                          const Reading& reading) {
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? reading.stored_width : reading.stored_height;
  const std::int32_t width = swap ? reading.stored_height : reading.stored_width;
  count_ = task.views();
  if (views_.size() < count_) views_.resize(count_);
  for (std::size_t i = 0; i < count_; ++i) {
    View& view = views_[i];
    view.task = &task.view(i);
    view.out_channels = task.out_channels(i);
    const Status status =
        view.task->chain->draw(height, width, task.seed, task.epoch, request.row, view.drawn);
    if (!status.ok()) return status;
    view.plan = view.drawn.crop;
  }
  return Status::okay();
}

// Gets the memory for the pixels of every view.
Status ImageDecoder::place(Place place, void* context) {
  for (std::size_t i = 0; i < count_; ++i) {
    View& view = views_[i];
    view.out = place(context, view.drawn.height, view.drawn.width);
    if (!view.out) return Status::error(Code::unsupported, "no room for an image of this size");
  }
  return Status::okay();
}

Status ImageDecoder::open(const ImageTask& task, const ImageRequest& request, Reading& reading) {
  if (request.orientation > 8)
    return Status::error(Code::corrupt,
                         "no EXIF orientation: " + std::to_string(request.orientation));
  if (request.codec == Codec::jpeg) return open_jpeg(request, reading);
  if (request.codec == Codec::raw) return open_raw(request, reading);
  if (request.codec == Codec::blocks) return open_blocks(task, request, reading);
  return Status::error(Code::foreign, "not decoded here");
}

Status ImageDecoder::open_jpeg(const ImageRequest& request, Reading& reading) {
  const Stopwatch watch(counters_.decode_ns);
  JpegHeader header;
  const Status status = jpeg_.open(request.data, request.size, request.orientation == 0, header);
  reading.stored_height = header.height;
  reading.stored_width = header.width;
  reading.orientation = request.orientation == 0 ? header.orientation : request.orientation;
  reading.source_channels = header.components;
  return status;
}

Status ImageDecoder::open_raw(const ImageRequest& request, Reading& reading) const {
  const std::int32_t h = request.height, w = request.width;
  const int c = request.channels;
  if (h < 1 || w < 1 || h > kMaxAxis || w > kMaxAxis)
    return Status::error(
        Code::corrupt, "raw image of " + std::to_string(h) + " x " + std::to_string(w) + " pixels");
  const std::size_t bytes =
      static_cast<std::size_t>(h) * static_cast<std::size_t>(w) * static_cast<std::size_t>(c);
  if ((c != 1 && c != 3 && c != 4) || bytes != request.size)
    return Status::error(Code::corrupt, "raw image of " + std::to_string(h) + " x " +
                                            std::to_string(w) + " x " + std::to_string(c) +
                                            " has " + std::to_string(request.size) + " bytes");
  reading.stored_height = h;
  reading.stored_width = w;
  reading.orientation = request.orientation == 0 ? 1 : request.orientation;
  reading.source_channels = c;
  return Status::okay();
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
    return Status::error(Code::unsupported, "an edge of more than 65535 pixels");
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

Status ImageDecoder::place_result(const ImageTask& task, const Reading& reading, const View& view,
                                  Window& window) {
  const StoreSpec& store = view.task->store;
  const bool augmented = view.augmented();
  const auto height = static_cast<std::size_t>(view.plan.window_height);
  const auto width = static_cast<std::size_t>(view.plan.window_width);
  const bool planar = store.layout == Layout::chw || augmented;
  const bool expanded = reading.channels != task.channels;  // gray to RGB
  // An image that is cropped again must be in a buffer with kReadPad readable bytes after it, which
  // the memory of the batch does not have.
  const bool moves = !view.drawn.crops.empty() || view.drawn.height != view.plan.window_height ||
                     view.drawn.width != view.plan.window_width;
  const bool stored_so =
      store.element == Element::u8 &&
      (augmented ? store.layout == Layout::chw && !moves && view.out_channels == task.channels
                 : planar || !expanded);
  // An augmented image has all channels of the batch; otherwise gray is expanded at the end.
  const auto channels = static_cast<std::size_t>(augmented ? task.channels : reading.channels);
  const std::size_t bytes = height * width * channels;
  window.pixels = static_cast<std::uint8_t*>(view.out);
  if (!stored_so) {
    if (!result_.resize(bytes)) return no_memory();
    window.pixels = result_.data();
  }
  const std::ptrdiff_t pixel = planar ? 1 : reading.channels;
  window.stride = static_cast<std::ptrdiff_t>(width) * pixel;
  if (planar && reading.channels > 1) window.plane = static_cast<std::ptrdiff_t>(height * width);
  if (!view.empty) window.first = window.pixels + view.top * window.stride + view.left * pixel;
  if (view.padded) std::memset(window.pixels, 0, bytes);
  return Status::okay();
}

Status ImageDecoder::deliver(const ImageTask& task, const Reading& reading, const Window& window,
                             View& view) {
  const StoreSpec& store = view.task->store;
  void* const out = view.out;
  const auto height = static_cast<std::size_t>(view.drawn.height);
  const std::size_t pixels = height * static_cast<std::size_t>(view.drawn.width);
  if (view.augmented()) {
    const Status status = deliver_augmented(task, reading, window, view);
    if (!status.ok()) return status;
  } else if (store.element == Element::f32) {
    store_floats(store, window.pixels, reading.channels, pixels, task.channels,
                 static_cast<float*>(out));
  } else if (window.pixels != out) {
    convert_channels(window.pixels, pixels, reading.channels, task.channels,
                     static_cast<std::uint8_t*>(out));
  } else if (reading.channels != task.channels) {
    for (int c = 1; c < task.channels; ++c)
      std::memcpy(window.pixels + static_cast<std::size_t>(c) * pixels, window.pixels, pixels);
  }
  if (store.element == Element::f32)
    for (const DrawnOp& drawn : view.drawn.erased)
      erase_floats(drawn, store.layout, view.drawn.height, view.drawn.width, view.out_channels,
                   static_cast<float*>(out));
  return Status::okay();
}

Status ImageDecoder::deliver_augmented(const ImageTask& task, const Reading& reading,
                                       const Window& window, View& view) {
  const StoreSpec& store = view.task->store;
  void* const out = view.out;
  Planes image{window.pixels, task.channels, view.plan.window_height, view.plan.window_width};
  for (int c = reading.channels; c < task.channels; ++c)
    std::memcpy(image.plane(c), image.plane(0), image.pixels());
  const Status status = augment(view, image);
  if (!status.ok() || image.data == out) return status;
  if (store.layout == Layout::hwc && image.channels > 1) {
    std::uint8_t* pixels = static_cast<std::uint8_t*>(out);
    if (store.element == Element::f32) {
      if (!stored_.resize(image.bytes())) return no_memory();
      pixels = stored_.data();
    }
    interleave_planes(image, pixels);
    image.data = pixels;
  }
  if (store.element == Element::f32) {
    store_floats(store, image.data, image.channels, image.pixels(), image.channels,
                 static_cast<float*>(out));
  } else if (image.data != out) {
    std::memcpy(out, image.data, image.bytes());
  }
  return status;
}

// Runs the drawn operations. If the size changes, `image` moves to another buffer.
Status ImageDecoder::augment(View& view, Planes& image) {
  const Stopwatch watch(counters_.augment_ns);
  Status status;
  for (std::size_t i = 0; i < view.drawn.ops.size() && status.ok(); ++i) {
    const DrawnOp& drawn = view.drawn.ops[i];
    if (drawn.op == PixelOp::crop) {
      status =
          crop_again(view.drawn.crops[static_cast<std::size_t>(drawn.numbers[0])], view, image);
    } else if (drawn.op == PixelOp::pad) {
      status = pad(drawn, image);
    } else if (drawn.op == PixelOp::one_channel) {
      image.channels = 1;  // the first plane
    } else {
      pixels_.run(image, drawn);
    }
  }
  return status;
}

Status ImageDecoder::crop_again(const CropPlan& plan, View& view, Planes& image) {
  view.plan = plan;
  Reading reading;
  reading.stored_height = image.height;
  reading.stored_width = image.width;
  reading.source_channels = reading.channels = 1;
  const Status status = plan_pixels(reading, view);
  if (!status.ok()) return status;
  Planes result{nullptr, image.channels, plan.window_height, plan.window_width};
  if (!moved_.resize(result.bytes())) return no_memory();
  result.data = moved_.data();
  if (view.padded) std::memset(result.data, 0, result.bytes());
  const std::ptrdiff_t from = std::ptrdiff_t{view.region.y} * image.width + view.region.x;
  const std::ptrdiff_t to = std::ptrdiff_t{view.top} * result.width + view.left;
  for (int c = 0; c < image.channels && !view.empty; ++c)
    view.resampler.run(image.plane(c) + from, image.width, result.plane(c) + to, result.width);
  std::swap(moved_, result_);
  image = result;
  return status;
}

Status ImageDecoder::pad(const DrawnOp& drawn, Planes& image) {
  const auto& v = drawn.numbers;
  Planes result{nullptr, image.channels, image.height + static_cast<std::int32_t>(v[1] + v[3]),
                image.width + static_cast<std::int32_t>(v[0] + v[2])};
  if (!moved_.resize(result.bytes())) return no_memory();
  result.data = moved_.data();
  pad_planes(image, drawn, result);
  std::swap(moved_, result_);
  image = result;
  return Status::okay();
}

}  // namespace fastio
