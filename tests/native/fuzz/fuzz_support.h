// What the fuzz targets and the maker of their seeds share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/block_encoder.h"
#include "core/codebook.h"
#include "core/cpu.h"
#include "core/image.h"
#include "core/status.h"

namespace fastio::fuzz {

using Bytes = std::vector<std::uint8_t>;

// A finding: libFuzzer keeps the input when the process aborts.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

// A copy with `pad` readable bytes behind it and not one more, so that AddressSanitizer sees a read
// past them. They hold `filler`: a result that depends on them differs from one filler to another.
class Padded {
 public:
  Padded(const std::uint8_t* data, std::size_t size, std::size_t pad, std::uint8_t filler);
  const std::uint8_t* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::uint8_t[]> bytes_;
  std::size_t size_;
};

// The pixels of an image in RGB, or why there are none.
struct Picture {
  Bytes pixels;
  Status status;
};

// A resized crop of a JPEG file, chosen by `row`, of which `request` may say more. An image of more
// than max_pixels is refused.
Picture crop(const Padded& file, int row, ImageRequest request = {},
             std::int64_t max_pixels = kAnyPixels);

// What a run gave, step by step: equal for two runs exactly if all that they wrote is, but for
// collisions of a 32-bit checksum.
class Outcome {
 public:
  void add(const char* step, const Status& status);
  void add(const char* step, const void* data, std::size_t size);

  // Aborts where another run gave something else.
  void require_equal(const Outcome& other, const char* level) const;

 private:
  struct Entry {
    const char* step;
    Code code;
    std::string message;
    std::uint32_t crc;
  };
  std::vector<Entry> entries_;
};

// A codebook in short: the first classes of one, repeated up to the last.
inline constexpr std::size_t kClassBytes = 65;
inline constexpr std::size_t kShortClasses = 16;
inline constexpr std::size_t kShortBytes = kShortClasses * kClassBytes;

// Codebook 0 is the one that ships; codebook 1 has classes of all kinds, each sixteen times.
inline constexpr int kCodebooks = 2;
const Bytes& codebook_bytes(int number);
const Codebook& codebook(int number);
BlockEncoder& encoder(int number);  // kept, as its tables take long to build

// kShortBytes to a whole codebook; mended: so that it is one.
Bytes long_codebook(const std::uint8_t* shorts, bool mended);

}  // namespace fastio::fuzz
