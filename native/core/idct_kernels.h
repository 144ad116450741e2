// The interface between idct.cpp and the kernels of each instruction set: plain data and plain
// functions. (Files for an instruction set must not instantiate inline functions that others share;
// see CMakeLists.txt.)
//
// Each transform has two passes, first down the columns, then along the rows. Both pair coefficient
// k with coefficient k + 4, because one vector instruction (pmaddwd) multiplies a pair of 16-bit
// values by a pair of weights and adds the products.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// The weights of coefficients k and k + 4.
struct IdctPair {
  std::int16_t low, high;
};

// The number of low bits that are dropped after each pass.
struct IdctShifts {
  int columns, rows;
};

// Size 8. Output k is E(k) + O(k), output 7 - k is E(k) - O(k). The method of Loeffler, Ligtenberg
// and Moshovitz (1989) with constants of 13 bits, as in libjpeg, but multiplied out, which gives
// equal results because integer sums do not depend on their order.
inline constexpr IdctShifts kIdct8 = {11, 18};
inline constexpr IdctPair kIdct8Even04[2] = {{8192, 8192},
                                             {8192, -8192}};  // of E(0), E(3); E(1), E(2)
inline constexpr IdctPair kIdct8Even26[2] = {{10703, 4433},
                                             {4433, -10704}};  // negated for E(3), E(2)
inline constexpr IdctPair kIdct8Odd15[4] = {
    {11363, 6437}, {9633, -11362}, {6437, 2261}, {2260, 9633}};
inline constexpr IdctPair kIdct8Odd37[4] = {
    {9633, 2260}, {-2259, -6436}, {-11362, 9633}, {-6436, -11363}};

// Size 4. Output k is E(k) + O(k), output 3 - k is E(k) - O(k). Coefficient 4 has no weight.
inline constexpr IdctShifts kIdct4 = {12, 19};
inline constexpr IdctPair kIdct4Even04 = {16384, 0};
inline constexpr IdctPair kIdct4Even26 = {15137, -6270};  // negated for E(1)
inline constexpr IdctPair kIdct4Odd15[2] = {{20995, -4926}, {8697, 11893}};
inline constexpr IdctPair kIdct4Odd37[2] = {{7373, -4176}, {-17799, -1730}};

// Size 2. Output 0 is E + O, output 1 is E - O. Coefficients 2, 4 and 6 have no weight.
inline constexpr IdctShifts kIdct2 = {13, 20};
inline constexpr IdctPair kIdct2MinusEven04 = {-32768, 0};  // gives -E: 32768 does not fit
inline constexpr IdctPair kIdct2Odd15 = {29692, 6967};
inline constexpr IdctPair kIdct2Odd37 = {-10426, -5906};

// The numbers that are added before bits are dropped: half a unit to round, and in the rows' pass
// also the level shift of 128.
consteval std::int32_t idct_bias_columns(IdctShifts s) { return 1 << (s.columns - 1); }
consteval std::int32_t idct_bias_rows(IdctShifts s) {
  return (128 << s.rows) + (1 << (s.rows - 1));
}

// Like idct() in idct.h, for one size.
using IdctKernel = void(const std::int16_t* blocks, int count, std::uint8_t* out,
                        std::ptrdiff_t stride);

IdctKernel idct8_portable;
IdctKernel idct4_portable;
IdctKernel idct2_portable;

#ifdef FASTIO_X86
IdctKernel idct8_avx2;
IdctKernel idct4_avx2;
IdctKernel idct2_avx2;
IdctKernel idct8_avx512bw;
IdctKernel idct4_avx512bw;
IdctKernel idct2_avx512bw;
IdctKernel idct8_avx512;
IdctKernel idct4_avx512;
IdctKernel idct2_avx512;
#endif
#ifdef FASTIO_ARM64
IdctKernel idct8_neon;
IdctKernel idct4_neon;
IdctKernel idct2_neon;
#endif

}  // namespace fastio
