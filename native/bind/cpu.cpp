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
  throw std::invalid_argument("this machine has no SIMD level named " + name +
                              ": simd_levels() lists those that it has");
}

}  // namespace

void bind_cpu(nb::module_& m) {
  m.def("simd_levels", &level_names,
        "Returns the SIMD levels that kernels are written for and this machine supports, slowest "
        "first.");
  m.def(
      "simd_active", [] { return simd_name(simd_active()); },
      "Returns the SIMD level that kernels use now, one of simd_levels().");
  m.def("simd_force", &force, nb::arg("level"),
        "Makes the kernels of the whole process use `level`, one of simd_levels(). For tests and "
        "benchmarks. Raises ValueError if this machine does not support the level.");
}

}  // namespace fastio
