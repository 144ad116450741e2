// What blocks cost in the classes of a codebook, and which class is best for a set of blocks: the
// two halves of a step of Lloyd iteration (codebook_train.h). Nothing here is of use to anyone
// else.
//
// The cost of a block in a class is what it takes in a record: L bits of mask, W bits for the DC
// difference and each coefficient that is not zero, and an escape or exceptions for what needs
// more. Costs are whole bits, so all sums are exact and nothing depends on the order of additions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codebook.h"
#include "status.h"

namespace fastio::training {

// More than any block costs. A class is out for two reasons: L, and a DC difference where W[0] is
// 0.
inline constexpr int kNever = 1 << 13;

// A coefficient as costs see it, z * 16 + symbol. The symbol is the number of bits that it needs;
// or kOdd: an AC magnitude of 128, which 8 bits hold only in a class where something is wider than
// 8, or a DC difference that needs more than 12.
using Item = std::uint16_t;
inline constexpr int kOdd = 13;
inline int position(Item item) { return item >> 4; }
inline int symbol(Item item) { return item & 15; }

// What costs depend on: each block's DC difference and the coefficients that are not zero, in
// ascending order of z.
class Profiles {
 public:
  Status read(const std::int16_t* blocks, std::size_t n);
  std::size_t size() const { return begin_.size() - 1; }
  const Item* begin(std::size_t i) const { return items_.data() + begin_[i]; }
  const Item* end(std::size_t i) const { return items_.data() + begin_[i + 1]; }
  int last(std::size_t i) const { return position(end(i)[-1]); }

 private:
  std::vector<std::size_t> begin_;
  std::vector<Item> items_;
};

// As it is made it holds blocks of nothing, with the DC of the block before: a valid class.
struct Class {
  int last = 0;  // L
  std::array<std::uint8_t, 64> width{};

  bool wide() const { return *std::max_element(width.begin() + 1, width.end()) > 8; }
};

using Classes = std::array<Class, kClasses>;

// Bits of an item, without those of its mask; kNever: the class cannot hold it.
int item_cost(const Class& in, Item item, bool wide);

// A number of each class, in vectors that any processor has or compilers make do without.
inline constexpr std::size_t kLanes = 8;
using Lanes [[gnu::vector_size(2 * kLanes)]] = std::int16_t;
using Row = std::array<Lanes, kClasses / kLanes>;

// Costs of all classes side by side, so that a block's cost in each of them is a sum of rows.
class Costs {
 public:
  explicit Costs(const Classes& classes);

  struct Choice {
    int best, cost, second;  // the cheapest class, its cost, and the cost in the next best class
  };
  Choice choose(const Item* begin, const Item* end) const;

 private:
  struct Least {
    int cost, best;
  };

  static void set(Row& row, std::size_t k, int value) {
    row[k / kLanes][k % kLanes] = static_cast<std::int16_t>(value);
  }
  static Least least(const Row& costs);

  std::array<Row, 64> mask_;       // by the last position that is not zero
  std::array<Row, 64 * 16> item_;  // by item
};

// How often each item is in a set of blocks, and the class that fits them best.
class Histogram {
 public:
  // missing: bits that the block would cost more in the next best class.
  void add(const Item* begin, const Item* end, int missing);
  // current: the class that the blocks are in.
  Class fit(const Class& current) const;

 private:
  struct Leaving {
    std::int64_t blocks = 0, missing = 0;
  };

  int fit_last(int current) const;
  int fit_dc_width(int current) const;
  int fit_ac_width(int z) const;

  std::array<std::uint32_t, 64 * 16> count_{};
  std::array<Leaving, 64> by_last_{};  // the last position that is not zero
  Leaving with_dc_;                    // with a DC difference that is not zero
};

}  // namespace fastio::training
