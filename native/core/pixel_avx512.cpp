#include "pixel_table.h"

namespace fastio {

const PixelKernels kPixelAvx512 = kLoops;

}  // namespace fastio
