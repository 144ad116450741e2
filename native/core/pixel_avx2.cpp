// The kernels of pixel_kernels.h, compiled for AVX2.
#include "pixel_table.h"

namespace fastio {

const PixelKernels kPixelAvx2 = kLoops;

}  // namespace fastio
