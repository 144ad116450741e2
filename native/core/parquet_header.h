// The header of a Parquet page: a Thrift struct in the compact protocol (parquet.thrift,
// PageHeader), of bytes not trusted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.h"

namespace fastio {

enum class PageType : std::int32_t { data = 0, index = 1, dictionary = 2, data_v2 = 3 };

enum class Encoding : std::int32_t {
  plain = 0,
  plain_dictionary = 2,
  rle = 3,
  bit_packed = 4,
  delta_binary_packed = 5,
  rle_dictionary = 8,
  byte_stream_split = 9,
};

struct PageHeader {
  PageType type = PageType::data;
  std::size_t bytes = 0;       // of the page behind its header, as stored
  std::size_t full_bytes = 0;  // the same, not compressed
  std::size_t values = 0;      // nulls among them
  bool has_crc = false;
  std::uint32_t crc = 0;  // CRC-32 of the page behind its header, as stored
  Encoding encoding = Encoding::plain;
  Encoding level_encoding = Encoding::rle;  // of definition levels
  // Of version 2 alone.
  std::size_t nulls = 0;
  std::size_t definition_bytes = 0;
  std::size_t repetition_bytes = 0;
  bool compressed = true;
};

// Reads the header at `at` and puts `at` behind it. What it does not know is skipped. All sizes
// are in [0, 2**31); whether there are so many bytes is the caller's to check.
Status read_page_header(const std::uint8_t*& at, const std::uint8_t* end, PageHeader& header);

}  // namespace fastio
