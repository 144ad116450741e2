#include "pixel_table.h"

namespace fastio {

const PixelKernels kPixelPortable = kLoops;

}  // namespace fastio
