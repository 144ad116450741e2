#include "parquet_column.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>

#include "crc32.h"
#include "parquet_runs.h"
#include "snappy.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;

Status corrupt(const char* what) { return Status::error(Code::corrupt, what); }

Status unsupported(const char* what) { return Status::error(Code::unsupported, what); }

// Copies bits to bits [first, first + count) of `out`, which must be ones.
void put_bits(const Byte* in, std::size_t count, Byte* out, std::size_t first) {
  out += first / 8;
  const std::size_t shift = first % 8;
  for (std::size_t i = 0; i < count; i += 8) {
    // Treat the unused bits of the last byte as ones.
    const unsigned rest = count - i < 8 ? 0xFFu << (count - i) & 0xFFu : 0;
    const unsigned zeros = ~(in[i / 8] | rest) & 0xFFu;
    const unsigned moved = zeros << shift;
    if (moved & 0xFFu) out[i / 8] &= static_cast<Byte>(~moved);
    if (moved >> 8) out[i / 8 + 1] &= static_cast<Byte>(~(moved >> 8));
  }
}

std::size_t count_ones(const Byte* bits, std::size_t count) {
  std::size_t ones = 0, i = 0;
  for (; i + 64 <= count; i += 64) {
    std::uint64_t word;
    std::memcpy(&word, bits + i / 8, 8);
    ones += static_cast<std::size_t>(std::popcount(word));
  }
  for (; i < count; ++i) ones += bits[i / 8] >> i % 8 & 1u;
  return ones;
}

// Sets bits [first, first + count) of `out`, which must be zeros.
void put_ones(std::size_t count, Byte* out, std::size_t first) {
  const std::size_t last = first + count;  // the end of the range
  const unsigned head = 0xFFu << first % 8 & 0xFFu, tail = (1u << last % 8) - 1;
  Byte *at = out + first / 8, *const end = out + last / 8;
  if (at == end) {
    if (tail) *at |= static_cast<Byte>(head & tail);
    return;
  }
  *at++ |= static_cast<Byte>(head);
  while (at < end) *at++ = 0xFF;
  if (tail) *end |= static_cast<Byte>(tail);
}

// Copies bits to bits [first, first + count) of `out`, which must be zeros.
void copy_bits(const Byte* in, std::size_t count, Byte* out, std::size_t first) {
  if (first % 8 == 0) {
    std::memcpy(out + first / 8, in, (count + 7) / 8);
    if (count % 8) out[(first + count) / 8] &= static_cast<Byte>((1u << count % 8) - 1);
    return;
  }
  out += first / 8;
  const std::size_t shift = first % 8;
  for (std::size_t i = 0; i < count; i += 8) {
    const unsigned wanted = count - i < 8 ? (1u << (count - i)) - 1 : 0xFFu;
    const unsigned moved = (in[i / 8] & wanted) << shift;
    out[i / 8] |= static_cast<Byte>(moved);
    if (moved >> 8) out[i / 8 + 1] |= static_cast<Byte>(moved >> 8);
  }
}

// Converts levels of 0 or 1 to bits, which must be zeros. Returns false if the levels are damaged.
bool levels_to_bits(Runs runs, Byte* bits) {
  Run run;
  for (std::size_t first = 0; runs.left(); first += run.count) {
    if (!runs.next(run) || run.value > 1) return false;
    if (run.packed)
      copy_bits(run.bytes, run.count, bits, first);
    else if (run.value)
      put_ones(run.count, bits, first);
  }
  return true;
}

}  // namespace

Byte* ColumnDecoder::Memory::room(std::size_t wanted) {
  if (wanted > size) {
    bytes.reset();
    size = 0;
    bytes.reset(new (std::nothrow) Byte[wanted]);
    if (bytes) size = wanted;
  }
  return bytes.get();
}

void ColumnDecoder::Memory::shrink() {
  if (size <= kKeptBytes) return;
  bytes.reset();
  size = 0;
}

