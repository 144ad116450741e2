#include "record_parts.h"

#include <algorithm>
#include <bit>

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
  std::size_t rows, tiles, dc, ac, dc_crc, ac_crc, metadata_crc, end;
  Index(const BlockShape& shape, std::size_t tables) {
    rows = static_cast<std::size_t>(shape.tile_rows());
    tiles = rows * static_cast<std::size_t>(shape.tiles_x());
    dc = kFixedBytes + tables;
    ac = dc + 4 * rows;
    dc_crc = ac + 2 * tiles;
    ac_crc = dc_crc + 4 * rows;
    metadata_crc = ac_crc + 4 * rows;
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

}  // namespace

bool read_shape(const std::uint8_t* data, std::size_t size, BlockShape& shape) {
  if (size < kFixedBytes) return false;
  shape = {};
  shape.components = data[1];
  shape.colour = static_cast<Colour>(data[2]);
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
    out.dc.push_back(take(data, size, at, get(data + index.dc + 4 * r, 4)));
  for (std::size_t k = 0; k < index.tiles; ++k)
    out.ac.push_back(take(data, size, at, get(data + index.ac + 2 * k, 2)));
  out.metadata = take(data, size, at, size);
  return true;
}

Bytes put_together(const RecordParts& parts) {
  const BlockShape& shape = parts.shape;
  Bytes out = {kBlocksVersion, static_cast<std::uint8_t>(shape.components),
               static_cast<std::uint8_t>(shape.colour),
               static_cast<std::uint8_t>(shape.sub_x << 4 | shape.sub_y)};
  append(out, 2, static_cast<std::size_t>(shape.width));
  append(out, 2, static_cast<std::size_t>(shape.height));
  out.insert(out.end(), shape.ids, shape.ids + 3);
  out.insert(out.end(), shape.table, shape.table + 3);
  out.push_back(static_cast<std::uint8_t>(shape.tables));
  out.push_back(parts.wide);
  append(out, 4, parts.metadata.size());
  append(out, parts.tables);
  for (std::size_t r = 0; r < parts.rows(); ++r) append(out, 4, parts.dc[r].size());
  for (std::size_t k = 0; k < parts.tiles(); ++k)
    append(out, 2, std::min<std::size_t>(parts.ac[k].size(), 0xFFFF));
  out.resize(out.size() + 8 * parts.rows() + 8);
  for (std::size_t r = 0; r < parts.rows(); ++r) append(out, parts.dc[r]);
  for (std::size_t k = 0; k < parts.tiles(); ++k) {
    const std::size_t length = std::min<std::size_t>(parts.ac[k].size(), 0xFFFF);
    out.insert(out.end(), parts.ac[k].begin(), parts.ac[k].begin() + length);
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
  std::size_t dc_end = index.end, end = index.end;
  for (std::size_t r = 0; r < index.rows; ++r) dc_end += get(&record[index.dc + 4 * r], 4);
  end = dc_end;
  for (std::size_t k = 0; k < index.tiles; ++k) end += get(&record[index.ac + 2 * k], 2);
  if (end > record.size() + kMostAdded) return;
  if (end > record.size()) record.resize(end);
  put(&record[16], 4, record.size() - end);

  if (!header_only) {
    std::size_t dc = index.end, ac = dc_end, k = 0;
    for (std::size_t r = 0; r < index.rows; ++r) {
      const std::size_t dc_bytes = get(&record[index.dc + 4 * r], 4);
      std::size_t ac_bytes = 0;
      for (std::int32_t t = 0; t < shape.tiles_x(); ++t, ++k)
        ac_bytes += get(&record[index.ac + 2 * k], 2);
      put(&record[index.dc_crc + 4 * r], 4, crc32c(record.data() + dc, dc_bytes));
      put(&record[index.ac_crc + 4 * r], 4, crc32c(record.data() + ac, ac_bytes));
      dc += dc_bytes;
      ac += ac_bytes;
    }
    put(&record[index.metadata_crc], 4, crc32c(record.data() + end, record.size() - end));
  }
  put(&record[index.end - 4], 4, crc32c(record.data(), index.end - 4));
}

std::size_t needed_dc_bytes(const Codebook& book, const BlockShape& shape, std::int32_t row,
                            const Bytes& part) {
  const auto blocks = static_cast<std::size_t>(shape.blocks_in_row(row));
  const auto bases = 2 * static_cast<std::size_t>(shape.components);
  std::size_t at = 8 * (bases + blocks), escapes = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t c = bases + i < part.size() ? part[bases + i] : 0;
    const std::size_t bits = book.dc_bits[c];
    bool escape = bits > 0 && bit_of(part, at + bits - 1);  // the lowest number: 0 ... 0 1
    for (std::size_t j = 0; j + 1 < bits; ++j) escape = escape && !bit_of(part, at + j);
    escapes += escape;
    at += bits;
  }
  return (at + 16 * escapes + 7) / 8;
}

std::size_t needed_ac_bytes(const Codebook& book, const std::uint8_t* classes, int blocks,
                            const Bytes& part) {
  const std::size_t exceptions = part.empty() ? 0 : part[0];
  std::size_t at = 8 * (1 + 3 * exceptions), values = 0;
  for (int i = 0; i < blocks; ++i) {
    const int last = book.mask_bits[classes[i]];
    for (int z = 1; z <= last; ++z, ++at)
      if (bit_of(part, at)) values += book.width[classes[i]][z];
  }
  return (at + values + 7) / 8;
}

}  // namespace fastio::fuzz
