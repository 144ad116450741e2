// Snappy streams for the tests and the fuzzer, and a slow decompressor to compare with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include "parquet_pages.h"

namespace fastio::snappy {

using pages::Bytes;

// Decompresses as the format's description says, byte by byte; false: `in` is damaged.
inline bool reference(const Bytes& in, std::size_t size, Bytes& out) {
  std::size_t at = 0, promised = 0;
  for (int shift = 0;; shift += 7) {
    if (at == in.size() || shift > 28) return false;
    promised |= static_cast<std::size_t>(in[at] & 0x7F) << shift;
    if (in[at++] < 0x80) break;
  }
  out.clear();
  if (promised != size) return false;
  while (at < in.size()) {
    const unsigned tag = in[at++];
    const unsigned kind = tag & 3;
    const std::size_t extra = kind == 0   ? (tag >> 2 >= 60 ? (tag >> 2) - 59 : 0)
                              : kind == 3 ? 4
                                          : kind;
    if (extra > in.size() - at) return false;
    std::size_t number = 0;
    for (std::size_t i = 0; i < extra; ++i) number |= static_cast<std::size_t>(in[at++]) << 8 * i;
    std::size_t length = (tag >> 2) + 1;
    if (kind == 0 && extra) length = number + 1;
    if (kind == 1) {
      length = (tag >> 2 & 7) + 4;
      number |= static_cast<std::size_t>(tag >> 5) << 8;
    }
    if (length > size - out.size()) return false;
    if (kind == 0) {
      if (length > in.size() - at) return false;
      out.insert(out.end(), in.data() + at, in.data() + at + length);
      at += length;
    } else {
      if (number == 0 || number > out.size()) return false;
      for (std::size_t i = 0; i < length; ++i) out.push_back(out[out.size() - number]);
    }
  }
  return out.size() == size;
}

// A sound stream of literals and copies of all kinds, and the bytes that it stands for.
inline Bytes random_stream(std::mt19937& rng, std::size_t& size) {
  Bytes body;
  size = 0;
  for (std::size_t tags = rng() % 200; tags--;) {
    const unsigned kind = size ? rng() % 4 : 0;
    if (kind == 0) {
      const std::size_t length = 1 + rng() % (rng() % 8 ? 20 : 300);
      if (length <= 60) {
        body.push_back(static_cast<std::uint8_t>((length - 1) << 2));
      } else {
        body.push_back(61 << 2);
        body.push_back(static_cast<std::uint8_t>(length - 1));
        body.push_back(static_cast<std::uint8_t>((length - 1) >> 8));
      }
      for (std::size_t i = 0; i < length; ++i) body.push_back(static_cast<std::uint8_t>(rng()));
      size += length;
      continue;
    }
    const std::size_t most = std::min<std::size_t>(size, rng() % 2 ? 20 : kind == 1 ? 2047 : 65535);
    const std::size_t offset = 1 + rng() % most;
    const std::size_t length = kind == 1 ? 4 + rng() % 8 : 1 + rng() % 64;
    if (kind == 1) {
      body.push_back(static_cast<std::uint8_t>(offset >> 8 << 5 | (length - 4) << 2 | 1));
      body.push_back(static_cast<std::uint8_t>(offset));
    } else {
      body.push_back(static_cast<std::uint8_t>((length - 1) << 2 | kind));
      for (unsigned i = 0; i < (kind == 2 ? 2u : 4u); ++i)
        body.push_back(static_cast<std::uint8_t>(offset >> 8 * i));
    }
    size += length;
  }
  Bytes out = pages::varint(size);
  pages::append(out, body);
  return out;
}

}  // namespace fastio::snappy
