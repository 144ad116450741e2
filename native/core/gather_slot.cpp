#include "gather_slot.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "token_fields.h"
#include "widen.h"

namespace fastio {
namespace {

// A thread claims rows of about this many bytes at a time, so that the last rows are shared evenly.
constexpr std::size_t kClaimBytes = 160 << 10;

constexpr std::size_t kMostClaimed = 4096;

std::size_t chunk(const Table& table) {
  std::size_t bytes = 1;
  for (const TableField& field : table.fields()) bytes += field.out_bytes();
  return std::clamp<std::size_t>(kClaimBytes / bytes, 1, kMostClaimed);
}

// Rows are copied in groups. While a group is copied, the rows of the next group and the lines that
// they are copied to are prefetched: about twice as many lines as a core can have misses in flight.
// With more, the core first stalls on the prefetches, and then copies with no miss in flight.
// Without prefetching the lines that are written, a store takes as long as a load that misses.
constexpr std::size_t kGroupBytes = 1792, kMostInGroup = 32;
constexpr std::size_t kLine = 64;

// The bytes that are prefetched of a longer row; the hardware prefetcher continues.
constexpr std::size_t kAskedBytes = 1024;

using Rows = const std::uint8_t* const*;

// Copies `width` bytes from `offset` on of each of `count` rows to `out`, without gaps.
using Copy = void (*)(Rows from, std::size_t offset, std::size_t count, std::size_t width,
                      std::uint8_t* out);

// 16 unaligned bytes in a vector register: otherwise GCC for ARM copies 16 bytes through two
// general registers.
using Piece [[gnu::may_alias, gnu::aligned(1)]] = std::uint8_t __attribute__((vector_size(16)));

inline const Piece& piece(const std::uint8_t* from) {
  return *reinterpret_cast<const Piece*>(from);
}
inline Piece& piece(std::uint8_t* to) { return *reinterpret_cast<Piece*>(to); }

// Copies `width` bytes of each row in pieces of 16 bytes, whose number is a constant; the last
// piece overlaps the one before. Copying a field of a small group of rows at a time takes as long
// as copying whole rows, and half as long as copying the fields of each row in loops whose ends are
// mispredicted.
template <std::size_t pieces>
void copy_pieces(Rows from, std::size_t offset, std::size_t count, std::size_t width,
                 std::uint8_t* out) {
  const std::uint8_t* next = out + count * width;  // the memory for the next group
  for (std::size_t i = 0; i < count; ++i, out += width, next += width) {
    const std::uint8_t* const in = from[i] + offset;
    for (std::size_t j = 0; j <= pieces; j += kLine / 16) __builtin_prefetch(next + 16 * j, 1);
    std::size_t j = 0;
    for (; j + 1 < pieces; j += 2) {  // ARM has instructions for pairs
      const Piece first = piece(in + 16 * j), second = piece(in + 16 * j + 16);
      piece(out + 16 * j) = first;
      piece(out + 16 * j + 16) = second;
    }
    if (j < pieces) piece(out + 16 * j) = piece(in + 16 * j);
    piece(out + width - 16) = piece(in + width - 16);
  }
}

template <typename T>
void copy_numbers(Rows from, std::size_t offset, std::size_t count, std::size_t,
                  std::uint8_t* out) {
  __builtin_prefetch(out + sizeof(T) * count, 1);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(out + sizeof(T) * i, from[i] + offset, sizeof(T));
}

void copy_any(Rows from, std::size_t offset, std::size_t count, std::size_t width,
              std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + width * i, from[i] + offset, width);
}

template <std::size_t... pieces>
constexpr std::array<Copy, sizeof...(pieces)> copies(std::index_sequence<pieces...>) {
  return {&copy_pieces<pieces>...};
}

Copy copy_of(std::size_t width) {
  static constexpr auto kByPieces = copies(std::make_index_sequence<33>());
  switch (width) {
    case 1:
      return &copy_numbers<std::uint8_t>;
    case 2:
      return &copy_numbers<std::uint16_t>;
    case 4:
      return &copy_numbers<std::uint32_t>;
    case 8:
      return &copy_numbers<std::uint64_t>;
    default:
      break;
  }
  const std::size_t pieces = (width - 1) / 16;  // without the last one
  return width < 16 || pieces >= kByPieces.size() ? &copy_any : kByPieces[pieces];
}

// Prefetches to the L2 cache, which can have more outstanding requests than the L1 cache.
inline void prefetch(const std::uint8_t* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  for (std::uintptr_t at = first / kLine * kLine; at < first + bytes; at += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
}

// Prefetches the memory that a row of segments is read from, in three steps, each of which reads
// what the previous step has prefetched: the segments of the row, the places of their tokens, and
// the first tokens.
void ask_segments(const TableField& field, const ShardColumns& columns, std::size_t row, int step) {
  const Segments& segments = *columns.segments;
  if (step == 0) return __builtin_prefetch(&segments.begin[row]);
  const auto first = static_cast<std::size_t>(segments.begin[row]);
  if (first == static_cast<std::size_t>(segments.begin[row + 1])) return;
  if (step == 1) {
    __builtin_prefetch(&segments.start[first]);
    return __builtin_prefetch(&segments.length[first]);
  }
  const auto start = static_cast<std::size_t>(segments.start[first]);
  const std::size_t bytes = std::min<std::size_t>(field.numbers() * field.from, kAskedBytes);
  prefetch(columns.begin[field.column] + start * field.from, bytes);
}

std::size_t number_of(FieldKind kind) {
  return static_cast<std::size_t>(kind) - static_cast<std::size_t>(FieldKind::inputs);
}

}  // namespace

GatherSlot::GatherSlot(std::shared_ptr<const Table> table, std::vector<std::int64_t> rows,
                       std::vector<std::uint8_t*> out)
    : Slot(rows.size(), chunk(*table)),
      table_(std::move(table)),
      known_(table_->snapshot()),
      row_(std::move(rows)) {
  Mapping::keep_guards();
  const std::vector<TableField>& fields = table_->fields();
  for (std::size_t column = 0; column < table_->strides().size(); ++column) {
    Wanted wanted{column, UINT32_MAX, 0, {}};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].column != column || !out[i]) continue;
      const Target target{out[i], fields[i].out_bytes(), copy_of(fields[i].width), fields[i]};
      if (fields[i].in_segments()) {
        add_in_segments(fields[i], out[i]);
        continue;
      }
      wanted.begin = std::min(wanted.begin, fields[i].offset);
      wanted.end = std::max(wanted.end, fields[i].offset + fields[i].width);
      wanted.targets.push_back(target);
    }
    if (!wanted.targets.empty()) wanted_.push_back(std::move(wanted));
  }
}

