#include "image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "image_parts.h"

namespace fastio {
namespace {

// Samples as ITU-R 601-2 luma, in Pillow's fixed point (Convert.c, rgb2l).
std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >>
                                   16);
}

// 3 or 4 channels to 1 or 3, before resampling; 1 to 3 after it.
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

// The largest reduction that leaves at least twice as many samples as wanted along both axes: the
// antialiasing filter then still does most of the work, and the result differs from that of a full
// decode by little (Pillow's thumbnail() draws the line there too, as its reducing_gap).
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

}  // namespace

Status ImageDecoder::decode(const ImageTask& task, const ImageRequest& request, Place place,
                            void* context) {
  if (request.codec == Codec::blocks) return decode_blocks(task, request, place, context);
  Reading reading;
  reading.channels = task.channels;
  Status status = open(request, reading);
  if (status.ok())
    status = check_pixels(reading.stored_height, reading.stored_width, task.max_pixels);
  if (status.ok()) status = plan(task, request, reading);
  if (status.ok()) {
    void* out = place(context, drawn_.height, drawn_.width);
    if (!out) status = Status::error(Code::unsupported, "no room for an image of this size");
    Pixels pixels;
    if (status.ok() && !reading.empty) status = read_region(request, reading, pixels);
    if (status.ok()) status = finish(task, reading, pixels, out);
  }
  jpeg_.finish();
  for (Buffer* buffer : {&block_, &upright_, &packed_, &result_, &moved_, &stored_})
    buffer->shrink(kKeep);
  if (status.ok()) counters_.images.fetch_add(1, std::memory_order_relaxed);
  return status;
}

