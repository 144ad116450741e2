#include "table.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "huge_pages.h"

namespace fastio {
namespace {

// The bytes that are copied at a time, and requested ahead.
constexpr std::size_t kPiece = 8u << 20;
constexpr std::size_t kAligned = 64;  // the alignment of columns in shared memory
// The time between two tests of whether another process has finished copying a shard.
constexpr std::chrono::milliseconds kLook{20};

// madvise() for a range of a mapping that need not be aligned.
void advise(const std::uint8_t* data, std::size_t bytes, int advice) {
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t aligned = begin / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(aligned), bytes + (begin - aligned), advice);
}

// Copies a part of a mapping, and reads ahead what is not cached. Returns false if `stop` became
// true.
bool copy_mapped(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes,
                 const std::atomic<bool>& stop) {
  advise(from, std::min(bytes, kPiece), MADV_WILLNEED);
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    if (stop.load()) return false;
    const std::size_t size = std::min(kPiece, bytes - at), next = at + size;
    if (next < bytes) advise(from + next, std::min(kPiece, bytes - next), MADV_WILLNEED);
    std::memcpy(to + at, from + at, size);
  }
  return true;
}

bool sensible(const TableField& field) {
  if (field.width == 0 || field.kind > FieldKind::mask) return false;
  if (field.kind == FieldKind::bytes) return true;
  const bool from = field.from == 1 || field.from == 2 || field.from == 4;
  return from && (field.to == 4 || field.to == 8) && field.width % field.from == 0;
}

}  // namespace

Table::Table(std::vector<std::int64_t> first_row, std::vector<std::uint64_t> strides,
             std::vector<TableField> fields)
    : first_row_(std::move(first_row)),
      strides_(std::move(strides)),
      fields_(std::move(fields)),
      pid_(::getpid()) {
  const auto backwards = [](std::int64_t a, std::int64_t b) { return a >= b; };
  if (first_row_.size() < 2 || first_row_.front() != 0 ||
      std::adjacent_find(first_row_.begin(), first_row_.end(), backwards) != first_row_.end())
    throw std::invalid_argument("first_row must ascend from 0");
  reach_.resize(strides_.size());
  for (const TableField& field : fields_) {
    if (field.column >= strides_.size() || !sensible(field))
      throw std::invalid_argument("a field has an invalid column, width or kind");
    const std::uint64_t end = std::uint64_t{field.offset} + field.width;
    if (!field.in_segments()) reach_[field.column] = std::max(reach_[field.column], end);
  }
  // About two entries per shard, so that shard_of() takes a step or two after the look-up.
  while ((rows() >> guide_shift_) > 2 * static_cast<std::int64_t>(shards())) ++guide_shift_;
  guide_.resize(static_cast<std::size_t>((rows() - 1) >> guide_shift_) + 1);
  std::uint32_t shard = 0;
  for (std::size_t i = 0; i < guide_.size(); ++i) {
    while ((static_cast<std::int64_t>(i) << guide_shift_) >= first_row_[shard + 1]) ++shard;
    guide_[i] = shard;
  }
  state_ = std::make_shared<State>();
  state_->known.shards.resize(shards());
  state_->known.origins.assign(strides_.size(), std::vector<std::uintptr_t>(shards()));
}

Status Table::set(std::size_t shard, std::shared_ptr<const Mapping> mapping,
                  const std::vector<ColumnPlace>& places, std::shared_ptr<const Segments> segments,
                  std::uint64_t what) {
  if (shard >= shards() || places.size() != strides_.size())
    return Status::error(Code::corrupt,
                         "the number of the shard or the number of columns is wrong");
  const auto rows = static_cast<std::uint64_t>(first_row_[shard + 1] - first_row_[shard]);
  auto columns = std::make_shared<ShardColumns>();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const ColumnPlace& place = places[i];
    if (place.offset > mapping->size() || mapping->size() - place.offset < place.bytes)
      return Status::error(Code::corrupt, "a column is outside of the shard's file");
    if (Status status = check_column(i, shard, place.bytes); !status.ok()) return status;
    columns->begin.push_back(mapping->data() + place.offset);
  }
  if (segments) {
    Status status = check_segments(*segments, rows, places);
    if (!status.ok()) return status;
  } else if (std::any_of(fields_.begin(), fields_.end(),
                         [](const TableField& field) { return field.in_segments(); })) {
    return Status::error(Code::corrupt, "fields that are made of segments need segments");
  }
  columns->mapping = std::move(mapping);
  columns->segments = std::move(segments);
  const std::shared_ptr<const ShardColumns> made = std::move(columns);
  replace(shard, nullptr, made);
  {
    const std::lock_guard lock(mutex_);
    if (!copying_ || closed_) return Status::okay();
    try {
      to_copy_.push_back({shard, made, places, what});
    } catch (const std::bad_alloc&) {
      return Status::okay();  // it stays mapped
    }
  }
  wanted_.notify_one();
  return Status::okay();
}

