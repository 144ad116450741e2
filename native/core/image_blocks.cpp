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

std::int64_t size_of(const SampleRange& range) { return range.last - range.first; }

std::int64_t area(const PlaneRegion& region) { return size_of(region.x[0]) * size_of(region.y[0]); }

SampleRange joined(const SampleRange& a, const SampleRange& b) {
  return {std::min(a.first, b.first), std::max(a.last, b.last)};
}

PlaneRegion joined(PlaneRegion region, const PlaneRegion& other) {
  for (int c = 0; c < region.components; ++c) {
    region.x[c] = joined(region.x[c], other.x[c]);
    region.y[c] = joined(region.y[c], other.y[c]);
  }
  return region;
}

bool shares(const PlaneRegion& a, const PlaneRegion& b) {
  return a.components == b.components && std::equal(a.reduce, a.reduce + 3, b.reduce) &&
         area(joined(a, b)) <= area(a) + area(b);
}

}  // namespace

Status ImageDecoder::decode_blocks(const ImageTask& task, const ImageRequest& request, Place place,
                                   void* context) {
  Reading reading;
  reading.channels = task.channels;
  Status status = open_blocks(task, request, reading);
  if (status.ok())
    status = check_pixels(reading.stored_height, reading.stored_width, task.max_pixels);
  if (status.ok()) status = draw(task, request, reading);
  for (std::size_t i = 0; i < count_ && status.ok(); ++i) status = plan_blocks(reading, views_[i]);
  if (status.ok()) status = this->place(place, context);
  if (status.ok()) group_views();
  for (std::size_t g = 0; g < group_count_ && status.ok(); ++g) {
    const Group& group = groups_[g];
    PlaneView planes[3] = {};
    if (group.region.components) status = read_planes(request, group.region, planes);
    for (const std::size_t i : group.views) {
      PlaneView own[3] = {};
      for (int c = 0; c < group.region.components; ++c) {
        const PlaneRegion& wanted = views_[i].planes;
        own[c] = planes[c];
        own[c].first += (wanted.y[c].first - group.region.y[c].first) * own[c].stride +
                        (wanted.x[c].first - group.region.x[c].first);
      }
      if (status.ok()) status = finish_blocks(task, reading, own, views_[i]);
    }
  }
  blocks_.shrink(kKeep);
  for (Buffer* buffer : {&upright_, &packed_, &result_, &moved_, &stored_, &header_, &dc_})
    buffer->shrink(kKeep);
  for (Buffer& buffer : ac_) buffer.shrink(kKeep / ac_.size());
  pixels_.shrink(kKeep);
  if (status.ok()) counters_.images.add(1);
  return status;
}

// Views whose planes are decoded at the same size, and overlap so far that to decode what lies
// around both is no more than to decode each, share a group.
void ImageDecoder::group_views() {
  group_count_ = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const PlaneRegion& wanted = views_[i].planes;
    std::size_t g = 0;
    for (; g < group_count_; ++g) {
      if (!shares(groups_[g].region, wanted)) continue;
      groups_[g].region = joined(groups_[g].region, wanted);
      break;
    }
    if (g == group_count_) {
      if (groups_.size() == group_count_) groups_.emplace_back();
      groups_[group_count_].region = wanted;
      groups_[group_count_++].views.clear();
    }
    groups_[g].views.push_back(i);
  }
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
                          static_cast<std::int64_t>(range.size()), scratch, *request.open);
  if (status.ok()) counters_.bytes.add(range.size());
  bytes = scratch.data();
  return status;
}

Status ImageDecoder::open_blocks(const ImageTask& task, const ImageRequest& request,
                                 Reading& reading) {
  if (!task.codebook) return Status::error(Code::corrupt, "a block record without a codebook");
  if (request.orientation > 8)
    return Status::error(Code::corrupt,
                         "no EXIF orientation: " + std::to_string(request.orientation));
  ByteRange head{0, std::min(request.size, header_bytes_bound(request.height, request.width))};
  const std::uint8_t* bytes = nullptr;
  Status status = fetch(request, head, header_, bytes);
  if (status.ok()) status = blocks_.open(*task.codebook, bytes, head.size(), request.size);
  if (status.code == Code::truncated && head.end < request.size) {
    // The columns named another size than the record: it is the record that counts.
    head.end = request.size;
    status = fetch(request, head, header_, bytes);
    if (status.ok()) status = blocks_.open(*task.codebook, bytes, head.size(), request.size);
  }
  if (!status.ok()) return status;
  reading.stored_height = blocks_.shape().height;
  reading.stored_width = blocks_.shape().width;
  reading.orientation = request.orientation == 0 ? 1 : request.orientation;
  return status;
}

