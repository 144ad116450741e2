#include "parquet_header.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;

// Types of the compact protocol.
enum : int {
  kStop = 0,
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
  kUuid = 13,
};

constexpr int kDeepest = 16;  // the deepest nesting of structs and lists

// Reads Thrift's compact protocol. After an error, ok() is false and all reads return nothing, so
// that loops end.
class ThriftReader {
 public:
  ThriftReader(const Byte* at, const Byte* end) : at_(at), end_(end) {}

  const Byte* at() const { return at_; }
  bool ok() const { return ok_; }

  // Calls read(id, type) for each field of a struct. It must read the field's value, or return
  // false to skip it.
  template <typename Read>
  void each_field(const Read& read, int depth = 0) {
    std::int64_t id = 0;
    while (ok_) {
      const Byte head = byte();
      const int type = head & 15;
      if (type == kStop) return;
      if (head >> 4)
        id += head >> 4;
      else
        id = zigzag();
      if (id > INT16_MAX || id < INT16_MIN) ok_ = false;
      if (ok_ && !read(static_cast<int>(id), type)) skip(type, depth);
    }
  }

  // Like each_field(), but it is an error if read() does not read a field of `required`, a mask
  // with bit 1 << id for each field. Otherwise a required field whose type is damaged would be
  // skipped like an unknown field.
  template <typename Read>
  void fields(unsigned required, const Read& read) {
    unsigned missing = required;
    each_field([&](int id, int type) {
      const bool is_read = read(id, type);
      if (is_read) missing &= ~(1u << id);
      return is_read;
    });
    if (missing) ok_ = false;
  }

  // Reads a size: an i32 that is not negative.
  bool size(int type, std::size_t& out) {
    std::int32_t value = 0;
    if (!i32(type, value)) return false;
    if (value < 0) ok_ = false;
    out = static_cast<std::size_t>(value < 0 ? 0 : value);
    return true;
  }

  template <typename Enum>
  bool number(int type, Enum& out) {
    std::int32_t value = 0;
    if (!i32(type, value)) return false;
    out = static_cast<Enum>(value);
    return true;
  }

  // Reads an i32 as 32 bits.
  bool bits(int type, std::uint32_t& out) {
    std::int32_t value = 0;
    if (!i32(type, value)) return false;
    out = static_cast<std::uint32_t>(value);
    return true;
  }

  bool boolean(int type, bool& out) {
    if (type != kTrue && type != kFalse) return false;
    out = type == kTrue;
    return true;
  }

 private:
  bool i32(int type, std::int32_t& out) {
    if (type != kI32) return false;
    const std::int64_t value = zigzag();
    if (value > INT32_MAX || value < INT32_MIN) ok_ = false;
    out = static_cast<std::int32_t>(value);
    return true;
  }

  Byte byte() {
    if (at_ < end_) return *at_++;
    ok_ = false;
    return kStop;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const Byte next = byte();
      value |= std::uint64_t{next & 0x7Fu} << shift;
      if (next < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

  std::int64_t zigzag() {
    const std::uint64_t value = varint();
    return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }

  void skip_bytes(std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(end_ - at_)) {
      ok_ = false;
      return;
    }
    at_ += count;
  }

  // Skips a value of a struct, in which the type contains the value of a boolean.
  void skip(int type, int depth) {
    if (depth >= kDeepest) ok_ = false;
    if (!ok_) return;
    switch (type) {
      case kTrue:
      case kFalse:
        return;
      case kByte:
        return skip_bytes(1);
      case kI16:
      case kI32:
      case kI64:
        varint();
        return;
      case kDouble:
        return skip_bytes(8);
      case kBinary:
        return skip_bytes(varint());
      case kUuid:
        return skip_bytes(16);
      case kList:
      case kSet:
        return skip_list(depth + 1);
      case kMap:
        return skip_map(depth + 1);
      case kStruct:
        return each_field([](int, int) { return false; }, depth + 1);
      default:
        ok_ = false;
    }
  }

  // Skips an element of a list. It takes at least one byte, so loops over elements end when the
  // bytes do.
  void skip_element(int type, int depth) {
    if (type == kTrue || type == kFalse) return skip_bytes(1);
    skip(type, depth);
  }

  void skip_list(int depth) {
    const Byte head = byte();
    std::uint64_t count = head >> 4;
    if (count == 15) count = varint();
    for (; ok_ && count; --count) skip_element(head & 15, depth);
  }

  void skip_map(int depth) {
    std::uint64_t count = varint();
    if (!count) return;
    const Byte types = byte();
    for (; ok_ && count; --count) {
      skip_element(types >> 4, depth);
      skip_element(types & 15, depth);
    }
  }

  const Byte* at_;
  const Byte* end_;
  bool ok_ = true;
};

void read_data(ThriftReader& in, PageHeader& out) {
  std::int32_t unused = 0;
  in.fields(0b11110, [&](int id, int type) {
    switch (id) {
      case 1:
        return in.size(type, out.values);
      case 2:
        return in.number(type, out.encoding);
      case 3:
        return in.number(type, out.level_encoding);
      case 4:  // the encoding of repetition levels
        return in.number(type, unused);
      default:
        return false;
    }
  });
}

void read_data_v2(ThriftReader& in, PageHeader& out) {
  std::size_t unused = 0;
  in.fields(0b1111110, [&](int id, int type) {
    switch (id) {
      case 1:
        return in.size(type, out.values);
      case 2:
        return in.size(type, out.nulls);
      case 3:  // the number of rows
        return in.size(type, unused);
      case 4:
        return in.number(type, out.encoding);
      case 5:
        return in.size(type, out.definition_bytes);
      case 6:
        return in.size(type, out.repetition_bytes);
      case 7:
        return in.boolean(type, out.compressed);
      default:
        return false;
    }
  });
}

void read_dictionary(ThriftReader& in, PageHeader& out) {
  in.fields(0b110, [&](int id, int type) {
    if (id == 1) return in.size(type, out.values);
    return id == 2 && in.number(type, out.encoding);
  });
}

}  // namespace

Status read_page_header(const Byte*& at, const Byte* end, PageHeader& header) {
  constexpr int kNone = -1;
  header = {};
  std::int32_t type = kNone;
  int about = kNone;  // the page type whose struct the header contains
  bool sizes[2] = {};
  ThriftReader in(at, end);
  in.each_field([&](int id, int kind) {
    switch (id) {
      case 1:
        return in.number(kind, type);
      case 2:
        return sizes[0] = in.size(kind, header.full_bytes);
      case 3:
        return sizes[1] = in.size(kind, header.bytes);
      case 4:
        return header.has_crc = in.bits(kind, header.crc);
      case 5:
      case 7:
      case 8:
        if (kind != kStruct) return false;
        about = id == 5 ? 0 : id == 7 ? 2 : 3;
        if (about == 0) read_data(in, header);
        if (about == 2) read_dictionary(in, header);
        if (about == 3) read_data_v2(in, header);
        return true;
      default:
        return false;
    }
  });
  header.type = static_cast<PageType>(type);
  const bool known = type == 0 || type == 2 || type == 3;
  if (!in.ok() || type == kNone || !sizes[0] || !sizes[1] || (known && about != type))
    return Status::error(Code::corrupt, "its header is not a valid page header");
  at = in.at();
  return Status::okay();
}

}  // namespace fastio
