#include "fuzz_support.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "core/crc32c.h"

namespace fastio::fuzz {
namespace {

Bytes shipped_codebook() {
  std::ifstream file(FASTIO_CODEBOOK, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() != kCodebookBytes) fail("no codebook in " FASTIO_CODEBOOK);
  return bytes;
}

// Widths at and around every limit of the format.
Bytes varied_codebook() {
  struct Class {
    int last, dc;
    int widths[3];  // in turn
  };
  constexpr Class kVaried[kShortClasses] = {
      {63, 12, {12, 12, 12}}, {0, 0, {}},          {0, 12, {}},          {63, 0, {1, 1, 1}},
      {63, 8, {8, 8, 8}},     {63, 1, {9, 9, 9}},  {1, 6, {12, 12, 12}}, {63, 5, {1, 8, 12}},
      {31, 7, {2, 2, 2}},     {20, 9, {6, 5, 4}},  {5, 6, {4, 4, 4}},    {10, 3, {3, 3, 3}},
      {2, 4, {5, 3, 3}},      {40, 2, {1, 12, 1}}, {63, 11, {7, 7, 7}},  {62, 10, {2, 3, 2}}};
  Bytes shorts(kShortBytes);
  for (std::size_t c = 0; c < kShortClasses; ++c) {
    std::uint8_t* record = shorts.data() + c * kClassBytes;
    record[0] = static_cast<std::uint8_t>(kVaried[c].last);
    record[1] = static_cast<std::uint8_t>(kVaried[c].dc);
    for (int z = 1; z <= kVaried[c].last; ++z)
      record[1 + z] = static_cast<std::uint8_t>(kVaried[c].widths[z % 3]);
  }
  return long_codebook(shorts.data(), false);
}

struct Books {
  Bytes bytes[kCodebooks] = {shipped_codebook(), varied_codebook()};
  Codebook book[kCodebooks];
  Books() {
    for (int k = 0; k < kCodebooks; ++k) {
      const Status status = book[k].parse(bytes[k].data(), bytes[k].size());
      if (!status.ok()) fail(status.message);
    }
  }
};

const Books& books() {
  static const Books all;
  return all;
}

void mend_class(std::uint8_t* record) {
  record[0] %= 64;
  record[1] %= kPlanes + 1;
  for (int z = 1; z < 64; ++z)
    record[1 + z] = static_cast<std::uint8_t>(z <= record[0] ? 1 + record[1 + z] % kPlanes : 0);
}

void* place(void* context, std::int32_t height, std::int32_t width) {
  Bytes& pixels = static_cast<Picture*>(context)->pixels;
  pixels.assign(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3, 0);
  return pixels.data();
}

}  // namespace

Padded::Padded(const std::uint8_t* data, std::size_t size, std::size_t pad, std::uint8_t filler)
    : bytes_(new std::uint8_t[size + pad]), size_(size) {
  if (size > 0) std::memcpy(bytes_.get(), data, size);
  std::memset(bytes_.get() + size, filler, pad);
}

Picture crop(const Padded& file, int row, ImageRequest request, std::int64_t max_pixels) {
  Chain chain;
  GeometryStep step;
  step.kind = GeometryStep::Kind::random_resized_crop;
  step.height = 1 + row % 40;
  step.width = 1 + row / 4;
  chain.add(step);
  ImageTask task;
  task.chain = &chain;
  task.max_pixels = max_pixels;
  request.data = file.data();
  request.size = file.size();
  request.row = row;
  ImageCounters counters;
  ImageDecoder decoder(counters);
  Picture got;
  got.status = decoder.decode(task, request, place, &got);
  return got;
}

void Outcome::add(const char* step, const Status& status) {
  entries_.push_back({step, status.code, status.message, 0});
}

void Outcome::add(const char* step, const void* data, std::size_t size) {
  entries_.push_back({step, Code::ok, {}, crc32c(static_cast<const std::uint8_t*>(data), size)});
}

void Outcome::require_equal(const Outcome& other, const char* level) const {
  const std::string where = std::string(" at level ") + level;
  for (std::size_t i = 0; i < std::min(entries_.size(), other.entries_.size()); ++i) {
    const Entry &a = entries_[i], &b = other.entries_[i];
    if (a.code != b.code || a.message != b.message)
      fail(std::string(a.step) + where + ": '" + b.message + "' instead of '" + a.message + "'");
    if (a.crc != b.crc) fail(std::string(a.step) + where + " gives other bytes");
  }
  if (entries_.size() != other.entries_.size()) fail("other steps" + where);
}

const Bytes& codebook_bytes(int number) { return books().bytes[number]; }
const Codebook& codebook(int number) { return books().book[number]; }

BlockEncoder& encoder(int number) {
  static BlockEncoder encoders[kCodebooks] = {BlockEncoder(codebook(0)), BlockEncoder(codebook(1))};
  return encoders[number];
}

Bytes long_codebook(const std::uint8_t* shorts, bool mended) {
  Bytes bytes(kCodebookBytes);
  for (std::size_t c = 0; c < std::size_t{kClasses}; ++c) {
    std::uint8_t* record = bytes.data() + c * kClassBytes;
    std::memcpy(record, shorts + c % kShortClasses * kClassBytes, kClassBytes);
    if (mended) mend_class(record);
  }
  if (mended) {
    std::memset(bytes.data(), kPlanes, kClassBytes);
    bytes[0] = 63;
  }
  return bytes;
}

}  // namespace fastio::fuzz
