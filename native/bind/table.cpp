// Tables, mappings and shared memory for Python: core/table.h, mapping.h and node_memory.h.
#include "core/table.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <iterator>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "bind.h"
#include "core/best_fit.h"

namespace fastio {
namespace {

using Numbers = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;

void open_mapping(SharedMapping* self, const FilePath& path) {
  std::shared_ptr<Mapping> mapping;
  raise_for(Mapping::open(path.value, mapping));
  new (self) SharedMapping{std::move(mapping)};
}

// Returns the bytes of a mapping as an array, which keeps them mapped.
nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> data(const SharedMapping& self) {
  auto* const kept = new std::shared_ptr<const Mapping>(self.value);
  const nb::capsule owner(
      kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<const Mapping>*>(p); });
  return {self.value->data(), {self.value->size()}, owner};
}

// (column, offset, width, kind, from, to, fill), see TableField.
using FieldTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint8_t,
                              std::uint8_t, std::uint8_t, std::int64_t>;
// (offset, bytes), see ColumnPlace.
using ColumnTuple = std::pair<std::uint64_t, std::uint64_t>;

void make_table(SharedTable* self, const Vector<std::int64_t>& first_row,
                std::vector<std::uint64_t> strides, const std::vector<FieldTuple>& fields) {
  std::vector<TableField> parts;
  for (const auto& [column, offset, width, kind, from, to, fill] : fields)
    parts.push_back({column, offset, width, static_cast<FieldKind>(kind), from, to, fill});
  try {
    new (self) SharedTable{
        std::make_shared<Table>(copied(first_row), std::move(strides), std::move(parts))};
  } catch (const std::invalid_argument& error) {
    throw nb::value_error(error.what());
  }
}

void set_shard(SharedTable& self, std::size_t shard, const SharedMapping& mapping,
               const std::vector<ColumnTuple>& columns,
               const std::optional<std::tuple<Vector<std::int64_t>, Vector<std::int64_t>,
                                              Vector<std::int32_t>>>& segments,
               std::uint64_t what) {
  std::vector<ColumnPlace> places;
  for (const auto& [offset, bytes] : columns) places.push_back({offset, bytes});
  std::shared_ptr<Segments> kept;
  if (segments) {
    const auto& [begin, start, length] = *segments;
    kept = std::make_shared<Segments>(Segments{copied(begin), copied(start), copied(length)});
  }
  raise_for(self.value->set(shard, mapping.value, places, std::move(kept), what));
}

// Sets a shard's columns. The rows of an array are stride(0) items apart, and the items of a row
// are contiguous.
void set_memory(SharedTable& self, std::size_t shard, std::vector<Source> arrays) {
  std::vector<MemoryColumn> columns;
  for (const Source& array : arrays) {
    if (array.ndim() < 1 || array.shape(0) < 1 || array.stride(0) < 0)
      throw nb::value_error("a column must have at least one row, and no negative stride");
    const std::uint64_t row = array.nbytes() / array.shape(0);
    const std::uint64_t apart = static_cast<std::uint64_t>(array.stride(0)) * array.itemsize();
    columns.push_back(
        {static_cast<const std::uint8_t*>(array.data()), (array.shape(0) - 1) * apart + row});
  }
  raise_for(self.value->set_memory(shard, columns));
  self.memory.insert(self.memory.end(), std::make_move_iterator(arrays.begin()),
                     std::make_move_iterator(arrays.end()));
}

void make_node_memory(SharedNodeMemory* self, int fd, std::size_t shards) {
  try {
    new (self) SharedNodeMemory{std::make_shared<NodeMemory>(fd, shards)};
  } catch (const std::invalid_argument& error) {
    throw nb::value_error(error.what());
  } catch (const std::system_error& error) {
    raise_for(Status::error(Code::io, error.what()));
  }
}

// Returns the memory after checking that it has an entry for this shard.
NodeMemory& memory_of(const SharedNodeMemory& self, std::size_t shard) {
  if (shard >= self.value->shards()) throw nb::index_error("shard is out of range");
  return *self.value;
}

Numbers missing(const SharedTable& self, const Vector<std::int64_t>& rows) {
  const std::vector<std::int64_t> kept = copied(rows);
  check_rows(*self.value, kept);
  auto* const found = new std::vector<std::int64_t>(self.value->missing(kept.data(), kept.size()));
  const nb::capsule owner(
      found, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  return {found->data(), {found->size()}, owner};
}

Numbers best_fit_of(const Vector<std::int32_t>& sizes, std::int32_t room) {
  if (room < 1 || room > 1 << 24) throw nb::value_error("room must be in [1, 2**24]");
  const std::vector<std::int32_t> kept = copied(sizes);
  for (const std::int32_t size : kept)
    if (size < 1 || size > room) throw nb::value_error("sizes must be in [1, room]");
  auto* const found = new std::vector<std::int64_t>;
  const nb::capsule owner(
      found, [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  {
    const nb::gil_scoped_release unlocked;
    *found = best_fit(kept.data(), kept.size(), room);
  }
  return {found->data(), {found->size()}, owner};
}

void close(SharedTable& self) {
  const nb::gil_scoped_release unlocked;
  self.value->close();
}

}  // namespace

void check_rows(const Table& table, const std::vector<std::int64_t>& rows) {
  std::int64_t outside = 0;  // negative if any row is outside; needs no branch per row
  const std::int64_t* const data = rows.data();
  const std::int64_t last = table.rows() - 1;
  const std::size_t count = rows.size();
  for (std::size_t i = 0; i < count; ++i) outside |= data[i] | (last - data[i]);
  if (outside < 0) throw nb::index_error("rows must be in [0, number of rows of the table)");
}

void bind_table(nb::module_& m) {
  nb::enum_<FieldKind>(m, "FieldKind", nb::is_arithmetic(),
                       "What a batch contains of a field of a Table; see table.h.")
      .value("BYTES", FieldKind::bytes)
      .value("NUMBERS", FieldKind::numbers)
      .value("INPUTS", FieldKind::inputs)
      .value("TARGETS", FieldKind::targets)
      .value("POSITIONS", FieldKind::positions)
      .value("DOCUMENTS", FieldKind::documents)
      .value("MASK", FieldKind::mask);
  nb::class_<SharedMapping>(m, "Mapping", "A file mapped into memory; see mapping.h.")
      .def("__init__", &open_mapping, nb::arg("path"))
      .def_prop_ro("data", &data, nb::rv_policy::automatic,
                   "The bytes of the file: uint8 (n,), read-only.")
      .def(
          "ahead",
          [](const SharedMapping& self, std::size_t offset, std::size_t bytes) {
            const nb::gil_scoped_release unlocked;
            self.value->ahead(offset, bytes);
          },
          nb::arg("offset"), nb::arg("bytes"),
          "Asks the system to read the pages of a range that are not in memory.")
      .def(
          "release",
          [](const SharedMapping& self, std::size_t offset, std::size_t bytes) {
            const nb::gil_scoped_release unlocked;
            self.value->release(offset, bytes);
          },
          nb::arg("offset"), nb::arg("bytes"),
          "Unmaps the pages of a range. They are read again when they are used again.")
      .def(
          "expect_scattered", [](const SharedMapping& self) { self.value->expect_scattered(); },
          "Tells the system that pages are read in random order, so that it does not read ahead.")
      .def_prop_ro("damaged", [](const SharedMapping& self) { return self.value->damaged(); });

  nb::class_<SharedNodeMemory>(
      m, "NodeMemory", "Copies of shards that the processes of a machine share; see node_memory.h.")
      .def("__init__", &make_node_memory, nb::arg("fd"), nb::arg("shards"))
      .def_static(
          "bytes_for", &NodeMemory::bytes_for, nb::arg("shards"), nb::arg("data"),
          "Returns the size of a file for `shards` shards whose copies have `data` bytes in total.")
      .def(
          "published",
          [](const SharedNodeMemory& self, std::size_t shard) {
            return memory_of(self, shard).published(shard);
          },
          nb::arg("shard"), "Returns the number that was published for a shard, or 0 if none was.")
      .def(
          "claim",
          [](SharedNodeMemory& self, std::size_t shard) {
            return memory_of(self, shard).claim(shard);
          },
          nb::arg("shard"),
          "Locks the entry of a shard. Returns False if another process has locked it.")
      .def(
          "release",
          [](SharedNodeMemory& self, std::size_t shard) { memory_of(self, shard).release(shard); },
          nb::arg("shard"))
      .def(
          "publish",
          [](SharedNodeMemory& self, std::size_t shard, std::uint64_t what) {
            memory_of(self, shard).publish(shard, what);
          },
          nb::arg("shard"), nb::arg("what"));

  nb::class_<SharedTable>(m, "Table", "Fixed-width columns of shards; see table.h.")
      .def("__init__", &make_table, nb::arg("first_row"), nb::arg("strides"), nb::arg("fields"),
           "first_row: the first row of each shard, and then the number of rows, int64 (shards + "
           "1,). strides: the bytes from row to row of each column. fields: for each field "
           "(column, offset, width, kind, bytes of a number in the column, bytes of a number in "
           "the batch, fill).")
      .def("set", &set_shard, nb::arg("shard"), nb::arg("mapping"), nb::arg("columns"),
           nb::arg("segments").none() = nb::none(), nb::arg("what") = 0,
           "Makes a shard readable. columns: (offset in the file, bytes) of each column. segments: "
           "(begin, start, length), where row i has the segments [begin[i], begin[i + 1]). what: "
           "identifies these columns of this file in a NodeMemory; 0: they are not shared. Raises "
           "ValueError if a column does not lie in the file, or a row or segment does not lie in "
           "its column.")
      .def("set_memory", &set_memory, nb::arg("shard"), nb::arg("arrays"),
           "Makes a shard readable whose columns are arrays of any dtype. The table keeps the "
           "arrays alive and reads from them without a copy.")
      .def(
          "unset", [](SharedTable& self, std::size_t shard) { self.value->unset(shard); },
          nb::arg("shard"))
      .def("missing", &missing, nb::arg("rows"),
           "Returns the shards of these rows that are not set, int64, in ascending order.")
      .def_prop_ro("complete", [](const SharedTable& self) { return self.value->complete(); })
      .def(
          "make_resident",
          [](SharedTable& self, const SharedNodeMemory* node) {
            try {
              self.value->make_resident(node ? node->value : nullptr);
            } catch (const std::invalid_argument& error) {
              throw nb::value_error(error.what());
            }
          },
          nb::arg("node").none() = nb::none(),
          "Starts a thread that copies the shards that are set from now on. node: memory for the "
          "copies that processes share; None: memory of this process.")
      .def_prop_ro("resident", [](const SharedTable& self) { return self.value->resident(); })
      .def("close", &close);

  m.def("best_fit", &best_fit_of, nb::arg("sizes"), nb::arg("room"),
        "Returns the bin of each piece, int64; see best_fit.h.");
}

}  // namespace fastio
