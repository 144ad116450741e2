#include "jpeg_coefficients.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "codebook.h"
#include "huffman.h"
#include "jpeg_input.h"

#include <jerror.h>

namespace fastio {
namespace {

// What 8-bit files have: AC values of 10 bits, and DC differences of 11 (T.81, table F.1).
constexpr int kMaxAc = 1023, kMaxDcSpan = 2047;

Status foreign(std::string why) { return Status::error(Code::foreign, std::move(why)); }

// Plain data: libjpeg's calls may be left by longjmp.
struct Reader : JpegInput {
  jvirt_barray_ptr* arrays = nullptr;
  ScanDecoder scan;
  HuffmanTable dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
};

struct Closer {
  JpegInput& input;
  ~Closer() { input.close(); }
};

// Component 0's sampling factors over those of the others, from which all of a record's follow.
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

// The shape, but for the quantisers, from what the header says.
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

void read_metadata(const jpeg_decompress_struct& info, std::vector<std::uint8_t>& out) {
  out.clear();
  for (jpeg_saved_marker_ptr m = info.marker_list; m; m = m->next) {
    const unsigned length = m->data_length + 2;
    out.insert(out.end(), {0xFF, m->marker, static_cast<std::uint8_t>(length >> 8),
                           static_cast<std::uint8_t>(length)});
    out.insert(out.end(), m->data, m->data + m->data_length);
  }
}

// Gives component `c` its quantisation table: the equal one of those before, or a new one.
Status add_table(const JQUANT_TBL* from, int c, BlockShape& shape) {
  if (!from) return foreign("a component without a quantisation table");
  std::uint16_t quant[64];
  for (int z = 0; z < 64; ++z) {
    quant[z] = from->quantval[kZigzag[z]];
    if (quant[z] == 0) return foreign("a quantiser of 0");
  }
  int k = 0;
  const int known = c == 0 ? 0 : shape.tables;
  while (k < known && std::memcmp(shape.quant[k], quant, sizeof quant) != 0) ++k;
  if (k == known) std::memcpy(shape.quant[k], quant, sizeof quant);
  shape.tables = std::max(known, k + 1);
  shape.table[c] = static_cast<std::uint8_t>(k);
  return Status::okay();
}

#ifdef FASTIO_JPEG_INTERNALS

// As libjpeg, the blocks of MCUs that reach over the right and bottom edges included.
bool fits_memory(const jpeg_decompress_struct& info) {
  long bytes = 0;
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& of = info.comp_info[c];
    bytes += (static_cast<long>(of.width_in_blocks) + of.h_samp_factor) *
             (static_cast<long>(of.height_in_blocks) + of.v_samp_factor) * 128;
  }
  return bytes <= kMaxCoefficientBytes;
}

// Whether decode_scan() can read the file: a single scan that holds all components, and is sound
// in what libjpeg would look at before its first block.
bool prepare_scan(Reader& r) {
  const jpeg_decompress_struct& info = r.info;
  if (!r.internals_fit() || jpeg_has_multiple_scans(&r.info) || !fits_memory(info)) return false;
  int blocks = 0;
  for (int i = 0; i < info.comps_in_scan; ++i) {
    const jpeg_component_info& c = *info.cur_comp_info[i];
    if (c.quant_tbl_no >= NUM_QUANT_TBLS || c.dc_tbl_no >= NUM_HUFF_TBLS ||
        c.ac_tbl_no >= NUM_HUFF_TBLS || !info.quant_tbl_ptrs[c.quant_tbl_no])
      return false;
    const JHUFF_TBL* dc = info.dc_huff_tbl_ptrs[c.dc_tbl_no];
    const JHUFF_TBL* ac = info.ac_huff_tbl_ptrs[c.ac_tbl_no];
    if (!dc || !ac || !r.dc[c.dc_tbl_no].build(dc->bits, dc->huffval, true) ||
        !r.ac[c.ac_tbl_no].build(ac->bits, ac->huffval, false))
      return false;
    blocks += c.h_samp_factor * c.v_samp_factor;
  }
  return info.comps_in_scan == 1 || blocks <= D_MAX_BLOCKS_IN_MCU;
}

// The blocks of one MCU, of which those beyond the image are parsed only.
void decode_mcu(Reader& r, int mcu_y, int mcu_x, JpegCoefficients& out) {
  const bool alone = r.info.comps_in_scan == 1;  // an MCU is one block then (T.81, A.2.2)
  for (int i = 0; i < r.info.comps_in_scan; ++i) {
    const jpeg_component_info& of = *r.info.cur_comp_info[i];
    const int c = of.component_index;
    const int down = alone ? 1 : of.v_samp_factor, across = alone ? 1 : of.h_samp_factor;
    const int rows = out.shape.blocks_y(c), columns = out.shape.blocks_x(c);
    for (int y = mcu_y * down; y < (mcu_y + 1) * down; ++y) {
      for (int x = mcu_x * across; x < (mcu_x + 1) * across; ++x) {
        const bool inside = y < rows && x < columns;
        std::int16_t* block =
            inside ? out.blocks[c].data() + (static_cast<std::size_t>(y) * columns + x) * 64
                   : nullptr;
        r.scan.block(r.dc[of.dc_tbl_no], r.ac[of.ac_tbl_no], i, block);
      }
    }
  }
}

// All MCUs of the scan. False where the bytes end before they do.
bool decode_scan(Reader& r, JpegCoefficients& out) {
  const jpeg_decompress_struct& info = r.info;
  for (int c = 0; c < info.num_components; ++c)
    out.blocks[c].assign(
        std::size_t{64} * out.shape.blocks_x(c) * static_cast<std::size_t>(out.shape.blocks_y(c)),
        0);
  const bool alone = info.comps_in_scan == 1;
  const int size_y = 8 * (alone ? 1 : info.max_v_samp_factor);
  const int size_x = 8 * (alone ? 1 : info.max_h_samp_factor);
  const int rows = (out.shape.height + size_y - 1) / size_y;
  const int columns = (out.shape.width + size_x - 1) / size_x;
  const JOCTET* begin = info.src->next_input_byte;
  r.scan.start(begin, begin + info.src->bytes_in_buffer);
  unsigned left = info.restart_interval;
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < columns; ++x) {
      if (info.restart_interval > 0 && left-- == 0) {
        r.scan.restart();
        left = info.restart_interval - 1;
      }
      if (!r.scan.insufficient()) decode_mcu(r, y, x, out);
      if (r.scan.ran_out()) return false;
    }
  }
  return true;
}

