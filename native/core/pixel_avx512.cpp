#include "pixel_loops.h"

namespace fastio {

const PixelKernels kPixelAvx512 = kLoops;

}  // namespace fastio
