#include "jpeg.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "jpeg_input.h"
#include "jpeg_planes.h"
#include "jpeg_scan.h"

#include <jerror.h>

namespace fastio {
namespace {

constexpr int kRowsACall = 16;
// Columns decoded to each side of a region, in pixels of the decoded scale. Fancy upsampling uses
// one chroma sample (two pixels, or four for 4:1:1) to each side, and repeats the last sample at
// the edge of the decoded columns.
constexpr std::int32_t kMargin = 4;

std::uint32_t read_uint(const std::uint8_t* p, int bytes, bool little) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i)
    value |= static_cast<std::uint32_t>(p[i]) << (8 * (little ? i : bytes - 1 - i));
  return value;
}

// Returns the orientation tag of a TIFF structure (EXIF 2.3, section 4.6.4), or 0 if it has none.
int tiff_orientation(const std::uint8_t* tiff, std::size_t size) {
  if (size < 8) return 0;
  const bool little = tiff[0] == 'I' && tiff[1] == 'I';
  if (!little && !(tiff[0] == 'M' && tiff[1] == 'M')) return 0;
  if (read_uint(tiff + 2, 2, little) != 42) return 0;
  const std::size_t directory = read_uint(tiff + 4, 4, little);
  if (directory > size - 2 || size < 2) return 0;
  const std::size_t entries = read_uint(tiff + directory, 2, little);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = directory + 2 + 12 * i;
    if (at + 12 > size) return 0;
    constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
    if (read_uint(tiff + at, 2, little) == kOrientation)
      return read_uint(tiff + at + 2, 2, little) == kShort
                 ? static_cast<int>(read_uint(tiff + at + 8, 2, little))
                 : 0;
  }
  return 0;
}

}  // namespace

int exif_orientation(const std::uint8_t* data, std::size_t size) {
  std::size_t at = 2;
  while (at + 4 <= size && data[at] == 0xFF) {
    const std::uint8_t marker = data[at + 1];
    if (marker == 0xFF) {  // a fill byte
      ++at;
      continue;
    }
    if (marker == 0xDA || marker == 0xD9) break;
    const std::size_t length = read_uint(data + at + 2, 2, false);
    if (length < 2 || length > size - at - 2) break;
    const std::uint8_t* body = data + at + 4;
    const std::size_t body_size = length - 2;
    if (marker == 0xE1 && body_size >= 6 && std::memcmp(body, "Exif\0\0", 6) == 0) {
      const int orientation = tiff_orientation(body + 6, body_size - 6);
      return orientation >= 1 && orientation <= 8 ? orientation : 1;
    }
    at += 2 + length;
  }
  return 1;
}

// Not movable, because libjpeg keeps pointers to it. The functions below that call libjpeg may be
// left by longjmp.
struct JpegDecoder::State : JpegInput {
  static constexpr std::size_t kKeep = 32u << 20;  // bytes of planes, between images

  JSAMPROW rows[kRowsACall];
  JpegScan scan;
  JpegPlanes planes;

  // The file.
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;

  // State of decode_mcu().
  JDIMENSION column;       // of the next MCU in its row
  unsigned restarts_left;  // MCUs before the next restart marker
};

namespace {

#ifdef FASTIO_JPEG_INTERNALS

// Replaces libjpeg's decode_mcu. Gives the same coefficients, but none for MCUs outside the crop,
// whose blocks libjpeg does not use. `blocks` is null while rows are skipped.
template <typename State>
boolean decode_mcu(j_decompress_ptr info, JBLOCKROW* blocks) {
  State& s = *static_cast<State*>(info->client_data);
  ScanDecoder& scan = s.scan.decoder();
  if (info->restart_interval > 0) {
    if (s.restarts_left == 0) {
      scan.restart();
      s.restarts_left = info->restart_interval;
    }
    --s.restarts_left;
  }
  const bool wanted =
      blocks && s.column >= info->master->first_iMCU_col && s.column <= info->master->last_iMCU_col;
  s.column = s.column + 1 == info->MCUs_per_row ? 0 : s.column + 1;
  const int blocks_there = scan.insufficient() ? 0 : info->blocks_in_MCU;
  for (int i = 0; i < blocks_there; ++i) {
    const McuLayout::Block& block = s.scan.layout().block[i];
    scan.block(*block.dc, *block.ac, block.component, wanted ? *blocks[i] : nullptr);
  }
  info->entropy->insufficient_data = scan.insufficient();
  if (scan.ran_out()) {
    s.source.ran_out = true;
    ERREXIT(info, JERR_INPUT_EOF);
  }
  return TRUE;
}

// Installs our entropy decoder, before the first MCU, if JpegScan can decode the file: a baseline
// or extended sequential file with one scan of all components.
template <typename State>
void replace_entropy_decoder(State& s) {
  jpeg_decompress_struct& info = s.info;
  if (!s.internals_fit() || !s.scan.open(info)) return;
  s.column = 0;
  s.restarts_left = info.restart_interval;
  info.client_data = &s;
  info.entropy->decode_mcu = decode_mcu<State>;
}

#else

template <typename State>
void replace_entropy_decoder(State&) {}

#endif

template <typename State>
Step start_region(State& s, const Rect& wanted, int denominator, std::int32_t& offset_x,
                  std::int32_t& columns) {
  if (setjmp(s.errors.escape)) return Step::failed;
  s.info.scale_num = 1;
  s.info.scale_denom = static_cast<unsigned>(denominator);
  s.info.out_color_space = s.info.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  s.info.dct_method = JDCT_ISLOW;
  s.info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&s.info);
  replace_entropy_decoder(s);

