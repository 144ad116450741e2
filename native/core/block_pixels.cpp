#include "block_pixels.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "image_parts.h"
#include "store.h"

namespace fastio {
namespace {

// Returns an axis with one output for each reduced sample. The last output may stand for samples
// past the image's edge, which its block contains too.
PlanarAxis whole_axis(std::int32_t size, int sub, int denominator, int chroma) {
  PlanarAxis axis;
  axis.spec.out = (size + denominator - 1) / denominator;
  axis.spec.in = axis.spec.out * denominator;
  axis.spec.window_size = axis.spec.out;
  axis.spec.filter = Filter::nearest;
  axis.size = axis.spec.in;
  axis.sub = sub;
  axis.reduce[0] = denominator;
  axis.reduce[1] = chroma;
  return axis;
}

// Copies a part of a record to a buffer, which has the padding that the decoder needs.
bool copy_part(const std::uint8_t* record, const ByteRange& range, Buffer& out) {
  if (!out.resize(range.size())) return false;
  if (range.size() > 0) std::memcpy(out.data(), record + range.begin, range.size());
  return true;
}

}  // namespace

Status BlockPixels::open(const Codebook& book, const std::uint8_t* record, std::size_t size,
                         std::size_t record_size, int orientation, int denominator, int channels,
                         std::int64_t max_pixels) {
  Status status = decoder_.open(book, record, size, record_size);
  if (status.ok())
    status = check_pixels(decoder_.shape().height, decoder_.shape().width, max_pixels);
  if (!status.ok()) return status;
  record_ = record;
  size_ = size;
  orientation_ = orientation;
  channels_ = channels;
  const BlockShape& shape = decoder_.shape();
  // Subsampled chroma is reduced less than luma, but at an eighth the DC section has to suffice.
  const int sub = std::min(shape.sub_x, shape.sub_y);
  const int chroma = denominator == 8 ? 8 : std::max(denominator / sub, 1);
  const PlanarAxis x = whole_axis(shape.width, shape.sub_x, denominator, chroma);
  const PlanarAxis y = whole_axis(shape.height, shape.sub_y, denominator, chroma);
  columns_ = x.spec.out;
  rows_ = y.spec.out;
  resampler_.prepare(x, y, shape.colour, channels);
  region_.components = resampler_.planes();
  for (int c = 0; c < region_.components; ++c) {
    region_.reduce[c] = c > 0 ? chroma : denominator;
    region_.x[c] = resampler_.columns(c);
    region_.y[c] = resampler_.rows(c);
  }
  return status;
}

Status BlockPixels::read(std::uint8_t* out) {
  const RecordReads& reads = decoder_.plan(region_);
  const std::size_t end = reads.ac.empty() ? reads.dc.end : reads.ac.back().end;
  if (end > size_)
    return Status::error(Code::truncated, "block record: its first " + std::to_string(size_) +
                                              " bytes do not contain the requested part");
  // The region is the whole image, so all ranges of the AC section are merged to one.
  Buffer dc, ac;
  if (!copy_part(record_, reads.dc, dc) ||
      !copy_part(record_, reads.ac.empty() ? ByteRange{} : reads.ac.front(), ac))
    return Status::error(Code::memory, "no memory for a block record");
  PlaneView planes[3] = {};
  const std::uint8_t* const ac_bytes = ac.data();
  const Status status = decoder_.decode(dc.data(), &ac_bytes, planes);
  if (!status.ok()) return status;
  const std::ptrdiff_t stride = std::ptrdiff_t{columns_} * channels_;
  if (orientation_ == 1) {
    resampler_.run(planes, out, stride);
    return status;
  }
  Buffer stored;
  if (!stored.resize(static_cast<std::size_t>(stride) * static_cast<std::size_t>(rows_)))
    return no_memory();
  resampler_.run(planes, stored.data(), stride);
  orient(stored.data(), stride, rows_, columns_, channels_, orientation_, out,
         std::ptrdiff_t{width()} * channels_);
  return status;
}

}  // namespace fastio
