#include "pixel_table.h"

namespace fastio {

const PixelKernels kPixelAvx2 = kLoops;

}  // namespace fastio
