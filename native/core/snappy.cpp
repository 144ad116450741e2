#include "snappy.h"

#include <cstring>

namespace fastio {
namespace {

using Byte = std::uint8_t;

// Constant sizes: one load and one store.
inline void copy8(Byte* out, const Byte* in) {
  std::uint64_t bytes;
  std::memcpy(&bytes, in, 8);
  std::memcpy(out, &bytes, 8);
}

inline void copy16(Byte* out, const Byte* in) {
  copy8(out, in);
  copy8(out + 8, in + 8);
}

// A number of up to 32 bits, seven a byte; false: it does not end in time.
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

// `length` <= 64 bytes from `offset` before `out`, on which they may depend; up to 16 more are
// written.
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
  // A pattern shorter than a register: each copy makes it twice as long.
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

}  // namespace

bool snappy_decompress(const Byte* in, std::size_t size, Byte* out, std::size_t out_size) {
  const Byte* const in_end = in + size;
  const Byte* const begin = out;
  Byte* const end = out + out_size;
  std::uint32_t promised = 0;
  if (!read_length(in, in_end, promised) || promised != out_size) return false;
  while (in < in_end) {
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
