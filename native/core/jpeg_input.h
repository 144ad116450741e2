// libjpeg-turbo's decompressor with a file in memory as its source: errors, limits and the header.
// Used by jpeg.cpp, jpeg_scan, jpeg_planes.cpp, jpeg_coefficients.cpp and jpeg_write.cpp, the only
// files that include this one and jpeglib.h.
//
// libjpeg reports errors by longjmp. No C++ frame with a destructor to run may lie between a call
// of libjpeg and its setjmp(), so each call is in a function that has plain data only and begins
// with `if (setjmp(input.errors.escape)) return Step::failed;`.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>

// If libjpeg's internal header is installed, our entropy decoder replaces libjpeg's. Otherwise
// libjpeg's own is used, which gives the same coefficients but is slower.
#if __has_include(<jpegint.h>)
#define FASTIO_JPEG_INTERNALS 1
#define JPEG_INTERNALS
#endif
// jpeglib.h needs FILE and size_t declared before it.
#include <jpeglib.h>

#include "jpeg.h"
#include "status.h"

namespace fastio {

// The most memory in bytes that an image of several scans may take, since damaged and malicious
// files may claim any size.
inline constexpr long kMaxCoefficientBytes = 2047l << 20;

enum class Step { ok, failed };

// Receives libjpeg's errors. Plain data.
struct JpegErrors {
  jpeg_error_mgr base;  // must be first, so that libjpeg's pointer to it converts to JpegErrors*
  std::jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
  bool no_memory;

  // Initialises the object and returns the pointer for libjpeg's `err`. Warnings are ignored.
  jpeg_error_mgr* begin();
};

// The bytes of the file. Plain data.
struct JpegSource {
  jpeg_source_mgr base;  // must be first, as in JpegErrors
  bool ran_out;          // libjpeg asked for bytes after the last one
};

// A file that is being read. Plain data. Must not be moved between open() and close().
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

  // Frees libjpeg's memory. May be called at any time.
  void close();

  // Returns the error of the step that returned Step::failed.
  Status failure() const;

#ifdef FASTIO_JPEG_INTERNALS
  // Whether the library has the internal structs of the header that this was compiled with.
  // Compares the number of messages, because releases that changed those structs changed it too.
  bool internals_fit() const;
#endif
};

}  // namespace fastio