Status ColumnDecoder::decode(const ColumnChunk& chunk, Byte* values, Byte* validity,
                             std::size_t& nulls) {
  chunk_ = chunk;
  values_ = values;
  validity_ = validity;
  done_ = nulls_ = entries_ = 0;
  has_dictionary_ = false;
  Status status = decode_pages();
  nulls = nulls_;
  for (Memory* memory : {&dictionary_memory_, &page_memory_, &level_memory_}) memory->shrink();
  return status;
}

Status ColumnDecoder::decode_pages() {
  const Byte* at = chunk_.data;
  const Byte* const end = chunk_.data + chunk_.bytes;
  for (std::size_t page = 0; done_ < chunk_.rows; ++page) {
    PageHeader header;
    const auto offset = static_cast<std::size_t>(at - chunk_.data);
    Status status;
    if (at == end) {
      status =
          Status::error(Code::truncated, "it is missing: the chunk has fewer rows than it should");
    } else {
      status = read_page_header(at, end, header);
    }
    if (status.ok() && header.bytes > static_cast<std::size_t>(end - at))
      status = Status::error(Code::truncated, "it has more bytes than its column chunk");
    if (status.ok() && chunk_.checked && header.has_crc && crc32(at, header.bytes) != header.crc)
      status = corrupt("its CRC-32 does not match");
    if (status.ok()) {
      const Part body{at, header.bytes};
      at += header.bytes;
      if (header.type == PageType::dictionary)
        status = read_dictionary(header, body);
      else if (header.type == PageType::data || header.type == PageType::data_v2)
        status = read_data(header, body);
    }
    if (!status.ok())
      return Status::error(status.code, "page " + std::to_string(page) + " (at byte " +
                                            std::to_string(offset) +
                                            " of the column chunk): " + status.message);
  }
  return Status::okay();
}

Status ColumnDecoder::read_dictionary(const PageHeader& header, Part page) {
  if (has_dictionary_) return corrupt("it is a second dictionary");
  if (header.encoding != Encoding::plain && header.encoding != Encoding::plain_dictionary)
    return unsupported("the encoding of its dictionary is not supported");
  Status status = decompress(page, header.full_bytes, dictionary_memory_, dictionary_);
  if (!status.ok()) return status;
  if (header.values > dictionary_.bytes / static_cast<std::size_t>(chunk_.width))
    return corrupt("its dictionary has fewer values than it says");
  entries_ = header.values;
  has_dictionary_ = true;
  return Status::okay();
}

// Returns the bytes of a page, decompressed to `memory` if the chunk is compressed.
Status ColumnDecoder::decompress(Part in, std::size_t bytes, Memory& memory, Part& out) {
  out = in;
  if (!chunk_.snappy)
    return in.bytes == bytes ? Status::okay() : corrupt("its sizes contradict each other");
  if (bytes > snappy_most(in.bytes))
    return corrupt("it is too short for the size that its header gives");
  Byte* const room = memory.room(bytes + kSnappySlack);
  if (!room) return Status::error(Code::memory, "no memory to decompress it");
  if (!snappy_decompress(in.at, in.bytes, room, bytes))
    return corrupt("its Snappy data is damaged");
  out = {room, bytes};
  return Status::okay();
}

