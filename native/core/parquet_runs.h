// Parquet's hybrid of runs and bit-packed numbers (Encodings.md, "RLE = 3"), of bytes not trusted:
// indices of a dictionary, and definition levels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

inline constexpr int kMostBits = 32;  // of a number

// A run of one number, or bit-packed numbers.
struct Run {
  bool packed;
  std::size_t count;          // numbers of it that are wanted, at least one
  std::uint32_t value;        // where not packed
  const std::uint8_t* bytes;  // where packed: (count * bits + 7) / 8 bytes at least, up to `end`
  const std::uint8_t* end;
};

// The runs of `count` numbers of `bits` in [0, kMostBits] each.
class Runs {
 public:
  Runs(const std::uint8_t* at, const std::uint8_t* end, int bits, std::size_t count)
      : at_(at), end_(end), bits_(bits), left_(count) {}

  // Numbers that no run had yet.
  std::size_t left() const { return left_; }

  // The next run; false: the bytes end before, or are not such runs.
  bool next(Run& run);

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  int bits_;
  std::size_t left_;
};

// Bit-packed numbers of `bits` in [0, kMostBits]: out[i] for i < count. Reads nothing beyond `end`,
// which is (count * bits + 7) / 8 bytes behind `in` at least. Returns the greatest of them.
std::uint32_t unpack(const std::uint8_t* in, const std::uint8_t* end, int bits, std::size_t count,
                     std::uint32_t* out);

// Values of `width` 4 or 8 bytes from a dictionary of `entries`, by the numbers of `runs`; false:
// the runs are damaged, or a number is not in the dictionary. No pointer need be aligned.
bool look_up(const std::uint8_t* in, const std::uint8_t* end, int bits, std::size_t count,
             const std::uint8_t* dictionary, std::size_t entries, int width, std::uint8_t* out);

// Makes room for nulls in place: the first values of `out`, of `width` 4 or 8 bytes, go to where
// `bits` has ones, in order; zeros to the others. `bits` has (count + 7) / 8 bytes, and `valid`
// ones among its first `count`.
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