Status Table::set_memory(std::size_t shard, const std::vector<MemoryColumn>& given) {
  if (shard >= shards() || given.size() != strides_.size())
    return Status::error(Code::corrupt,
                         "the number of the shard or the number of columns is wrong");
  if (std::any_of(fields_.begin(), fields_.end(),
                  [](const TableField& field) { return field.in_segments(); }))
    return Status::error(Code::corrupt, "fields that are made of segments need segments");
  auto columns = std::make_shared<ShardColumns>();
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (Status status = check_column(i, shard, given[i].bytes); !status.ok()) return status;
    columns->begin.push_back(given[i].begin);
  }
  replace(shard, nullptr, std::move(columns));
  return Status::okay();
}

// Checks that all rows of a shard fit in `bytes` bytes of a column.
Status Table::check_column(std::size_t column, std::size_t shard, std::uint64_t bytes) const {
  const auto rows = static_cast<std::uint64_t>(first_row_[shard + 1] - first_row_[shard]);
  const std::uint64_t reach = reach_[column], stride = strides_[column];
  if (reach > bytes || (stride && (bytes - reach) / stride < rows - 1))
    return Status::error(Code::corrupt, "a column has too few bytes for its rows");
  return Status::okay();
}

Status Table::check_segments(const Segments& segments, std::uint64_t rows,
                             const std::vector<ColumnPlace>& places) const {
  std::int64_t numbers = INT64_MAX;
  for (const TableField& field : fields_)
    if (field.in_segments())
      numbers =
          std::min(numbers, static_cast<std::int64_t>(places[field.column].bytes / field.from));
  const auto count = static_cast<std::int64_t>(segments.start.size());
  bool ok = segments.begin.size() == rows + 1 && segments.length.size() == segments.start.size() &&
            segments.begin.front() == 0 && segments.begin.back() == count &&
            std::is_sorted(segments.begin.begin(), segments.begin.end());
  for (std::size_t i = 0; ok && i < segments.start.size(); ++i)
    ok = segments.start[i] >= 0 && segments.length[i] > 0 && segments.start[i] <= numbers &&
         segments.length[i] <= numbers - segments.start[i];
  return ok ? Status::okay()
            : Status::error(Code::corrupt, "a segment is outside of the shard's tokens");
}

void Table::unset(std::size_t shard) {
  if (shard < shards()) replace(shard, nullptr, nullptr);
}

// Replaces the columns of a shard, unless `expected` is given and they are no longer those. If
// there are snapshots of the state, it is copied first: once, however many shards are replaced
// before the next snapshot.
void Table::replace(std::size_t shard, const ShardColumns* expected,
                    std::shared_ptr<const ShardColumns> columns) {
  std::shared_ptr<State> old;  // destroyed after the lock, because that may unmap files
  const std::lock_guard lock(mutex_);
  const ShardColumns* const there = state_->known.shards[shard].get();
  if (expected && there != expected) return;
  if (state_->snapshots.load(std::memory_order_acquire)) {  // before any change: may throw
    old = std::make_shared<State>();
    old->known = state_->known;
    state_.swap(old);
  }
  known_ += std::size_t{columns != nullptr} - std::size_t{there != nullptr};
  if (expected && columns) ++resident_;
  const auto first = static_cast<std::uint64_t>(first_row_[shard]);
  for (std::size_t i = 0; i < strides_.size(); ++i)
    state_->known.origins[i][shard] =
        columns ? reinterpret_cast<std::uintptr_t>(columns->begin[i]) - first * strides_[i] : 0;
  state_->known.shards[shard].swap(columns);
}

std::vector<std::int64_t> Table::missing(const std::int64_t* rows, std::size_t count) const {
  if (complete()) return {};
  const std::shared_ptr<const KnownShards> known = snapshot();
  std::vector<bool> is_missing(shards());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t shard = shard_of(rows[i]);
    if (!known->shards[shard]) is_missing[shard] = true;
  }
  std::vector<std::int64_t> found;
  for (std::size_t shard = 0; shard < shards(); ++shard)
    if (is_missing[shard]) found.push_back(static_cast<std::int64_t>(shard));
  return found;
}

bool Table::complete() const {
  const std::lock_guard lock(mutex_);
  return known_ == shards();
}

std::shared_ptr<const KnownShards> Table::snapshot() const {
  const std::lock_guard lock(mutex_);
  state_->snapshots.fetch_add(1, std::memory_order_relaxed);
  const auto done = [state = state_](const KnownShards*) {
    state->snapshots.fetch_sub(1, std::memory_order_release);
  };
  return {&state_->known, done};
}

