#include "span_slot.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace fastio {
namespace {

// A thread claims spans of about this many bytes at a time, so that the last spans are shared
// evenly.
constexpr std::uint64_t kClaimBytes = 256 << 10;
constexpr std::uint64_t kMostClaimed = 4096;

std::size_t chunk(const std::vector<Span>& spans) {
  std::uint64_t bytes = 1;
  for (const Span& span : spans) bytes += static_cast<std::uint64_t>(span.room);
  const std::uint64_t mean = bytes / std::max<std::uint64_t>(spans.size(), 1) + 1;
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(kClaimBytes / mean, 1, kMostClaimed));
}

// Whether [begin, begin + bytes) lies in [0, size), without overflow.
bool within(std::int64_t begin, std::int64_t bytes, std::size_t size) {
  if (begin < 0 || bytes < 0 || static_cast<std::uint64_t>(bytes) > size) return false;
  return static_cast<std::uint64_t>(begin) <= size - static_cast<std::uint64_t>(bytes);
}

}  // namespace

Status SpanSlot::check(const Sources& sources, const std::vector<Span>& spans, std::size_t size) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const bool known = span.source >= 0 && static_cast<std::size_t>(span.source) < sources.size();
    if (!known ||
        !within(span.begin, span.bytes, sources[static_cast<std::size_t>(span.source)]->size()))
      return Status::error(Code::corrupt, "span " + std::to_string(i) + " is outside of its file");
    if (span.room < span.bytes || !within(span.target, span.room, size))
      return Status::error(Code::corrupt, "span " + std::to_string(i) + " is outside of the array");
  }
  return Status::okay();
}

SpanSlot::SpanSlot(Sources sources, std::vector<Span> spans, std::uint8_t* out)
    : Slot(spans.size(), chunk(spans)),
      sources_(std::move(sources)),
      spans_(std::move(spans)),
      out_(out) {
  Mapping::keep_guards();
}

void SpanSlot::fill(std::size_t begin, std::size_t end, Worker&) {
  for (std::size_t i = begin; i < end; ++i) {
    const Span& span = spans_[i];
    const auto bytes = static_cast<std::size_t>(span.bytes);
    const auto left = static_cast<std::size_t>(span.room - span.bytes);
    std::uint8_t* const to = out_ + span.target;
    if (bytes)
      std::memcpy(to, sources_[static_cast<std::size_t>(span.source)]->data() + span.begin, bytes);
    if (left) std::memset(to + bytes, 0, left);
  }
  if (!Mapping::any_damaged()) return;
  const std::lock_guard lock(failing_);  // after the copies, which detect damage
  for (std::size_t i = begin; i < end; ++i)
    if (sources_[static_cast<std::size_t>(spans_[i].source)]->damaged())
      failures_.emplace_back(
          i, Status::error(Code::truncated, "its shard was truncated while it was read"));
}

std::vector<Failure> SpanSlot::noted() const {
  const std::lock_guard lock(failing_);
  return failures_;
}

}  // namespace fastio
