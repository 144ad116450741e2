// The functions of ImageDecoder for images whose planes are resampled before colours are converted:
// block records and baseline JPEGs. Only the parts of a block record that the crop needs are read.
// If the orientation swaps axes, the result is transposed after resampling.
#include <algorithm>
#include <string>

#include "image.h"
#include "image_parts.h"

namespace fastio {
namespace {

// The least shrink at which a plane is decoded at 1/2, 1/4 and 1/8 of its size. From 4 on, the PSNR
// of 1/2 against a full decode is at least 44 dB (benchmarks/LOG.md). For block records, 1/8 begins
// earlier: it needs only the DC section, which saves most.
constexpr double kHalf = 4, kQuarter = 8, kEighth = 16, kEighthOfBlocks = 8;

int reduction(double shrink, bool blocks) {
  if (shrink >= (blocks ? kEighthOfBlocks : kEighth)) return 8;
  if (shrink >= kQuarter) return 4;
  return shrink >= kHalf ? 2 : 1;
}

// Maps an axis of the upright image to the stored image. against: the axis is reversed.
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

// Whether decoding both regions together needs no more samples than decoding each of them.
bool shares(const PlaneRegion& a, const PlaneRegion& b) {
  return a.components == b.components && std::equal(a.reduce, a.reduce + 3, b.reduce) &&
         area(joined(a, b)) <= area(a) + area(b);
}

}  // namespace

Status ImageDecoder::decode_planes(const ImageTask& task, const ImageRequest& request,
                                   const Reading& reading) {
  Status status;
  group_views(request.codec == Codec::jpeg);
  for (std::size_t g = 0; g < group_count_ && status.ok(); ++g) {
    const Group& group = groups_[g];
    PlaneView planes[3] = {};
    if (group.region.components) status = read_planes(request, group.region, planes);
    for (const std::size_t i : group.views) {
      PlaneView own[3] = {};
      for (int c = 0; c < views_[i].planes.components; ++c) {
        const PlaneRegion& wanted = views_[i].planes;
        own[c] = planes[c];
        own[c].first += (wanted.y[c].first - group.region.y[c].first) * own[c].stride +
                        (wanted.x[c].first - group.region.x[c].first);
      }
      if (status.ok()) status = finish_planes(task, reading, own, views_[i]);
    }
  }
  return status;
}

// Groups the views that are decoded together: those with the same reduction whose joined region is
// not larger than the sum of their regions. all: all views that are not empty form one group.
void ImageDecoder::group_views(bool all) {
  group_count_ = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!views_[i].by_planes) continue;
    const PlaneRegion& wanted = views_[i].planes;
    std::size_t g = 0;
    for (; g < group_count_; ++g) {
      const bool joins = all && groups_[g].region.components == wanted.components;
      if (!joins && !shares(groups_[g].region, wanted)) continue;
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

// Returns bytes of the record: those in memory, or else read into `scratch`.
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
  if (!task.codebook)
    return Status::error(Code::corrupt, "the codebook of a block record is missing");
  if (request.orientation > 8)
    return Status::error(Code::corrupt,
                         "invalid EXIF orientation: " + std::to_string(request.orientation));
  ByteRange head{0, std::min(request.size, header_bytes_bound(request.height, request.width))};
  const std::uint8_t* bytes = nullptr;
  Status status = fetch(request, head, header_, bytes);
  if (status.ok()) status = blocks_.open(*task.codebook, bytes, head.size(), request.size);
  if (status.code == Code::truncated && head.end < request.size) {
    // The dataset's columns have another image size than the record, so the bound was too small.
    // The record's size is used.
    head.end = request.size;
    status = fetch(request, head, header_, bytes);
    if (status.ok()) status = blocks_.open(*task.codebook, bytes, head.size(), request.size);
  }
  if (!status.ok()) return status;
  reading.stored_height = blocks_.shape().height;
  reading.stored_width = blocks_.shape().width;
  reading.orientation = request.orientation == 0 ? 1 : request.orientation;
  reading.shape = &blocks_.shape();
  return status;
}

// Plans the views that are made from planes. Each view of a block record has its own reduction. The
// views of a JPEG, which is decoded once, all have the smallest one.
Status ImageDecoder::plan_planes(const ImageRequest& request, const Reading& reading) {
  if (!reading.shape) return Status::okay();
  const bool blocks = request.codec == Codec::blocks;
  const BlockShape& shape = *reading.shape;
  const bool swap = swaps_axes(reading.orientation);
  const auto reductions = [&](const CropPlan& plan) -> Reductions {
    if (!plan.antialias || plan.filter == Filter::nearest) return {1, 1};
    double down = double(plan.crop_height) / plan.out_height;
    double across = double(plan.crop_width) / plan.out_width;
    if (swap) std::swap(down, across);
    const int luma = reduction(std::min(down, across), blocks);
    // At 1/8, the DC section has to suffice for all planes.
    if (blocks && luma == 8) return {8, 8};
    return {luma, reduction(std::min(down / shape.sub_y, across / shape.sub_x), blocks)};
  };
  Reductions least{8, 8};
  for (std::size_t i = 0; i < count_ && !blocks; ++i) {
    if (!views_[i].by_planes) continue;
    const Reductions own = reductions(views_[i].plan);
    least = {std::min(least.luma, own.luma), std::min(least.chroma, own.chroma)};
  }
  Status status;
  for (std::size_t i = 0; i < count_ && status.ok(); ++i)
    if (views_[i].by_planes)
      status = plan_view(reading, blocks ? reductions(views_[i].plan) : least, views_[i]);
  return status;
}

Status ImageDecoder::plan_view(const Reading& reading, const Reductions& reduced, View& view) {
  const BlockShape& shape = *reading.shape;
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
  for (PlanarAxis* axis : {&down, &across}) {
    axis->reduce[0] = reduced.luma;
    axis->reduce[1] = reduced.chroma;
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
  if (request.codec == Codec::jpeg) {
    const Stopwatch watch(counters_.decode_ns);
    return jpeg_.decode(region, request.index, request.found, planes);
  }
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

Status ImageDecoder::finish_planes(const ImageTask& task, const Reading& reading,
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

// Resamples a view whose orientation swaps axes: resamples in the stored orientation, then
// transposes the result.
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
