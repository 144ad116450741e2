#include "shuffle.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu.h"

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

std::uint64_t encipher(const Feistel& network, std::uint64_t x) {
  std::uint32_t low = static_cast<std::uint32_t>(x) & network.low_mask;
  std::uint32_t high = static_cast<std::uint32_t>(x >> network.low_bits);
  for (int i = 0; i < Feistel::kRounds; i += 2) {
    high ^= round_function(low, network.keys[i]) & network.high_mask;
    low ^= round_function(high, network.keys[i + 1]) & network.low_mask;
  }
  return static_cast<std::uint64_t>(high) << network.low_bits | low;
}

std::uint64_t decipher(const Feistel& network, std::uint64_t x) {
  std::uint32_t low = static_cast<std::uint32_t>(x) & network.low_mask;
  std::uint32_t high = static_cast<std::uint32_t>(x >> network.low_bits);
  for (int i = Feistel::kRounds - 2; i >= 0; i -= 2) {
    low ^= round_function(high, network.keys[i + 1]) & network.low_mask;
    high ^= round_function(low, network.keys[i]) & network.high_mask;
  }
  return static_cast<std::uint64_t>(high) << network.low_bits | low;
}

// The positions that are processed together.
constexpr std::size_t kChunk = 512;

// Up to this many values, processing one after the other is as fast.
constexpr std::size_t kFew = 3;

// Older processors divide 32-bit numbers several times as fast as 64-bit numbers.
std::uint64_t divide(std::uint64_t a, std::uint64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// Copies `from` to `to` in chunks, which change(values, count) maps in place. Returns false if a
// number is not in [0, n). Numbers are checked after they are copied, because another thread may
// change `from`.
template <typename Change>
bool in_chunks(std::uint64_t n, const std::int64_t* from, std::size_t count, std::int64_t* to,
               const Change& change) {
  std::uint64_t values[kChunk];
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t now = std::min(kChunk, count - begin);
    std::memcpy(values, from + begin, now * sizeof(values[0]));
    bool inside = true;
    for (std::size_t i = 0; i < now; ++i) inside &= values[i] < n;
    if (!inside) return false;
    change(values, now);
    std::memcpy(to + begin, values, now * sizeof(values[0]));
  }
  return true;
}

// Writes first + i to `to`, in chunks, which change(values, count) maps in place.
template <typename Change>
void range_in_chunks(std::uint64_t first, std::size_t count, std::int64_t* to,
                     const Change& change) {
  std::uint64_t values[kChunk];
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t now = std::min(kChunk, count - begin);
    for (std::size_t i = 0; i < now; ++i) values[i] = first + begin + i;
    change(values, now);
    std::memcpy(to + begin, values, now * sizeof(values[0]));
  }
}

// Calls part(window, begin, end) for each maximal run values[begin, end) within one window. find:
// returns the window of a value.
template <typename Find, typename Part>
void in_windows(const std::uint64_t* values, std::size_t count, const Find& find,
                const Part& part) {
  for (std::size_t begin = 0; begin < count;) {
    const auto window = find(values[begin]);
    std::size_t end = begin + 1;
    while (end < count && values[end] >= window.span.begin && values[end] < window.span.end) ++end;
    part(window, begin, end);
    begin = end;
  }
}

}  // namespace

std::uint64_t mix_key(std::uint64_t a, std::uint64_t b) {
  return finalise(finalise(a + 0x9E3779B97F4A7C15ull) ^
                  (b * 0xD6E8FEB86659FD93ull + 0x2545F4914F6CDD1Dull));
}

