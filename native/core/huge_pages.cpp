#include "huge_pages.h"

#include <sys/mman.h>

namespace fastio {
namespace {

constexpr std::size_t kHugePage = 2u << 20;

}  // namespace

std::shared_ptr<std::uint8_t> huge_memory(std::size_t bytes) {
  const std::size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const room = ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) ::munmap(room, aligned - begin);
  const std::uintptr_t end = begin + size + kHugePage;
  if (end > aligned + size) ::munmap(reinterpret_cast<void*>(aligned + size), end - aligned - size);
  auto* const data = reinterpret_cast<std::uint8_t*>(aligned);
#ifdef MADV_HUGEPAGE
  ::madvise(data, size, MADV_HUGEPAGE);
#endif
  return {data, [size](std::uint8_t* memory) { ::munmap(memory, size); }};
}

}  // namespace fastio