// Lets libjpeg read what follows the scan, up to the end of the image.
Step read_end(Reader& r) {
  if (setjmp(r.errors.escape)) return Step::failed;
  const JOCTET* end = r.info.src->next_input_byte + r.info.src->bytes_in_buffer;
  r.info.src->next_input_byte = r.scan.pass_scan();
  r.info.src->bytes_in_buffer = static_cast<std::size_t>(end - r.info.src->next_input_byte);
  if (r.info.marker->read_markers(&r.info) != JPEG_REACHED_EOI) ERREXIT(&r.info, JERR_EOI_EXPECTED);
  return Step::ok;
}

Status read_single_scan(Reader& r, JpegCoefficients& out) {
  for (int c = 0; c < r.info.num_components; ++c) {
    const Status status =
        add_table(r.info.quant_tbl_ptrs[r.info.comp_info[c].quant_tbl_no], c, out.shape);
    if (!status.ok()) return status;
  }
  if (!decode_scan(r, out)) {
    r.source.ran_out = true;
    return r.failure();
  }
  return read_end(r) == Step::ok ? Status::okay() : r.failure();
}

#else

bool prepare_scan(Reader&) { return false; }
Status read_single_scan(Reader& r, JpegCoefficients&) { return r.failure(); }

#endif

Step read_arrays(Reader& r) {
  if (setjmp(r.errors.escape)) return Step::failed;
  r.arrays = jpeg_read_coefficients(&r.info);
  return Step::ok;
}

