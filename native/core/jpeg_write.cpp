// write_jpeg() of jpeg_coefficients.h.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "codebook.h"
#include "jpeg_coefficients.h"
#include "jpeg_input.h"

#include <jerror.h>

namespace fastio {
namespace {

// Plain data, because libjpeg may leave calls by longjmp.
struct Writer {
  jpeg_compress_struct info;
  JpegErrors errors;
  jpeg_destination_mgr destination;
  bool created = false;
  JOCTET* bytes = nullptr;  // from realloc()
  std::size_t capacity = 0;
  jvirt_barray_ptr arrays[3];
};

struct Closer {
  Writer& writer;
  ~Closer() {
    if (writer.created) jpeg_destroy_compress(&writer.info);
    std::free(writer.bytes);
  }
};

void grow(Writer& w) {
  const std::size_t capacity = w.capacity ? 2 * w.capacity : std::size_t{1} << 16;
  auto* bytes = static_cast<JOCTET*>(std::realloc(w.bytes, capacity));
  if (!bytes) ERREXIT1(&w.info, JERR_OUT_OF_MEMORY, 0);
  w.destination.next_output_byte = bytes + w.capacity;
  w.destination.free_in_buffer = capacity - w.capacity;
  w.bytes = bytes;
  w.capacity = capacity;
}

void destination_init(j_compress_ptr info) { grow(*static_cast<Writer*>(info->client_data)); }

boolean destination_empty(j_compress_ptr info) {
  grow(*static_cast<Writer*>(info->client_data));
  return TRUE;
}

void destination_term(j_compress_ptr) {}

Step create(Writer& w) {
  w.info.err = w.errors.begin();
  w.created = true;
  if (setjmp(w.errors.escape)) return Step::failed;
  jpeg_create_compress(&w.info);
  w.destination.init_destination = destination_init;
  w.destination.empty_output_buffer = destination_empty;
  w.destination.term_destination = destination_term;
  w.info.dest = &w.destination;
  w.info.client_data = &w;
  return Step::ok;
}

J_COLOR_SPACE colour_space(Colour colour) {
  return colour == Colour::gray ? JCS_GRAYSCALE : colour == Colour::rgb ? JCS_RGB : JCS_YCbCr;
}

// Sets the header's fields, and requests the arrays for the coefficients.
Step describe(Writer& w, const JpegCoefficients& in) {
  const BlockShape& shape = in.shape;
  if (setjmp(w.errors.escape)) return Step::failed;
  w.info.image_width = static_cast<JDIMENSION>(shape.width);
  w.info.image_height = static_cast<JDIMENSION>(shape.height);
  w.info.input_components = shape.components;
  w.info.in_color_space = colour_space(shape.colour);
  jpeg_set_defaults(&w.info);
  jpeg_set_colorspace(&w.info, w.info.in_color_space);
  w.info.write_JFIF_header = FALSE;
  w.info.write_Adobe_marker = FALSE;
  w.info.optimize_coding = TRUE;
  if (in.progressive) jpeg_simple_progression(&w.info);
  for (int k = 0; k < shape.tables; ++k) {
    if (!w.info.quant_tbl_ptrs[k])
      w.info.quant_tbl_ptrs[k] = jpeg_alloc_quant_table(reinterpret_cast<j_common_ptr>(&w.info));
    for (int z = 0; z < 64; ++z) w.info.quant_tbl_ptrs[k]->quantval[kZigzag[z]] = shape.quant[k][z];
  }
  for (int c = 0; c < shape.components; ++c) {
    jpeg_component_info& of = w.info.comp_info[c];
    of.component_id = shape.ids[c];
    of.h_samp_factor = c == 0 ? shape.sub_x : 1;
    of.v_samp_factor = c == 0 ? shape.sub_y : 1;
    of.quant_tbl_no = shape.table[c];
    // libjpeg reads whole MCUs, and fills in the blocks beyond the component's own.
    const auto whole = [](int blocks, int factor) {
      return static_cast<JDIMENSION>((blocks + factor - 1) / factor * factor);
    };
    w.arrays[c] = w.info.mem->request_virt_barray(
        reinterpret_cast<j_common_ptr>(&w.info), JPOOL_IMAGE, TRUE,
        whole(shape.blocks_x(c), of.h_samp_factor), whole(shape.blocks_y(c), of.v_samp_factor),
        static_cast<JDIMENSION>(of.v_samp_factor));
  }
  return Step::ok;
}

// Writes the beginning of the file. metadata: whole segments, see whole_segments().
Step write_segments(Writer& w, const std::uint8_t* metadata, std::size_t size) {
  if (setjmp(w.errors.escape)) return Step::failed;
  jpeg_write_coefficients(&w.info, w.arrays);
  for (std::size_t at = 0; at < size;) {
    const std::size_t length = static_cast<std::size_t>(metadata[at + 2]) << 8 | metadata[at + 3];
    jpeg_write_marker(&w.info, metadata[at + 1], metadata + at + 4,
                      static_cast<unsigned>(length - 2));
    at += 2 + length;
  }
  return Step::ok;
}

Step fill_array(Writer& w, int c, int rows, std::size_t row_bytes, const std::int16_t* from) {
  if (setjmp(w.errors.escape)) return Step::failed;
  for (int y = 0; y < rows; ++y) {
    JBLOCKARRAY to = w.info.mem->access_virt_barray(
        reinterpret_cast<j_common_ptr>(&w.info), w.arrays[c], static_cast<JDIMENSION>(y), 1, TRUE);
    std::memcpy(
        to[0][0],
        reinterpret_cast<const std::uint8_t*>(from) + static_cast<std::size_t>(y) * row_bytes,
        row_bytes);
  }
  return Step::ok;
}

Step finish(Writer& w) {
  if (setjmp(w.errors.escape)) return Step::failed;
  jpeg_finish_compress(&w.info);
  return Step::ok;
}

bool whole_segments(const std::vector<std::uint8_t>& metadata) {
  std::size_t at = 0;
  while (metadata.size() - at >= 4) {
    const std::uint8_t marker = metadata[at + 1];
    const std::size_t length = static_cast<std::size_t>(metadata[at + 2]) << 8 | metadata[at + 3];
    const bool kept = (marker >= JPEG_APP0 && marker <= JPEG_APP0 + 15) || marker == JPEG_COM;
    if (metadata[at] != 0xFF || !kept || length < 2 || length > metadata.size() - at - 2)
      return false;
    at += 2 + length;
  }
  return at == metadata.size();
}

Status check(const JpegCoefficients& in) {
  const Status status = in.shape.check();
  if (!status.ok()) return status;
  for (int c = 0; c < in.shape.components; ++c)
    if (in.blocks[c].size() !=
        std::size_t{64} * in.shape.blocks_x(c) * static_cast<std::size_t>(in.shape.blocks_y(c)))
      return Status::error(Code::corrupt, "the number of blocks does not match the image's size");
  if (!whole_segments(in.metadata))
    return Status::error(Code::corrupt, "the metadata contains more than APPn and COM segments");
  return status;
}

Status failure(const Writer& w) {
  return Status::error(w.errors.no_memory ? Code::memory : Code::unsupported, w.errors.message);
}

Status write(Writer& w, const JpegCoefficients& in, std::vector<std::uint8_t>& out) {
  if (create(w) == Step::failed || describe(w, in) == Step::failed ||
      write_segments(w, in.metadata.data(), in.metadata.size()) == Step::failed)
    return failure(w);
  for (int c = 0; c < in.shape.components; ++c)
    if (fill_array(w, c, in.shape.blocks_y(c),
                   std::size_t{128} * static_cast<std::size_t>(in.shape.blocks_x(c)),
                   in.blocks[c].data()) == Step::failed)
      return failure(w);
  if (finish(w) == Step::failed) return failure(w);
  out.assign(w.bytes, w.bytes + (w.capacity - w.destination.free_in_buffer));
  return Status::okay();
}

}  // namespace

Status write_jpeg(const JpegCoefficients& in, std::vector<std::uint8_t>& out) {
  try {
    const Status status = check(in);
    if (!status.ok()) return status;
    const auto writer = std::make_unique<Writer>();
    const Closer closer{*writer};
    return write(*writer, in, out);
  } catch (const std::bad_alloc&) {
    return Status::error(Code::memory, "out of memory");
  }
}

}  // namespace fastio
