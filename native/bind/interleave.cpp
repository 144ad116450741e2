// Shuffling rows of columns for Python: core/interleave.h.
#include "core/interleave.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "bind.h"

namespace fastio {
namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Returns the bytes of a row of an array. They must fit in a record at `offset`.
std::uint32_t width_of(std::size_t bytes, std::size_t rows, std::size_t offset,
                       std::size_t stride) {
  const std::size_t width = rows ? bytes / rows : 0;
  if (width * rows != bytes || offset + width > stride)
    throw nb::value_error(
        "an array has a wrong number of bytes for its rows, or does not fit in a record");
  return static_cast<std::uint32_t>(width);
}

Cut checked_cut(std::int64_t rows, int shift, std::size_t stride) {
  if (rows < 1 || rows > std::int64_t{1} << 40 || shift < 0 || shift > 31)
    throw nb::value_error("rows must be in [1, 2**40] and shift in [0, 31]");
  if (stride < 8 || stride % 8 || stride > std::size_t{1} << 31)
    throw nb::value_error("stride must be a multiple of 8, at most 2**31");
  return {rows, shift};
}

// Calls add(bucket) for each bucket of a chunk. The chunk's memory has, for one bucket after the
// other, the records and then their places.
template <typename Add>
void each_bucket(const Memory& memory, const Cut& cut, std::size_t stride, const Add& add) {
  // Divide instead of multiplying, because the product may overflow.
  if (memory.size() / (stride + sizeof(std::uint32_t)) < static_cast<std::size_t>(cut.rows))
    throw nb::value_error("the memory of a chunk is too small");
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(std::uint32_t))
    throw nb::value_error("the memory of a chunk must be aligned to 4 bytes");
  std::uint8_t* at = memory.data();
  for (std::int64_t left = cut.rows; left > 0; left -= std::int64_t{1} << cut.shift) {
    const std::int64_t rows = std::min(left, std::int64_t{1} << cut.shift);
    std::uint8_t* const places = at + static_cast<std::size_t>(rows) * stride;
    add(Bucket{at, reinterpret_cast<std::uint32_t*>(places), 0, rows});
    at = places + static_cast<std::size_t>(rows) * sizeof(std::uint32_t);
  }
}

void bound_count(const Vector<std::int64_t>& positions, std::int64_t rows, int shift,
                 std::int64_t first, Numbers counts) {
  const Cut cut = checked_cut(rows, shift, 8);
  const std::int64_t* const data = positions.data();
  const std::size_t n = positions.size(), chunks = counts.size() / cut.buckets();
  check_length("counts", counts.size(), chunks * cut.buckets());
  std::int64_t* const out = counts.data();
  bool inside;
  {
    const nb::gil_scoped_release unlocked;
    inside = count_buckets(data, n, cut, first, chunks, out);
  }
  if (!inside) throw nb::index_error("a position is outside of the chunks");
}

void bound_interleave(const std::vector<std::tuple<Bytes, std::uint32_t>>& columns,
                      std::size_t stride, const Vector<std::int64_t>& positions, std::int64_t rows,
                      int shift, std::int64_t first, const std::vector<Memory>& memory,
                      const Vector<std::int64_t>& starts, const Vector<std::int64_t>& counts) {
  const Cut cut = checked_cut(rows, shift, stride);
  check_length("starts", starts.size(), memory.size() * cut.buckets());
  check_length("counts", counts.size(), starts.size());
  std::vector<RecordColumn> parts;
  for (const auto& [values, offset] : columns)
    parts.push_back(
        {values.data(), width_of(values.size(), positions.size(), offset, stride), offset});
  const std::vector<std::int64_t> begin = copied(starts), most = copied(counts);
  std::vector<Bucket> buckets;
  for (const Memory& chunk : memory)
    each_bucket(chunk, cut, stride, [&](Bucket bucket) {
      const std::int64_t start = begin[buckets.size()], count = most[buckets.size()];
      if (start < 0 || start > bucket.room || count < 0 || count > bucket.room - start)
        throw nb::index_error("a bucket has no room for its rows");
      bucket.next = start;
      buckets.push_back(bucket);
    });
  const std::int64_t* const data = positions.data();
  const std::size_t n = positions.size();
  bool inside;
  {
    const nb::gil_scoped_release unlocked;
    inside = interleave(parts, stride, data, n, cut, first, buckets);
  }
  if (!inside) throw nb::index_error("a position is outside of the buckets, or a bucket is full");
}

void bound_deal(const Memory& memory, std::size_t count, std::int64_t rows, int shift,
                std::size_t stride, const std::vector<std::tuple<Memory, std::uint32_t>>& fields) {
  const Cut cut = checked_cut(rows, shift, stride);
  if (count > static_cast<std::size_t>(rows)) throw nb::index_error("count must be at most rows");
  std::vector<RecordField> parts;
  for (const auto& [out, offset] : fields)
    parts.push_back({out.data(), width_of(out.size(), count, offset, stride), offset});
  std::vector<std::pair<Bucket, std::size_t>> buckets;
  each_bucket(memory, cut, stride, [&](const Bucket& bucket) {
    const std::size_t some = std::min(count, static_cast<std::size_t>(bucket.room));
    buckets.emplace_back(bucket, some);
    count -= some;
  });
  bool inside = true;
  {
    const nb::gil_scoped_release unlocked;
    for (const auto& [bucket, some] : buckets) {
      inside = inside && deal(bucket.records, bucket.places, some, stride, parts);
      for (RecordField& part : parts) part.data += some * part.width;
    }
  }
  if (!inside)
    throw nb::index_error(
        "a record's place is not in its bucket, or two records have the same place");
}

}  // namespace

void bind_interleave(nb::module_& m) {
  m.def("count_buckets", &bound_count, nb::arg("positions"), nb::arg("rows"), nb::arg("shift"),
        nb::arg("first"), nb::arg("counts").noconvert(),
        "Counts the positions in each bucket of the chunks from `first` on. A chunk has `rows` "
        "positions, a bucket 2**shift. Positions below 0 are ignored. counts: int64 (chunks * "
        "buckets of a chunk,).");
  m.def("interleave", &bound_interleave, nb::arg("columns"), nb::arg("stride"),
        nb::arg("positions"), nb::arg("rows"), nb::arg("shift"), nb::arg("first"),
        nb::arg("memory").noconvert(), nb::arg("starts"), nb::arg("counts"),
        "Appends rows to buckets; see interleave.h. columns: for each column (uint8 array of all "
        "rows, offset in a record). memory: an array of rows * (stride + 4) bytes for each chunk "
        "from `first` on. starts: the records that each bucket already has. counts: the result of "
        "count_buckets().");
  m.def("deal", &bound_deal, nb::arg("memory").noconvert(), nb::arg("count"), nb::arg("rows"),
        nb::arg("shift"), nb::arg("stride"), nb::arg("fields").noconvert(),
        "Copies the records of a full chunk to their positions. fields: for each field (uint8 "
        "array of `count` rows, offset in a record).");
}

}  // namespace fastio