void feistel_portable(const Feistel& network, bool backwards, std::uint64_t* values,
                      std::size_t count) {
  if (backwards) {
    for (std::size_t i = 0; i < count; ++i) values[i] = decipher(network, values[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] = encipher(network, values[i]);
  }
}

Permutation::Permutation(std::uint64_t n, std::uint64_t key) : n_(n) {
  const int bits = std::max(8, static_cast<int>(std::bit_width(n - 1)));
  network_.low_bits = bits / 2;
  network_.low_mask = (1u << network_.low_bits) - 1;
  network_.high_mask = (1u << (bits - network_.low_bits)) - 1;
  for (int i = 0; i < Feistel::kRounds; i += 2) {
    const std::uint64_t k = mix_key(key, static_cast<std::uint64_t>(i));
    network_.keys[i] = static_cast<std::uint32_t>(k);
    network_.keys[i + 1] = static_cast<std::uint32_t>(k >> 32);
  }
}

std::uint64_t Permutation::operator()(std::uint64_t position) const {
  std::uint64_t x = encipher(network_, position);
  while (x >= n_) x = encipher(network_, x);
  return x;
}

std::uint64_t Permutation::invert(std::uint64_t value) const {
  std::uint64_t x = decipher(network_, value);
  while (x >= n_) x = decipher(network_, x);
  return x;
}

// Cycle walking. Compacts the values that are outside of [0, n), and enciphers them again. A branch
// for each value would be mispredicted half of the time, which costs more than the cipher.
void Permutation::walk(bool backwards, std::uint64_t* values, std::size_t count) const {
  auto* kernel = &feistel_portable;
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) kernel = &feistel_avx2;
#endif
  std::uint64_t walking[kChunk];
  std::uint16_t places[kChunk];
  for (std::size_t done = 0; done < count; done += kChunk, values += kChunk) {
    std::size_t left = std::min(kChunk, count - done);
    for (std::size_t i = 0; i < left; ++i) {
      walking[i] = values[i];
      places[i] = static_cast<std::uint16_t>(i);
    }
    while (left > 0) {
      const std::size_t padded = (left + kFeistelGroup - 1) / kFeistelGroup * kFeistelGroup;
      for (std::size_t i = left; i < padded; ++i) walking[i] = 0;
      kernel(network_, backwards, walking, padded);
      std::size_t outside = 0;
      for (std::size_t i = 0; i < left; ++i) {
        const std::uint64_t x = walking[i];
        const std::uint16_t place = places[i];
        values[place] = x;
        walking[outside] = x;
        places[outside] = place;
        outside += x >= n_;
      }
      left = outside;
    }
  }
}

void Permutation::apply(std::uint64_t* positions, std::size_t count) const {
  if (count > kFew) return walk(false, positions, count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = (*this)(positions[i]);
}

void Permutation::invert(std::uint64_t* values, std::size_t count) const {
  if (count > kFew) return walk(true, values, count);
  for (std::size_t i = 0; i < count; ++i) values[i] = invert(values[i]);
}

void Permutation::range(std::uint64_t first, std::size_t count, std::int64_t* rows) const {
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2) && n_ <= std::uint64_t{1} << 32)
    return feistel_range_avx2(network_, n_, first, count, rows);
#endif
  range_in_chunks(first, count, rows,
                  [this](std::uint64_t* values, std::size_t now) { apply(values, now); });
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
  return divide(position < after_short ? position : position + deficit_, block_);
}

std::uint64_t WindowPermutation::first_slot(std::uint64_t slot) const {
  return divide(slot, window_) * window_;
}

WindowPermutation::Span WindowPermutation::span_of(std::uint64_t first) const {
  return {slot_start(first), slot_start(first + std::min(window_, blocks_ - first))};
}

WindowPermutation::Window WindowPermutation::window_at(std::uint64_t position) const {
  const std::uint64_t first = first_slot(slot_of(position));
  const Span span = span_of(first);
  return {span, Permutation(span.end - span.begin, mix_key(key_, 2 + first))};
}

std::uint64_t WindowPermutation::operator()(std::uint64_t position) const {
  apply(&position, 1);
  return position;
}

std::uint64_t WindowPermutation::invert(std::uint64_t row) const {
  invert(&row, 1);
  return row;
}

