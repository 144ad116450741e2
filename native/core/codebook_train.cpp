#include "codebook_train.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>

#include "codebook.h"
#include "codebook_classes.h"
#include "rng.h"

// Lloyd iteration: blocks choose their cheapest class, then classes are fitted to their blocks.
// That alone ends in the nearest local minimum. Therefore classes also move until the last quarter
// of the passes: those whose blocks would cost little more in other classes are replaced by halves
// of classes for which splitting gains the most. The first classes are created in the same way, by
// splitting one class.

namespace fastio {
namespace {

using namespace training;

class Trainer {
 public:
  Trainer(const Profiles& profiles, std::uint64_t seed);
  // Returns the best classes, or null if go_on() returned false.
  const Classes* run(int iterations, bool (*go_on)());

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
  // For each block: its class, and the bits that it would cost more in the next best one.
  std::vector<std::uint8_t> chosen_;
  std::vector<std::uint16_t> missing_;
  // For each class: the sums of its blocks' costs and `missing_`.
  std::array<std::int64_t, kClasses> cost_{}, loss_{};
};

Trainer::Trainer(const Profiles& profiles, std::uint64_t seed)
    : profiles_(profiles), seed_(seed), chosen_(profiles.size()), missing_(profiles.size()) {
  classes_[0].last = 63;
  classes_[0].width.fill(kPlanes);
  best_classes_ = classes_;
}

const Classes* Trainer::run(int iterations, bool (*go_on)()) {
  constexpr int kFirstMoves = 9;  // each about doubles the classes, until all 256 are in use
  for (int i = 0; i < iterations; ++i) {
    if (go_on && !go_on()) return nullptr;
    assign();
    if (i + 1 == iterations) break;
    fit();
    if (i < kFirstMoves || i < iterations - iterations / 4) move(static_cast<std::uint32_t>(i));
  }
  return &best_classes_;
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

// Splits the classes that gain most by it; the second halves replace the classes whose loss would
// cost least. Compares costs from before fit(), which are accurate enough for this choice.
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
  // Class 0 never changes, so all blocks go to the second half at first.
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

// Returns for each block whether it has more bits than the mean at a set of positions.
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

// Returns the predictor of the DC of component c's block (y, x), as the format defines it within a
// tile row.
int dc_before(const JpegCoefficients& in, int c, std::size_t y, std::size_t x) {
  const auto columns = static_cast<std::size_t>(in.shape.blocks_x(c));
  const std::int16_t* block = in.blocks[c].data() + (y * columns + x) * 64;
  if (x != 0) return block[-64];
  if (y % static_cast<std::size_t>(in.shape.tile_blocks_y(c)) != 0) return *(block - columns * 64);
  return block[0];
}

}  // namespace

void sample_blocks(const JpegCoefficients& in, std::size_t every, std::size_t phase,
                   std::vector<std::int16_t>& out) {
  std::size_t next = phase;  // relative to the component's first block
  for (int c = 0; c < in.shape.components; ++c) {
    const auto columns = static_cast<std::size_t>(in.shape.blocks_x(c));
    const std::size_t blocks = columns * static_cast<std::size_t>(in.shape.blocks_y(c));
    for (; next < blocks; next += every) {
      const std::int16_t* block = in.blocks[c].data() + next * 64;
      const int difference = block[0] - dc_before(in, c, next / columns, next % columns);
      out.push_back(static_cast<std::int16_t>(difference));  // modulo 2^16
      for (int z = 1; z < 64; ++z) out.push_back(block[kZigzag[z]]);
    }
    next -= blocks;
  }
}

Status train_codebook(const std::int16_t* blocks, std::size_t n, int iterations, std::uint64_t seed,
                      std::vector<std::uint8_t>& codebook, bool (*go_on)()) {
  if (n == 0) return Status::error(Code::corrupt, "no blocks to train a codebook on");
  Profiles profiles;
  if (Status status = profiles.read(blocks, n); !status.ok()) return status;
  Trainer trainer(profiles, seed);
  const Classes* const classes = trainer.run(iterations, go_on);
  if (!classes) return Status::error(Code::cancelled, "the training was stopped");
  codebook.clear();
  codebook.reserve(kCodebookBytes);
  for (const Class& each : *classes) {
    codebook.push_back(static_cast<std::uint8_t>(each.last));
    codebook.insert(codebook.end(), each.width.begin(), each.width.end());
  }
  return Status::okay();
}

}  // namespace fastio
