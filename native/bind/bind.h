// What the binding files share: types that Python holds, helpers, and the function of each file
// that registers its bindings.
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

// A path as the bytes of the file system. Python's str of a name that is not UTF-8 has surrogates:
// os.fsencode converts them back to these bytes, while nanobind's std::string rejects them.
struct FilePath {
  std::string value;
};

// The Python objects below hold shared_ptrs to objects that worker threads also use. They are never
// nanobind's shared_ptrs of Python objects: releasing the last of these on a worker thread would
// take the GIL.
struct SharedChain {
  // Returns the current chain, which is immutable.
  std::shared_ptr<const Chain> get() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  // Replaces the chain by a copy to which `change` has added steps.
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
// In a forked child, the value is leaked, because a thread of the parent may have left it
// half-changed.
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
    const nb::gil_scoped_release unlocked;  // close() waits for a thread
    value->close();
  }

  std::shared_ptr<Table> value;
  std::vector<Source> memory;  // arrays that hold the shards; gathers also keep them
};

// Raises the Python exception for a status that is not ok.
void raise_for(const Status& status);

// Raises ValueError unless `given` == `wanted`.
void check_length(const char* name, std::size_t given, std::size_t wanted);

// Returns a copy of an array, which other threads cannot change while it is checked and used.
template <typename T>
std::vector<T> copied(const Vector<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

// The form of images in a batch. normalize: the scales and biases of `channels` channels, for
// float32; without it, images are uint8.
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
