#include "interleave.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"
#ifdef FASTIO_X86
#include "intrinsics.h"
#endif

namespace fastio {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kTileBytes = 16 << 10;  // half of the L1 cache
constexpr std::size_t kTileRows = 64;
constexpr std::size_t kRowsAtOnce = 8;  // rows that a kernel copies at once

// `deal` copies records in groups of kGroup, so that few cache lines are requested at once. With
// more than kFewFields fields it uses groups of kLargeGroup, because each field costs one call per
// group. Records are prefetched about kAheadBytes ahead. Of a longer record, only the first
// kAskedBytes are prefetched; the hardware prefetcher fetches the rest.
constexpr std::size_t kGroup = 8, kLargeGroup = 16, kFewFields = 8;
constexpr std::size_t kAheadBytes = 4096, kMostAhead = 64, kAskedBytes = 1024;
constexpr std::size_t kRing = 128;  // a multiple of both groups, at least kMostAhead + kLargeGroup

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

// Returns the number of rows of a tile. If there are many columns, a tile may exceed kTileBytes, so
// that it has about one cache line of each column on average. The number is rounded to a multiple
// of kRowsAtOnce, unless it is less than half of that.
std::size_t rows_of_tile(std::size_t columns, std::size_t stride) {
  const std::size_t bytes = std::max(kTileBytes, kLine * columns);
  const std::size_t rows = std::clamp<std::size_t>(bytes / stride, 1, kTileRows);
  const std::size_t rounded = (rows + kRowsAtOnce / 2) / kRowsAtOnce * kRowsAtOnce;
  return rounded ? rounded : rows;
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

// Copies memory. On x86, stores whole cache lines past the caches.
void stream(std::uint8_t* out, const std::uint8_t* in, std::size_t bytes) {
#ifdef FASTIO_X86
  const std::size_t head =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  std::size_t i = head;
  for (; i + kLine <= bytes; i += kLine)
    for (std::size_t k = i; k < i + kLine; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k)));
  std::memcpy(out + i, in + i, bytes - i);
#else
  std::memcpy(out, in, bytes);
#endif
}

// Copies a field of n records to `out`, without gaps. from: the addresses of the records. offset,
// width: the place of the field in a record and its size, in bytes.
using Take = void (*)(const std::uint8_t* const* from, std::size_t n, std::size_t offset,
                      std::size_t width, std::uint8_t* out);

template <std::size_t width>
void take_rows(const std::uint8_t* const* from, std::size_t n, std::size_t offset, std::size_t,
               std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * width, from[i] + offset, width);
}

// Copies `width` bytes, from `half` to twice as many, by two moves that may overlap.
template <std::size_t half>
void take_within(const std::uint8_t* const* from, std::size_t n, std::size_t offset,
                 std::size_t width, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i, out += width) {
    const std::uint8_t* const field = from[i] + offset;
    std::memcpy(out, field, half);
    std::memcpy(out + width - half, field + width - half, half);
  }
}

void take_any(const std::uint8_t* const* from, std::size_t n, std::size_t offset, std::size_t width,
              std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) std::memcpy(out + i * width, from[i] + offset, width);
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

// Prefetches all cache lines of a range to the L2 cache. It can have more outstanding requests than
// the L1 cache, and loads from it have a low latency.
void fetch_ahead(const std::uint8_t* begin, std::size_t bytes) {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(begin) % kLine;
  for (std::size_t i = 0; i < before + bytes; i += kLine)
    __builtin_prefetch(begin - before + i, 0, 2);
}

void fetch_to_write(const std::uint8_t* begin, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i, 1);
}

}  // namespace

void interleave(const std::vector<RecordColumn>& columns, std::size_t n,
                const RecordBlocks& records, std::size_t first) {
  const std::size_t stride = records.stride;
  const std::size_t tile_rows = rows_of_tile(columns.size(), stride);
  std::vector<std::uint8_t> tile(tile_rows * stride);
  for (std::size_t begin = 0, some; begin < n; begin += some) {
    const std::size_t in_block = (first + begin) % records.block_rows();
    some = std::min({tile_rows, n - begin, records.block_rows() - in_block});
    // There may be more columns than the hardware prefetcher can follow.
    const std::size_t next = std::min(tile_rows, n - begin - some);
    for (const RecordColumn& column : columns)
      fetch_ahead(column.data + (begin + some) * column.width, next * column.width);
    fill_tile(columns, begin, some, tile.data(), stride);
    stream(records.at(first + begin), tile.data(), some * stride);
  }
#ifdef FASTIO_X86
  _mm_sfence();
#endif
}

bool deal(const RecordBlocks& records, const std::int64_t* numbers, std::size_t n,
          const std::vector<RecordField>& fields) {
  const std::size_t group = fields.size() <= kFewFields ? kGroup : kLargeGroup;
  const std::size_t ahead =
      std::clamp(kAheadBytes / records.stride / group * group, group, kMostAhead);
  const std::size_t asked = std::min(records.stride, kAskedBytes);
  const std::uint8_t* from[kRing];  // a ring of the addresses of the next records
  // Prefetches the records of numbers[begin:end]. Returns false if a number is out of range.
  const auto ask = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < std::min(end, n); ++i) {
      const std::int64_t number = *static_cast<const volatile std::int64_t*>(numbers + i);
      if (static_cast<std::uint64_t>(number) >= records.rows()) return false;
      from[i % kRing] = records.at(static_cast<std::size_t>(number));
      fetch_ahead(from[i % kRing], asked);
    }
    return true;
  };
  std::vector<Take> takes;
  for (const RecordField& field : fields) takes.push_back(take_of(field.width));
  if (!ask(0, ahead)) return false;
  for (std::size_t begin = 0; begin < n; begin += group) {
    if (!ask(begin + ahead, begin + ahead + group)) return false;
    const std::size_t some = std::min(group, n - begin), next = std::min(group, n - begin - some);
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const RecordField& field = fields[f];
      std::uint8_t* const out = field.data + begin * field.width;
      fetch_to_write(out + some * field.width, next * field.width);
      takes[f](from + begin % kRing, some, field.offset, field.width, out);
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
