#include "core/interleave.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind.h"

namespace fastio {
namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Bytes of a row of an array of all rows, that must fit in a record at `offset`.
std::uint32_t width_of(std::size_t bytes, std::size_t rows, std::size_t offset,
                       std::size_t stride) {
  const std::size_t width = rows ? bytes / rows : 0;
  if (width * rows != bytes || offset + width > stride)
    throw nb::value_error("an array does not have the rows, or does not fit in a record");
  return static_cast<std::uint32_t>(width);
}

// Records, and behind them the place of each: `rows` of them.
std::uint32_t* places_of(const Memory& memory, std::int64_t rows, std::size_t stride) {
  const std::size_t records = static_cast<std::size_t>(rows) * stride;
  if (memory.size() < records + static_cast<std::size_t>(rows) * sizeof(std::uint32_t))
    throw nb::value_error("a chunk's memory is too small");
  return reinterpret_cast<std::uint32_t*>(memory.data() + records);
}

void check_records(std::int64_t rows, std::size_t stride) {
  if (rows < 1 || rows > UINT32_MAX || stride < 4 || stride % 4)
    throw nb::value_error("rows must be in [1, 2**32), stride a multiple of 4");
}

void bound_count(const Vector<std::int64_t>& positions, std::int64_t rows, std::int64_t first,
                 Numbers counts) {
  check_records(rows, 4);
  const std::int64_t* const data = positions.data();
  const std::size_t n = positions.size(), chunks = counts.size();
  std::int64_t* const out = counts.data();
  bool inside;
  {
    const nb::gil_scoped_release unlocked;
    inside = count_chunks(data, n, rows, first, chunks, out);
  }
  if (!inside) throw nb::index_error("a position is in none of the chunks");
}

void bound_interleave(const std::vector<std::tuple<Bytes, std::uint32_t>>& columns,
                      std::size_t stride, const Vector<std::int64_t>& positions, std::int64_t rows,
                      std::int64_t first, const std::vector<Memory>& memory,
                      const Vector<std::int64_t>& starts, const Vector<std::int64_t>& counts) {
  check_records(rows, stride);
  check_length("starts", starts.size(), memory.size());
  check_length("counts", counts.size(), memory.size());
  std::vector<RecordColumn> parts;
  for (const auto& [values, offset] : columns)
    parts.push_back(
        {values.data(), width_of(values.size(), positions.size(), offset, stride), offset});
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const std::int64_t start = starts.data()[i];
    if (start < 0 || start + counts.data()[i] > rows)
      throw nb::index_error("a chunk has no room for so many rows");
    chunks.push_back({memory[i].data(), places_of(memory[i], rows, stride), start});
  }
  const std::int64_t* const data = positions.data();
  const std::size_t n = positions.size();
  const nb::gil_scoped_release unlocked;
  interleave(parts, stride, data, n, rows, first, chunks.data());
}

void bound_deal(const Memory& memory, std::size_t count, std::int64_t rows, std::size_t stride,
                const std::vector<std::tuple<Memory, std::uint32_t>>& fields) {
  check_records(rows, stride);
  const std::uint32_t* const places = places_of(memory, rows, stride);
  if (count > static_cast<std::size_t>(rows)) throw nb::index_error("a chunk has fewer rows");
  std::vector<RecordField> parts;
  for (const auto& [out, offset] : fields)
    parts.push_back({out.data(), width_of(out.size(), count, offset, stride), offset});
  const std::uint8_t* const records = memory.data();
  const nb::gil_scoped_release unlocked;
  deal(records, places, count, stride, parts);
}

}  // namespace

void bind_interleave(nb::module_& m) {
  m.def("count_chunks", &bound_count, nb::arg("positions"), nb::arg("rows"), nb::arg("first"),
        nb::arg("counts").noconvert(),
        "counts[c]: positions in chunk first + c, of `rows` each; those below 0 are left out.");
  m.def("interleave", &bound_interleave, nb::arg("columns"), nb::arg("stride"),
        nb::arg("positions"), nb::arg("rows"), nb::arg("first"), nb::arg("memory"),
        nb::arg("starts"), nb::arg("counts"),
        "Appends rows to chunks; see interleave.h. columns: (uint8 of all rows, offset in a "
        "record). memory: of chunk first + c, records and behind them the uint32 place of each. "
        "counts: what count_chunks found. starts: records that are there.");
  m.def("deal", &bound_deal, nb::arg("memory"), nb::arg("count"), nb::arg("rows"),
        nb::arg("stride"), nb::arg("fields"),
        "Puts a chunk's records in their places. fields: (uint8 of `count` rows, offset).");
}

}  // namespace fastio
