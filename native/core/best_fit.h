// Bin packing by best-fit decreasing, for bins of equal size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// Returns the bin of each piece. Pieces are placed longest first, each into the fullest bin that
// has room for it, or else into a new bin; of several equally full bins, into the one that was
// filled to that level last. sizes: in [1, room]. A piece takes at most O(room / 64) time, and
// about constant time if sizes repeat (Johnson, "Near-optimal bin packing algorithms", 1973).
std::vector<std::int64_t> best_fit(const std::int32_t* sizes, std::size_t count, std::int32_t room);

}  // namespace fastio
