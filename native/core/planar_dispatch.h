// Chooses the template instance of a row kernel, for the kernels of all instruction sets.
#pragma once

#include "planar_kernels.h"

namespace fastio {
namespace {

// Computes a row with Rows::of<kOutput, kFirst, kOthers>(planes, bits, outputs, dst, plane). kFirst
// and kOthers: the numbers of taps of component 0 and of the others, so that loops over taps are
// unrolled; 0 if there are many taps, if their number varies, or if the output is not from YCbCr.
template <typename Rows>
inline void make_row(PlanarOutput output, const PlanarRow* planes, int bits, std::int32_t outputs,
                     std::uint8_t* dst, std::ptrdiff_t plane) {
  using Kernel = void(const PlanarRow*, int, std::int32_t, std::uint8_t*, std::ptrdiff_t);
  using enum PlanarOutput;
  static_assert(kUniformTaps == 4);
  static constexpr Kernel* kYcbcr[kUniformTaps + 1][kUniformTaps + 1] = {
      {Rows::template of<ycbcr, 0, 0>, Rows::template of<ycbcr, 0, 1>,
       Rows::template of<ycbcr, 0, 2>, Rows::template of<ycbcr, 0, 3>,
       Rows::template of<ycbcr, 0, 4>},
      {Rows::template of<ycbcr, 1, 0>, Rows::template of<ycbcr, 1, 1>,
       Rows::template of<ycbcr, 1, 2>, Rows::template of<ycbcr, 1, 3>,
       Rows::template of<ycbcr, 1, 4>},
      {Rows::template of<ycbcr, 2, 0>, Rows::template of<ycbcr, 2, 1>,
       Rows::template of<ycbcr, 2, 2>, Rows::template of<ycbcr, 2, 3>,
       Rows::template of<ycbcr, 2, 4>},
      {Rows::template of<ycbcr, 3, 0>, Rows::template of<ycbcr, 3, 1>,
       Rows::template of<ycbcr, 3, 2>, Rows::template of<ycbcr, 3, 3>,
       Rows::template of<ycbcr, 3, 4>},
      {Rows::template of<ycbcr, 4, 0>, Rows::template of<ycbcr, 4, 1>,
       Rows::template of<ycbcr, 4, 2>, Rows::template of<ycbcr, 4, 3>,
       Rows::template of<ycbcr, 4, 4>}};
  Kernel* kernel = nullptr;
  switch (output) {
    case gray:
      kernel = Rows::template of<gray, 0, 0>;
      break;
    case gray_three:
      kernel = Rows::template of<gray_three, 0, 0>;
      break;
    case rgb:
      kernel = Rows::template of<rgb, 0, 0>;
      break;
    case rgb_luma:
      kernel = Rows::template of<rgb_luma, 0, 0>;
      break;
    case ycbcr:
      const std::int32_t first = planes[0].count, others = planes[1].count;
      kernel = kYcbcr[first <= kUniformTaps ? first : 0][others <= kUniformTaps ? others : 0];
      break;
  }
  kernel(planes, bits, outputs, dst, plane);
}

}  // namespace
}  // namespace fastio
