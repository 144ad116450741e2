// Permutations as arithmetic: a keyed bijection on [0, n), no table and no state.
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

// Mixes words into a key; used to derive one key an epoch, a window and so on from the seed.
std::uint64_t mix_key(std::uint64_t a, std::uint64_t b);

class Permutation {
 public:
  // n in [1, kMaxRows].
  Permutation(std::uint64_t n, std::uint64_t key);

  // position in [0, n).
  std::uint64_t operator()(std::uint64_t position) const;

  // The position that is mapped to `value` in [0, n).
  std::uint64_t invert(std::uint64_t value) const;

  // The same for each of `count` values, in place.
  void apply(std::uint64_t* positions, std::size_t count) const;
  void invert(std::uint64_t* values, std::size_t count) const;

  // The same for first, first + 1, ..., first + count <= n.
  void range(std::uint64_t first, std::size_t count, std::int64_t* rows) const;
  void invert_range(std::uint64_t first, std::size_t count, std::int64_t* positions) const;

 private:
  void walk(bool backwards, std::uint64_t* values, std::size_t count) const;

  std::uint64_t n_;
  Feistel network_;
};

// Window order: the rows are cut in blocks of `block` consecutive rows (the last may be shorter);
// the blocks are permuted, and the rows within each run of `window` permuted blocks are permuted
// together. A reader that holds `window` blocks can therefore serve the order with whole-block
// reads, each block read once. Bijection on [0, n) as above.
class WindowPermutation {
 public:
  // A range of positions, [begin, end).
  struct Span {
    std::uint64_t begin, end;
  };

  // n in [1, kMaxRows]; block, window >= 1.
  WindowPermutation(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key);

  // One position or row in [0, n), or `count` of them in place. Arrays whose neighbours are in one
  // window are about ten times as fast as single ones.
  std::uint64_t operator()(std::uint64_t position) const;
  std::uint64_t invert(std::uint64_t row) const;
  void apply(std::uint64_t* positions, std::size_t count) const;
  void invert(std::uint64_t* rows, std::size_t count) const;

  // The positions of the window that a block is in, the block being in [0, blocks()).
  Span window_of(std::uint64_t block) const {
    return span_of(first_slot(block_order_.invert(block)));
  }
  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Window {
    Span span;
    Permutation inside;  // of its positions, from 0 on
  };
  std::uint64_t first_slot(std::uint64_t slot) const;  // of the window that holds it
  Span span_of(std::uint64_t first) const;
  Window window_at(std::uint64_t position) const;
  void mix_windows(bool backwards, std::uint64_t* positions, std::size_t count) const;
  std::uint64_t slot_start(std::uint64_t slot) const;
  std::uint64_t slot_of(std::uint64_t position) const;

  std::uint64_t n_, block_, window_, key_, blocks_, deficit_;
  Permutation block_order_;
  std::uint64_t short_slot_;  // where the permuted order puts the short last block
};

// Arrays of `count`: rows at consecutive positions from `first` on, first + count <= n, or
// positions of consecutive rows; rows at positions, positions of rows, and the window of blocks.
// Those that are given an array read each of its numbers once; false: one of them is out of range,
// and what is in the other array then is of no use.
void permute_range(std::uint64_t n, std::uint64_t key, std::uint64_t first, std::size_t count,
                   std::int64_t* rows);
void permute_inverse_range(std::uint64_t n, std::uint64_t key, std::uint64_t first,
                           std::size_t count, std::int64_t* positions);
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
