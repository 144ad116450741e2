#include "codebook_train.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "codebook.h"
#include "rng.h"

// The cost of a block in a class is what it takes in a record: L bits of mask, W bits for the DC
// difference and each coefficient that is not zero, and an escape or exceptions for what needs
// more. Costs are whole bits, so all sums are exact and nothing depends on the order of additions.
//
// Lloyd iteration: blocks choose their cheapest class, classes are fitted to their blocks. That
// alone stays in whatever minimum is near. So until the last quarter of the passes, every few of
// them, classes move: those whose blocks would hardly miss them go, to where splitting a class in
// two gains the most. The first classes come about the same way, by splitting from one.

namespace fastio {
namespace {

constexpr int kEscapeBits = 16;  // of a DC difference
constexpr int kExceptionBits = 24;
constexpr int kMostAc = 2047;

// A coefficient matters by its position z and its symbol alone: the bits that it needs; or kOdd.
// That is an AC magnitude of 128, which 8 bits hold only in a class where something is wider than
// 8, or a DC difference that needs more than 12.
constexpr int kSymbols = 14;
constexpr int kOdd = 13;
constexpr int kNarrow = 8;

// More than any block costs. A class is out for two reasons: L, and a DC difference where W[0] is
// 0.
constexpr int kNever = 1 << 13;

using Item = std::uint16_t;  // z * 16 + symbol
inline int position(Item item) { return item >> 4; }
inline int symbol(Item item) { return item & 15; }

int bits_of(int magnitude) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(magnitude)));
}

int ac_symbol(int value) {
  const int magnitude = std::abs(value);
  return magnitude == 128 ? kOdd : 1 + bits_of(magnitude - 1);
}

// The lowest number of each width is the escape: -1 needs 2 bits.
int dc_symbol(int value) { return value == 0 ? 0 : std::min(1 + bits_of(std::abs(value)), kOdd); }

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

// As it is made it holds blocks of nothing, with the DC of the block before: a valid class.
struct Class {
  int last = 0;  // L
  std::array<std::uint8_t, 64> width{};

  bool wide() const { return *std::max_element(width.begin() + 1, width.end()) > kNarrow; }
};

int dc_cost(int width, int symbol) {
  if (width == 0) return symbol == 0 ? 0 : kNever;
  return width + (symbol > width ? kEscapeBits : 0);
}

int ac_cost(int width, int symbol, bool wide) {
  const int needs = symbol == kOdd && wide ? kNarrow : symbol;
  return width + (needs > width ? kExceptionBits : 0);
}

int item_cost(const Class& in, Item item, bool wide) {
  const int width = in.width[position(item)];
  return position(item) == 0 ? dc_cost(width, symbol(item)) : ac_cost(width, symbol(item), wide);
}

using Classes = std::array<Class, kClasses>;

// A number of each class.
constexpr std::size_t kLanes = 8;
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

Costs::Costs(const Classes& classes) {
  for (std::size_t k = 0; k < kClasses; ++k) {
    const Class& of = classes[k];
    const bool wide = of.wide();
    for (int z = 0; z < 64; ++z) set(mask_[z], k, z <= of.last ? of.last : kNever);
    for (Item item = 0; item < 64 * 16; ++item) set(item_[item], k, item_cost(of, item, wide));
  }
}