Status ColumnDecoder::read_data(const PageHeader& header, Part page) {
  if (header.values > chunk_.rows - done_)
    return corrupt("it has more values than there are rows left");
  Part levels = {page.at, 0}, values = page;
  if (header.type == PageType::data_v2) {
    const std::size_t bytes = header.definition_bytes;
    if (header.repetition_bytes) return corrupt("it has repetition levels");
    if (bytes > page.bytes || bytes > header.full_bytes)
      return corrupt("its levels are longer than the page");
    if (!chunk_.nullable && bytes)
      return corrupt("it has definition levels, but its column cannot have nulls");
    levels.bytes = bytes;
    values = {page.at + bytes, page.bytes - bytes};
    if (header.compressed && values.bytes) {
      Status status = decompress(values, header.full_bytes - bytes, page_memory_, values);
      if (!status.ok()) return status;
    }
  } else {
    Status status = decompress(page, header.full_bytes, page_memory_, values);
    if (!status.ok()) return status;
    if (chunk_.nullable) {
      if (header.level_encoding != Encoding::rle) return unsupported("its levels' encoding");
      if (values.bytes < 4) return corrupt("its levels are cut off");
      std::size_t bytes = 0;
      for (int i = 0; i < 4; ++i) bytes |= std::size_t{values.at[i]} << 8 * i;
      if (bytes > values.bytes - 4) return corrupt("its levels are cut off");
      levels = {values.at + 4, bytes};
      values = {levels.at + bytes, values.bytes - 4 - bytes};
    }
  }
  std::size_t valid = header.values;
  if (chunk_.nullable) {
    Status status = read_levels(header, levels, valid);
    if (!status.ok()) return status;
  }
  if (header.type == PageType::data_v2 && header.nulls != header.values - valid)
    return corrupt("its number of nulls does not match its header");
  Status status = read_values(header, values, valid);
  if (!status.ok()) return status;
  if (valid < header.values)
    spread(level_memory_.bytes.get(), header.values, valid, chunk_.width,
           values_ + done_ * static_cast<std::size_t>(chunk_.width));
  done_ += header.values;
  return Status::okay();
}

// Sets `valid` to the number of values that are not null. If some are null, writes their bitmap to
// `level_memory_` and to the validity.
Status ColumnDecoder::read_levels(const PageHeader& header, Part levels, std::size_t& valid) {
  valid = header.values;
  if (!header.values) return Status::okay();
  const Runs runs(levels.at, levels.at + levels.bytes, 1, header.values);
  Runs first = runs;
  Run run;
  if (first.next(run) && !run.packed && run.value == 1 && !first.left()) return Status::okay();
  const std::size_t bytes = (header.values + 7) / 8;
  Byte* const bits = level_memory_.room(bytes);
  if (!bits) return Status::error(Code::memory, "no memory for its levels");
  std::memset(bits, 0, bytes);
  if (!levels_to_bits(runs, bits)) return corrupt("its levels are damaged");
  valid = count_ones(bits, header.values);
  if (valid == header.values) return Status::okay();
  if (!nulls_) std::memset(validity_, 0xFF, (chunk_.rows + 7) / 8);
  nulls_ += header.values - valid;
  put_bits(bits, header.values, validity_, done_);
  return Status::okay();
}

// Decodes the values that are not null, without gaps, from the page's first row on.
Status ColumnDecoder::read_values(const PageHeader& header, Part values, std::size_t valid) {
  const auto width = static_cast<std::size_t>(chunk_.width);
  Byte* const out = values_ + done_ * width;
  switch (header.encoding) {
    case Encoding::plain:
      if (values.bytes / width < valid) return corrupt("its values are cut off");
      std::memcpy(out, values.at, valid * width);
      return Status::okay();
    case Encoding::plain_dictionary:
    case Encoding::rle_dictionary: {
      const int bits = values.bytes ? values.at[0] : 0;
      if (bits > kMostBits) return corrupt("its indices have more than 32 bits");
      // Also if it has no values, as in pyarrow: the type of the dictionary's page may be damaged.
      if (!has_dictionary_) return corrupt("its dictionary is missing");
      if (!valid) return Status::okay();
      if (!values.bytes) return corrupt("its values are cut off");
      if (!look_up(values.at + 1, values.at + values.bytes, bits, valid, dictionary_.at, entries_,
                   chunk_.width, out))
        return corrupt("its indices are damaged");
      return Status::okay();
    }
    default:
      return unsupported("its values' encoding");
  }
}

}  // namespace fastio
