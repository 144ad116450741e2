#include "image.h"

#include <cstring>
#include <string>

#include "image_parts.h"

namespace fastio {

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
                         "invalid EXIF orientation: " + std::to_string(request.orientation));
  if (request.codec == Codec::jpeg) return open_jpeg(request, reading);
  if (request.codec == Codec::raw) return open_raw(request, reading);
  if (request.codec == Codec::blocks) return open_blocks(task, request, reading);
  return Status::error(Code::foreign, "the native decoder does not support this format");
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
    return Status::error(Code::corrupt, "raw image with the invalid size " + std::to_string(h) +
                                            " x " + std::to_string(w));
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
