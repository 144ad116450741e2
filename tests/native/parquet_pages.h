// Parquet pages as the tests need them: Thrift headers, runs, and Snappy of literals and copies.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/parquet_column.h"

namespace fastio::pages {

using Bytes = std::vector<std::uint8_t>;

inline void append(Bytes& out, const Bytes& more) {
  for (const std::uint8_t byte : more) out.push_back(byte);  // GCC 12 warns of insert() here
}

inline Bytes varint(std::uint64_t value) {
  Bytes out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::uint8_t>(value | 0x80));
  out.push_back(static_cast<std::uint8_t>(value));
  return out;
}

// Fields of a Thrift struct, numbered upwards.
class Struct {
 public:
  Struct& i32(int id, std::int64_t value) {
    head(id, 5);
    append(bytes_, varint(static_cast<std::uint64_t>(value << 1 ^ value >> 63)));
    return *this;
  }
  Struct& boolean(int id, bool value) {
    head(id, value ? 1 : 2);
    return *this;
  }
  Struct& with(int id, const Struct& inner) {
    head(id, 12);
    append(bytes_, inner.bytes());
    return *this;
  }
  Struct& binary(int id, const Bytes& value) {
    head(id, 8);
    append(bytes_, varint(value.size()));
    append(bytes_, value);
    return *this;
  }
  Bytes bytes() const {
    Bytes out = bytes_;
    out.push_back(0);
    return out;
  }

 private:
  void head(int id, int type) {
    bytes_.push_back(static_cast<std::uint8_t>((id - last_) << 4 | type));
    last_ = id;
  }
  Bytes bytes_;
  int last_ = 0;
};

template <typename T>
Bytes plain(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

inline Bytes run_of(std::uint32_t value, std::size_t count, int bits) {
  Bytes out = varint(count << 1);
  for (int i = 0; i < (bits + 7) / 8; ++i) out.push_back(static_cast<std::uint8_t>(value >> 8 * i));
  return out;
}

inline Bytes packed(const std::vector<std::uint32_t>& values, int bits) {
  const std::size_t groups = (values.size() + 7) / 8;
  Bytes out = varint(groups << 1 | 1), body(groups * static_cast<std::size_t>(bits));
  std::size_t at = 0;
  for (const std::uint32_t value : values)
    for (int bit = 0; bit < bits; ++bit, ++at)
      if (value >> bit & 1) body[at / 8] |= static_cast<std::uint8_t>(1u << at % 8);
  append(out, body);
  return out;
}

// Snappy of literals of `piece` bytes; repeated pieces are copies of the one before.
inline Bytes snappy(const Bytes& in, std::size_t piece = 60) {
  Bytes out = varint(in.size());
  for (std::size_t at = 0; at < in.size(); at += piece) {
    const std::size_t count = std::min(piece, in.size() - at);
    if (at >= piece && std::equal(in.data() + at, in.data() + at + count, in.data() + at - piece)) {
      out.push_back(static_cast<std::uint8_t>((count - 1) << 2 | 2));
      out.push_back(static_cast<std::uint8_t>(piece));
      out.push_back(static_cast<std::uint8_t>(piece >> 8));
    } else {
      out.push_back(static_cast<std::uint8_t>((count - 1) << 2));
      out.insert(out.end(), in.data() + at, in.data() + at + count);
    }
  }
  return out;
}

inline Bytes page(int type, std::size_t full, const Bytes& body, int id, const Struct& about) {
  Bytes out = Struct()
                  .i32(1, type)
                  .i32(2, static_cast<std::int64_t>(full))
                  .i32(3, static_cast<std::int64_t>(body.size()))
                  .with(id, about)
                  .bytes();
  append(out, body);
  return out;
}

inline Bytes stored(const Bytes& body, bool compressed) { return compressed ? snappy(body) : body; }

inline Bytes dictionary_page(const Bytes& values, std::size_t count, bool compressed = false) {
  return page(2, values.size(), stored(values, compressed), 7,
              Struct().i32(1, static_cast<std::int64_t>(count)).i32(2, 0));
}

// Version 1. levels: runs, or empty for a column without nulls.
inline Bytes data_page(std::size_t count, Encoding encoding, const Bytes& levels,
                       const Bytes& values, bool compressed = false) {
  Bytes body;
  if (!levels.empty()) {
    const auto size = static_cast<std::uint32_t>(levels.size());
    append(body, plain(std::vector<std::uint32_t>{size}));
    append(body, levels);
  }
  append(body, values);
  return page(0, body.size(), stored(body, compressed), 5,
              Struct()
                  .i32(1, static_cast<std::int64_t>(count))
                  .i32(2, static_cast<int>(encoding))
                  .i32(3, 3)
                  .i32(4, 3)
                  .with(5, Struct().binary(1, {1, 2, 3}).i32(3, 7)));
}

inline Bytes data_page_v2(std::size_t count, std::size_t nulls, Encoding encoding,
                          const Bytes& levels, const Bytes& values, bool compressed = false) {
  Bytes body = levels;
  append(body, stored(values, compressed));
  return page(3, levels.size() + values.size(), body, 8,
              Struct()
                  .i32(1, static_cast<std::int64_t>(count))
                  .i32(2, static_cast<std::int64_t>(nulls))
                  .i32(3, static_cast<std::int64_t>(count))
                  .i32(4, static_cast<int>(encoding))
                  .i32(5, static_cast<std::int64_t>(levels.size()))
                  .i32(6, 0)
                  .boolean(7, compressed));
}

}  // namespace fastio::pages