void WindowPermutation::mix_windows(bool backwards, std::uint64_t* positions,
                                    std::size_t count) const {
  const auto find = [this](std::uint64_t position) { return window_at(position); };
  const auto mix = [&](const Window& window, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) positions[i] -= window.span.begin;
    if (backwards) {
      window.inside.invert(positions + begin, end - begin);
    } else {
      window.inside.apply(positions + begin, end - begin);
    }
    for (std::size_t i = begin; i < end; ++i) positions[i] += window.span.begin;
  };
  in_windows(positions, count, find, mix);
}

void WindowPermutation::apply(std::uint64_t* positions, std::size_t count) const {
  mix_windows(false, positions, count);
  std::uint64_t slots[kChunk];
  for (std::size_t done = 0; done < count; done += kChunk) {
    std::uint64_t* values = positions + done;
    const std::size_t now = std::min(kChunk, count - done);
    for (std::size_t i = 0; i < now; ++i) {
      slots[i] = slot_of(values[i]);
      values[i] -= slot_start(slots[i]);
    }
    block_order_.apply(slots, now);
    for (std::size_t i = 0; i < now; ++i) values[i] += slots[i] * block_;
  }
}

void WindowPermutation::invert(std::uint64_t* rows, std::size_t count) const {
  std::uint64_t slots[kChunk];
  for (std::size_t done = 0; done < count; done += kChunk) {
    std::uint64_t* values = rows + done;
    const std::size_t now = std::min(kChunk, count - done);
    for (std::size_t i = 0; i < now; ++i) {
      slots[i] = divide(values[i], block_);
      values[i] -= slots[i] * block_;
    }
    block_order_.invert(slots, now);
    for (std::size_t i = 0; i < now; ++i) values[i] += slot_start(slots[i]);
  }
  mix_windows(true, rows, count);
}

bool permute(std::uint64_t n, std::uint64_t key, const std::int64_t* positions, std::size_t count,
             std::int64_t* rows) {
  const Permutation order(n, key);
  return in_chunks(n, positions, count, rows,
                   [&](std::uint64_t* values, std::size_t now) { order.apply(values, now); });
}

void permute_range(std::uint64_t n, std::uint64_t key, std::uint64_t first, std::size_t count,
                   std::int64_t* rows) {
  Permutation(n, key).range(first, count, rows);
}

void permute_window_range(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                          std::uint64_t key, std::uint64_t first, std::size_t count,
                          std::int64_t* rows) {
  const WindowPermutation order(n, block, window, key);
  range_in_chunks(first, count, rows,
                  [&](std::uint64_t* values, std::size_t now) { order.apply(values, now); });
}

bool permute_inverse(std::uint64_t n, std::uint64_t key, const std::int64_t* rows,
                     std::size_t count, std::int64_t* positions) {
  const Permutation order(n, key);
  return in_chunks(n, rows, count, positions,
                   [&](std::uint64_t* values, std::size_t now) { order.invert(values, now); });
}

bool permute_window(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                    const std::int64_t* positions, std::size_t count, std::int64_t* rows) {
  const WindowPermutation order(n, block, window, key);
  return in_chunks(n, positions, count, rows,
                   [&](std::uint64_t* values, std::size_t now) { order.apply(values, now); });
}

bool permute_window_inverse(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                            std::uint64_t key, const std::int64_t* rows, std::size_t count,
                            std::int64_t* positions) {
  const WindowPermutation order(n, block, window, key);
  return in_chunks(n, rows, count, positions,
                   [&](std::uint64_t* values, std::size_t now) { order.invert(values, now); });
}

bool windows_of(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                const std::int64_t* blocks, std::size_t count, std::int64_t* begins,
                std::int64_t* ends) {
  const WindowPermutation order(n, block, window, key);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t number;
    std::memcpy(&number, blocks + i, sizeof number);
    if (number >= order.blocks()) return false;
    const auto span = order.window_of(number);
    begins[i] = static_cast<std::int64_t>(span.begin);
    ends[i] = static_cast<std::int64_t>(span.end);
  }
  return true;
}

}  // namespace fastio