Costs::Least Costs::least(const Row& costs) {
  // Of each lane the least and the first row of it, then of all lanes.
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

// A loop that compilers would not make vectors of by themselves: the innermost of the three.
Costs::Choice Costs::choose(const Item* begin, const Item* end) const {
  constexpr std::size_t kSums = 8;  // that fit into the registers
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

// Blocks with coefficients beyond L have to leave, and take the mask that they had along; each that
// stays has a mask of L bits.
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
  // Without bits all blocks with a difference have to leave.
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

class Trainer {
 public:
  Trainer(const Profiles& profiles, std::uint64_t seed);
  const Classes& run(int iterations);

 private:
  struct Split {
    std::int64_t gain = 0;  // bits
    Class first, second;
  };
  struct Members {
    const std::uint32_t* begin;
    const std::uint32_t* end;
    std::size_t size() const { return static_cast<std::size_t>(end - begin); }
  };

  void assign();
  void fit();
  void move(std::uint32_t round);
  std::vector<Split> split_all(std::uint32_t round) const;
  Split split(int k, std::uint32_t round, Members members) const;
  std::vector<std::uint8_t> halve(std::uint64_t positions, Members members) const;
  int cost(std::size_t i, const Class& in, bool wide) const;

  const Profiles& profiles_;
  const std::uint64_t seed_;
  Classes classes_, best_classes_;
  std::int64_t best_total_ = std::numeric_limits<std::int64_t>::max();
  // Of each block: its class, and the bits that it would cost more in the next best one.
  std::vector<std::uint8_t> chosen_;
  std::vector<std::uint16_t> missing_;
  // Of each class: the sums over its blocks.
  std::array<std::int64_t, kClasses> cost_{}, loss_{};
};

Trainer::Trainer(const Profiles& profiles, std::uint64_t seed)
    : profiles_(profiles), seed_(seed), chosen_(profiles.size()), missing_(profiles.size()) {
  classes_[0].last = 63;
  classes_[0].width.fill(kPlanes);
}

const Classes& Trainer::run(int iterations) {
  constexpr int kFirstMoves = 9;  // 2 classes, 4, ...: until all are in use
  for (int i = 0; i < iterations; ++i) {
    assign();
    if (i + 1 == iterations) break;
    fit();
    if (i < kFirstMoves || i < iterations - iterations / 4) move(static_cast<std::uint32_t>(i));
  }
  return best_classes_;
}

void Trainer::assign() {
  const auto costs = std::make_unique<Costs>(classes_);
  cost_ = loss_ = {};
  for (std::size_t i = 0; i < profiles_.size(); ++i) {
    const Costs::Choice choice = costs->choose(profiles_.begin(i), profiles_.end(i));
    chosen_[i] = static_cast<std::uint8_t>(choice.best);
    missing_[i] = static_cast<std::uint16_t>(choice.second - choice.cost);
    cost_[choice.best] += choice.cost;
    loss_[choice.best] += missing_[i];
  }
  const std::int64_t total = std::accumulate(cost_.begin(), cost_.end(), std::int64_t{0});
  if (total >= best_total_) return;
  best_total_ = total;
  best_classes_ = classes_;
}

void Trainer::fit() {
  std::vector<Histogram> histograms(kClasses);
  for (std::size_t i = 0; i < profiles_.size(); ++i)
    histograms[chosen_[i]].add(profiles_.begin(i), profiles_.end(i), missing_[i]);
  for (std::size_t k = 1; k < kClasses; ++k) classes_[k] = histograms[k].fit(classes_[k]);
}

// The classes whose blocks would miss them least become halves of those that gain most by it.
void Trainer::move(std::uint32_t round) {
  const std::vector<Split> splits = split_all(round);
  std::array<int, kClasses> by_gain, by_loss;
  std::iota(by_gain.begin(), by_gain.end(), 0);
  by_loss = by_gain;
  std::stable_sort(by_gain.begin(), by_gain.end(),
                   [&](int a, int b) { return splits[a].gain > splits[b].gain; });
  std::stable_sort(by_loss.begin(), by_loss.end(),
                   [&](int a, int b) { return loss_[a] < loss_[b]; });

  std::array<bool, kClasses> done{};
  auto least = by_loss.begin();
  for (const int k : by_gain) {
    if (done[k]) continue;
    while (least != by_loss.end() && (*least == 0 || *least == k || done[*least])) ++least;
    if (least == by_loss.end() || splits[k].gain <= loss_[*least]) return;
    done[k] = done[*least] = true;
    classes_[k] = splits[k].first;
    classes_[*least] = splits[k].second;
  }
}

std::vector<Trainer::Split> Trainer::split_all(std::uint32_t round) const {
  // The blocks of class k: members[begin[k]] to members[begin[k + 1]].
  std::array<std::size_t, kClasses + 1> begin{};
  for (const std::uint8_t k : chosen_) ++begin[k + 1u];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::uint32_t> members(chosen_.size());
  auto next = begin;
  for (std::size_t i = 0; i < chosen_.size(); ++i)
    members[next[chosen_[i]]++] = static_cast<std::uint32_t>(i);

  std::vector<Split> splits(kClasses);
  for (int k = 0; k < kClasses; ++k)
    splits[k] = split(k, round, {members.data() + begin[k], members.data() + begin[k + 1]});
  return splits;
}

Trainer::Split Trainer::split(int k, std::uint32_t round, Members members) const {
  constexpr int kPasses = 4;
  const Philox random = philox(seed_, {round, static_cast<std::uint32_t>(k), 0, 0});
  const std::uint64_t any = std::uint64_t{random[0]} << 32 | random[1];
  std::vector<std::uint8_t> half = halve(any >> random[2] % 64, members);
  // Class 0 stays what it is, so the other gets all.
  if (k == 0) half.assign(half.size(), 1);

  Split out;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::array<Histogram, 2> histograms;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const std::size_t i = members.begin[m];
      histograms[half[m]].add(profiles_.begin(i), profiles_.end(i), kNever);
    }
    out.first = k == 0 ? classes_[0] : histograms[0].fit({});
    out.second = histograms[1].fit({});
    out.gain = cost_[k];
    const bool first_wide = out.first.wide(), second_wide = out.second.wide();
    for (std::size_t m = 0; m < members.size(); ++m) {
      const int first = cost(members.begin[m], out.first, first_wide);
      const int second = cost(members.begin[m], out.second, second_wide);
      half[m] = second < first;
      out.gain -= std::min(first, second);
    }
  }
  return out;
}

