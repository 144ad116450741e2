// Instruction sets for Python: core/cpu.h.
#include "core/cpu.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind.h"

namespace fastio {
namespace {

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const SimdLevel& level : simd_levels()) names.emplace_back(level.name);
  return names;
}

void force(const std::string& name) {
  for (const SimdLevel& level : simd_levels())
    if (level.name == name) return simd_force(level.features);
  throw std::invalid_argument("this machine has no instruction sets of the name " + name);
}

}  // namespace

void bind_cpu(nb::module_& m) {
  m.def("simd_levels", &level_names,
        "The instruction sets of this machine that kernels are written for, the slowest first.");
  m.def(
      "simd_active", [] { return simd_name(simd_active()); },
      "The instruction sets that kernels use now, as one of simd_levels().");
  m.def("simd_force", &force, nb::arg("level"),
        "Makes kernels use `level`, one of simd_levels(). For tests and benchmarks: it holds for "
        "the whole process.");
}

}  // namespace fastio
