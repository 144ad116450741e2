// Codebooks, coefficients and block records for tests.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/block_encoder.h"
#include "core/blocks.h"
#include "core/codebook.h"
#include "core/cpu.h"
#include "core/expand.h"
#include "core/jpeg_coefficients.h"
#include "jpeg_files.h"

namespace fastio::test {

inline int random_int(std::mt19937& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}

constexpr Simd kLevels[] = {Simd::portable, Simd::avx2, Simd::avx512bw,
                            Simd::avx512,   Simd::neon, Simd::sve2};

class ForcedSimd {
 public:
  explicit ForcedSimd(Simd level) { simd_force(level); }
  ~ForcedSimd() { simd_force(simd_best()); }
  ForcedSimd(const ForcedSimd&) = delete;
  ForcedSimd& operator=(const ForcedSimd&) = delete;
};

constexpr Sampling kSamplings[] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};

// Bytes with exactly kExpandPad more behind them, on the heap so that the sanitizers see what reads
// further. The padding has bits set: values there must not matter.
class PaddedBytes {
 public:
  PaddedBytes(const std::uint8_t* bytes, std::size_t size)
      : memory_(new std::uint8_t[size + kExpandPad]), size_(size) {
    std::copy_n(bytes, size, memory_.get());
    std::fill_n(memory_.get() + size, kExpandPad, std::uint8_t{0xDB});
  }
  explicit PaddedBytes(const Bytes& bytes) : PaddedBytes(bytes.data(), bytes.size()) {}
  const std::uint8_t* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::uint8_t[]> memory_;
  std::size_t size_;
};

// Class 0 as it has to be, all others with `last` and the widths `dc` and `ac`.
inline Bytes codebook_bytes(int last, int dc, int ac) {
  Bytes bytes(kCodebookBytes, 0);
  for (int c = 0; c < kClasses; ++c) {
    std::uint8_t* of = bytes.data() + c * 65;
    of[0] = static_cast<std::uint8_t>(c == 0 ? 63 : last);
    of[1] = static_cast<std::uint8_t>(c == 0 ? kPlanes : dc);
    std::fill_n(of + 2, of[0], static_cast<std::uint8_t>(c == 0 ? kPlanes : ac));
  }
  return bytes;
}

inline std::unique_ptr<Codebook> parse_codebook(const Bytes& bytes) {
  auto book = std::make_unique<Codebook>();
  const Status status = book->parse(bytes.data(), bytes.size());
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return book;
}

// Classes of all lengths, with values of few bits or of many.
inline std::unique_ptr<Codebook> random_codebook(std::uint32_t seed) {
  std::mt19937 rng(seed);
  Bytes bytes = codebook_bytes(63, 0, 0);
  for (int c = 1; c < kClasses; ++c) {
    std::uint8_t* of = bytes.data() + c * 65;
    std::fill_n(of, 65, std::uint8_t{0});
    of[0] = static_cast<std::uint8_t>(random_int(rng, 0, 3) ? random_int(rng, 0, 63) : 63);
    of[1] = static_cast<std::uint8_t>(random_int(rng, 0, kPlanes));
    const int most = random_int(rng, 1, random_int(rng, 0, 3) ? 8 : kPlanes);
    const bool falling = random_int(rng, 0, 2) != 0;
    for (int z = 1; z <= of[0]; ++z)
      of[1 + z] =
          static_cast<std::uint8_t>(falling ? std::max(1, most - z / 6) : random_int(rng, 1, most));
  }
  return parse_codebook(bytes);
}

// The positions 1 to L of a class in the order of their bits: the largest W first, and the lowest
// position first where W is equal.
inline std::vector<int> class_order(const Codebook& book, int c) {
  std::vector<int> order;
  for (int bits = kPlanes; bits > 0; --bits)
    for (int z = 1; z <= book.mask_bits[c]; ++z)
      if (book.width[c][z] == bits) order.push_back(z);
  return order;
}

inline BlockShape make_shape(int height, int width, int components, Sampling sampling) {
  BlockShape shape;
  shape.components = components;
  shape.colour = components == 1 ? Colour::gray : Colour::ycbcr;
  shape.sub_x = components == 1 ? 1 : sampling.h;
  shape.sub_y = components == 1 ? 1 : sampling.v;
  shape.height = height;
  shape.width = width;
  for (auto& table : shape.quant) std::fill(table, table + 64, std::uint16_t{1});
  for (int c = 0; c < components; ++c) shape.ids[c] = static_cast<std::uint8_t>(c + 1);
  return shape;
}

inline JpegCoefficients read_jpeg(const Bytes& file) {
  JpegCoefficients out;
  const Status status = read_coefficients(file.data(), file.size(), out);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return out;
}

inline Bytes encode_record(const Codebook& book, const JpegCoefficients& in) {
  BlockEncoder encoder(book);
  Bytes record;
  const Status status = encoder.encode(in, record);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return record;
}

inline Bytes record_of(const Codebook& book, const Bytes& jpeg) {
  return encode_record(book, read_jpeg(jpeg));
}

inline BlockHeader header_of(const Bytes& record) {
  BlockHeader header;
  const Status status = parse_header(record.data(), record.size(), record.size(), header);
  CAPTURE(status.message);
  REQUIRE(status.ok());
  return header;
}

// A picture of any sampling, mostly of three components, that is a few tiles large at most.
inline JpegOptions random_picture(std::mt19937& rng, int tallest, int widest) {
  JpegOptions o;
  o.height = random_int(rng, 1, tallest);
  o.width = random_int(rng, 1, widest);
  o.components = random_int(rng, 0, 5) ? 3 : 1;
  o.sampling[0] = o.components == 1 ? Sampling{1, 1} : kSamplings[rng() % 5];
  o.quality = random_int(rng, 20, 98);
  o.noise = random_int(rng, 0, 1) ? 5 : 90;
  return o;
}

// Bits as the format has them: the lowest of each byte first.
class BitWriter {
 public:
  explicit BitWriter(Bytes& out) : out_(out) {}
  void put(std::uint32_t value, int bits) {
    for (int i = 0; i < bits; ++i, used_ = (used_ + 1) % 8) {
      if (used_ == 0) out_.push_back(0);
      out_.back() = static_cast<std::uint8_t>(out_.back() | (value >> i & 1) << used_);
    }
  }

 private:
  Bytes& out_;
  int used_ = 0;
};

}  // namespace fastio::test
