// Column chunks of Parquet for Python: core/parquet_column.h.
#include <mutex>

#include "bind.h"
#include "core/parquet_column.h"

namespace fastio {
namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A decoder that one call uses at a time: concurrent calls wait.
struct LockedDecoder {
  std::mutex lock;
  ColumnDecoder value;
};

// Whether two ranges of memory have bytes in common.
bool overlap(const std::uint8_t* a, std::size_t a_bytes, const std::uint8_t* b,
             std::size_t b_bytes) {
  return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

// Returns the number of nulls, or -1 if ColumnDecoder does not support the chunk.
std::int64_t decode(LockedDecoder& self, const Bytes& data, std::size_t rows, int width,
                    bool nullable, bool snappy, const Memory& values, const Memory& validity,
                    bool checked) {
  if (width != 4 && width != 8) throw nb::value_error("width must be 4 or 8");
  if (rows >> 48) throw nb::value_error("rows must be less than 2**48");
  check_length("values", values.size(), rows * static_cast<std::size_t>(width));
  check_length("validity", validity.size(), nullable ? (rows + 7) / 8 : 0);
  const ColumnChunk chunk{data.data(), data.size(), rows, width, nullable, snappy, checked};
  if (overlap(data.data(), data.size(), values.data(), values.size()) ||
      overlap(data.data(), data.size(), validity.data(), validity.size()) ||
      overlap(values.data(), values.size(), validity.data(), validity.size()))
    throw nb::value_error("data, values and validity must not share memory");
  std::uint8_t *const to = values.data(), *const valid = validity.data();
  std::size_t nulls = 0;
  Status status;
  {
    const nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> one(self.lock);
    status = self.value.decode(chunk, to, valid, nulls);
  }
  if (status.code == Code::unsupported) return -1;
  raise_for(status);
  return static_cast<std::int64_t>(nulls);
}

}  // namespace

void bind_parquet(nb::module_& m) {
  nb::class_<LockedDecoder>(m, "ColumnDecoder",
                            "Decodes column chunks of Parquet files; see parquet_column.h.")
      .def(nb::init<>())
      .def("decode", &decode, nb::arg("data"), nb::arg("rows"), nb::arg("width"),
           nb::arg("nullable"), nb::arg("snappy"), nb::arg("values").noconvert(),
           nb::arg("validity").noconvert(), nb::arg("checked") = false,
           "Decodes the pages in `data` to `rows` numbers of `width` bytes, and to Arrow's "
           "validity bitmap if they are nullable. Returns the number of nulls, or -1 if there are "
           "pages that this class does not decode. Raises ValueError if the pages are damaged. "
           "checked: also compares the checksums of pages that have one.");
}

}  // namespace fastio
