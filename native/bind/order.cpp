#include <optional>

#include "bind.h"
#include "core/shuffle.h"

namespace fastio {
namespace {

using Out = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Lets go of the interpreter's lock where there is enough to do: a batch's positions take less time
// than getting it back can.
class Unlocked {
 public:
  explicit Unlocked(std::size_t positions) {
    if (positions >= 4096) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

void check_positions(std::uint64_t n, const Vector<std::int64_t>& positions, const Out& rows) {
  if (n < 1 || n > kMaxRows) throw nb::value_error("n must be in [1, 2**48]");
  check_length("rows", rows.size(), positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i)
    if (static_cast<std::uint64_t>(positions.data()[i]) >= n)
      throw nb::value_error("a position is not in [0, n)");
}

void bound_permute(std::uint64_t n, std::uint64_t key, const Vector<std::int64_t>& positions,
                   Out rows) {
  check_positions(n, positions, rows);
  const std::int64_t* from = positions.data();
  std::int64_t* to = rows.data();
  const std::size_t count = positions.size();
  const Unlocked unlocked(count);
  permute(n, key, from, count, to);
}

void bound_permute_window(std::uint64_t n, std::uint64_t block, std::uint64_t window,
                          std::uint64_t key, const Vector<std::int64_t>& positions, Out rows) {
  check_positions(n, positions, rows);
  if (block < 1 || window < 1) throw nb::value_error("block and window must be at least 1");
  const std::int64_t* from = positions.data();
  std::int64_t* to = rows.data();
  const std::size_t count = positions.size();
  const Unlocked unlocked(count);
  permute_window(n, block, window, key, from, count, to);
}

}  // namespace

void bind_order(nb::module_& m) {
  m.def("mix_key", &mix_key, nb::arg("a"), nb::arg("b"), "Mixes two 64-bit words into a key.");
  m.def("permute", &bound_permute, nb::arg("n"), nb::arg("key"), nb::arg("positions"),
        nb::arg("rows").noconvert(),
        "rows[i] = the keyed permutation of [0, n) at positions[i]. int64 arrays of one length.");
  m.def("permute_window", &bound_permute_window, nb::arg("n"), nb::arg("block"), nb::arg("window"),
        nb::arg("key"), nb::arg("positions"), nb::arg("rows").noconvert(),
        "As permute(), for the window order: blocks of rows, shuffled within windows of blocks.");
}

}  // namespace fastio
