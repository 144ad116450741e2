#include "jpeg_scan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "codebook.h"

#include <jerror.h>

namespace fastio {
namespace {

Status foreign(std::string why) { return Status::error(Code::foreign, std::move(why)); }

// Sets the subsampling: the sampling factors of component 0 divided by those of the others.
Status read_sampling(const jpeg_decompress_struct& info, BlockShape& shape) {
  shape.sub_x = shape.sub_y = 1;
  if (info.num_components == 1) return Status::okay();
  const jpeg_component_info *y = &info.comp_info[0], *b = y + 1, *r = y + 2;
  const int h = y->h_samp_factor, v = y->v_samp_factor;
  if (b->h_samp_factor != r->h_samp_factor || b->v_samp_factor != r->v_samp_factor)
    return foreign("components 1 and 2 differ in size");
  if (h % b->h_samp_factor != 0 || v % b->v_samp_factor != 0)
    return foreign("component 0 is not a whole number of times as large as the others");
  shape.sub_x = h / b->h_samp_factor;
  shape.sub_y = v / b->v_samp_factor;
  if (shape.sub_x * 16 + shape.sub_y == 0x41 || std::max(shape.sub_x, shape.sub_y) <= 2)
    return Status::okay();
  return foreign("chroma subsampled " + std::to_string(shape.sub_x) + " x " +
                 std::to_string(shape.sub_y));
}

// Returns JpegIndex::Scan::middle of these bytes.
std::uint32_t middle_of(const std::uint8_t* data, std::size_t size) {
  std::uint32_t middle = 0;
  for (std::size_t i = 0; i < 4 && size / 2 + i < size; ++i)
    middle |= std::uint32_t{data[size / 2 + i]} << 8 * i;
  return middle;
}

}  // namespace

Status read_shape(const jpeg_decompress_struct& info, BlockShape& shape) {
  shape = {};
  shape.components = info.num_components;
  shape.height = static_cast<std::int32_t>(info.image_height);
  shape.width = static_cast<std::int32_t>(info.image_width);
  if (info.data_precision != 8)
    return foreign(std::to_string(info.data_precision) + " bits a sample");
  if (info.arith_code) return foreign("arithmetic coding");
#if defined(FASTIO_JPEG_INTERNALS) && LIBJPEG_TURBO_VERSION_NUMBER >= 3000000
  if (info.master->lossless) return foreign("lossless coding");
#endif
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE:
      shape.colour = Colour::gray;
      break;
    case JCS_YCbCr:
      shape.colour = Colour::ycbcr;
      break;
    case JCS_RGB:
      shape.colour = Colour::rgb;
      break;
    default:
      return foreign("components that are neither gray, YCbCr nor RGB");
  }
  for (int c = 0; c < info.num_components; ++c) {
    const int id = info.comp_info[c].component_id;
    shape.ids[c] = static_cast<std::uint8_t>(id);
  }
  return read_sampling(info, shape);
}

Status add_table(const JQUANT_TBL* from, int c, BlockShape& shape) {
  if (!from) return foreign("a component has no quantisation table");
  std::uint16_t quant[64];
  for (int z = 0; z < 64; ++z) {
    quant[z] = from->quantval[kZigzag[z]];
    if (quant[z] == 0) return foreign("a quantiser is 0");
  }
  int k = 0;
  const int known = c == 0 ? 0 : shape.tables;
  while (k < known && std::memcmp(shape.quant[k], quant, sizeof quant) != 0) ++k;
  if (k == known) std::memcpy(shape.quant[k], quant, sizeof quant);
  shape.tables = std::max(known, k + 1);
  shape.table[c] = static_cast<std::uint8_t>(k);
  return Status::okay();
}

bool KeptTable::build(const JHUFF_TBL& source, bool dc) {
  if (built && std::memcmp(counts, source.bits, sizeof counts) == 0 &&
      std::memcmp(symbols, source.huffval, sizeof symbols) == 0)
    return true;
  std::memcpy(counts, source.bits, sizeof counts);
  std::memcpy(symbols, source.huffval, sizeof symbols);
  built = table.build(counts, symbols, dc);
  return built;
}

bool JpegScan::open(const jpeg_decompress_struct& info) {
  if (info.progressive_mode || info.arith_code) return false;
  // Lossless coding has the number of a predictor as Ss, and 0 as Se.
  if (info.Ss != 0 || info.Se != 63 || info.Ah != 0 || info.Al != 0) return false;
  if (info.comps_in_scan != info.num_components || info.num_components > 3) return false;
  const bool alone = info.comps_in_scan == 1;  // then an MCU is one block (T.81, A.2.2)
  int most_across = 1, most_down = 1;
  layout_.blocks = 0;
  for (int i = 0; i < info.comps_in_scan; ++i) {
    const jpeg_component_info& c = *info.cur_comp_info[i];
    if (c.component_index != i || c.quant_tbl_no >= NUM_QUANT_TBLS ||
        c.dc_tbl_no >= NUM_HUFF_TBLS || c.ac_tbl_no >= NUM_HUFF_TBLS ||
        !info.quant_tbl_ptrs[c.quant_tbl_no])
      return false;
    const JHUFF_TBL* dc = info.dc_huff_tbl_ptrs[c.dc_tbl_no];
    const JHUFF_TBL* ac = info.ac_huff_tbl_ptrs[c.ac_tbl_no];
    if (!dc || !ac || !dc_[c.dc_tbl_no].build(*dc, true) || !ac_[c.ac_tbl_no].build(*ac, false))
      return false;
    across_[i] = alone ? 1 : c.h_samp_factor;
    down_[i] = alone ? 1 : c.v_samp_factor;
    most_across = std::max(most_across, across_[i]);
    most_down = std::max(most_down, down_[i]);
    for (int k = 0; k < across_[i] * down_[i]; ++k) {
      if (layout_.blocks == McuLayout::kMost) return false;
      layout_.block[layout_.blocks++] = {&dc_[c.dc_tbl_no].table, &ac_[c.ac_tbl_no].table, i};
    }
  }
  const auto width = static_cast<std::int32_t>(info.image_width);
  const auto height = static_cast<std::int32_t>(info.image_height);
  shape_.bytes = info.src->bytes_in_buffer;
  shape_.columns = (width + 8 * most_across - 1) / (8 * most_across);
  shape_.rows = (height + 8 * most_down - 1) / (8 * most_down);
  shape_.mcu_width = 8 * most_across;
  shape_.components = info.num_components;
  shape_.restart_interval = restarts_in_ = info.restart_interval;
  step_ = shape_.step = shape_.usual_step();
  steps_ = shape_.points_a_row();
  const JOCTET* begin = info.src->next_input_byte;
  shape_.middle = middle_of(begin, info.src->bytes_in_buffer);
  decoder_.start(begin, begin + info.src->bytes_in_buffer);
  next_ = 0;
  use(nullptr, nullptr);
  return true;
}