  const auto width = static_cast<std::int32_t>(s.info.output_width);
  // libjpeg crops incorrectly if it scales chroma by less than luma and also upsamples it.
  const bool whole =
      denominator > 1 && (s.info.max_h_samp_factor > 2 || s.info.max_v_samp_factor > 2);
  const std::int32_t left = whole || wanted.x <= kMargin ? 0 : wanted.x - kMargin;
  const std::int32_t end = wanted.x + wanted.width;
  const std::int32_t right = whole || end >= width - kMargin ? width : end + kMargin;
  JDIMENSION first = static_cast<JDIMENSION>(left);
  JDIMENSION count = static_cast<JDIMENSION>(right - left);
  if (left > 0 || right < width) jpeg_crop_scanline(&s.info, &first, &count);
  offset_x = wanted.x - static_cast<std::int32_t>(first);
  columns = static_cast<std::int32_t>(count);
  if (wanted.y > 0) jpeg_skip_scanlines(&s.info, static_cast<JDIMENSION>(wanted.y));
  return Step::ok;
}

template <typename State>
Step read_rows(State& s, std::uint8_t* dst, std::size_t stride, std::int32_t rows) {
  if (setjmp(s.errors.escape)) return Step::failed;
  // Need not be volatile: it is not read after a longjmp.
  std::int32_t done = 0;
  while (done < rows) {
    const std::int32_t now = rows - done < kRowsACall ? rows - done : kRowsACall;
    for (std::int32_t i = 0; i < now; ++i)
      s.rows[i] = dst + static_cast<std::size_t>(done + i) * stride;
    const JDIMENSION got = jpeg_read_scanlines(&s.info, s.rows, static_cast<JDIMENSION>(now));
    if (got == 0) {  // the caller asked for rows past the last one
      std::snprintf(s.errors.message, sizeof s.errors.message, "no more rows");
      return Step::failed;
    }
    done += static_cast<std::int32_t>(got);
  }
  return Step::ok;
}

// Parses the scan to its end, and the markers after it. Fails if JpegScan cannot decode the scan,
// or if the file is damaged in any way.
template <typename State>
Step parse(State& s, JpegIndex& index) {
  if (!s.scan.open(s.info)) return Step::failed;
  s.scan.use(nullptr, &index);
  const bool whole = s.scan.skip_to(std::int64_t{s.scan.rows()} * s.scan.columns());
  return whole ? read_end(s, s.scan) : Step::failed;
}

template <typename State>
Step read_all_coefficients(State& s) {
  if (setjmp(s.errors.escape)) return Step::failed;
  jpeg_read_coefficients(&s.info);
  return Step::ok;
}

}  // namespace

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}

JpegDecoder::~JpegDecoder() { finish(); }

Status JpegDecoder::open(const std::uint8_t* data, std::size_t size, bool want_orientation,
                         JpegHeader& header) {
  state_->data = data;
  state_->size = size;
  return state_->open(data, size, want_orientation, false, header);
}

Status JpegDecoder::begin(const Rect& wanted, int denominator, std::int32_t& offset_x,
                          std::int32_t& columns) {
  State& s = *state_;
  if (start_region(s, wanted, denominator, offset_x, columns) == Step::failed) return s.failure();
  return Status::okay();
}

Status JpegDecoder::read(std::uint8_t* dst, std::size_t stride, std::int32_t rows) {
  State& s = *state_;
  if (read_rows(s, dst, stride, rows) == Step::failed) return s.failure();
  if (s.source.ran_out) return Status::error(Code::truncated, "JPEG data ends too early");
  return Status::okay();
}

const BlockShape* JpegDecoder::planes() {
  State& s = *state_;
  return s.planes.open(s, s.scan) ? &s.planes.shape() : nullptr;
}

Status JpegDecoder::decode(const PlaneRegion& region, const JpegIndex* index, JpegIndex* found,
                           PlaneView* planes) {
  state_->scan.use(index, found);
  return state_->planes.decode(region, planes);
}

void JpegDecoder::finish() {
  state_->close();
  state_->planes.shrink(State::kKeep);
}

Status JpegDecoder::check(JpegIndex& index) {
  State& s = *state_;
  Status status = Status::okay();
  if (parse(s, index) == Step::failed) {
    // Let libjpeg read the file from its beginning, and report what is wrong, if anything is.
    JpegHeader header;
    s.close();
    status = s.open(s.data, s.size, false, false, header);
    const bool many = status.code == Code::foreign && header.components > 0;  // 2 or 4 components
    if (many) status = Status::okay();
    if (status.ok() && read_all_coefficients(s) == Step::failed) status = s.failure();
    if (status.ok() && s.source.ran_out)
      status = Status::error(Code::truncated, "JPEG data ends too early");
  }
  finish();
  return status;
}

}  // namespace fastio
