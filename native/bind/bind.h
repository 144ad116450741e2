// What the binding files share: one function a concept, and the table of errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/chain.h"
#include "core/codebook.h"
#include "core/mapping.h"
#include "core/node_memory.h"
#include "core/read.h"
#include "core/status.h"
#include "core/store.h"
#include "core/table.h"

namespace fastio {

namespace nb = nanobind;

// Contiguous arrays on the CPU; inputs are const, so that NumPy's read-only arrays are accepted.
template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A path as the bytes that the file system has: Python's str of a name that is not UTF-8 has
// surrogates, which os.fsencode turns back into these bytes, and nanobind's std::string refuses.
struct FilePath {
  std::string value;
};

// What Python holds of objects that worker threads share. Never a nanobind shared_ptr of a Python
// object: dropping the last one on a worker thread would take the interpreter's lock.
struct SharedChain {
  // The chain as it is now, which nobody changes any more.
  std::shared_ptr<const Chain> get() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  // Calls `change` with a longer chain.
  template <typename Change>
  void extend(const Change& change) {
    const std::lock_guard lock(mutex_);
    auto longer = std::make_shared<Chain>(*value_);
    change(*longer);
    value_ = std::move(longer);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Chain> value_ = std::make_shared<Chain>();
};
struct SharedCodebook {
  std::shared_ptr<const Codebook> value;
};
// In a forked child, what the parent's threads may have been changing is never destroyed.
struct SharedFiles {
  explicit SharedFiles(std::shared_ptr<FileSet> files) : value(std::move(files)) {}
  SharedFiles(SharedFiles&&) = default;
  ~SharedFiles() {
    if (value && value->forked()) static_cast<void>(new std::shared_ptr<FileSet>(std::move(value)));
  }

  std::shared_ptr<FileSet> value;
};
struct SharedNodeMemory {
  std::shared_ptr<NodeMemory> value;
};
struct SharedMapping {
  std::shared_ptr<const Mapping> value;
};
// An array of any type and strides, from which native code only reads.
using Source = nb::ndarray<nb::ro, nb::device::cpu>;
struct SharedTable {
  explicit SharedTable(std::shared_ptr<Table> table) : value(std::move(table)) {}
  SharedTable(SharedTable&&) = default;
  ~SharedTable() {
    if (!value) return;
    if (value->forked()) {
      static_cast<void>(new std::shared_ptr<Table>(std::move(value)));
      return;
    }
    const nb::gil_scoped_release unlocked;  // its thread is waited for
    value->close();
  }

  std::shared_ptr<Table> value;
  std::vector<Source> memory;  // arrays that hold the shards; gathers also keep them
};

// Raises the exception that stands for a bad status; returns for a good one.
void raise_for(const Status& status);

// Raises ValueError unless `given` == `wanted`.
void check_length(const char* name, std::size_t given, std::size_t wanted);

// A copy, which nobody changes while it is checked and used.
template <typename T>
std::vector<T> copied(const Vector<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

// What rows of images are to be. normalize: scales and biases of so many channels; uint8 without.
using Normalize = std::optional<std::array<std::vector<double>, 2>>;
StoreSpec store_spec(bool channels_last, const Normalize& normalize, int channels);

// Raises IndexError unless every row is in [0, table.rows()).
void check_rows(const Table& table, const std::vector<std::int64_t>& rows);

void bind_cpu(nb::module_& m);
void bind_status(nb::module_& m);
void bind_order(nb::module_& m);
void bind_chain(nb::module_& m);
void bind_image(nb::module_& m);
void bind_blocks(nb::module_& m);
void bind_recoding(nb::module_& m);
void bind_table(nb::module_& m);
void bind_interleave(nb::module_& m);
void bind_parquet(nb::module_& m);
void bind_engine(nb::module_& m);

}  // namespace fastio

template <>
struct nanobind::detail::type_caster<fastio::FilePath> {
  NB_TYPE_CASTER(fastio::FilePath, const_name("str"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    PyObject* encoded = nullptr;
    if (!PyUnicode_FSConverter(source.ptr(), &encoded)) {
      PyErr_Clear();
      return false;
    }
    const object held = steal(encoded);
    value.value.assign(PyBytes_AsString(encoded), static_cast<std::size_t>(PyBytes_Size(encoded)));
    return true;
  }
};
