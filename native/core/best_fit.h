// Pieces into bins of one size, as few as best-fit decreasing takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// The bin of each piece: longest first, each into the fullest bin that has room for it, or else
// into a new one; of several such bins into the one that became so last. Sizes are in [1, room].
// Takes O(pieces + room / 64) time a piece at worst, and about constant time where sizes repeat
// (Johnson, "Near-optimal bin packing algorithms", 1973).
std::vector<std::int64_t> best_fit(const std::int32_t* sizes, std::size_t count, std::int32_t room);

}  // namespace fastio