// Fields that differ only in their kind are written in one pass.
void GatherSlot::add_in_segments(const TableField& field, std::uint8_t* out) {
  const std::size_t kind = number_of(field.kind);
  const auto fits = [&](const InSegments& some) {
    return some.field.column == field.column && some.field.width == field.width &&
           some.field.from == field.from && some.field.to == field.to && !some.out[kind];
  };
  auto found = std::find_if(in_segments_.begin(), in_segments_.end(), fits);
  if (found == in_segments_.end()) found = in_segments_.insert(found, InSegments{field, {}, {}});
  found->out[kind] = out;
  found->fill[kind] = field.fill;
}

void GatherSlot::fill(std::size_t begin, std::size_t end, Worker&) { copy(begin, end); }

void GatherSlot::fill_here() {
  std::size_t begin = 0, end = 0;
  while (claim(begin, end)) {
    copy(begin, end);
    finish(end - begin);
  }
}

std::size_t GatherSlot::bytes() const {
  std::size_t of_row = 0;
  for (const Wanted& wanted : wanted_)
    for (const Target& target : wanted.targets) of_row += target.out_bytes;
  for (const InSegments& some : in_segments_)
    for (const std::uint8_t* const out : some.out) of_row += out ? some.field.out_bytes() : 0;
  return of_row * rows();
}

void GatherSlot::copy(std::size_t begin, std::size_t end) {
  bool whole = true;
  for (const Wanted& wanted : wanted_) whole &= copy_column(wanted, begin, end);
  for (const InSegments& some : in_segments_) copy_segments(some, begin, end);
  if (!whole || Mapping::any_damaged()) note_failures(begin, end);
}

// Copies rows [begin, end) of a claim. Rows that cannot be read are left unchanged; returns false
// if there are any.
bool GatherSlot::copy_column(const Wanted& wanted, std::size_t begin, std::size_t end) const {
  const std::size_t bytes = std::min<std::size_t>(wanted.end - wanted.begin, kAskedBytes);
  const std::size_t group = std::clamp<std::size_t>(kGroupBytes / (bytes + kLine), 2, kMostInGroup);
  // The addresses of the rows of a group, and of those of the next group.
  const std::uint8_t* places[2][kMostInGroup];
  const auto ask = [&](std::size_t at, const std::uint8_t** from) {
    const std::size_t count = std::min(group, end - at);
    const bool there = locate(wanted, at, count, from);
    for (std::size_t i = 0; i < count; ++i) prefetch(from[i] + wanted.begin, bytes);
    return there;
  };
  bool whole = true, there = ask(begin, places[0]);
  for (std::size_t at = begin, turn = 0; at < end; at += group, turn ^= 1) {
    const std::size_t rows = std::min(group, end - at);
    const bool next = at + group < end ? ask(at + group, places[turn ^ 1]) : true;
    whole &= there;
    for (const Target& target : wanted.targets) {
      std::uint8_t* const out = target.out + at * target.out_bytes;
      if (there) {
        copy_group(target, places[turn], rows, out);
      } else {
        for (std::size_t i = 0; i < rows; ++i)
          if (places[turn][i]) copy_group(target, places[turn] + i, 1, out + i * target.out_bytes);
      }
    }
    there = next;
  }
  return whole;
}

