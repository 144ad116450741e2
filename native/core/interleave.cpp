#include "interleave.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu.h"

namespace fastio {
namespace {

constexpr std::size_t kTileBytes = 16 << 10;  // half of the first cache
constexpr std::size_t kTileRows = 64;
constexpr std::size_t kLine = 64;

// Beyond it, numbers have no exact place among doubles.
constexpr std::int64_t kMostPositions = std::int64_t{1} << 52;

// Which chunk positions are in, without a division.
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

// The bucket of a position, counted from the first one of a chunk on, and the place in it.
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

// Rows [begin, begin + n) of all columns as records at `out`.
void fill_tile(const std::vector<RecordColumn>& columns, std::size_t begin, std::size_t n,
               std::uint8_t* out, std::size_t stride) {
  for (std::size_t c = 0; c < columns.size();) {
    std::size_t run = 0;  // of columns of 4 bytes side by side
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

// A number of bytes known within a factor of two is copied by two moves that may overlap.
template <std::size_t half>
void put_within(const std::uint8_t* in, const std::uint32_t* places, std::size_t n,
                std::size_t stride, std::size_t width, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint8_t* const from = in + i * stride;
    std::uint8_t* const to = out + places[i] * width;
    std::uint8_t begin[half], end[half];
    std::memcpy(begin, from, half);
    std::memcpy(end, from + width - half, half);
    std::memcpy(to, begin, half);
    std::memcpy(to + width - half, end, half);
  }
}

template <std::size_t width>
void put_rows(const std::uint8_t* in, const std::uint32_t* places, std::size_t n,
              std::size_t stride, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i)
    std::memcpy(out + std::size_t{places[i]} * width, in + i * stride, width);
}

void put_field(const std::uint8_t* in, const std::uint32_t* places, std::size_t n,
               std::size_t stride, std::size_t width, std::uint8_t* out) {
  if (width == 1) return put_rows<1>(in, places, n, stride, out);
  if (width == 2) return put_rows<2>(in, places, n, stride, out);
  if (width == 4) return put_rows<4>(in, places, n, stride, out);
  if (width == 8) return put_rows<8>(in, places, n, stride, out);
  if (width > 8 && width <= 16) return put_within<8>(in, places, n, stride, width, out);
  if (width > 16 && width <= 32) return put_within<16>(in, places, n, stride, width, out);
  if (width > 32 && width <= 64) return put_within<32>(in, places, n, stride, width, out);
  if (width > 64 && width <= 128) return put_within<64>(in, places, n, stride, width, out);
  for (std::size_t i = 0; i < n; ++i)
    std::memcpy(out + std::size_t{places[i]} * width, in + i * stride, width);
}

// A number that another thread may change: what was looked at is what is used.
std::int64_t read_once(const std::int64_t& number) {
  return *static_cast<const volatile std::int64_t*>(&number);
}

void fetch_ahead(const std::uint8_t* begin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i);
}

void fetch_to_write(const std::uint8_t* begin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i, 1);
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
    // Buckets are many streams, more than the processor foresees.
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
    // Columns are more streams than the processor foresees, too.
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
  const std::size_t tile_rows = std::clamp<std::size_t>(kTileBytes / stride, 1, kTileRows);
  // Touched in no order, the lines would come one by one.
  for (const RecordField& field : fields) fetch_to_write(field.data, count * field.width);
  std::uint32_t checked[kTileRows];  // places: nobody else writes to these
  for (std::size_t begin = 0; begin < count; begin += tile_rows) {
    const std::size_t some = std::min(tile_rows, count - begin);
    std::memcpy(checked, places + begin, some * sizeof checked[0]);
    bool inside = true;
    for (std::size_t i = 0; i < some; ++i) inside &= checked[i] < count;
    if (!inside) return false;
    for (const RecordField& field : fields)
      put_field(records + begin * stride + field.offset, checked, some, stride, field.width,
                field.data);
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
