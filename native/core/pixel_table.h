// All loops of an instruction set, in the table of pixel_kernels.h.

#include "filter_loops.h"
#include "pixel_loops.h"
#include "warp_loops.h"

namespace fastio {
namespace {

constexpr PixelKernels kLoops = {scale,  bits,      look_up,   extremes,    gray,       saturate,
                                 mix_in, mixed,     mirror,    turn_hue,    sharpen,    weigh,
                                 widen,  frame_row, split_row, nearest_row, between_row};

}  // namespace
}  // namespace fastio
