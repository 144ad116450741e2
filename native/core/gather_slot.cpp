#include "gather_slot.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fastio {
namespace {

// Rows a thread claims at a time: 16 times a batch of 16,384.
constexpr std::size_t kClaim = 1024;

// Rows that are located before they are copied.
constexpr std::size_t kLocated = 256;

// How many rows ahead the memory is asked for a row: as many as a core has misses under way, and
// no more, where rows are three or four cache lines.
constexpr std::size_t kAheadBytes = 3072;
constexpr std::size_t kLine = 64;

// Copies `width` bytes without a call: in pieces of 16, the last of which overlaps the one before.
inline void copy(std::uint8_t* to, const std::uint8_t* from, std::size_t width) {
  switch (width) {
    case 1:
      *to = *from;
      return;
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    default:
      break;
  }
  if (width < 16) {
    std::memcpy(to, from, width);
    return;
  }
  std::size_t at = 0;
  for (; at + 16 <= width; at += 16) std::memcpy(to + at, from + at, 16);
  if (at < width) std::memcpy(to + width - 16, from + width - 16, 16);
}

inline void prefetch(const std::uint8_t* begin, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(begin + at);
  __builtin_prefetch(begin + bytes - 1);
}

}  // namespace

GatherSlot::GatherSlot(std::shared_ptr<const Table> table, std::vector<std::int64_t> rows,
                       std::vector<std::uint8_t*> out)
    : Slot(rows.size(), kClaim),
      table_(std::move(table)),
      shards_(table_->snapshot()),
      row_(std::move(rows)) {
  const std::vector<TableField>& fields = table_->fields();
  for (std::size_t column = 0; column < table_->strides().size(); ++column) {
    Wanted wanted{column, UINT32_MAX, 0, {}};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].column != column || !out[i]) continue;
      wanted.begin = std::min(wanted.begin, fields[i].offset);
      wanted.end = std::max(wanted.end, fields[i].offset + fields[i].width);
      wanted.targets.push_back({out[i], fields[i].offset, fields[i].width});
    }
    if (!wanted.targets.empty()) wanted_.push_back(std::move(wanted));
  }
}

void GatherSlot::fill(std::size_t begin, std::size_t end, Worker&) {
  bool whole = true;
  for (const Wanted& wanted : wanted_)
    for (std::size_t at = begin; at < end; at += kLocated)
      whole &= copy_column(wanted, at, std::min(at + kLocated, end));
  if (!whole || Mapping::any_damaged()) note_failures(begin, end);
}

// Rows [begin, end), kLocated of them at most. Rows that cannot be had are left as they are; false
// where there are some.
bool GatherSlot::copy_column(const Wanted& wanted, std::size_t begin, std::size_t end) const {
  const std::uint64_t stride = table_->strides()[wanted.column];
  const std::uint8_t* from[kLocated];
  const std::size_t count = end - begin;
  bool whole = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t row = row_[begin + i];
    const std::size_t shard = table_->shard_of(row);
    const ShardColumns* const columns = (*shards_)[shard].get();
    const auto local = static_cast<std::uint64_t>(row - table_->first_row(shard));
    from[i] =
        columns && columns->status.ok() ? columns->begin[wanted.column] + local * stride : nullptr;
    whole &= from[i] != nullptr;
  }
  const std::size_t bytes = wanted.end - wanted.begin;
  const std::size_t ahead = std::clamp<std::size_t>(kAheadBytes / (bytes + kLine), 4, 32);
  for (std::size_t i = 0; i < std::min(ahead, count); ++i)
    if (from[i]) prefetch(from[i] + wanted.begin, bytes);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead < count && from[i + ahead]) prefetch(from[i + ahead] + wanted.begin, bytes);
    if (!from[i]) continue;
    for (const Target& target : wanted.targets)
      copy(target.out + (begin + i) * target.width, from[i] + target.offset, target.width);
  }
  return whole;
}

// After the copying: a mapping may have turned out to be damaged by it.
void GatherSlot::note_failures(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const ShardColumns* const shard = (*shards_)[table_->shard_of(row_[i])].get();
    if (shard && shard->sound()) continue;
    Status status = !shard ? Status::error(Code::not_found, "its shard is not open")
                    : !shard->status.ok()
                        ? shard->status
                        : Status::error(Code::truncated, "its shard was cut off while it was read");
    const std::lock_guard lock(failing_);
    failures_.emplace_back(i, std::move(status));
  }
}

std::vector<Failure> GatherSlot::failures() const {
  const std::lock_guard lock(failing_);
  std::vector<Failure> found = failures_;
  std::sort(found.begin(), found.end(),
            [](const Failure& a, const Failure& b) { return a.first < b.first; });
  return found;
}

}  // namespace fastio
