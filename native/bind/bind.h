// What the binding files share: one function a concept, and the table of errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>

#include "core/codebook.h"
#include "core/geometry.h"
#include "core/mapping.h"
#include "core/read.h"
#include "core/status.h"
#include "core/table.h"

namespace fastio {

namespace nb = nanobind;

// Contiguous arrays on the CPU; inputs are const, so that NumPy's read-only arrays are accepted.
template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// What Python holds of objects that worker threads share. Never a nanobind shared_ptr of a Python
// object: dropping the last one on a worker thread would take the interpreter's lock.
struct SharedGeometry {
  std::shared_ptr<Geometry> value = std::make_shared<Geometry>();
};
struct SharedCodebook {
  std::shared_ptr<const Codebook> value;
};
struct SharedFiles {
  std::shared_ptr<FileSet> value;
};
struct SharedMapping {
  std::shared_ptr<const Mapping> value;
};
struct SharedTable {
  explicit SharedTable(std::shared_ptr<Table> table) : value(std::move(table)) {}
  SharedTable(SharedTable&&) = default;
  ~SharedTable() {
    if (value && value->forked()) static_cast<void>(new std::shared_ptr<Table>(std::move(value)));
  }

  std::shared_ptr<Table> value;
};

// Raises the exception that stands for a bad status; returns for a good one.
void raise_for(const Status& status);

// Raises ValueError unless `given` == `wanted`.
void check_length(const char* name, std::size_t given, std::size_t wanted);

// Raises IndexError unless every row is in [0, table.rows()).
void check_rows(const Table& table, const Vector<std::int64_t>& rows);

void bind_cpu(nb::module_& m);
void bind_order(nb::module_& m);
void bind_geometry(nb::module_& m);
void bind_image(nb::module_& m);
void bind_blocks(nb::module_& m);
void bind_table(nb::module_& m);
void bind_interleave(nb::module_& m);
void bind_parquet(nb::module_& m);
void bind_engine(nb::module_& m);

}  // namespace fastio
