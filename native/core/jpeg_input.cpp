#include "jpeg_input.h"

#include <string>

#include <jerror.h>

namespace fastio {
namespace {

// The most scans of a file. Each one may traverse the whole image with only a few bytes of data.
constexpr int kMaxScans = 500;

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  (*info->err->format_message)(info, errors->message);
  const bool too_much = info->err->msg_code == JERR_NO_BACKING_STORE;
  if (too_much)
    std::snprintf(errors->message, sizeof errors->message, "needs more than %ld bytes of memory",
                  kMaxCoefficientBytes);
  errors->no_memory = too_much || info->err->msg_code == JERR_OUT_OF_MEMORY;
  std::longjmp(errors->escape, 1);
}

void on_message(j_common_ptr, int) {}  // ignores warnings, as Pillow does
void on_output(j_common_ptr) {}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  std::snprintf(errors->message, sizeof errors->message, "more than %d scans", kMaxScans);
  std::longjmp(errors->escape, 1);
}

void source_init(j_decompress_ptr) {}

boolean source_fill(j_decompress_ptr info) {
  // All bytes were in the buffer from the beginning, so the file is truncated.
  reinterpret_cast<JpegSource*>(info->src)->ran_out = true;
  ERREXIT(info, JERR_INPUT_EOF);
  return FALSE;
}

void source_skip(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > info->src->bytes_in_buffer) {
    source_fill(info);  // does not return
  }
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

void source_term(j_decompress_ptr) {}

Step create(JpegInput& s) {
  s.info.err = s.errors.begin();
  s.source.ran_out = false;
  s.created = true;
  if (setjmp(s.errors.escape)) return Step::failed;
  jpeg_create_decompress(&s.info);
  s.source.base.init_source = source_init;
  s.source.base.fill_input_buffer = source_fill;
  s.source.base.skip_input_data = source_skip;
  s.source.base.resync_to_restart = jpeg_resync_to_restart;
  s.source.base.term_source = source_term;
  s.info.src = &s.source.base;
  s.progress.progress_monitor = on_progress;
  s.info.progress = &s.progress;
  s.info.mem->max_memory_to_use = kMaxCoefficientBytes;
  return Step::ok;
}

Step read_header(JpegInput& s, const std::uint8_t* data, std::size_t size, bool keep_metadata) {
  s.source.base.next_input_byte = data;
  s.source.base.bytes_in_buffer = size;
  if (setjmp(s.errors.escape)) return Step::failed;
  if (keep_metadata) {
    jpeg_save_markers(&s.info, JPEG_COM, 0xFFFF);
    for (int i = 0; i < 16; ++i) jpeg_save_markers(&s.info, JPEG_APP0 + i, 0xFFFF);
  }
  jpeg_read_header(&s.info, TRUE);
  return Step::ok;
}

// Whether `size` bytes can hold an image of this size. With Huffman codes, every block of the
// largest component takes at least one bit; arithmetic coding may take less, but real images take
// more than 1/64 bit per block.
bool can_hold(std::size_t size, const JpegHeader& header) {
  const std::int64_t blocks =
      ((std::int64_t{header.height} + 7) / 8) * ((std::int64_t{header.width} + 7) / 8);
  const bool arithmetic = header.kind == JpegHeader::Kind::arithmetic;
  return static_cast<std::int64_t>(size) >= blocks / (arithmetic ? 64 * 8 : 8);
}

}  // namespace

jpeg_error_mgr* JpegErrors::begin() {
  jpeg_std_error(&base);
  base.error_exit = on_error;
  base.emit_message = on_message;
  base.output_message = on_output;
  no_memory = false;
  return &base;
}

Status JpegInput::open(const std::uint8_t* data, std::size_t size, bool want_orientation,
                       bool keep_metadata, JpegHeader& header) {
  if (size == 0) return Status::error(Code::truncated, "it is empty: 0 bytes");
  if (size < 4 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF)
    return Status::error(Code::foreign, "not a JPEG");
  close();
  if (create(*this) == Step::failed) return failure();
  if (read_header(*this, data, size, keep_metadata) == Step::failed) {
    const Status status = failure();
    close();
    return status;
  }
  header.height = static_cast<std::int32_t>(info.image_height);
  header.width = static_cast<std::int32_t>(info.image_width);
  header.components = info.num_components;
  header.kind = info.arith_code         ? JpegHeader::Kind::arithmetic
                : info.progressive_mode ? JpegHeader::Kind::progressive
                                        : JpegHeader::Kind::baseline;
  header.orientation = want_orientation ? exif_orientation(data, size) : 1;
  if (!can_hold(size, header))
    return Status::error(Code::truncated, std::to_string(size) +
                                              " bytes are too few for a JPEG of " +
                                              std::to_string(header.height) + " x " +
                                              std::to_string(header.width) + " pixels");
  if (header.components != 1 && header.components != 3)
    return Status::error(Code::foreign,
                         "JPEG with " + std::to_string(header.components) + " components");
  return Status::okay();
}

void JpegInput::close() {
  // Not jpeg_abort(), which keeps the tables: a file without a table would use the last file's.
  if (created) jpeg_destroy_decompress(&info);
  created = false;
}

Status JpegInput::failure() const {
  if (errors.no_memory) return Status::error(Code::memory, errors.message);
  if (source.ran_out) return Status::error(Code::truncated, "JPEG data ends too early");
  return Status::error(Code::corrupt, errors.message);
}

#ifdef FASTIO_JPEG_INTERNALS
bool JpegInput::internals_fit() const {
  return errors.base.last_jpeg_message == JMSG_LASTMSGCODE - 1;
}
#endif

}  // namespace fastio
