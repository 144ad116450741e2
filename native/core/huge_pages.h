// Allocates memory in huge pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastio {

// Returns at least `bytes` bytes of zeroed memory, in huge pages if the system has some, or null if
// there is not enough memory.
std::shared_ptr<std::uint8_t> huge_memory(std::size_t bytes);

}  // namespace fastio
