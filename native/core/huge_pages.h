// Memory in huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastio {

// Returns zeroed memory of at least `bytes` bytes, in whole huge pages if the system has them; null
// if there is no memory.
std::shared_ptr<std::uint8_t> huge_memory(std::size_t bytes);

}  // namespace fastio
