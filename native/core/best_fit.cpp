#include "best_fit.h"

#include <bit>

namespace fastio {
namespace {

// The set of rooms (free sizes) for which there are bins: one bit per room, and one bit for each 64
// of these.
class RoomSet {
 public:
  explicit RoomSet(std::int32_t most)
      : bits_(static_cast<std::size_t>(most) / 64 + 1), words_(bits_.size() / 64 + 1) {}

  void add(std::size_t room) {
    bits_[room / 64] |= std::uint64_t{1} << (room % 64);
    words_[room / 4096] |= std::uint64_t{1} << (room / 64 % 64);
  }
  void remove(std::size_t room) {
    bits_[room / 64] &= ~(std::uint64_t{1} << (room % 64));
    if (!bits_[room / 64]) words_[room / 4096] &= ~(std::uint64_t{1} << (room / 64 % 64));
  }
  // Returns the smallest room of at least `size`, or SIZE_MAX if there is none.
  std::size_t at_least(std::size_t size) const {
    std::size_t word = size / 64;
    const std::uint64_t here = bits_[word] >> (size % 64);
    if (here) return size + static_cast<std::size_t>(std::countr_zero(here));
    ++word;
    for (std::size_t i = word / 64; i < words_.size(); ++i) {
      std::uint64_t some = words_[i];
      if (i == word / 64) some = some >> (word % 64) << (word % 64);
      if (!some) continue;
      const std::size_t found = i * 64 + static_cast<std::size_t>(std::countr_zero(some));
      return found * 64 + static_cast<std::size_t>(std::countr_zero(bits_[found]));
    }
    return SIZE_MAX;
  }

 private:
  std::vector<std::uint64_t> bits_, words_;
};

}  // namespace

std::vector<std::int64_t> best_fit(const std::int32_t* sizes, std::size_t count,
                                   std::int32_t room) {
  const auto most = static_cast<std::size_t>(room);
  // Counting sort: longest first, pieces of equal size in their order.
  std::vector<std::size_t> place(most + 2, 0);
  for (std::size_t i = 0; i < count; ++i) ++place[most - static_cast<std::size_t>(sizes[i]) + 1];
  for (std::size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i)
    order[place[most - static_cast<std::size_t>(sizes[i])]++] = i;

  RoomSet rooms(room);
  std::vector<std::vector<std::int64_t>> bins(most + 1);  // by their room
  std::vector<std::int64_t> bin_of(count);
  std::int64_t made = 0;
  for (const std::size_t piece : order) {
    const auto size = static_cast<std::size_t>(sizes[piece]);
    const std::size_t found = rooms.at_least(size);
    std::int64_t bin = made;
    std::size_t left = most - size;
    if (found == SIZE_MAX) {
      ++made;
    } else {
      bin = bins[found].back();
      bins[found].pop_back();
      if (bins[found].empty()) rooms.remove(found);
      left = found - size;
    }
    bin_of[piece] = bin;
    if (left == 0) continue;
    if (bins[left].empty()) rooms.add(left);
    bins[left].push_back(bin);
  }
  return bin_of;
}

}  // namespace fastio
