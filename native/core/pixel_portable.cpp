#include "pixel_loops.h"

namespace fastio {

const PixelKernels kPixelPortable = kLoops;

}  // namespace fastio
