// Decodes Parquet's hybrid of runs and bit-packed numbers (Encodings.md, "RLE = 3"), which encodes
// indices of dictionaries and definition levels. The bytes are not trusted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kMostBits = 32;  // the largest width of a number

// A run: repetitions of one number, or bit-packed numbers.
struct Run {
  bool packed;
  std::size_t count;          // the numbers to use, at least one
  std::uint32_t value;        // if not packed
  const std::uint8_t* bytes;  // if packed: at least (count * bits + 7) / 8 bytes, up to `end`
  const std::uint8_t* end;
};

// Iterates over the runs of `count` numbers of `bits` bits each, in [0, kMostBits].
class Runs {
 public:
  Runs(const std::uint8_t* at, const std::uint8_t* end, int bits, std::size_t count)
      : at_(at), end_(end), bits_(bits), left_(count) {}

  // Returns how many numbers are not in the runs so far.
  std::size_t left() const { return left_; }

  // Gets the next run. Returns false if the bytes end too early, or are not valid.
  bool next(Run& run);

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  int bits_;
  std::size_t left_;
};

// Unpacks `count` bit-packed numbers of `bits` bits, in [0, kMostBits]. Reads nothing beyond `end`,
// which must be at least (count * bits + 7) / 8 bytes after `in`. Returns the greatest number.
std::uint32_t unpack(const std::uint8_t* in, const std::uint8_t* end, int bits, std::size_t count,
                     std::uint32_t* out);

// Decodes `count` indices from the runs in [in, end), and writes the values, of `width` 4 or 8
// bytes, that a dictionary of `entries` values has for them. Returns false if the runs are damaged,
// or if an index is not in the dictionary. Pointers need not be aligned.
bool look_up(const std::uint8_t* in, const std::uint8_t* end, int bits, std::size_t count,
             const std::uint8_t* dictionary, std::size_t entries, int width, std::uint8_t* out);

// Makes room for nulls, in place: moves the first `valid` values of `out`, of `width` 4 or 8 bytes,
// to the positions at which `bits` has ones, in order, and writes zeros to the others. bits:
// (count + 7) / 8 bytes, with `valid` ones among the first `count` bits.
void spread(const std::uint8_t* bits, std::size_t count, std::size_t valid, int width,
            std::uint8_t* out);

// The kernels, for tests; arguments as above.
std::uint32_t unpack_portable(const std::uint8_t* in, const std::uint8_t* end, int bits,
                              std::size_t count, std::uint32_t* out);
std::uint32_t unpack_avx2(const std::uint8_t* in, const std::uint8_t* end, int bits,
                          std::size_t count, std::uint32_t* out);
void spread_portable(const std::uint8_t* bits, std::size_t count, std::size_t valid, int width,
                     std::uint8_t* out);
void spread_avx2(const std::uint8_t* bits, std::size_t count, std::size_t valid, int width,
                 std::uint8_t* out);

}  // namespace fastio
