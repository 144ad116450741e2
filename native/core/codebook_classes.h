// The two halves of a step of Lloyd iteration (codebook_train.cpp): the cost of blocks in the
// classes of a codebook, and the class that is best for a set of blocks. Only used by
// codebook_train.cpp.
//
// The cost of a block in a class is the number of bits that it takes in a record: L bits of mask, W
// bits for the DC difference and for each nonzero coefficient, and an escape or exceptions for
// values that need more. Costs are whole bits, so sums are exact in any order of additions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codebook.h"
#include "status.h"

namespace fastio::training {

// A cost above that of any block: the class cannot hold the block, because of L, or because its
// W[0] is 0 and the DC difference is not.
inline constexpr int kNever = 1 << 13;

// A coefficient, reduced to what its cost depends on: z * 16 + symbol. The symbol is the number of
// bits that the value needs, or kOdd. kOdd is a DC difference that needs more than 12 bits, or an
// AC magnitude of 128, which fits 8 bits only in a wide class.
using Item = std::uint16_t;
inline constexpr int kOdd = 13;
inline int position(Item item) { return item >> 4; }
inline int symbol(Item item) { return item & 15; }

// The items of a set of blocks: for each block its DC difference and the nonzero coefficients, in
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

// A class of the codebook. By default, a valid class that holds only blocks without AC coefficients
// and with a DC difference of 0.
struct Class {
  int last = 0;  // L
  std::array<std::uint8_t, 64> width{};

  bool wide() const { return *std::max_element(width.begin() + 1, width.end()) > 8; }
};

using Classes = std::array<Class, kClasses>;

// Returns the bits of an item without those of the mask, or kNever if the class cannot hold it.
int item_cost(const Class& in, Item item, bool wide);

// One number for each class, in vectors of the compiler's extension, which works on all processors.
inline constexpr std::size_t kLanes = 8;
using Lanes [[gnu::vector_size(2 * kLanes)]] = std::int16_t;
using Row = std::array<Lanes, kClasses / kLanes>;

// Costs of each item in all classes, so that the costs of a block in all classes are a sum of rows.
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

// Counts the items of a set of blocks, and finds the class that fits them best.
class Histogram {
 public:
  // Adds a block. missing: the bits that it would cost more in the next best class.
  void add(const Item* begin, const Item* end, int missing);
  // Returns the best class for the blocks. current: the class that they are in.
  Class fit(const Class& current) const;

 private:
  // Blocks that would leave the class together if it changed.
  struct Leaving {
    std::int64_t blocks = 0, missing = 0;
  };

  int fit_last(int current) const;
  int fit_dc_width(int current) const;
  int fit_ac_width(int z) const;

  std::array<std::uint32_t, 64 * 16> count_{};
  std::array<Leaving, 64> by_last_{};  // by the last position that is not zero
  Leaving with_dc_;                    // blocks with a DC difference that is not zero
};

}  // namespace fastio::training
