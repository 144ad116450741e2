// The portable kernels of pixel_kernels.h.
#include "pixel_table.h"

namespace fastio {

const PixelKernels kPixelPortable = kLoops;

}  // namespace fastio
