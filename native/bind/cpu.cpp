#include "core/cpu.h"

#include "bind.h"

namespace fastio {

void bind_cpu(nb::module_& m) {
  nb::enum_<Simd>(m, "Simd", "Instruction sets that the kernels are written for, in order.")
      .value("portable", Simd::portable)
      .value("avx2", Simd::avx2)
      .value("avx512", Simd::avx512);
  m.def("simd_best", &simd_best, "The best instruction set of this machine.");
  m.def("simd_active", &simd_active, "The instruction set that kernels use now.");
  m.def("simd_force", &simd_force, nb::arg("level"),
        "Makes kernels use `level`, or the best of this machine where that is less. For tests and "
        "benchmarks: it holds for the whole process.");
}

}  // namespace fastio
