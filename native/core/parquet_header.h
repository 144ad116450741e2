// Parses the header of a Parquet page: a Thrift struct in the compact protocol (parquet.thrift,
// PageHeader). The bytes are not trusted.
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
  std::size_t bytes = 0;       // of the page after its header, as stored
  std::size_t full_bytes = 0;  // of the page after its header, decompressed
  std::size_t values = 0;      // including nulls
  bool has_crc = false;
  std::uint32_t crc = 0;  // CRC-32 of the page after its header, as stored
  Encoding encoding = Encoding::plain;
  Encoding level_encoding = Encoding::rle;  // of definition levels
  // Only in data pages of version 2.
  std::size_t nulls = 0;
  std::size_t definition_bytes = 0;
  std::size_t repetition_bytes = 0;
  bool compressed = true;
};

// Parses the header at `at`, and advances `at` past it. Skips unknown fields. All sizes are in
// [0, 2**31); the caller must check that there are so many bytes.
Status read_page_header(const std::uint8_t*& at, const std::uint8_t* end, PageHeader& header);

}  // namespace fastio
