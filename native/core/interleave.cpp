#include "interleave.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu.h"

namespace fastio {
namespace {

constexpr std::size_t kTileBytes = 16 << 10;  // half of the L1 cache
constexpr std::size_t kTileRows = 64;
constexpr std::size_t kLine = 64;

// Records are dealt in groups of about kGroupBytes, and prefetched kGroupsAhead groups ahead. Of a
// longer record, the first kAskedBytes are prefetched; the hardware prefetcher continues.
constexpr std::size_t kGroupBytes = 4096, kMostInGroup = 32, kGroupsAhead = 1, kAskedBytes = 1024;

// Positions up to this limit are exact as doubles.
constexpr std::int64_t kMostPositions = std::int64_t{1} << 52;

// Computes the chunk of positions, without a division.
class Divider {
 public:
  explicit Divider(std::int64_t rows) : rows_(rows), inverse_(1.0 / static_cast<double>(rows)) {}

  // position in [0, kMostPositions).
  std::int64_t operator()(std::int64_t position) const {
    const auto near = static_cast<std::int64_t>(static_cast<double>(position) * inverse_);
    const std::int64_t rest = position - near * rows_;
    return near + (rest >= rows_) - (rest < 0);
  }

 private:
  std::int64_t rows_;
  double inverse_;
};

// Computes the bucket of a position, relative to the first bucket of chunk `first`, and the place
// in the bucket.
class Places {
 public:
  Places(const Cut& cut, std::int64_t first)
      : cut_(cut),
        divide_(cut.rows),
        first_(first),
        buckets_(static_cast<std::int64_t>(cut.buckets())),
        mask_((std::int64_t{1} << cut.shift) - 1) {}

  std::pair<std::int64_t, std::uint32_t> operator()(std::int64_t position) const {
    const std::int64_t chunk = divide_(position);
    const std::int64_t rest = position - chunk * cut_.rows;
    return {(chunk - first_) * buckets_ + (rest >> cut_.shift),
            static_cast<std::uint32_t>(rest & mask_)};
  }

 private:
  Cut cut_;
  Divider divide_;
  std::int64_t first_, buckets_, mask_;
};

template <std::size_t width>
void copy_rows(const std::uint8_t* in, std::size_t n, std::uint8_t* out, std::size_t stride) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * stride, in + i * width, width);
}

void copy_column(const std::uint8_t* in, std::size_t width, std::size_t n, std::uint8_t* out,
                 std::size_t stride) {
  switch (width) {
    case 1:
      return copy_rows<1>(in, n, out, stride);
    case 2:
      return copy_rows<2>(in, n, out, stride);
    case 4:
      return copy_rows<4>(in, n, out, stride);
    case 8:
      return copy_rows<8>(in, n, out, stride);
    case 16:
      return copy_rows<16>(in, n, out, stride);
    default:
      for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * stride, in + i * width, width);
  }
}

// Writes rows [begin, begin + n) of all columns as records to `out`.
void fill_tile(const std::vector<RecordColumn>& columns, std::size_t begin, std::size_t n,
               std::uint8_t* out, std::size_t stride) {
  for (std::size_t c = 0; c < columns.size();) {
    std::size_t run = 0;  // the number of adjacent columns of 4 bytes
    while (run < 8 && c + run < columns.size() && columns[c + run].width == 4 &&
           columns[c + run].offset == columns[c].offset + 4 * run)
      ++run;
    if (run == 8) {
      const std::uint8_t* in[8];
      for (std::size_t i = 0; i < 8; ++i) in[i] = columns[c + i].data + 4 * begin;
      transpose8(in, n, out + columns[c].offset, stride);
      c += 8;
    } else {
      const RecordColumn& column = columns[c++];
      copy_column(column.data + begin * column.width, column.width, n, out + column.offset, stride);
    }
  }
}

// Copies a field of `width` bytes of n records to `out`, without gaps. in: the field in record 0.
// from: the numbers of the records.
using Take = void (*)(const std::uint8_t* in, const std::uint32_t* from, std::size_t n,
                      std::size_t stride, std::size_t width, std::uint8_t* out);

template <std::size_t width>
void take_rows(const std::uint8_t* in, const std::uint32_t* from, std::size_t n, std::size_t stride,
               std::size_t, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * width, in + from[i] * stride, width);
}

// Copies `width` bytes, from `half` to twice as many, by two moves that may overlap.
template <std::size_t half>
void take_within(const std::uint8_t* in, const std::uint32_t* from, std::size_t n,
                 std::size_t stride, std::size_t width, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i, out += width) {
    const std::uint8_t* const record = in + from[i] * stride;
    std::memcpy(out, record, half);
    std::memcpy(out + width - half, record + width - half, half);
  }
}

void take_any(const std::uint8_t* in, const std::uint32_t* from, std::size_t n, std::size_t stride,
              std::size_t width, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * width, in + from[i] * stride, width);
}

Take take_of(std::size_t width) {
  if (width == 1) return take_rows<1>;
  if (width == 2) return take_rows<2>;
  if (width == 4) return take_rows<4>;
  if (width == 8) return take_rows<8>;
  if (width > 8 && width <= 16) return take_within<8>;
  if (width > 16 && width <= 32) return take_within<16>;
  if (width > 32 && width <= 64) return take_within<32>;
  if (width > 64 && width <= 128) return take_within<64>;
  return take_any;
}

