// Permutations for Python: core/shuffle.h.
#include <optional>

#include "bind.h"
#include "core/shuffle.h"

namespace fastio {
namespace {

using Out = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Releases the GIL if there are enough positions: those of a single batch take less time than
// taking the GIL again may.
class Unlocked {
 public:
  explicit Unlocked(std::size_t positions) {
    if (positions >= 4096) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

void check_rows(std::uint64_t n) {
  if (n < 1 || n > kMaxRows) throw nb::value_error("n must be in [1, 2**48]");
}

void check_inside(bool inside) {
  if (!inside) throw nb::value_error("positions and rows must be in [0, n)");
}

void check_window(std::uint64_t block, std::uint64_t window) {
  if (block < 1 || window < 1) throw nb::value_error("block and window must be at least 1");
}

using Function = bool (*)(std::uint64_t n, std::uint64_t key, const std::int64_t* from,
                          std::size_t count, std::int64_t* to);
using WindowFunction = bool (*)(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                                std::uint64_t key, const std::int64_t* from, std::size_t count,
                                std::int64_t* to);

template <Function function>
void bound(std::uint64_t n, std::uint64_t key, const Vector<std::int64_t>& from, Out to) {
  check_rows(n);
  check_length("out", to.size(), from.size());
  const std::int64_t* in = from.data();
  std::int64_t* out = to.data();
  const std::size_t count = from.size();
  bool inside;
  {
    const Unlocked unlocked(count);
    inside = function(n, key, in, count, out);
  }
  check_inside(inside);
}

template <WindowFunction function>
void bound_window(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                  const Vector<std::int64_t>& from, Out to) {
  check_rows(n);
  check_length("out", to.size(), from.size());
  check_window(block, window);
  const std::int64_t* in = from.data();
  std::int64_t* out = to.data();
  const std::size_t count = from.size();
  bool inside;
  {
    const Unlocked unlocked(count);
    inside = function(n, block, window, key, in, count, out);
  }
  check_inside(inside);
}

void check_range(std::uint64_t n, std::uint64_t first, const Out& rows) {
  check_rows(n);
  if (first > n || rows.size() > n - first) throw nb::value_error("positions must be in [0, n)");
}

void bound_range(std::uint64_t n, std::uint64_t key, std::uint64_t first, Out rows) {
  check_range(n, first, rows);
  std::int64_t* out = rows.data();
  const std::size_t count = rows.size();
  const Unlocked unlocked(count);
  permute_range(n, key, first, count, out);
}

void bound_window_range(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                        std::uint64_t key, std::uint64_t first, Out rows) {
  check_range(n, first, rows);
  check_window(block, window);
  std::int64_t* out = rows.data();
  const std::size_t count = rows.size();
  const Unlocked unlocked(count);
  permute_window_range(n, block, window, key, first, count, out);
}

void bound_windows_of(std::uint64_t n, std::uint64_t block, std::uint64_t window, std::uint64_t key,
                      const Vector<std::int64_t>& blocks, Out begins, Out ends) {
  check_window(block, window);
  check_rows(n);
  check_length("begins", begins.size(), blocks.size());
  check_length("ends", ends.size(), blocks.size());
  const std::int64_t* in = blocks.data();
  std::int64_t *out = begins.data(), *out_ends = ends.data();
  const std::size_t count = blocks.size();
  bool inside;
  {
    const Unlocked unlocked(count);
    inside = windows_of(n, block, window, key, in, count, out, out_ends);
  }
  check_inside(inside);
}

}  // namespace

void bind_order(nb::module_& m) {
  m.attr("MAX_ROWS") = kMaxRows;
  m.def("mix_key", &mix_key, nb::arg("a"), nb::arg("b"),
        "Returns a 64-bit key made of two 64-bit words.");
  m.def("permute", &bound<permute>, nb::arg("n"), nb::arg("key"), nb::arg("positions"),
        nb::arg("rows").noconvert(),
        "Sets rows[i] to the value of the keyed permutation of [0, n) at positions[i]. The arrays "
        "are int64 and have the same length. Raises ValueError if a position is not in [0, n).");
  m.def("permute_range", &bound_range, nb::arg("n"), nb::arg("key"), nb::arg("first"),
        nb::arg("rows").noconvert(), "Like permute(), for the positions first, first + 1, ...");
  m.def("permute_inverse", &bound<permute_inverse>, nb::arg("n"), nb::arg("key"), nb::arg("rows"),
        nb::arg("positions").noconvert(),
        "The inverse of permute(): sets positions[i] to the position of rows[i].");
  m.def("permute_window", &bound_window<permute_window>, nb::arg("n"), nb::arg("block"),
        nb::arg("window"), nb::arg("key"), nb::arg("positions"), nb::arg("rows").noconvert(),
        "Like permute(), for the window order: blocks are permuted, and the rows of each window of "
        "blocks are shuffled.");
  m.def("permute_window_range", &bound_window_range, nb::arg("n"), nb::arg("block"),
        nb::arg("window"), nb::arg("key"), nb::arg("first"), nb::arg("rows").noconvert(),
        "Like permute_window(), for the positions first, first + 1, ...");
  m.def("permute_window_inverse", &bound_window<permute_window_inverse>, nb::arg("n"),
        nb::arg("block"), nb::arg("window"), nb::arg("key"), nb::arg("rows"),
        nb::arg("positions").noconvert(),
        "The inverse of permute_window(): sets positions[i] to the position of rows[i].");
  m.def("windows_of", &bound_windows_of, nb::arg("n"), nb::arg("block"), nb::arg("window"),
        nb::arg("key"), nb::arg("blocks"), nb::arg("begins").noconvert(),
        nb::arg("ends").noconvert(),
        "Sets [begins[i], ends[i]) to the positions of the window of permute_window() that "
        "contains the block blocks[i]; block b has the rows from b * block on. The arrays are "
        "int64 and have the same length.");
}

}  // namespace fastio
