#include "codebook_classes.h"

#include <bit>
#include <cstdlib>
#include <numeric>
#include <string>

namespace fastio::training {
namespace {

constexpr int kEscapeBits = 16;  // the additional bits of a DC difference that is an escape
constexpr int kExceptionBits = 24;
constexpr int kMostAc = 2047;
constexpr int kSymbols = kOdd + 1;
constexpr int kNarrow = 8;

int bits_of(int magnitude) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(magnitude)));
}

int ac_symbol(int value) {
  const int magnitude = std::abs(value);
  return magnitude == 128 ? kOdd : 1 + bits_of(magnitude - 1);
}

// The lowest number of each width marks an escape, so -1 needs 2 bits.
int dc_symbol(int value) { return value == 0 ? 0 : std::min(1 + bits_of(std::abs(value)), kOdd); }

int dc_cost(int width, int symbol) {
  if (width == 0) return symbol == 0 ? 0 : kNever;
  return width + (symbol > width ? kEscapeBits : 0);
}

int ac_cost(int width, int symbol, bool wide) {
  const int needs = symbol == kOdd && wide ? kNarrow : symbol;
  return width + (needs > width ? kExceptionBits : 0);
}

}  // namespace

Status Profiles::read(const std::int16_t* blocks, std::size_t n) {
  std::size_t items = n;
  for (std::size_t i = 0; i < n * 64; ++i) items += i % 64 != 0 && blocks[i] != 0;
  items_.reserve(items);
  begin_.reserve(n + 1);
  begin_.push_back(0);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int16_t* block = blocks + i * 64;
    items_.push_back(static_cast<Item>(dc_symbol(block[0])));
    for (int z = 1; z < 64; ++z) {
      if (block[z] == 0) continue;
      if (std::abs(block[z]) > kMostAc)
        return Status::error(Code::corrupt, "block " + std::to_string(i) +
                                                " has a coefficient of more than 12 bits");
      items_.push_back(static_cast<Item>(z * 16 + ac_symbol(block[z])));
    }
    begin_.push_back(items_.size());
  }
  return Status::okay();
}

int item_cost(const Class& in, Item item, bool wide) {
  const int width = in.width[position(item)];
  return position(item) == 0 ? dc_cost(width, symbol(item)) : ac_cost(width, symbol(item), wide);
}

Costs::Costs(const Classes& classes) {
  for (std::size_t k = 0; k < kClasses; ++k) {
    const Class& of = classes[k];
    const bool wide = of.wide();
    for (int z = 0; z < 64; ++z) set(mask_[z], k, z <= of.last ? of.last : kNever);
    for (Item item = 0; item < 64 * 16; ++item) set(item_[item], k, item_cost(of, item, wide));
  }
}

Costs::Least Costs::least(const Row& costs) {
  // Find the least cost and its first row in each lane, then the least of all lanes.
  Lanes cost = costs[0], row = {};
  for (std::size_t i = 1; i < costs.size(); ++i) {
    const Lanes less = costs[i] < cost;
    const Lanes here = Lanes{} + static_cast<std::int16_t>(i);
    cost = less ? costs[i] : cost;
    row = less ? here : row;
  }
  Least out{cost[0], row[0] * static_cast<int>(kLanes)};
  for (int lane = 1; lane < static_cast<int>(kLanes); ++lane) {
    const int k = row[lane] * static_cast<int>(kLanes) + lane;
    if (cost[lane] < out.cost || (cost[lane] == out.cost && k < out.best)) out = {cost[lane], k};
  }
  return out;
}

// Written with explicit vectors, because compilers do not vectorise the innermost of the three
// loops.
Costs::Choice Costs::choose(const Item* begin, const Item* end) const {
  constexpr std::size_t kSums = 8;  // as many as fit into registers
  Row sums = mask_[position(end[-1])];
  for (std::size_t first = 0; first < sums.size(); first += kSums) {
    Lanes sum[kSums];
    std::copy_n(sums.data() + first, kSums, sum);
    for (const Item* item = begin; item != end; ++item) {
      const Lanes* row = item_[*item].data() + first;
      for (std::size_t i = 0; i < kSums; ++i) sum[i] += row[i];
    }
    std::copy_n(sum, kSums, sums.data() + first);
  }
  const auto [cost, best] = least(sums);
  set(sums, best, 3 * kNever);
  return {best, cost, least(sums).cost};
}

void Histogram::add(const Item* begin, const Item* end, int missing) {
  for (const Item* item = begin; item != end; ++item) ++count_[*item];
  Leaving& alike = by_last_[position(end[-1])];
  ++alike.blocks;
  alike.missing += missing;
  if (symbol(*begin) == 0) return;
  ++with_dc_.blocks;
  with_dc_.missing += missing;
}

Class Histogram::fit(const Class& current) const {
  Class out;
  out.last = fit_last(current.last);
  out.width[0] = static_cast<std::uint8_t>(fit_dc_width(current.width[0]));
  for (int z = 1; z <= out.last; ++z) out.width[z] = static_cast<std::uint8_t>(fit_ac_width(z));
  return out;
}

// Returns the best L. Blocks with coefficients beyond L leave the class: they cost `missing` bits
// more, and keep the `current` bits of mask. Each block that stays has L bits of mask.
int Histogram::fit_last(int current) const {
  std::int64_t stay = 0, leaving = 0;
  for (const Leaving& alike : by_last_) stay += alike.blocks;
  std::int64_t least = stay * 63;
  int best = 63;
  for (int last = 62; last >= 0; --last) {
    const Leaving& alike = by_last_[last + 1];
    stay -= alike.blocks;
    leaving += alike.missing + alike.blocks * current;
    if (const std::int64_t cost = leaving + stay * last; cost <= least) best = last, least = cost;
  }
  return best;
}

int Histogram::fit_dc_width(int current) const {
  // With a width of 0, all blocks with a difference leave.
  std::int64_t least = with_dc_.missing + with_dc_.blocks * current;
  int best = 0;
  std::int64_t wider = with_dc_.blocks;
  const std::int64_t all = wider + count_[0];
  for (int w = 1; w <= kPlanes; ++w) {
    wider -= count_[w];
    if (const std::int64_t cost = all * w + wider * kEscapeBits; cost < least)
      best = w, least = cost;
  }
  return best;
}

int Histogram::fit_ac_width(int z) const {
  // Neighbours decide where coefficients are hardly ever seen: other blocks may have some there.
  constexpr std::int64_t kOwnWeight = 512;
  std::array<std::int64_t, kSymbols> count{};
  for (int s = 1; s < kSymbols; ++s) {
    count[s] = kOwnWeight * count_[z * 16 + s];
    if (z > 1) count[s] += count_[(z - 1) * 16 + s];
    if (z < 63) count[s] += count_[(z + 1) * 16 + s];
  }
  const std::int64_t all = std::accumulate(count.begin(), count.end(), std::int64_t{0});
  std::int64_t wider = all, least = 0;
  int best = 0;
  for (int w = 1; w <= kPlanes; ++w) {
    wider -= count[w];
    // Only here: whether another position makes the class wide is not known yet.
    if (w == kNarrow + 1) wider -= count[kOdd];
    const std::int64_t cost = all * w + wider * kExceptionBits;
    if (best == 0 || cost < least) best = w, least = cost;
  }
  return best;
}

}  // namespace fastio::training
