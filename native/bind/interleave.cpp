// Shuffling rows of columns for Python: core/interleave.h.
#include "core/interleave.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind.h"

namespace fastio {
namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Returns the bytes of a row of an array. They must fit in a record at `offset`.
std::uint32_t width_of(std::size_t bytes, std::size_t rows, std::size_t offset,
                       std::size_t stride) {
  const std::size_t width = rows ? bytes / rows : 0;
  if (width * rows != bytes || offset + width > stride)
    throw nb::value_error(
        "an array has a wrong number of bytes for its rows, or does not fit in a record");
  return static_cast<std::uint32_t>(width);
}

// Each array of `memory` holds one block.
RecordBlocks blocks_of(const std::vector<Memory>& memory, std::size_t stride, int shift) {
  if (stride < 8 || stride % 8 || stride > std::size_t{1} << 31 || shift < 0 || shift > 31)
    throw nb::value_error("stride must be a multiple of 8, at most 2**31, and shift in [0, 31]");
  RecordBlocks records{{}, stride, shift};
  for (const Memory& block : memory) {
    if (block.size() < stride << shift) throw nb::value_error("the memory of a block is too small");
    records.blocks.push_back(block.data());
  }
  return records;
}

void bound_interleave(const std::vector<std::tuple<Bytes, std::uint32_t>>& columns, std::size_t n,
                      const std::vector<Memory>& memory, std::size_t stride, int shift,
                      std::size_t first) {
  const RecordBlocks records = blocks_of(memory, stride, shift);
  if (n > records.rows() || first > records.rows() - n)
    throw nb::index_error("the blocks have no room for these rows");
  std::vector<RecordColumn> parts;
  for (const auto& [values, offset] : columns)
    parts.push_back({values.data(), width_of(values.size(), n, offset, stride), offset});
  const nb::gil_scoped_release unlocked;
  interleave(parts, n, records, first);
}

void bound_deal(const std::vector<Memory>& memory, std::size_t stride, int shift,
                const Vector<std::int64_t>& numbers,
                const std::vector<std::tuple<Memory, std::uint32_t>>& fields) {
  const RecordBlocks records = blocks_of(memory, stride, shift);
  std::vector<RecordField> parts;
  for (const auto& [out, offset] : fields)
    parts.push_back({out.data(), width_of(out.size(), numbers.size(), offset, stride), offset});
  const std::int64_t* const data = numbers.data();
  const std::size_t n = numbers.size();
  bool inside;
  {
    const nb::gil_scoped_release unlocked;
    inside = deal(records, data, n, parts);
  }
  if (!inside) throw nb::index_error("a record is outside of the blocks");
}

}  // namespace

void bind_interleave(nb::module_& m) {
  m.def("interleave", &bound_interleave, nb::arg("columns"), nb::arg("rows"),
        nb::arg("memory").noconvert(), nb::arg("stride"), nb::arg("shift"), nb::arg("first"),
        "Writes rows as records `first`, `first` + 1, ...; see interleave.h. columns: for each "
        "column (uint8 array of all rows, offset in a record). rows: the number of rows. memory: "
        "blocks of 2**shift records of `stride` bytes. Raises IndexError if the blocks have no "
        "room for the rows.");
  m.def(
      "deal", &bound_deal, nb::arg("memory").noconvert(), nb::arg("stride"), nb::arg("shift"),
      nb::arg("numbers"), nb::arg("fields").noconvert(),
      "Copies the records with the given numbers to arrays. memory, stride, shift: as in "
      "interleave(). numbers: int64 (n,). fields: for each field (uint8 array of n rows, offset in "
      "a record). Raises IndexError if a number is out of range.");
}

}  // namespace fastio
