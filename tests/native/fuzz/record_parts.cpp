#include "record_parts.h"

#include <algorithm>
#include <map>

#include "core/crc32c.h"

namespace fastio::fuzz {
namespace {

constexpr std::size_t kFixedBytes = 20;
constexpr std::size_t kMostAdded = std::size_t{64} << 10;

std::uint32_t get(const std::uint8_t* p, int bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::uint32_t{p[i]} << (8 * i);
  return value;
}

void put(std::uint8_t* p, int bytes, std::size_t value) {
  for (int i = 0; i < bytes; ++i) p[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

void append(Bytes& out, int bytes, std::size_t value) {
  out.resize(out.size() + static_cast<std::size_t>(bytes));
  put(out.data() + out.size() - bytes, bytes, value);
}

void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }

// Where the parts of an index stand, for a record with a shape.
struct Index {
  std::size_t rows, tiles, groups, dc, ac, exceptions, dc_crc, ac_crc, metadata_crc, end;
  Index(const BlockShape& shape, std::size_t tables) {
    rows = static_cast<std::size_t>(shape.tile_rows());
    tiles = rows * static_cast<std::size_t>(shape.tiles_x());
    groups = rows * static_cast<std::size_t>(shape.group_columns());
    dc = kFixedBytes + tables;
    ac = dc + 2 * rows;
    exceptions = ac + 2 * tiles;
    dc_crc = part_bytes(exceptions + tiles);
    ac_crc = dc_crc + 4 * rows;
    metadata_crc = ac_crc + 4 * groups;
    end = metadata_crc + 8;
  }
};

// The next `length` bytes, of which fewer may be there.
Bytes take(const std::uint8_t* data, std::size_t size, std::size_t& at, std::size_t length) {
  const std::size_t begin = std::min(at, size);
  const std::size_t end = begin + std::min(length, size - begin);
  at = end;
  return Bytes(data + begin, data + end);
}

bool bit_of(const Bytes& part, std::size_t position) {
  return position / 8 < part.size() && (part[position / 8] >> position % 8 & 1);
}

// The first `bits` bits of a part, zeros where it is shorter and up to a multiple of 4 bytes.
void cut_bits(Bytes& part, std::size_t bits) {
  part.resize((bits + 7) / 8);
  if (bits % 8) part.back() &= static_cast<std::uint8_t>((1 << bits % 8) - 1);
  part.resize(part_bytes(part.size()));
}

}  // namespace

bool read_shape(const std::uint8_t* data, std::size_t size, BlockShape& shape) {
  if (size < kFixedBytes) return false;
  shape = {};
  shape.colour = static_cast<Colour>(data[2]);
  shape.components = shape.colour == Colour::gray ? 1 : 3;
  shape.sub_x = data[3] >> 4;
  shape.sub_y = data[3] & 15;
  shape.width = static_cast<std::int32_t>(get(data + 4, 2));
  shape.height = static_cast<std::int32_t>(get(data + 6, 2));
  std::copy_n(data + 8, 3, shape.ids);
  std::copy_n(data + 11, 3, shape.table);
  shape.tables = data[14];
  return shape.check().ok() &&
         static_cast<std::size_t>(shape.width) * static_cast<std::size_t>(shape.height) <=
             kMaxPixels;
}

std::size_t table_bytes(const std::uint8_t* data) {
  std::size_t bytes = 0;
  for (int k = 0; k < data[14]; ++k) bytes += data[15] >> k & 1 ? 128 : 64;
  return bytes;
}

bool take_apart(const std::uint8_t* data, std::size_t size, RecordParts& out) {
  if (!read_shape(data, size, out.shape)) return false;
  const Index index(out.shape, table_bytes(data));
  if (index.end > size) return false;
  out.tables.assign(data + kFixedBytes, data + index.dc);
  out.wide = data[15];
  out.dc.clear();
  out.ac.clear();
  std::size_t at = index.end;
  for (std::size_t r = 0; r < index.rows; ++r)
    out.dc.push_back(take(data, size, at, 4 * get(data + index.dc + 2 * r, 2)));
  for (std::size_t k = 0; k < index.tiles; ++k)
    out.ac.push_back(take(data, size, at, 4 * get(data + index.ac + 2 * k, 2)));
  out.exceptions.assign(data + index.exceptions, data + index.exceptions + index.tiles);
  out.metadata = take(data, size, at, size);
  return true;
}

Bytes put_together(const RecordParts& parts) {
  const BlockShape& shape = parts.shape;
  Bytes out = {kBlocksVersion, 0, static_cast<std::uint8_t>(shape.colour),
               static_cast<std::uint8_t>(shape.sub_x << 4 | shape.sub_y)};
  append(out, 2, static_cast<std::size_t>(shape.width));
  append(out, 2, static_cast<std::size_t>(shape.height));
  out.insert(out.end(), shape.ids, shape.ids + 3);
  out.insert(out.end(), shape.table, shape.table + 3);
  out.push_back(static_cast<std::uint8_t>(shape.tables));
  out.push_back(parts.wide);
  append(out, 4, parts.metadata.size());
  append(out, parts.tables);
  const auto words = [](const Bytes& part) {
    return std::min<std::size_t>(part_bytes(part.size()) / 4, 0xFFFF);
  };
  for (const Bytes& part : parts.dc) append(out, 2, words(part));
  for (const Bytes& part : parts.ac) append(out, 2, words(part));
  append(out, parts.exceptions);
  out.resize(Index(shape, parts.tables.size()).end);
  for (const auto* section : {&parts.dc, &parts.ac})
    for (const Bytes& part : *section) {
      const std::size_t end = out.size() + 4 * words(part);
      append(out, part);
      out.resize(end);
    }
  append(out, parts.metadata);
  mend(out, false);
  return out;
}

void mend(Bytes& record, bool header_only) {
  BlockShape shape;
  if (!read_shape(record.data(), record.size(), shape)) return;
  const Index index(shape, table_bytes(record.data()));
  if (index.end > record.size()) return;
  const auto bytes_at = [&](std::size_t at) { return 4 * std::size_t{get(&record[at], 2)}; };
  std::size_t dc_end = index.end;
  for (std::size_t r = 0; r < index.rows; ++r) dc_end += bytes_at(index.dc + 2 * r);
  std::size_t end = dc_end;
  for (std::size_t k = 0; k < index.tiles; ++k) end += bytes_at(index.ac + 2 * k);
  if (end > record.size() + kMostAdded) return;
  if (end > record.size()) record.resize(end);
  put(&record[16], 4, record.size() - end);

  if (!header_only) {
    std::size_t at = index.end, k = 0, group = 0;
    for (std::size_t r = 0; r < index.rows; ++r) {
      const std::size_t bytes = bytes_at(index.dc + 2 * r);
      put(&record[index.dc_crc + 4 * r], 4, crc32c(record.data() + at, bytes));
      at += bytes;
    }
    for (std::int32_t g = 0; g < shape.group_columns(); ++g)
      for (std::size_t r = 0; r < index.rows; ++r, ++group) {
        std::size_t bytes = 0;
        for (std::int32_t t = 0; t < shape.group_tiles(g); ++t, ++k)
          bytes += bytes_at(index.ac + 2 * k);
        put(&record[index.ac_crc + 4 * group], 4, crc32c(record.data() + at, bytes));
        at += bytes;
      }
    put(&record[index.metadata_crc], 4, crc32c(record.data() + end, record.size() - end));
  }
  put(&record[index.end - 4], 4, crc32c(record.data(), index.end - 4));
}

void fit_dc(const Codebook& book, const BlockShape& shape, std::int32_t row, Bytes& part) {
  const auto blocks = static_cast<std::size_t>(shape.blocks_in_row(row));
  const auto head = 2 + 2 * static_cast<std::size_t>(shape.components);
  const std::size_t begin = head + part_bytes(blocks);
  if (part.size() < begin) part.resize(begin);
  std::fill(part.begin() + static_cast<long>(head + blocks),
            part.begin() + static_cast<long>(begin), std::uint8_t{0});
  std::size_t at = 8 * begin, escapes = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t bits = book.dc_bits[part[head + i]];
    bool escape = bits > 0 && bit_of(part, at + bits - 1);  // the lowest number: 0 ... 0 1
    for (std::size_t j = 0; j + 1 < bits; ++j) escape = escape && !bit_of(part, at + j);
    escapes += escape;
    at += bits;
  }
  put(part.data(), 2, escapes);
  Bytes numbers(part.begin() + static_cast<long>(std::min((at + 7) / 8, part.size())), part.end());
  numbers.resize(2 * escapes);
  cut_bits(part, at);
  append(part, numbers);
  part.resize(part_bytes(part.size()));
}

std::vector<std::uint32_t> take_exceptions(Bytes& part, std::uint8_t count) {
  const std::size_t bytes = std::min(part_bytes(3 * std::size_t{count}), part.size());
  const std::uint8_t* list = part.data() + (part.size() - bytes);
  std::vector<std::uint32_t> exceptions;
  for (std::size_t at = 0; at + 3 <= bytes && exceptions.size() < count; at += 3)
    exceptions.push_back(get(list + at, 3));
  part.resize(part.size() - bytes);
  return exceptions;
}

void put_exceptions(Bytes& part, const std::vector<std::uint32_t>& exceptions,
                    std::uint8_t& count) {
  count = static_cast<std::uint8_t>(std::min<std::size_t>(exceptions.size(), 255));
  part.resize(part_bytes(part.size()));
  for (std::size_t k = 0; k < count; ++k) append(part, 3, exceptions[k]);
  part.resize(part_bytes(part.size()));
}

void fit_ac(const Codebook& book, const std::uint8_t* classes, int blocks, Bytes& part,
            std::uint8_t& exceptions) {
  std::map<std::uint32_t, std::uint32_t> sound;
  for (const std::uint32_t e : take_exceptions(part, exceptions))
    if ((e & 63) != 0 && static_cast<int>(e >> 6 & 63) < blocks) sound[e & 4095] = e;
  std::size_t at = 0, values = 0;
  for (int i = 0; i < blocks; ++i) {
    const int last = book.mask_bits[classes[i]];
    for (int rank = 1; rank <= last; ++rank, ++at)
      if (bit_of(part, at)) values += book.rank_width[classes[i]][rank];
  }
  cut_bits(part, at + values);
  std::vector<std::uint32_t> list;
  for (const auto& [place, e] : sound) list.push_back(e);
  put_exceptions(part, list, exceptions);
}

}  // namespace fastio::fuzz