Status ImageDecoder::plan_blocks(const Reading& reading, View& view) {
  const BlockShape& shape = blocks_.shape();
  const CropPlan& plan = view.plan;
  const bool swap = swaps_axes(reading.orientation);
  const std::int32_t height = swap ? shape.width : shape.height;
  const std::int32_t width = swap ? shape.height : shape.width;
  Axis y, x;
  Status status = plan_axis(reading, plan, true, plan.crop_y, plan.crop_height, height, y);
  if (status.ok()) status = plan_axis(reading, plan, false, plan.crop_x, plan.crop_width, width, x);
  if (!status.ok()) return status;
  view.top = y.zeros_before;
  view.left = x.zeros_before;
  view.rows = y.spec.window_size;
  view.columns = x.spec.window_size;
  view.empty = y.empty || x.empty;
  view.padded = y.padded || x.padded;
  view.planes = PlaneRegion{};
  view.planes.components = 0;
  if (view.empty) return status;

  PlanarAxis down = stored_axis(y.spec, y.crop_begin, height, mirrors_y(reading.orientation));
  PlanarAxis across = stored_axis(x.spec, x.crop_begin, width, mirrors_x(reading.orientation));
  if (swap) std::swap(down, across);
  down.sub = shape.sub_y;
  across.sub = shape.sub_x;
  if (plan.antialias && plan.filter != Filter::nearest) {
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
  view.planar.prepare(across, down, shape.colour, reading.channels);

  view.planes.components = view.planar.planes();
  for (int c = 0; c < view.planes.components; ++c) {
    view.planes.reduce[c] = down.reduce[c > 0];
    view.planes.x[c] = view.planar.columns(c);
    view.planes.y[c] = view.planar.rows(c);
  }
  return status;
}

Status ImageDecoder::read_planes(const ImageRequest& request, const PlaneRegion& region,
                                 PlaneView* planes) {
  const RecordReads& reads = blocks_.plan(region);
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
                                   const PlaneView* planes, View& view) {
  const Stopwatch watch(counters_.resample_ns);
  Window window;
  Status status = place_result(task, reading, view, window);
  if (!status.ok()) return status;
  if (!view.empty && swaps_axes(reading.orientation)) {
    status = turn_planes(reading, planes, window, view);
  } else if (!view.empty) {
    view.planar.run(planes, window.first, window.stride, window.plane);
  }
  return status.ok() ? deliver(task, reading, window, view) : status;
}

// The stored image lies on its side, and so does what comes of it.
Status ImageDecoder::turn_planes(const Reading& reading, const PlaneView* planes,
                                 const Window& window, View& view) {
  constexpr int kTranspose = 5;
  const std::ptrdiff_t channels = reading.channels;
  const std::ptrdiff_t stored_stride = view.rows * channels;
  const std::size_t bytes =
      static_cast<std::size_t>(stored_stride) * static_cast<std::size_t>(view.columns);
  if (!upright_.resize(bytes) || (window.plane && !packed_.resize(bytes))) return no_memory();
  view.planar.run(planes, upright_.data(), stored_stride);
  const std::ptrdiff_t stride = window.plane ? view.columns * channels : window.stride;
  std::uint8_t* const turned = window.plane ? packed_.data() : window.first;
  orient(upright_.data(), stored_stride, view.columns, view.rows, reading.channels, kTranspose,
         turned, stride);
  for (std::int32_t y = 0; window.plane && y < view.rows; ++y)
    split_pixels(turned + y * stride, static_cast<std::size_t>(view.columns), reading.channels,
                 window.first + y * window.stride, window.plane);
  return Status::okay();
}

}  // namespace fastio
