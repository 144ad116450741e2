#include "direct_reads.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "huge_pages.h"

namespace fastio {
namespace {

// The alignment of addresses, offsets and lengths of reads. No disk needs a larger one.
constexpr std::int64_t kAlignment = 4096;

// The bytes of memory of a row: its own, those before and after it up to the alignment, and the
// padding.
constexpr std::size_t kRowMemory =
    static_cast<std::size_t>(DirectRange::kMostBytes + 3 * kAlignment);

std::int64_t aligned(std::int64_t offset) { return offset / kAlignment * kAlignment; }

}  // namespace

DirectReads::DirectReads(std::size_t depth) : reads_(depth) {
  if (!ring_.open(static_cast<unsigned>(depth))) return;
  memory_ = huge_memory(depth * kRowMemory);
  if (!memory_) return;
  // After a fork, the kernel might write to the child's copy of a page instead of the parent's.
  ::madvise(memory_.get(), depth * kRowMemory, MADV_DONTFORK);
  usable_ = true;
}

std::uint8_t* DirectReads::memory_of(std::size_t read) const {
  return memory_.get() + read * kRowMemory;
}

bool DirectReads::begin(const Claim& claim, DirectRange range) {
  if (!usable_ || !range.file || range.length > DirectRange::kMostBytes) return false;
  const auto free =
      std::find_if(reads_.begin(), reads_.end(), [](Read& read) { return !read.held; });
  if (free == reads_.end()) return false;
  const auto number = static_cast<std::size_t>(free - reads_.begin());
  const std::int64_t first = aligned(range.offset);
  const std::int64_t last = aligned(range.offset + range.length + kAlignment - 1);
  ring_.read(range.file->fd, first, memory_of(number), static_cast<unsigned>(last - first), number);
  *free = {claim, std::move(range), next_number_++, 0, true, false};
  ++held_;
  return true;
}

void DirectReads::submit() {
  if (usable_ && !ring_.submit(false)) give_up();
}

Claim DirectReads::next(std::span<const std::uint8_t>& bytes) {
  const auto ready = [](const Read& read) { return read.held && read.done; };
  if (usable_ && !ring_.submit(std::none_of(reads_.begin(), reads_.end(), ready))) give_up();
  std::uint64_t number = 0;
  for (std::int32_t result = 0; usable_ && ring_.take(number, result);) {
    reads_[number].result = result;
    reads_[number].done = true;
  }
  Read* oldest = nullptr;
  for (Read& read : reads_)
    if (ready(read) && (!oldest || read.number < oldest->number)) oldest = &read;
  const DirectRange range = std::move(oldest->range);
  const std::int64_t before = range.offset - aligned(range.offset);
  bytes = {};
  if (oldest->result >= before + range.length) {
    std::uint8_t* const first =
        memory_of(static_cast<std::size_t>(oldest - reads_.data())) + before;
    std::memset(first + range.length, 0, Buffer::kPad);
    bytes = {first, static_cast<std::size_t>(range.length)};
  } else if (oldest->result == -EINVAL || oldest->result == -EOPNOTSUPP) {
    range.file->allowed->store(false, std::memory_order_relaxed);
  }
  oldest->held = false;
  --held_;
  return std::move(oldest->claim);
}

// Called if the ring has failed, for example because other code has closed its descriptor. The
// kernel may still write to the memory, so it is neither freed nor used again.
void DirectReads::give_up() {
  usable_ = false;
  static_cast<void>(new std::shared_ptr<std::uint8_t>(memory_));
  for (Read& read : reads_) {
    if (!read.done) read.result = -EIO;
    read.done = true;
  }
}

}  // namespace fastio