// Reads a number that another thread may change exactly once, so that the value that was checked is
// the one that is used.
template <typename T>
T read_once(const T& number) {
  return *static_cast<const volatile T*>(&number);
}

void fetch_ahead(const std::uint8_t* begin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i);
}

void fetch_to_write(const std::uint8_t* begin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i, 1);
}

// Sets inverse[places[i]] = i. Returns false unless the places are a permutation of [0, count).
bool invert(const std::uint32_t* places, std::size_t count, std::vector<std::uint32_t>& inverse) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  inverse.assign(count, kNone);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t place = read_once(places[i]);
    if (place >= count) return false;
    inverse[place] = static_cast<std::uint32_t>(i);
  }
  return std::find(inverse.begin(), inverse.end(), kNone) == inverse.end();
}

bool append(const std::uint8_t* tile, std::size_t stride, const std::int64_t* positions,
            std::size_t n, const Places& places, std::vector<Bucket>& buckets) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t position = read_once(positions[i]);
    if (position < 0) continue;
    if (position >= kMostPositions) return false;
    const auto [number, place] = places(position);
    if (static_cast<std::uint64_t>(number) >= buckets.size()) return false;
    Bucket& bucket = buckets[static_cast<std::size_t>(number)];
    if (bucket.next >= bucket.room) return false;
    const auto next = static_cast<std::size_t>(bucket.next++);
    bucket.places[next] = place;
    std::uint8_t* const to = bucket.records + next * stride;
    // There are more buckets than streams that the hardware prefetcher can follow.
    fetch_to_write(to + 2 * stride, stride);
    std::memcpy(to, tile + i * stride, stride);
  }
  return true;
}

}  // namespace

bool count_buckets(const std::int64_t* positions, std::size_t n, const Cut& cut, std::int64_t first,
                   std::size_t chunks, std::int64_t* counts) {
  const Places places(cut, first);
  const auto count = static_cast<std::int64_t>(chunks * cut.buckets());
  std::fill(counts, counts + count, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t position = read_once(positions[i]);
    if (position < 0) continue;
    if (position >= kMostPositions) return false;
    const std::int64_t number = places(position).first;
    if (number < 0 || number >= count) return false;
    ++counts[number];
  }
  return true;
}

bool interleave(const std::vector<RecordColumn>& columns, std::size_t stride,
                const std::int64_t* positions, std::size_t n, const Cut& cut, std::int64_t first,
                std::vector<Bucket>& buckets) {
  const Places places(cut, first);
  const std::size_t tile_rows = std::clamp<std::size_t>(kTileBytes / stride, 1, kTileRows);
  std::vector<std::uint8_t> tile(tile_rows * stride);
  for (std::size_t begin = 0; begin < n; begin += tile_rows) {
    const std::size_t some = std::min(tile_rows, n - begin);
    // There may also be more columns than the hardware prefetcher can follow.
    const std::size_t next = std::min(tile_rows, n - begin - some);
    for (const RecordColumn& column : columns)
      fetch_ahead(column.data + (begin + some) * column.width, next * column.width);
    fill_tile(columns, begin, some, tile.data(), stride);
    if (!append(tile.data(), stride, positions + begin, some, places, buckets)) return false;
  }
  return true;
}

bool deal(const std::uint8_t* records, const std::uint32_t* places, std::size_t count,
          std::size_t stride, const std::vector<RecordField>& fields) {
  std::vector<std::uint32_t> from;  // the record for each place
  if (!invert(places, count, from)) return false;
  // Records are read in random order, so they are prefetched. The arrays are written sequentially.
  const std::size_t group =
      std::clamp<std::size_t>(kGroupBytes / (stride + kLine), 1, kMostInGroup);
  const std::size_t asked = std::min(stride, kAskedBytes);
  const auto ask = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < std::min(end, count); ++i)
      fetch_ahead(records + from[i] * stride, asked);
  };
  std::vector<Take> takes;
  for (const RecordField& field : fields) takes.push_back(take_of(field.width));
  ask(0, kGroupsAhead * group);
  for (std::size_t begin = 0; begin < count; begin += group) {
    const std::size_t some = std::min(group, count - begin);
    ask(begin + kGroupsAhead * group, begin + (kGroupsAhead + 1) * group);
    const std::size_t next = std::min(group, count - begin - some);
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const RecordField& field = fields[f];
      std::uint8_t* const out = field.data + begin * field.width;
      fetch_to_write(out + some * field.width, next * field.width);
      takes[f](records + field.offset, from.data() + begin, some, stride, field.width, out);
    }
  }
  return true;
}

void transpose8_portable(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                         std::size_t stride) {
  for (std::size_t c = 0; c < 8; ++c) copy_rows<4>(columns[c], n, out + 4 * c, stride);
}

void transpose8(const std::uint8_t* const* columns, std::size_t n, std::uint8_t* out,
                std::size_t stride) {
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) return transpose8_avx2(columns, n, out, stride);
#endif
  transpose8_portable(columns, n, out, stride);
}

}  // namespace fastio
