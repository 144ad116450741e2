// Decodes a column chunk of a Parquet file to an array: flat columns of numbers of 4 or 8 bytes.
// Supports PLAIN and dictionary encodings, data pages of versions 1 and 2, and no compression or
// Snappy. The bytes are not trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "parquet_header.h"
#include "status.h"

namespace fastio {

// A column chunk, as the file's footer describes it.
struct ColumnChunk {
  const std::uint8_t* data;  // the pages
  std::size_t bytes;
  std::size_t rows;
  int width;      // bytes of a number: 4 or 8
  bool nullable;  // there are definition levels, of at most 1
  bool snappy;
  bool checked = false;  // whether to compare the checksums of pages that have one
};

// Decodes column chunks, one after the other. Not thread-safe. Keeps its buffers, up to kKeptBytes
// each.
class ColumnDecoder {
 public:
  static constexpr std::size_t kKeptBytes = std::size_t{8} << 20;

  // Decodes all rows. values: chunk.rows * chunk.width bytes; nulls become 0. validity: if
  // chunk.nullable, (chunk.rows + 7) / 8 bytes for Arrow's validity bitmap, which is written only
  // if there are nulls. nulls: set to the number of nulls.
  //
  // Returns Code::unsupported if there are pages that this class does not decode, and Code::corrupt
  // or Code::truncated if the chunk is damaged. After an error, the output is undefined.
  Status decode(const ColumnChunk& chunk, std::uint8_t* values, std::uint8_t* validity,
                std::size_t& nulls);

 private:
  struct Memory {
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;

    std::uint8_t* room(std::size_t wanted);  // null: there is not enough memory
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
  std::size_t done_ = 0;  // the rows that are decoded
  std::size_t nulls_ = 0;
  bool has_dictionary_ = false;
  Part dictionary_ = {};
  std::size_t entries_ = 0;
  Memory dictionary_memory_, page_memory_, level_memory_;
};

}  // namespace fastio
