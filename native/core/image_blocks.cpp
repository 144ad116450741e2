// Block records, from stored bytes to a row of a batch: what is different about them in
// ImageDecoder. Only the parts of the record that the crop needs are read, planes are resampled
// before colours are converted, and an image that lies on its side is turned after resampling.
#include <algorithm>
#include <string>

#include "image.h"
#include "image_parts.h"

namespace fastio {
namespace {

// From which shrink on a plane is decoded at half and at an eighth of its size. An eighth needs the
// DC section alone, which is worth most; a half saves less, so that it begins where the result is
// within 44 dB of that of a full decode (benchmarks/LOG.md).
constexpr double kHalf = 4, kEighth = 8;

int reduction(double shrink) {
  if (shrink >= kEighth) return 8;
  return shrink >= kHalf ? 2 : 1;
}

// An axis of the upright image as one of the stored image, which it may run against.
PlanarAxis stored_axis(const AxisSpec& spec, std::int32_t begin, std::int32_t size, bool against) {
  PlanarAxis axis;
  axis.spec = spec;
  axis.begin = begin;
  axis.size = size;
  if (against) {
    axis.begin = size - begin - spec.in;
    axis.spec.window_begin = spec.out - spec.window_begin - spec.window_size;
    axis.spec.mirror = !spec.mirror;
  }
  return axis;
}

double shrink_of(const PlanarAxis& axis) { return double(axis.spec.in) / axis.spec.out; }

}  // namespace

Status ImageDecoder::decode_blocks(const ImageTask& task, const ImageRequest& request, Place place,
                                   void* context) {
  Reading reading;
  Status status = open_blocks(task, request);
  if (status.ok())
    status = check_pixels(blocks_.shape().height, blocks_.shape().width, task.max_pixels);
  if (status.ok()) status = plan_blocks(task, request, reading);
  if (status.ok()) {
    void* out = place(context, drawn_.height, drawn_.width);
    if (!out) status = Status::error(Code::unsupported, "no room for an image of this size");
    PlaneView planes[3] = {};
    if (status.ok() && !reading.empty) status = read_planes(request, planes);
    if (status.ok()) status = finish_blocks(task, reading, planes, out);
  }
  blocks_.shrink(kKeep);
  for (Buffer* buffer : {&upright_, &packed_, &result_, &moved_, &stored_, &header_, &dc_})
    buffer->shrink(kKeep);
  for (Buffer& buffer : ac_) buffer.shrink(kKeep / ac_.size());
  if (status.ok()) counters_.images.fetch_add(1, std::memory_order_relaxed);
  return status;
}

// Bytes of the record: where they are already, or read into `scratch`.
Status ImageDecoder::fetch(const ImageRequest& request, const ByteRange& range, Buffer& scratch,
                           const std::uint8_t*& bytes) {
  if (request.data) {
    bytes = request.data + range.begin;
    return Status::okay();
  }
  const Stopwatch watch(counters_.read_ns);
  const Status status =
      request.files->read(request.file, request.offset + static_cast<std::int64_t>(range.begin),
                          static_cast<std::int64_t>(range.size()), scratch);
  if (status.ok()) counters_.bytes.fetch_add(range.size(), std::memory_order_relaxed);
  bytes = scratch.data();
  return status;
}

Status ImageDecoder::open_blocks(const ImageTask& task, const ImageRequest& request) {
  if (!task.codebook) return Status::error(Code::corrupt, "a block record without a codebook");
  if (request.orientation > 8)
    return Status::error(Code::corrupt,
                         "no EXIF orientation: " + std::to_string(request.orientation));
  ByteRange head{0, std::min(request.size, header_bytes_bound(request.height, request.width))};
  const std::uint8_t* bytes = nullptr;
  Status status = fetch(request, head, header_, bytes);
  if (status.ok()) status = blocks_.open(*task.codebook, bytes, head.size(), request.size);
  if (status.code != Code::truncated || head.end == request.size) return status;
  // The columns named another size than the record: it is the record that counts.
  head.end = request.size;
  status = fetch(request, head, header_, bytes);
  return status.ok() ? blocks_.open(*task.codebook, bytes, head.size(), request.size) : status;
}

Status ImageDecoder::plan_blocks(const ImageTask& task, const ImageRequest& request,
                                 Reading& reading) {
  const BlockShape& shape = blocks_.shape();
  reading.stored_height = shape.height;
  reading.stored_width = shape.width;
  reading.orientation = request.orientation == 0 ? 1 : request.orientation;
  reading.channels = task.channels;
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? shape.width : shape.height;
  const std::int32_t width = swap ? shape.height : shape.width;
  Status status = task.chain->draw(height, width, task.seed, task.epoch, request.row, drawn_);
  if (!status.ok()) return status;
  plan_ = drawn_.crop;
  Axis y, x;
  status = plan_axis(reading, true, plan_.crop_y, plan_.crop_height, height, y);
  if (status.ok()) status = plan_axis(reading, false, plan_.crop_x, plan_.crop_width, width, x);
  if (!status.ok()) return status;
  reading.top = y.zeros_before;
  reading.left = x.zeros_before;
  reading.rows = y.spec.window_size;
  reading.columns = x.spec.window_size;
  reading.empty = y.empty || x.empty;
  reading.padded = y.padded || x.padded;
  if (reading.empty) return status;

  PlanarAxis down = stored_axis(y.spec, y.crop_begin, height, mirrors_y(reading.orientation));
  PlanarAxis across = stored_axis(x.spec, x.crop_begin, width, mirrors_x(reading.orientation));
  if (swap) std::swap(down, across);
  down.sub = shape.sub_y;
  across.sub = shape.sub_x;
  if (plan_.antialias && plan_.filter != Filter::nearest) {
    const double shrink_y = shrink_of(down), shrink_x = shrink_of(across);
    const int luma = reduction(std::min(shrink_y, shrink_x));
    // At an eighth the DC section is to suffice for all planes.
    const int chroma =
        luma == 8 ? 8 : reduction(std::min(shrink_y / shape.sub_y, shrink_x / shape.sub_x));
    for (PlanarAxis* axis : {&down, &across}) {
      axis->reduce[0] = luma;
      axis->reduce[1] = chroma;
    }
  }
  planar_.prepare(across, down, shape.colour, task.channels);

  planned_.components = planar_.planes();
  for (int c = 0; c < planned_.components; ++c) {
    planned_.reduce[c] = down.reduce[c > 0];
    planned_.x[c] = planar_.columns(c);
    planned_.y[c] = planar_.rows(c);
  }
  return status;
}

Status ImageDecoder::read_planes(const ImageRequest& request, PlaneView* planes) {
  const RecordReads& reads = blocks_.plan(planned_);
  const std::uint8_t* dc = nullptr;
  Status status = fetch(request, reads.dc, dc_, dc);
  if (ac_.size() < reads.ac.size()) ac_.resize(reads.ac.size());
  ac_bytes_.resize(reads.ac.size());
  for (std::size_t i = 0; status.ok() && i < reads.ac.size(); ++i)
    status = fetch(request, reads.ac[i], ac_[i], ac_bytes_[i]);
  if (!status.ok()) return status;
  const Stopwatch watch(counters_.decode_ns);
  return blocks_.decode(dc, ac_bytes_.data(), planes);
}

Status ImageDecoder::finish_blocks(const ImageTask& task, const Reading& reading,
                                   const PlaneView* planes, void* out) {
  const Stopwatch watch(counters_.resample_ns);
  Window window;
  Status status = place_result(task, reading, out, window);
  if (!status.ok()) return status;
  if (!reading.empty && swaps_axes(reading.orientation)) {
    status = turn_planes(reading, planes, window);
  } else if (!reading.empty) {
    planar_.run(planes, window.first, window.stride, window.plane);
  }
  return status.ok() ? deliver(task, reading, window, out) : status;
}

// The stored image lies on its side, and so does what comes of it.
Status ImageDecoder::turn_planes(const Reading& reading, const PlaneView* planes,
                                 const Window& window) {
  constexpr int kTranspose = 5;
  const std::ptrdiff_t channels = reading.channels;
  const std::ptrdiff_t stored_stride = reading.rows * channels;
  const std::size_t bytes =
      static_cast<std::size_t>(stored_stride) * static_cast<std::size_t>(reading.columns);
  if (!upright_.resize(bytes) || (window.plane && !packed_.resize(bytes))) return no_memory();
  planar_.run(planes, upright_.data(), stored_stride);
  const std::ptrdiff_t stride = window.plane ? reading.columns * channels : window.stride;
  std::uint8_t* const turned = window.plane ? packed_.data() : window.first;
  orient(upright_.data(), stored_stride, reading.columns, reading.rows, reading.channels,
         kTranspose, turned, stride);
  for (std::int32_t y = 0; window.plane && y < reading.rows; ++y)
    split_pixels(turned + y * stride, static_cast<std::size_t>(reading.columns), reading.channels,
                 window.first + y * window.stride, window.plane);
  return Status::okay();
}

}  // namespace fastio
