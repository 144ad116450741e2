#include "shuffle.h"

#include <algorithm>
#include <bit>

namespace fastio {
namespace {

// splitmix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014): every input bit reaches every output bit.
std::uint64_t finalise(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// A 32-bit round function (the constants of Wellons' lowbias32), so that a loop of positions can
// be vectorised: halves have at most 24 bits.
std::uint32_t round_function(std::uint32_t x, std::uint32_t key) {
  x = (x ^ key) * 0x9E3779B1u;
  x ^= x >> 16;
  x *= 0x21F0AAADu;
  x ^= x >> 15;
  return x;
}

}  // namespace

std::uint64_t mix_key(std::uint64_t a, std::uint64_t b) {
  return finalise(finalise(a + 0x9E3779B97F4A7C15ull) ^
                  (b * 0xD6E8FEB86659FD93ull + 0x2545F4914F6CDD1Dull));
}

Permutation::Permutation(std::uint64_t n, std::uint64_t key) : n_(n) {
  const int bits = std::max(8, static_cast<int>(std::bit_width(n - 1)));
  low_bits_ = bits / 2;
  low_mask_ = (1u << low_bits_) - 1;
  high_mask_ = (1u << (bits - low_bits_)) - 1;
  for (int i = 0; i < kRounds; i += 2) {
    const std::uint64_t k = mix_key(key, static_cast<std::uint64_t>(i));
    keys_[i] = static_cast<std::uint32_t>(k);
    keys_[i + 1] = static_cast<std::uint32_t>(k >> 32);
  }
}

std::uint64_t Permutation::encipher(std::uint64_t x) const {
  std::uint32_t low = static_cast<std::uint32_t>(x) & low_mask_;
  std::uint32_t high = static_cast<std::uint32_t>(x >> low_bits_);
  for (int i = 0; i < kRounds; i += 2) {
    high ^= round_function(low, keys_[i]) & high_mask_;
    low ^= round_function(high, keys_[i + 1]) & low_mask_;
  }
  return static_cast<std::uint64_t>(high) << low_bits_ | low;
}

std::uint64_t Permutation::decipher(std::uint64_t x) const {
  std::uint32_t low = static_cast<std::uint32_t>(x) & low_mask_;
  std::uint32_t high = static_cast<std::uint32_t>(x >> low_bits_);
  for (int i = kRounds - 2; i >= 0; i -= 2) {
    low ^= round_function(high, keys_[i + 1]) & low_mask_;
    high ^= round_function(low, keys_[i]) & high_mask_;
  }
  return static_cast<std::uint64_t>(high) << low_bits_ | low;
}

std::uint64_t Permutation::operator()(std::uint64_t position) const {
  std::uint64_t x = encipher(position);
  while (x >= n_) x = encipher(x);
  return x;
}

std::uint64_t Permutation::invert(std::uint64_t value) const {
  std::uint64_t x = decipher(value);
  while (x >= n_) x = decipher(x);
  return x;
}

WindowPermutation::WindowPermutation(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                                     std::uint64_t key)
    : n_(n),
      block_(std::min(block, n)),
      window_(window),
      key_(key),
      blocks_((n - 1) / block_ + 1),
      deficit_(blocks_ * block_ - n),
      block_order_(blocks_, mix_key(key, 1)),
      short_slot_(block_order_.invert(blocks_ - 1)) {}

std::uint64_t WindowPermutation::slot_start(std::uint64_t slot) const {
  return slot * block_ - (slot > short_slot_ ? deficit_ : 0);
}

std::uint64_t WindowPermutation::slot_of(std::uint64_t position) const {
  const std::uint64_t after_short = (short_slot_ + 1) * block_ - deficit_;
  return position < after_short ? position / block_ : (position + deficit_) / block_;
}

std::uint64_t WindowPermutation::operator()(std::uint64_t position) const {
  const std::uint64_t first = slot_of(position) / window_ * window_;
  const std::uint64_t begin = slot_start(first);
  const std::uint64_t end = std::min(n_, slot_start(std::min(first + window_, blocks_)));
  const Permutation inside(end - begin, mix_key(key_, 2 + first));
  const std::uint64_t mixed = begin + inside(position - begin);
  const std::uint64_t slot = slot_of(mixed);
  return block_order_(slot) * block_ + (mixed - slot_start(slot));
}

void permute(std::uint64_t n, std::uint64_t key, const std::int64_t* positions, std::size_t count,
             std::int64_t* rows) {
  const Permutation order(n, key);
  for (std::size_t i = 0; i < count; ++i)
    rows[i] = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(positions[i])));
}

void permute_window(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                    const std::int64_t* positions, std::size_t count, std::int64_t* rows) {
  const WindowPermutation order(n, block, window, key);
  for (std::size_t i = 0; i < count; ++i)
    rows[i] = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(positions[i])));
}

}  // namespace fastio