// Of each block: whether it has more bits than the mean at a set of positions.
std::vector<std::uint8_t> Trainer::halve(std::uint64_t positions, Members members) const {
  std::vector<std::int64_t> bits(members.size());
  for (std::size_t m = 0; m < members.size(); ++m) {
    const std::size_t i = members.begin[m];
    for (const Item* item = profiles_.begin(i); item != profiles_.end(i); ++item)
      if (positions >> position(*item) & 1) bits[m] += symbol(*item);
  }
  const std::int64_t sum = std::accumulate(bits.begin(), bits.end(), std::int64_t{0});
  const auto size = static_cast<std::int64_t>(members.size());
  std::vector<std::uint8_t> above(members.size());
  for (std::size_t m = 0; m < members.size(); ++m) above[m] = bits[m] * size > sum;
  return above;
}

int Trainer::cost(std::size_t i, const Class& in, bool wide) const {
  int sum = profiles_.last(i) <= in.last ? in.last : kNever;
  for (const Item* item = profiles_.begin(i); item != profiles_.end(i); ++item)
    sum += item_cost(in, *item, wide);
  return sum;
}

}  // namespace

Status train_codebook(const std::int16_t* blocks, std::size_t n, int iterations, std::uint64_t seed,
                      std::vector<std::uint8_t>& codebook) {
  if (n == 0) return Status::error(Code::corrupt, "no blocks to train a codebook on");
  Profiles profiles;
  if (Status status = profiles.read(blocks, n); !status.ok()) return status;
  Trainer trainer(profiles, seed);
  const Classes& classes = trainer.run(iterations);
  codebook.clear();
  codebook.reserve(kCodebookBytes);
  for (const Class& each : classes) {
    codebook.push_back(static_cast<std::uint8_t>(each.last));
    codebook.insert(codebook.end(), each.width.begin(), each.width.end());
  }
  return Status::okay();
}

}  // namespace fastio
