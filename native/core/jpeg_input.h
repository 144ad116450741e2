// libjpeg-turbo's decompressor with a file in memory as its source: errors, limits and the header.
// For jpeg.cpp, jpeg_scan, jpeg_planes.cpp, jpeg_coefficients.cpp and jpeg_write.cpp, the only
// files that include this one and jpeglib.h.
//
// libjpeg leaves its calls by longjmp when something is wrong. No C++ frame with a destructor to
// run may lie between such a call and its setjmp(): each call sits in a function of plain data that
// begins with `if (setjmp(input.errors.escape)) return Step::failed;`.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>

// libjpeg's internal header, where it is installed, lets our entropy decoder take the place of
// libjpeg's; elsewhere libjpeg's own is used, which gives the same coefficients, later.
#if __has_include(<jpegint.h>)
#define FASTIO_JPEG_INTERNALS 1
#define JPEG_INTERNALS
#endif
// jpeglib.h needs FILE and size_t declared before it.
#include <jpeglib.h>

#include "jpeg.h"
#include "status.h"

namespace fastio {

// What damaged or malicious files may ask for: memory of an image that comes in several scans.
inline constexpr long kMaxCoefficientBytes = 2047l << 20;

enum class Step { ok, failed };

// Where libjpeg's errors go. Plain data.
struct JpegErrors {
  jpeg_error_mgr base;  // first, so that libjpeg's pointer is ours
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
  bool no_memory;

  // Makes it ready and gives what libjpeg wants to have as `err`. Warnings are not heeded.
  jpeg_error_mgr* begin();
};

struct JpegSource {
  jpeg_source_mgr base;
  bool ran_out;
};

// A file that is being read. Plain data, at one place from open() to close().
struct JpegInput {
  jpeg_decompress_struct info;
  JpegErrors errors;
  JpegSource source;
  jpeg_progress_mgr progress;
  bool created = false;

  // Reads the header, up to the first scan; see JpegDecoder::open(). The bytes must live until
  // close(). keep_metadata: APPn and COM segments are kept in info.marker_list.
  Status open(const std::uint8_t* data, std::size_t size, bool want_orientation, bool keep_metadata,
              JpegHeader& header);

  // Always safe to call.
  void close();

  // The error that a step failed with.
  Status failure() const;

#ifdef FASTIO_JPEG_INTERNALS
  // Whether the library is of the release that its internal header came with: releases that
  // changed those structs have other messages too.
  bool internals_fit() const;
#endif
};

}  // namespace fastio