Status ImageDecoder::open(const ImageRequest& request, Reading& reading) {
  if (request.orientation > 8)
    return Status::error(Code::corrupt,
                         "no EXIF orientation: " + std::to_string(request.orientation));
  if (request.codec == Codec::jpeg) return open_jpeg(request, reading);
  if (request.codec == Codec::raw) return open_raw(request, reading);
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

// [begin, begin + size) of `limit` samples, all at the decoded scale, is the crop.
Status ImageDecoder::plan_axis(const Reading& reading, bool vertical, double begin, double size,
                               std::int32_t limit, Axis& axis) const {
  const std::int32_t out = vertical ? plan_.out_height : plan_.out_width;
  const std::int32_t window = vertical ? plan_.window_y : plan_.window_x;
  const std::int32_t window_size = vertical ? plan_.window_height : plan_.window_width;
  const bool mirror = vertical ? plan_.flip_vertical : plan_.flip_horizontal;
  const std::int32_t first = std::max(window, vertical ? plan_.kept_top : plan_.kept_left);
  const std::int32_t last =
      std::min(window + window_size, vertical ? plan_.kept_bottom : plan_.kept_right);
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
  axis.spec.filter = plan_.filter;
  axis.spec.antialias = plan_.antialias;
  axis.spec.mirror = mirror;
  if (reading.denominator > 1) {
    axis.spec.box_begin = begin - low;
    axis.spec.box_size = std::min(size, axis.spec.in - axis.spec.box_begin);
  }
  return Status::okay();
}

Status ImageDecoder::plan(const ImageTask& task, const ImageRequest& request, Reading& reading) {
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? reading.stored_width : reading.stored_height;
  const std::int32_t width = swap ? reading.stored_height : reading.stored_width;
  const Status status = task.chain->draw(height, width, task.seed, task.epoch, request.row, drawn_);
  if (!status.ok()) return status;
  plan_ = drawn_.crop;
  if (request.codec == Codec::jpeg) reading.denominator = reduction(plan_);
  if (reading.source_channels == 1) reading.channels = 1;
  return plan_pixels(reading);
}

// Of plan_, for an image that lies in memory or is decoded to it.
Status ImageDecoder::plan_pixels(Reading& reading) {
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? reading.stored_width : reading.stored_height;
  const std::int32_t width = swap ? reading.stored_height : reading.stored_width;
  // A reduced image has its last sample cut short, at the stored right and bottom: where the
  // upright axis runs the other way, that sample comes first.
  const int d = reading.denominator;
  const std::int32_t down = reduced(height, d), across = reduced(width, d);
  const double slack_y = mirrors_y(reading.orientation) ? double(down) * d - height : 0;
  const double slack_x = mirrors_x(reading.orientation) ? double(across) * d - width : 0;
  Axis y, x;
  Status status = plan_axis(reading, true, (plan_.crop_y + slack_y) / d,
                            double(plan_.crop_height) / d, down, y);
  if (!status.ok()) return status;
  status = plan_axis(reading, false, (plan_.crop_x + slack_x) / d, double(plan_.crop_width) / d,
                     across, x);
  if (!status.ok()) return status;
  reading.top = y.zeros_before;
  reading.left = x.zeros_before;
  reading.empty = y.empty || x.empty;
  reading.padded = y.padded || x.padded;
  if (reading.empty) return status;

  resampler_.prepare(x.spec, y.spec, reading.channels);
  reading.rows = resampler_.y().last - resampler_.y().first;
  reading.columns = resampler_.x().last - resampler_.x().first;
  Rect upright{y.crop_begin + resampler_.y().first, x.crop_begin + resampler_.x().first,
               reading.rows, reading.columns};
  if (mirrors_y(reading.orientation)) upright.y = down - upright.y - upright.height;
  if (mirrors_x(reading.orientation)) upright.x = across - upright.x - upright.width;
  reading.region = swap ? Rect{upright.x, upright.y, upright.width, upright.height} : upright;
  return status;
}

// The region's pixels, upright, with as many channels as are resampled.
Status ImageDecoder::read_region(const ImageRequest& request, const Reading& reading, Pixels& out) {
  const Rect& region = reading.region;
  const std::ptrdiff_t channels = reading.source_channels;
  if (request.codec == Codec::raw) {
    out.stride = reading.stored_width * channels;
    out.first = request.data + region.y * out.stride + region.x * channels;
  } else {
    const Stopwatch watch(counters_.decode_ns);
    std::int32_t offset = 0, columns = 0;
    Status status = jpeg_.begin(region, reading.denominator, offset, columns);
    if (!status.ok()) return status;
    out.stride = columns * channels;
    const auto stride = static_cast<std::size_t>(out.stride);
    if (!block_.resize(stride * static_cast<std::size_t>(region.height))) return no_memory();
    status = jpeg_.read(block_.data(), stride, region.height);
    if (!status.ok()) return status;
    out.first = block_.data() + offset * channels;
  }
  const Stopwatch watch(counters_.resample_ns);
  Status status = turn_upright(reading, out);
  return status.ok() ? convert(reading, out) : status;
}

Status ImageDecoder::turn_upright(const Reading& reading, Pixels& pixels) {
  if (reading.orientation == 1) return Status::okay();
  const std::ptrdiff_t stride = std::ptrdiff_t{reading.columns} * reading.source_channels;
  if (!upright_.resize(static_cast<std::size_t>(stride) * static_cast<std::size_t>(reading.rows)))
    return no_memory();
  orient(pixels.first, pixels.stride, reading.region.height, reading.region.width,
         reading.source_channels, reading.orientation, upright_.data(), stride);
  pixels = {upright_.data(), stride};
  return Status::okay();
}

Status ImageDecoder::convert(const Reading& reading, Pixels& pixels) {
  if (reading.source_channels == reading.channels) return Status::okay();
  const auto width = static_cast<std::size_t>(reading.columns);
  const std::size_t stride = width * static_cast<std::size_t>(reading.channels);
  if (!packed_.resize(stride * static_cast<std::size_t>(reading.rows))) return no_memory();
  for (std::int32_t y = 0; y < reading.rows; ++y)
    convert_channels(pixels.first + y * pixels.stride, width, reading.source_channels,
                     reading.channels, packed_.data() + static_cast<std::size_t>(y) * stride);
  pixels = {packed_.data(), static_cast<std::ptrdiff_t>(stride)};
  return Status::okay();
}

Status ImageDecoder::finish(const ImageTask& task, const Reading& reading, const Pixels& pixels,
                            void* out) {
  const Stopwatch watch(counters_.resample_ns);
  Window window;
  const Status status = place_result(task, reading, out, window);
  if (!status.ok()) return status;
  if (!reading.empty)
    resampler_.run(pixels.first, pixels.stride, window.first, window.stride, window.plane);
  return deliver(task, reading, window, out);
}

Status ImageDecoder::place_result(const ImageTask& task, const Reading& reading, void* out,
                                  Window& window) {
  const auto height = static_cast<std::size_t>(plan_.window_height);
  const auto width = static_cast<std::size_t>(plan_.window_width);
  const bool planar = task.store.layout == Layout::chw || augmented();
  const bool expanded = reading.channels != task.channels;  // gray to RGB
  const bool moves = drawn_.height != plan_.window_height || drawn_.width != plan_.window_width;
  const bool stored_so = task.store.element == Element::u8 &&
                         (augmented() ? task.store.layout == Layout::chw && !moves &&
                                            task.out_channels() == task.channels
                                      : planar || !expanded);
  // All channels of the batch are planes of what is augmented; else gray is expanded at the end.
  const auto channels = static_cast<std::size_t>(augmented() ? task.channels : reading.channels);
  const std::size_t bytes = height * width * channels;
  window.pixels = static_cast<std::uint8_t*>(out);
  if (!stored_so) {
    if (!result_.resize(bytes)) return no_memory();
    window.pixels = result_.data();
  }
  const std::ptrdiff_t pixel = planar ? 1 : reading.channels;
  window.stride = static_cast<std::ptrdiff_t>(width) * pixel;
  if (planar && reading.channels > 1) window.plane = static_cast<std::ptrdiff_t>(height * width);
  if (!reading.empty)
    window.first = window.pixels + reading.top * window.stride + reading.left * pixel;
  if (reading.padded) std::memset(window.pixels, 0, bytes);
  return Status::okay();
}

Status ImageDecoder::deliver(const ImageTask& task, const Reading& reading, const Window& window,
                             void* out) {
  const auto height = static_cast<std::size_t>(drawn_.height);
  const std::size_t pixels = height * static_cast<std::size_t>(drawn_.width);
  if (augmented()) {
    const Status status = deliver_augmented(task, reading, window, out);
    if (!status.ok()) return status;
  } else if (task.store.element == Element::f32) {
    store_floats(task.store, window.pixels, reading.channels, pixels, task.channels,
                 static_cast<float*>(out));
  } else if (window.pixels != out) {
    convert_channels(window.pixels, pixels, reading.channels, task.channels,
                     static_cast<std::uint8_t*>(out));
  } else if (reading.channels != task.channels) {
    for (int c = 1; c < task.channels; ++c)
      std::memcpy(window.pixels + static_cast<std::size_t>(c) * pixels, window.pixels, pixels);
  }
  if (task.store.element == Element::f32)
    for (const DrawnOp& drawn : drawn_.erased)
      erase_floats(drawn, task.store.layout, drawn_.height, drawn_.width, task.out_channels(),
                   static_cast<float*>(out));
  return Status::okay();
}

Status ImageDecoder::deliver_augmented(const ImageTask& task, const Reading& reading,
                                       const Window& window, void* out) {
  Planes image{window.pixels, task.channels, plan_.window_height, plan_.window_width};
  for (int c = reading.channels; c < task.channels; ++c)
    std::memcpy(image.plane(c), image.plane(0), image.pixels());
  const Status status = augment(image);
  if (!status.ok() || image.data == out) return status;
  if (task.store.layout == Layout::hwc && image.channels > 1) {
    std::uint8_t* pixels = static_cast<std::uint8_t*>(out);
    if (task.store.element == Element::f32) {
      if (!stored_.resize(image.bytes())) return no_memory();
      pixels = stored_.data();
    }
    interleave_planes(image, pixels);
    image.data = pixels;
  }
  if (task.store.element == Element::f32) {
    store_floats(task.store, image.data, image.channels, image.pixels(), image.channels,
                 static_cast<float*>(out));
  } else if (image.data != out) {
    std::memcpy(out, image.data, image.bytes());
  }
  return status;
}

// Runs the drawn operations; `image` moves to other memory where its size changes.
Status ImageDecoder::augment(Planes& image) {
  const Stopwatch watch(counters_.augment_ns);
  Status status;
  for (std::size_t i = 0; i < drawn_.ops.size() && status.ok(); ++i) {
    const DrawnOp& drawn = drawn_.ops[i];
    if (drawn.op == PixelOp::crop) {
      status = crop_again(drawn_.crops[static_cast<std::size_t>(drawn.numbers[0])], image);
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

Status ImageDecoder::crop_again(const CropPlan& plan, Planes& image) {
  plan_ = plan;
  Reading reading;
  reading.stored_height = image.height;
  reading.stored_width = image.width;
  reading.source_channels = reading.channels = 1;
  const Status status = plan_pixels(reading);
  if (!status.ok()) return status;
  Planes result{nullptr, image.channels, plan.window_height, plan.window_width};
  if (!moved_.resize(result.bytes())) return no_memory();
  result.data = moved_.data();
  if (reading.padded) std::memset(result.data, 0, result.bytes());
  const std::ptrdiff_t from = std::ptrdiff_t{reading.region.y} * image.width + reading.region.x;
  const std::ptrdiff_t to = std::ptrdiff_t{reading.top} * result.width + reading.left;
  for (int c = 0; c < image.channels && !reading.empty; ++c)
    resampler_.run(image.plane(c) + from, image.width, result.plane(c) + to, result.width);
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