std::size_t Table::resident() const {
  const std::lock_guard lock(mutex_);
  return resident_;
}

void Table::make_resident(std::shared_ptr<NodeMemory> node) {
  if (node && node->shards() != shards())
    throw std::invalid_argument("the shared memory has another number of shards");
  const std::lock_guard lock(mutex_);
  if (copying_ || closed_) return;
  node_ = std::move(node);
  try {
    crew_.start([self = shared_from_this()] { self->copy_all(); });
    copying_ = true;
  } catch (const std::exception&) {
    // Without a thread, shards stay mapped.
  }
}

Table::~Table() { close(); }

bool Table::forked() const { return ::getpid() != pid_; }

void Table::close(std::chrono::nanoseconds patience) {
  if (forked()) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wanted_.notify_all();
  const std::lock_guard ending(ending_);
  crew_.end(patience);
}

void Table::copy_all() {
  std::size_t waiting = 0;  // consecutive shards in the queue that other processes are copying
  for (;;) {
    Copy copy;
    {
      std::unique_lock lock(mutex_);
      if (waiting > 0 && waiting >= to_copy_.size()) {
        wanted_.wait_for(lock, kLook, [this] { return closed_.load(); });
        waiting = 0;
      }
      wanted_.wait(lock, [this] { return closed_ || !to_copy_.empty(); });
      if (closed_) return;
      copy = std::move(to_copy_.front());
      to_copy_.pop_front();
    }
    try {
      bool later = false;
      std::shared_ptr<const ShardColumns> columns = node_ ? shared(copy, later) : copied(copy);
      if (later) {
        ++waiting;
        const std::lock_guard lock(mutex_);
        if (state_->known.shards[copy.shard] == copy.from) to_copy_.push_back(std::move(copy));
        continue;
      }
      waiting = 0;
      if (!columns) continue;
      replace(copy.shard, copy.from.get(), std::move(columns));
    } catch (const std::exception&) {
      continue;  // there was no memory: it stays mapped
    }
    // Its pages stay in the page cache; this process has no more use for them.
    advise(copy.from->mapping->data(), copy.from->mapping->size(), MADV_DONTNEED);
  }
}

// Copies the columns of a shard. Returns null if there is no memory, if the table was closed, or if
// the file was truncated meanwhile, which gathers detect.
std::shared_ptr<const ShardColumns> Table::copied(const Copy& copy) const {
  auto columns = std::make_shared<ShardColumns>();
  columns->segments = copy.from->segments;
  for (std::size_t i = 0; i < strides_.size(); ++i) {
    const std::size_t bytes = copy.places[i].bytes;
    std::shared_ptr<std::uint8_t> memory = huge_memory(bytes);
    if (!memory) return nullptr;
    if (!copy_mapped(memory.get(), copy.from->begin[i], bytes, closed_)) return nullptr;
    if (!copy.from->sound()) return nullptr;
    columns->begin.push_back(memory.get());
    columns->memory.push_back(std::move(memory));
  }
  return columns;
}

// Returns the columns in shared memory, copied by another process or here. Returns null, and sets
// `later`, if another process is copying them now. Returns null also if there is no room, if the
// copy is that of another file, or for the reasons of copied().
std::shared_ptr<const ShardColumns> Table::shared(const Copy& copy, bool& later) const {
  std::size_t bytes = 0;
  std::vector<std::size_t> begin;
  for (const ColumnPlace& place : copy.places) {
    begin.push_back(bytes);
    bytes += (place.bytes + kAligned - 1) / kAligned * kAligned;
  }
  const auto found = [&]() -> std::shared_ptr<const ShardColumns> {
    const std::uint8_t* const data = node_->find(copy.shard, copy.what, bytes);
    if (!data) return nullptr;
    auto columns = std::make_shared<ShardColumns>();
    columns->segments = copy.from->segments;
    for (const std::size_t at : begin) columns->begin.push_back(data + at);
    columns->memory.emplace_back(node_, data);  // shares the ownership of node_
    return columns;
  };
  if (copy.what == 0 || bytes == 0) return nullptr;
  if (node_->published(copy.shard)) return found();
  if (!node_->claim(copy.shard)) {
    later = true;
    return nullptr;
  }
  const std::shared_ptr<void> claimed(nullptr, [&](void*) { node_->release(copy.shard); });
  if (node_->published(copy.shard)) return found();  // published before the entry was claimed
  const std::shared_ptr<std::uint8_t> room = node_->room(copy.shard, bytes);
  if (!room) return nullptr;
  for (std::size_t i = 0; i < begin.size(); ++i)
    if (!copy_mapped(room.get() + begin[i], copy.from->begin[i], copy.places[i].bytes, closed_))
      return nullptr;
  if (!copy.from->sound()) return nullptr;
  node_->publish(copy.shard, copy.what);
  return found();
}

}  // namespace fastio
