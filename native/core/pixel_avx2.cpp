#include "pixel_loops.h"

namespace fastio {

const PixelKernels kPixelAvx2 = kLoops;

}  // namespace fastio