void JpegScan::use(const JpegIndex* index, JpegIndex* found) {
  if (found) {
    found->scan = shape_;
    found->points.clear();
  }
  const bool other = index && index->scan != shape_;
  index_ = other ? nullptr : index;
  found_ = other ? nullptr : found;
  next_point_ = found_ ? mcu_of(index_ ? index_->points.size() : 0) : kNoPoint;
}

// Returns the MCU that a point of the index stands for.
std::int64_t JpegScan::mcu_of(std::size_t point) const {
  const auto n = static_cast<std::int64_t>(point);
  return n / steps_ * shape_.columns + n % steps_ * step_;
}

// Continues at the last known point at or before an MCU, if that point is ahead.
void JpegScan::seek(std::int64_t mcu) {
  if (!index_ || index_->points.empty()) return;
  const std::int64_t wanted = mcu / shape_.columns * steps_ + mcu % shape_.columns / step_;
  const auto last = static_cast<std::int64_t>(index_->points.size()) - 1;
  const auto at = static_cast<std::size_t>(std::min(wanted, last));
  const std::int64_t begin = mcu_of(at);
  if (begin <= next_) return;
  const JpegIndex::Point& point = index_->points[at];
  std::int64_t restarts = 0;
  if (shape_.restart_interval > 0) {
    restarts =
        (begin - 1) / shape_.restart_interval;  // one that is due before the MCU is still to come
    restarts_in_ = static_cast<unsigned>((restarts + 1) * shape_.restart_interval - begin);
  }
  decoder_.resume(std::uint64_t{point.byte} * 8 + point.bit, point.dc,
                  static_cast<std::uint64_t>(restarts));
  next_ = begin;
}

// Records the position of the next MCU as a point. Stops recording if the position is not known.
void JpegScan::note_point() {
  JpegIndex::Point point;
  std::uint64_t bit = 0;
  if (!decoder_.tell(bit, point.dc) || bit / 8 > UINT32_MAX) {
    next_point_ = kNoPoint;
    return;
  }
  point.byte = static_cast<std::uint32_t>(bit / 8);
  point.bit = static_cast<std::uint8_t>(bit % 8);
  found_->points.push_back(point);
  next_point_ = mcu_of((index_ ? index_->points.size() : 0) + found_->points.size());
}

// Skips the restart marker if one is due. Returns how many of the `wanted` MCUs can be decoded in
// one call, which ends before the next restart marker and the next point, and advances next_.
std::int32_t JpegScan::begin_run(std::int64_t wanted) {
  std::int64_t count = std::min<std::int64_t>(wanted, INT32_MAX);
  if (next_ == next_point_) note_point();
  count = std::min(count, next_point_ - next_);
  if (shape_.restart_interval > 0) {
    if (restarts_in_ == 0) {
      decoder_.restart();
      restarts_in_ = shape_.restart_interval;
    }
    count = std::min<std::int64_t>(count, restarts_in_);
    restarts_in_ -= static_cast<unsigned>(count);
  }
  next_ += count;
  return static_cast<std::int32_t>(count);
}

bool JpegScan::skip_to(std::int64_t mcu) {
  seek(mcu);
  while (next_ < mcu && !decoder_.ran_out()) decoder_.skip(layout_, begin_run(mcu - next_));
  return !decoder_.ran_out();
}

bool JpegScan::decode(std::int32_t count, McuOutput out) {
  while (count > 0 && !decoder_.ran_out()) {
    const std::int32_t run = begin_run(count);
    decoder_.mcus(layout_, run, out);
    for (int j = 0; j < layout_.blocks; ++j)
      if (out.first[j]) out.first[j] += run * out.step[j];
    count -= run;
  }
  return !decoder_.ran_out();
}

Step read_end(JpegInput& input, JpegScan& scan) {
#ifdef FASTIO_JPEG_INTERNALS
  if (!input.internals_fit()) return Step::failed;
  if (setjmp(input.errors.escape)) return Step::failed;
  jpeg_decompress_struct& info = input.info;
  const JOCTET* const end = info.src->next_input_byte + info.src->bytes_in_buffer;
  info.src->next_input_byte = scan.decoder().pass_scan();
  info.src->bytes_in_buffer = static_cast<std::size_t>(end - info.src->next_input_byte);
  if (info.marker->read_markers(&info) != JPEG_REACHED_EOI) ERREXIT(&info, JERR_EOI_EXPECTED);
  return Step::ok;
#else
  static_cast<void>(input);
  static_cast<void>(scan);
  return Step::failed;
#endif
}

}  // namespace fastio
