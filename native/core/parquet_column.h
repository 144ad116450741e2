// A column chunk of a Parquet file to an array: flat columns of numbers of 4 or 8 bytes, of bytes
// not trusted. Encodings PLAIN and dictionaries; data pages of versions 1 and 2; not compressed, or
// Snappy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "parquet_header.h"
#include "status.h"

namespace fastio {

// What a file's footer says of a column chunk.
struct ColumnChunk {
  const std::uint8_t* data;  // its pages
  std::size_t bytes;
  std::size_t rows;
  int width;      // bytes of a number: 4 or 8
  bool nullable;  // it has definition levels, of 1 at most
  bool snappy;
  bool checked = false;  // pages are compared with their checksums, where they have any
};

// Decodes column chunks, one after the other: not thread-safe. It keeps the memory that it took, up
// to kKeptBytes a buffer.
class ColumnDecoder {
 public:
  static constexpr std::size_t kKeptBytes = std::size_t{8} << 20;

  // The values of all rows to `values`, chunk.rows * chunk.width bytes: zero where they are null.
  // `validity` (where chunk.nullable): (chunk.rows + 7) / 8 bytes, Arrow's bitmap of what is not
  // null; written only if there are nulls. `nulls`: how many.
  //
  // Code::unsupported: it has pages that this does not decode; Code::corrupt, Code::truncated: it
  // is damaged; Code::memory. What was written by then is of no use.
  Status decode(const ColumnChunk& chunk, std::uint8_t* values, std::uint8_t* validity,
                std::size_t& nulls);

 private:
  struct Memory {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;

    std::uint8_t* room(std::size_t wanted);  // null: there is none
    void shrink();
  };
  struct Part {
    const std::uint8_t* at;
    std::size_t bytes;
    std::size_t left(const std::uint8_t* here) const {
      return bytes - static_cast<std::size_t>(here - at);
    }
  };

  Status decode_pages();
  Status read_dictionary(const PageHeader& header, Part page);
  Status read_data(const PageHeader& header, Part page);
  Status read_levels(const PageHeader& header, Part levels, std::size_t& valid);
  Status read_values(const PageHeader& header, Part values, std::size_t valid);
  Status decompress(Part in, std::size_t bytes, Memory& memory, Part& out);

  ColumnChunk chunk_ = {};
  std::uint8_t* values_ = nullptr;
  std::uint8_t* validity_ = nullptr;
  std::size_t done_ = 0;  // rows
  std::size_t nulls_ = 0;
  bool has_dictionary_ = false;
  Part dictionary_ = {};
  std::size_t entries_ = 0;
  Memory dictionary_memory_, page_memory_, level_memory_;
};

}  // namespace fastio
