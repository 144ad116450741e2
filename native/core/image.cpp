#include "image.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>

namespace fastio {
namespace {

constexpr std::int32_t kStripRows = 16;

Status no_memory() { return Status::error(Code::memory, "no memory for decoded pixels"); }

bool swaps_axes(int orientation) { return orientation >= 5; }

// Whether the upright image's y (x) runs against the stored axis that it lies along.
bool mirrors_y(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}
bool mirrors_x(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}

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

// The largest reduction that leaves at least as many samples as wanted, along both axes.
int reduction(const CropPlan& plan) {
  if (!plan.antialias || plan.filter == Filter::nearest) return 1;
  int denominator = 1;
  while (denominator < 8 && plan.crop_height >= 2 * denominator * plan.out_height &&
         plan.crop_width >= 2 * denominator * plan.out_width)
    denominator *= 2;
  return denominator;
}

std::int32_t reduced(std::int32_t size, int denominator) {
  return (size + denominator - 1) / denominator;
}

class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<std::uint64_t>& total)
      : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - start_;
    total_.fetch_add(static_cast<std::uint64_t>(spent.count()), std::memory_order_relaxed);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<std::uint64_t>& total_;
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace

Status ImageDecoder::decode(const ImageTask& task, const ImageRequest& request, Place place,
                            void* context) {
  Reading reading;
  reading.channels = task.channels;
  Status status = request.codec == Codec::jpeg  ? open_jpeg(request, reading)
                  : request.codec == Codec::raw ? open_raw(request, reading)
                                                : Status::error(Code::foreign, "not decoded here");
  if (status.ok()) status = plan(task, request, reading);
  if (status.ok()) {
    void* out = place(context, plan_.window_height, plan_.window_width);
    if (!out) status = Status::error(Code::unsupported, "no room for an image of this size");
    if (status.ok() && !reading.empty) status = fill_middle(request, reading);
    if (status.ok()) status = finish(task, reading, out);
  }
  jpeg_.finish();
  for (Buffer* buffer : {&block_, &upright_, &packed_, &middle_, &result_, &framed_})
    buffer->shrink(kKeep);
  if (status.ok()) counters_.images.fetch_add(1, std::memory_order_relaxed);
  return status;
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

// Plans one axis of the upright image: [begin, begin + size) of `limit` samples (all at the
// decoded scale) is the crop. Gives the region of that axis that the taps read.
Status ImageDecoder::set_axis(const Reading& reading, bool vertical, double begin, double size,
                              std::int32_t limit, AxisTaps* taps, std::int32_t& region_begin,
                              std::int32_t& region_size, std::int32_t& zeros_before) {
  const std::int32_t out = vertical ? plan_.out_height : plan_.out_width;
  const std::int32_t window = vertical ? plan_.window_y : plan_.window_x;
  const std::int32_t window_size = vertical ? plan_.window_height : plan_.window_width;
  const bool mirror = vertical ? plan_.flip_vertical : plan_.flip_horizontal;
  const std::int32_t first = std::max(window, 0);
  const std::int32_t last = std::min(window + window_size, out);
  const auto low = static_cast<std::int32_t>(std::floor(begin));
  const auto high = std::min(static_cast<std::int32_t>(std::ceil(begin + size)), limit);
  if (out > kMaxAxis || high - low > kMaxAxis)
    return Status::error(Code::unsupported, "an edge of more than 65535 pixels");
  zeros_before = mirror ? window + window_size - last : first - window;
  region_begin = low;
  region_size = 0;
  if (first >= last) return Status::okay();

  AxisSpec spec;
  spec.in = high - low;
  spec.out = out;
  spec.window_begin = first;
  spec.window_size = last - first;
  spec.filter = plan_.filter;
  spec.antialias = plan_.antialias;
  spec.mirror = mirror;
  if (reading.denominator > 1) {
    spec.box_begin = begin - low;
    spec.box_size = std::min(size, spec.in - spec.box_begin);
  }
  make_taps(spec, taps);
  region_begin = low + taps->first;
  region_size = taps->last - taps->first;
  return Status::okay();
}

Status ImageDecoder::plan(const ImageTask& task, const ImageRequest& request, Reading& reading) {
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? reading.stored_width : reading.stored_height;
  const std::int32_t width = swap ? reading.stored_height : reading.stored_width;
  Status status = task.geometry->plan(height, width, task.seed, task.epoch, request.row, plan_);
  if (!status.ok()) return status;
  if (request.codec == Codec::jpeg) reading.denominator = reduction(plan_);
  if (reading.source_channels == 1) reading.channels = 1;

  // A reduced image has its last sample cut short, at the stored right and bottom: where the
  // upright axis runs the other way, that sample comes first.
  const int d = reading.denominator;
  const std::int32_t down = reduced(height, d), across = reduced(width, d);
  const double slack_y = mirrors_y(reading.orientation) ? double(down) * d - height : 0;
  const double slack_x = mirrors_x(reading.orientation) ? double(across) * d - width : 0;
  Rect upright;
  status = set_axis(reading, true, (plan_.crop_y + slack_y) / d, double(plan_.crop_height) / d,
                    down, &y_, upright.y, upright.height, reading.top);
  if (!status.ok()) return status;
  status = set_axis(reading, false, (plan_.crop_x + slack_x) / d, double(plan_.crop_width) / d,
                    across, &x_, upright.x, upright.width, reading.left);
  if (!status.ok()) return status;
  reading.empty = upright.height == 0 || upright.width == 0;

  if (mirrors_y(reading.orientation)) upright.y = down - upright.y - upright.height;
  if (mirrors_x(reading.orientation)) upright.x = across - upright.x - upright.width;
  reading.region = swap ? Rect{upright.x, upright.y, upright.width, upright.height} : upright;
  reading.stored_height = swap ? across : down;
  reading.stored_width = swap ? down : across;
  return Status::okay();
}

// Decodes the region and resamples it horizontally: afterwards middle_ holds y_.last - y_.first
// rows of x_.outputs pixels.
Status ImageDecoder::fill_middle(const ImageRequest& request, const Reading& reading) {
  horizontal_.build(x_, reading.channels);
  const std::size_t pitch = static_cast<std::size_t>(x_.outputs) * reading.channels;
  if (!middle_.resize(pitch * static_cast<std::size_t>(y_.last - y_.first))) return no_memory();

  const Rect& region = reading.region;
  if (request.codec == Codec::raw) {
    const std::ptrdiff_t stride = std::ptrdiff_t{reading.stored_width} * reading.source_channels;
    return fill_from_block(
        reading,
        request.data + region.y * stride + std::ptrdiff_t{region.x} * reading.source_channels,
        stride);
  }
  if (reading.orientation == 1) return stream_jpeg(reading);

  std::int32_t offset = 0, columns = 0;
  const Stopwatch watch(counters_.decode_ns);
  Status status = jpeg_.begin(region, reading.denominator, offset, columns);
  if (!status.ok()) return status;
  const std::size_t stride = static_cast<std::size_t>(columns) * reading.source_channels;
  if (!block_.resize(stride * static_cast<std::size_t>(region.height))) return no_memory();
  status = jpeg_.read(block_.data(), stride, region.height);
  if (!status.ok()) return status;
  return fill_from_block(reading, block_.data() + std::ptrdiff_t{offset} * reading.source_channels,
                         static_cast<std::ptrdiff_t>(stride));
}

// The common case: rows are resampled while they are still in the nearest cache.
Status ImageDecoder::stream_jpeg(const Reading& reading) {
  const Rect& region = reading.region;
  std::int32_t offset = 0, columns = 0;
  {
    const Stopwatch watch(counters_.decode_ns);
    const Status status = jpeg_.begin(region, reading.denominator, offset, columns);
    if (!status.ok()) return status;
  }
  const std::size_t stride = static_cast<std::size_t>(columns) * reading.source_channels;
  if (!block_.resize(stride * kStripRows)) return no_memory();
  for (std::int32_t y = 0; y < region.height; y += kStripRows) {
    const std::int32_t rows = std::min(kStripRows, region.height - y);
    {
      const Stopwatch watch(counters_.decode_ns);
      const Status status = jpeg_.read(block_.data(), stride, rows);
      if (!status.ok()) return status;
    }
    const Status status =
        resample_rows(reading, block_.data() + std::ptrdiff_t{offset} * reading.source_channels,
                      static_cast<std::ptrdiff_t>(stride), y, rows);
    if (!status.ok()) return status;
  }
  return Status::okay();
}

// first: the region's first stored pixel.
Status ImageDecoder::fill_from_block(const Reading& reading, const std::uint8_t* first,
                                     std::ptrdiff_t stride) {
  const Rect& region = reading.region;
  if (reading.orientation == 1) return resample_rows(reading, first, stride, 0, region.height);
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? region.width : region.height;
  const std::int32_t width = swap ? region.height : region.width;
  const std::ptrdiff_t pitch = std::ptrdiff_t{width} * reading.source_channels;
  if (!upright_.resize(static_cast<std::size_t>(pitch) * static_cast<std::size_t>(height)))
    return no_memory();
  orient(first, stride, region.height, region.width, reading.source_channels, reading.orientation,
         upright_.data(), pitch);
  return resample_rows(reading, upright_.data(), pitch, 0, height);
}

// Rows [begin, begin + rows) of the upright region into middle_.
Status ImageDecoder::resample_rows(const Reading& reading, const std::uint8_t* first,
                                   std::ptrdiff_t stride, std::int32_t begin, std::int32_t rows) {
  const Stopwatch watch(counters_.resample_ns);
  if (reading.source_channels != reading.channels) {
    const auto width = static_cast<std::size_t>(x_.last - x_.first);
    const std::size_t pitch = width * static_cast<std::size_t>(reading.channels);
    if (!packed_.resize(pitch * static_cast<std::size_t>(rows))) return no_memory();
    for (std::int32_t y = 0; y < rows; ++y)
      convert_channels(first + y * stride, width, reading.source_channels, reading.channels,
                       packed_.data() + static_cast<std::size_t>(y) * pitch);
    first = packed_.data();
    stride = static_cast<std::ptrdiff_t>(pitch);
  }
  const std::ptrdiff_t pitch = std::ptrdiff_t{x_.outputs} * reading.channels;
  horizontal(horizontal_, first, stride, rows, middle_.data() + begin * pitch, pitch);
  return Status::okay();
}

// From middle_ to the slot: the vertical pass, gray to RGB, the zeros around, layout and type.
Status ImageDecoder::finish(const ImageTask& task, const Reading& reading, void* out) {
  const Stopwatch watch(counters_.resample_ns);
  const std::int32_t rows = reading.empty ? 0 : y_.outputs;
  const std::int32_t columns = reading.empty ? 0 : x_.outputs;
  const bool framed = rows != plan_.window_height || columns != plan_.window_width;
  const std::size_t pitch =
      static_cast<std::size_t>(columns) * static_cast<std::size_t>(reading.channels);
  const auto middle_pitch = static_cast<std::ptrdiff_t>(pitch);
  if (!framed && reading.channels == task.channels && task.store.layout == Layout::hwc &&
      task.store.element == Element::u8) {
    vertical(y_, middle_.data(), middle_pitch, pitch, static_cast<std::uint8_t*>(out),
             middle_pitch);
    return Status::okay();
  }

  if (!result_.resize(pitch * static_cast<std::size_t>(rows))) return no_memory();
  if (rows > 0) vertical(y_, middle_.data(), middle_pitch, pitch, result_.data(), middle_pitch);
  const std::uint8_t* pixels = result_.data();
  const auto channels = static_cast<std::size_t>(task.channels);
  if (framed || reading.channels != task.channels) {
    const std::size_t full = static_cast<std::size_t>(plan_.window_width) * channels;
    if (!framed_.resize(full * static_cast<std::size_t>(plan_.window_height))) return no_memory();
    if (framed) std::memset(framed_.data(), 0, framed_.size());
    for (std::int32_t y = 0; y < rows; ++y) {
      const std::uint8_t* src = result_.data() + static_cast<std::size_t>(y) * pitch;
      std::uint8_t* dst = framed_.data() + static_cast<std::size_t>(y + reading.top) * full +
                          static_cast<std::size_t>(reading.left) * channels;
      if (reading.channels == task.channels) {
        std::memcpy(dst, src, pitch);
      } else {
        convert_channels(src, static_cast<std::size_t>(columns), reading.channels, task.channels,
                         dst);
      }
    }
    pixels = framed_.data();
  }
  store_image(task.store, pixels, std::ptrdiff_t{plan_.window_width} * task.channels,
              plan_.window_height, plan_.window_width, task.channels, out);
  return Status::okay();
}

}  // namespace fastio
