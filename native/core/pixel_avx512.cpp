// The kernels of pixel_kernels.h, compiled for AVX-512.
#include "pixel_table.h"

namespace fastio {

const PixelKernels kPixelAvx512 = kLoops;

}  // namespace fastio