Step copy_array(Reader& r, int c, JDIMENSION rows, std::size_t row_bytes, std::int16_t* out) {
  if (setjmp(r.errors.escape)) return Step::failed;
  for (JDIMENSION y = 0; y < rows; ++y) {
    JBLOCKARRAY from = r.info.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&r.info),
                                                      r.arrays[c], y, 1, FALSE);
    std::memcpy(reinterpret_cast<std::uint8_t*>(out) + y * row_bytes, from[0][0], row_bytes);
  }
  return Step::ok;
}

// Whether libjpeg has all of what it would guess at for a picture: where these coefficients are not
// known to the last bit, it smooths over blocks (jdcoefct.c, smoothing_ok).
bool complete(const jpeg_decompress_struct& info) {
  constexpr int kGuessed = 10;
  if (!info.progressive_mode) return true;
  for (int c = 0; c < info.num_components; ++c)
    for (int z = 0; z < kGuessed; ++z)
      if (info.coef_bits[c][z] != 0) return false;
  return true;
}

// By libjpeg's own entropy decoders.
Status read_any_scans(Reader& r, JpegCoefficients& out) {
  if (read_arrays(r) == Step::failed) return r.failure();
  if (!complete(r.info)) return foreign("a progressive file that lacks scans");
  for (int c = 0; c < r.info.num_components; ++c) {
    const Status status = add_table(r.info.comp_info[c].quant_table, c, out.shape);
    if (!status.ok()) return status;
    const auto rows = static_cast<std::size_t>(out.shape.blocks_y(c));
    const std::size_t row = std::size_t{64} * out.shape.blocks_x(c);
    out.blocks[c].resize(rows * row);
    if (copy_array(r, c, static_cast<JDIMENSION>(rows), row * sizeof(std::int16_t),
                   out.blocks[c].data()) == Step::failed)
      return r.failure();
  }
  return Status::okay();
}

// Whether a file with these coefficients can be written: damage that libjpeg passes over may have
// left any number. A DC within kMaxDcSpan of all others of its component, and of 0, has a
// difference that can be written whichever block comes before it.
Status check_range(const JpegCoefficients& in) {
  for (int c = 0; c < in.shape.components; ++c) {
    std::int16_t low[64] = {}, high[64] = {};
    for (std::size_t at = 0; at < in.blocks[c].size(); at += 64) {
      for (int i = 0; i < 64; ++i) {
        const std::int16_t value = in.blocks[c][at + static_cast<std::size_t>(i)];
        low[i] = std::min(low[i], value);
        high[i] = std::max(high[i], value);
      }
    }
    if (*std::min_element(low + 1, low + 64) < -kMaxAc ||
        *std::max_element(high + 1, high + 64) > kMaxAc)
      return foreign("AC coefficients of more than 10 bits");
    if (high[0] - low[0] > kMaxDcSpan) return foreign("DC coefficients too far apart");
  }
  return Status::okay();
}

Status read(Reader& r, const std::uint8_t* data, std::size_t size, JpegCoefficients& out,
            std::int64_t max_pixels) {
  JpegHeader header;
  Status status = r.open(data, size, true, true, header);
  if (!status.ok()) {
    const int why = r.errors.base.msg_code;
    return why == JERR_BAD_PRECISION || why == JERR_SOF_UNSUPPORTED ? foreign(status.message)
                                                                    : status;
  }
  status = check_pixels(header.height, header.width, max_pixels);
  if (status.ok()) status = read_shape(r.info, out.shape);
  if (!status.ok()) return status;
  out.orientation = header.orientation;
  out.progressive = header.kind == JpegHeader::Kind::progressive;
  read_metadata(r.info, out.metadata);
  for (int c = r.info.num_components; c < 3; ++c) out.blocks[c].clear();
  status = prepare_scan(r) ? read_single_scan(r, out) : read_any_scans(r, out);
  return status.ok() ? check_range(out) : status;
}

}  // namespace

Status read_coefficients(const std::uint8_t* data, std::size_t size, JpegCoefficients& out,
                         std::int64_t max_pixels) {
  try {
    const auto reader = std::make_unique<Reader>();
    const Closer closer{*reader};
    return read(*reader, data, size, out, max_pixels);
  } catch (const std::bad_alloc&) {
    return Status::error(Code::memory, "out of memory");
  }
}

}  // namespace fastio
