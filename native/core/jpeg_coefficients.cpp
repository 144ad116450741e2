#include "jpeg_coefficients.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "jpeg_input.h"
#include "jpeg_scan.h"

namespace fastio {
namespace {

// The limits of 8-bit files: AC values of 10 bits, and DC differences of 11 (T.81, table F.1).
constexpr int kMaxAc = 1023, kMaxDcSpan = 2047;

Status foreign(std::string why) { return Status::error(Code::foreign, std::move(why)); }

// Plain data, because libjpeg may leave calls by longjmp.
struct Reader : JpegInput {
  jvirt_barray_ptr* arrays = nullptr;
  JpegScan scan;
};

struct Closer {
  JpegInput& input;
  ~Closer() { input.close(); }
};

void read_metadata(const jpeg_decompress_struct& info, std::vector<std::uint8_t>& out) {
  out.clear();
  for (jpeg_saved_marker_ptr m = info.marker_list; m; m = m->next) {
    const unsigned length = m->data_length + 2;
    out.insert(out.end(), {0xFF, m->marker, static_cast<std::uint8_t>(length >> 8),
                           static_cast<std::uint8_t>(length)});
    out.insert(out.end(), m->data, m->data + m->data_length);
  }
}

#ifdef FASTIO_JPEG_INTERNALS

// Whether the coefficients stay within kMaxCoefficientBytes. Like libjpeg, counts the blocks of
// MCUs that extend past the right and bottom edges.
bool fits_memory(const jpeg_decompress_struct& info) {
  long bytes = 0;
  for (int c = 0; c < info.num_components; ++c) {
    const jpeg_component_info& of = info.comp_info[c];
    bytes += (static_cast<long>(of.width_in_blocks) + of.h_samp_factor) *
             (static_cast<long>(of.height_in_blocks) + of.v_samp_factor) * 128;
  }
  return bytes <= kMaxCoefficientBytes;
}

// Returns whether decode_scan() can read the file, and opens its scan.
bool prepare_scan(Reader& r) {
  return r.internals_fit() && fits_memory(r.info) && r.scan.open(r.info);
}

// Decodes MCUs [column, column + count) of a row of MCUs; blocks beyond the image are only parsed.
// Returns false if the bytes end too early.
bool decode_mcus(Reader& r, std::int32_t row, std::int32_t column, std::int32_t count,
                 JpegCoefficients& out) {
  McuOutput to{};
  int block = 0;
  for (int c = 0; c < out.shape.components; ++c) {
    const int across = r.scan.across(c), down = r.scan.down(c);
    const std::int32_t rows = out.shape.blocks_y(c), columns = out.shape.blocks_x(c);
    for (std::int32_t y = row * down; y < (row + 1) * down; ++y) {
      for (std::int32_t x = column * across; x < (column + 1) * across; ++x, ++block) {
        const bool inside = y < rows && x + (count - 1) * across < columns;
        const std::size_t at = (static_cast<std::size_t>(y) * static_cast<std::size_t>(columns) +
                                static_cast<std::size_t>(x)) *
                               64;
        to.first[block] = inside ? out.blocks[c].data() + at : nullptr;
        to.step[block] = 64 * across;
      }
    }
  }
  return r.scan.decode(count, to);
}

// Decodes all MCUs of the scan. Returns false if the bytes end too early.
bool decode_scan(Reader& r, JpegCoefficients& out) {
  for (int c = 0; c < out.shape.components; ++c)
    out.blocks[c].resize(std::size_t{64} * static_cast<std::size_t>(out.shape.blocks_x(c)) *
                         static_cast<std::size_t>(out.shape.blocks_y(c)));
  const std::int32_t last = r.scan.columns() - 1;
  for (std::int32_t y = 0; y < r.scan.rows(); ++y)
    if (!decode_mcus(r, y, 0, last, out) || !decode_mcus(r, y, last, 1, out)) return false;
  return true;
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
  return read_end(r, r.scan) == Step::ok ? Status::okay() : r.failure();
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

// Whether all bits of the low-frequency coefficients are known. Where a progressive file lacks
// some, libjpeg smooths between blocks when it decodes pixels (jdcoefct.c, smoothing_ok), which a
// record cannot reproduce.
bool complete(const jpeg_decompress_struct& info) {
  constexpr int kGuessed = 10;  // coefficients that libjpeg estimates
  if (!info.progressive_mode) return true;
  for (int c = 0; c < info.num_components; ++c)
    for (int z = 0; z < kGuessed; ++z)
      if (info.coef_bits[c][z] != 0) return false;
  return true;
}

// Reads the coefficients with libjpeg's own entropy decoders.
Status read_any_scans(Reader& r, JpegCoefficients& out) {
  if (read_arrays(r) == Step::failed) return r.failure();
  if (!complete(r.info)) return foreign("a progressive file with missing scans");
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

// Checks that a JPEG file can hold these coefficients: damage that libjpeg tolerates may have left
// any number. If all DCs of a component and 0 span at most kMaxDcSpan, every DC difference fits,
// whichever block comes before.
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
