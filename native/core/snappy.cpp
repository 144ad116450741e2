#include "snappy.h"

#include <cstring>

namespace fastio {
namespace {

using Byte = std::uint8_t;

using Register = std::uint64_t __attribute__((vector_size(16)));

inline Register load16(const Byte* at) {
  Register value;
  std::memcpy(&value, at, 16);
  return value;
}

inline void store16(Byte* at, Register value) { std::memcpy(at, &value, 16); }

inline void copy16(Byte* out, const Byte* in) { store16(out, load16(in)); }

inline void copy8(Byte* out, const Byte* in) {
  std::uint64_t bytes;
  std::memcpy(&bytes, in, 8);
  std::memcpy(out, &bytes, 8);
}

// Copies 32 bytes. Loads all before it stores any.
inline void copy32(Byte* out, const Byte* in) {
  const Register a = load16(in), b = load16(in + 16);
  store16(out, a);
  store16(out + 16, b);
}

// Reads a number of up to 32 bits, with seven bits per byte. Returns false if it does not end.
bool read_length(const Byte*& at, const Byte* end, std::uint32_t& value) {
  std::uint64_t found = 0;
  for (int shift = 0; shift < 35 && at < end; shift += 7) {
    const Byte byte = *at++;
    found |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) {
      value = static_cast<std::uint32_t>(found);
      return found >> 32 == 0;
    }
  }
  return false;
}

std::uint32_t little_endian(const Byte* in, std::size_t bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::uint32_t{in[i]} << 8 * i;
  return value;
}

// Copies `length` <= 64 bytes from `offset` bytes before `out`; the ranges may overlap, so that a
// pattern is repeated. Writes up to 16 bytes more.
inline void copy_back(Byte* out, std::size_t offset, std::size_t length) {
  const Byte* from = out - offset;
  Byte* const end = out + length;
  if (offset >= 16) {
    do {
      copy16(out, from);
      out += 16;
      from += 16;
    } while (out < end);
    return;
  }
  // The pattern is shorter than a register: each copy doubles its length.
  while (out - from < 8) {
    const auto pattern = out - from;
    copy8(out, from);
    out += pattern;
    if (out >= end) return;
  }
  do {
    copy8(out, from);
    out += 8;
    from += 8;
  } while (out < end);
}

// What a tag byte encodes.
struct Tag {
  std::uint8_t length;  // of a literal or copy; 0: the length or the offset needs more bytes
  std::uint8_t least;   // the least offset of a copy that does not overlap its output
  std::uint8_t high;    // bits 8 to 10 of a copy's offset
  std::uint32_t mask;   // the bits after the tag byte that belong to a copy's offset
};

struct Tags {
  Tag of[256] = {};
  constexpr Tags() {
    for (unsigned tag = 0; tag < 256; ++tag) {
      const unsigned kind = tag & 3;
      const auto length =
          static_cast<std::uint8_t>(kind == 1 ? (tag >> 2 & 7) + 4 : (tag >> 2) + 1);
      if (kind == 0 && length <= 60) of[tag] = {length, 0, 0, 0};
      if (kind == 1) of[tag] = {length, length, static_cast<std::uint8_t>(tag >> 5), 0xFF};
      if (kind == 2) of[tag] = {length, length, 0, 0xFFFF};
    }
  }
};

constexpr Tags kTags;

// The bytes that must be left in the input and in the output to process a tag without bounds
// checks.
constexpr std::ptrdiff_t kCareless = 72;

// Processes tags as long as no bounds checks are needed. Literals and copies are copied by the same
// code. Where the next tag is depends on the kind of this one, by a branch: in columns of numbers,
// the processor predicts most kinds, and reads the next tag before it knows the length of this one.
inline void run(const Byte*& in, const Byte* in_end, const Byte* begin, Byte*& out, Byte* end) {
  if (in_end - in < kCareless) return;
  std::size_t byte = *in;
  while (in_end - in >= kCareless && end - out >= kCareless) {
    const std::size_t after_literal = (byte >> 2) + 2, after_copy = (byte & 3) + 1;
    const bool literal = (byte & 3) == 0;
    const std::size_t next_if_literal = in[after_literal], next_if_copy = in[after_copy];
    const Tag& tag = kTags.of[byte];
    std::uint32_t word;
    std::memcpy(&word, in + 1, 4);
    const std::size_t length = tag.length;
    const std::size_t offset = (word & tag.mask) | std::uint32_t{tag.high} << 8;
    if (!length || offset < tag.least || offset > static_cast<std::size_t>(out - begin)) return;
    const auto here = reinterpret_cast<std::uintptr_t>(in + 1);
    const auto there = reinterpret_cast<std::uintptr_t>(out - offset);
    const std::uintptr_t is_copy = std::uintptr_t{0} - (tag.least != 0);
    const auto* const from = reinterpret_cast<const Byte*>(here ^ ((here ^ there) & is_copy));
    copy32(out, from);
    if (length > 32) copy32(out + 32, from + 32);
    out += length;
    in += literal ? after_literal : after_copy;
    byte = literal ? next_if_literal : next_if_copy;
  }
}

}  // namespace

bool snappy_decompress(const Byte* in, std::size_t size, Byte* out, std::size_t out_size) {
  const Byte* const in_end = in + size;
  const Byte* const begin = out;
  Byte* const end = out + out_size;
  std::uint32_t promised = 0;
  if (!read_length(in, in_end, promised) || promised != out_size) return false;
  while (in < in_end) {
    run(in, in_end, begin, out, end);
    if (in == in_end) break;
    const std::uint32_t tag = *in++;
    const auto in_left = static_cast<std::size_t>(in_end - in);
    const auto out_left = static_cast<std::size_t>(end - out);
    if ((tag & 3) == 0) {
      std::size_t length = (tag >> 2) + 1;
      if (length <= 16 && in_left >= 16 && length <= out_left) {
        copy16(out, in);
      } else {
        if (length > 60) {
          const std::size_t bytes = length - 60;
          if (bytes > in_left) return false;
          length = std::size_t{little_endian(in, bytes)} + 1;
          in += bytes;
        }
        if (length > static_cast<std::size_t>(in_end - in) || length > out_left) return false;
        std::memcpy(out, in, length);
      }
      in += length;
      out += length;
      continue;
    }
    std::size_t length, offset;
    if ((tag & 3) == 1) {
      if (in_left < 1) return false;
      length = ((tag >> 2) & 7) + 4;
      offset = (tag >> 5) << 8 | in[0];
      in += 1;
    } else {
      const std::size_t bytes = (tag & 3) == 2 ? 2 : 4;
      if (in_left < bytes) return false;
      length = (tag >> 2) + 1;
      offset = little_endian(in, bytes);
      in += bytes;
    }
    if (offset == 0 || offset > static_cast<std::size_t>(out - begin) || length > out_left)
      return false;
    copy_back(out, offset, length);
    out += length;
  }
  return out == end;
}

}  // namespace fastio