// Computes the addresses of `count` rows from row `begin` of the batch on, which are null for rows
// that cannot be read. Returns false if there are any such rows.
bool GatherSlot::locate(const Wanted& wanted, std::size_t begin, std::size_t count,
                        const std::uint8_t** from) const {
  const std::uint64_t stride = table_->strides()[wanted.column];
  const std::uintptr_t* const origins = known_->origins[wanted.column].data();
  const std::int64_t* const rows = row_.data() + begin;
  const Table& table = *table_;
  bool whole = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uintptr_t origin = origins[table.shard_of(rows[i])];
    const std::uintptr_t place = origin + static_cast<std::uint64_t>(rows[i]) * stride;
    from[i] = reinterpret_cast<const std::uint8_t*>(origin ? place : 0);
    whole &= origin != 0;
  }
  return whole;
}

void GatherSlot::copy_group(const Target& target, const std::uint8_t* const* from,
                            std::size_t count, std::uint8_t* out) {
  const TableField& field = target.field;
  if (field.kind == FieldKind::bytes)
    return target.copy(from, field.offset, count, field.width, out);
  for (std::size_t i = 0; i < count; ++i)
    widen(from[i] + field.offset, field.numbers(), field.from, field.to,
          out + i * target.out_bytes);
}

// Writes rows [begin, end) of fields of segments. Rows that cannot be read are left unchanged.
void GatherSlot::copy_segments(const InSegments& some, std::size_t begin, std::size_t end) const {
  const auto shard_of = [this](std::size_t i) {
    const ShardColumns* const columns = known_->shards[table_->shard_of(row_[i])].get();
    return columns && columns->segments ? columns : nullptr;
  };
  const auto local = [this](std::size_t i) {
    return static_cast<std::size_t>(row_[i] - table_->first_row(table_->shard_of(row_[i])));
  };
  constexpr int kSteps = 3;
  for (std::size_t i = begin; i < end; ++i) {
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t ahead = i + static_cast<std::size_t>(kSteps - step);
      if (ahead >= end) continue;
      if (const ShardColumns* const columns = shard_of(ahead))
        ask_segments(some.field, *columns, local(ahead), step);
    }
    const ShardColumns* const columns = shard_of(i);
    if (!columns) continue;
    copy_row(some, *columns->segments, local(i), columns->begin[some.field.column], i);
  }
}

// Writes a row of a shard, whose column begins at `data`, to row `i` of the batch.
void GatherSlot::copy_row(const InSegments& some, const Segments& segments, std::size_t row,
                          const std::uint8_t* data, std::size_t i) {
  const TableField& field = some.field;
  const std::size_t room = field.numbers(), to = field.to;
  const auto place = [&](std::size_t at) {
    TokenFields out = some.out;
    for (std::uint8_t*& each : out)
      if (each) each += i * field.out_bytes() + at * to;
    return out;
  };
  const auto first = static_cast<std::size_t>(segments.begin[row]);
  const auto last = static_cast<std::size_t>(segments.begin[row + 1]);
  std::size_t at = 0;
  for (std::size_t j = first; j < last && at < room; ++j) {
    const auto length = static_cast<std::size_t>(segments.length[j]);
    const std::size_t count = std::min(length, room - at);
    put_part({data + static_cast<std::size_t>(segments.start[j]) * field.from, count,
              std::min(length - 1, count), some.fill[number_of(FieldKind::targets)],
              static_cast<std::int64_t>(j - first), field.from, field.to},
             place(at));
    at += count;
  }
  const TokenFields rest = place(at);
  for (std::size_t kind = 0; kind < kTokenFields; ++kind)
    if (rest[kind]) put_value(rest[kind], room - at, field.to, some.fill[kind]);
}

// Records the rows that failed. Called after the rows were copied, because only then it is known
// whether a mapping is damaged.
void GatherSlot::note_failures(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const ShardColumns* const shard = known_->shards[table_->shard_of(row_[i])].get();
    if (shard && shard->sound()) continue;
    Status status =
        shard ? Status::error(Code::truncated, "its shard was truncated while it was read")
              : Status::error(Code::not_found, "its shard is not open");
    const std::lock_guard lock(failing_);
    failures_.emplace_back(i, std::move(status));
  }
}

std::vector<Failure> GatherSlot::noted() const {
  const std::lock_guard lock(failing_);
  return failures_;
}

}  // namespace fastio
