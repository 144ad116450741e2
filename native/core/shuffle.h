// Permutations of [0, n) as keyed bijections, computed without tables or state.
//
// Domain and range: [0, n), 1 <= n <= 2**48. Method: a Feistel network of 8 rounds over the
// smallest power of two >= max(n, 256), with cycle walking (Black and Rogaway, "Ciphers with
// arbitrary finite domains", CT-RSA 2002): a value outside [0, n) is enciphered again until it
// falls inside, fewer than two times on average (256 / n for the tiny n). Cost: about 50 ns for a
// single position, 2 to 10 ns for each of an array (shuffle_kernels.h). The same (n, key) gives the
// same permutation on every machine and version of fastio: tests/test_order.py pins values. All
// functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shuffle_kernels.h"

namespace fastio {

inline constexpr std::uint64_t kMaxRows = 1ull << 48;

// Mixes two words into a key, to derive the key of an epoch, a window, ... from the seed.
std::uint64_t mix_key(std::uint64_t a, std::uint64_t b);

class Permutation {
 public:
  // n in [1, kMaxRows].
  Permutation(std::uint64_t n, std::uint64_t key);

  // Maps a position in [0, n).
  std::uint64_t operator()(std::uint64_t position) const;

  // Returns the position that is mapped to `value`, in [0, n).
  std::uint64_t invert(std::uint64_t value) const;

  // The same for `count` values, in place.
  void apply(std::uint64_t* positions, std::size_t count) const;
  void invert(std::uint64_t* values, std::size_t count) const;

  // The same for positions [first, first + count), where first + count <= n.
  void range(std::uint64_t first, std::size_t count, std::int64_t* rows) const;

 private:
  void walk(bool backwards, std::uint64_t* values, std::size_t count) const;

  std::uint64_t n_;
  Feistel network_;
};

// The window order: rows are divided into blocks of `block` consecutive rows (the last may be
// shorter). The blocks are permuted, and then the rows within each window of `window` consecutive
// permuted blocks. So a reader that holds `window` blocks can serve the order with reads of whole
// blocks, each of which is read once. A bijection on [0, n), as above.
class WindowPermutation {
 public:
  // A range of positions, [begin, end).
  struct Span {
    std::uint64_t begin, end;
  };

  // n in [1, kMaxRows]; block, window >= 1.
  WindowPermutation(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key);

  // Map a position to its row, or a row to its position, in [0, n): one, or `count` in place. Per
  // value, arrays whose neighbours are in the same window are about ten times as fast.
  std::uint64_t operator()(std::uint64_t position) const;
  std::uint64_t invert(std::uint64_t row) const;
  void apply(std::uint64_t* positions, std::size_t count) const;
  void invert(std::uint64_t* rows, std::size_t count) const;

  // Returns the positions of the window that contains a block, in [0, blocks()).
  Span window_of(std::uint64_t block) const {
    return span_of(first_slot(block_order_.invert(block)));
  }
  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Window {
    Span span;
    Permutation inside;  // of its positions, relative to span.begin
  };
  std::uint64_t first_slot(std::uint64_t slot) const;  // of the window that contains `slot`
  Span span_of(std::uint64_t first) const;
  Window window_at(std::uint64_t position) const;
  void mix_windows(bool backwards, std::uint64_t* positions, std::size_t count) const;
  std::uint64_t slot_start(std::uint64_t slot) const;
  std::uint64_t slot_of(std::uint64_t position) const;

  std::uint64_t n_, block_, window_, key_, blocks_, deficit_;
  Permutation block_order_;
  std::uint64_t short_slot_;  // the slot of the short last block in the permuted order
};

// The same for arrays of `count` numbers. The functions with `first` compute the rows at
// consecutive positions, where first + count <= n. The others compute the rows at positions, the
// positions of rows, or the windows of blocks. They read each input once, and return false if one
// is out of range; the output is then undefined.
void permute_range(std::uint64_t n, std::uint64_t key, std::uint64_t first, std::size_t count,
                   std::int64_t* rows);
void permute_window_range(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                          std::uint64_t key, std::uint64_t first, std::size_t count,
                          std::int64_t* rows);
bool permute(std::uint64_t n, std::uint64_t key, const std::int64_t* positions, std::size_t count,
             std::int64_t* rows);
bool permute_inverse(std::uint64_t n, std::uint64_t key, const std::int64_t* rows,
                     std::size_t count, std::int64_t* positions);
bool permute_window(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                    const std::int64_t* positions, std::size_t count, std::int64_t* rows);
bool permute_window_inverse(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                            std::uint64_t key, const std::int64_t* rows, std::size_t count,
                            std::int64_t* positions);
bool windows_of(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                const std::int64_t* blocks, std::size_t count, std::int64_t* begins,
                std::int64_t* ends);

}  // namespace fastio
