#include "widen.h"

#include <cstring>

#include "cpu.h"

namespace fastio {
namespace {

template <typename From, typename To>
void widen_as(const std::uint8_t* in, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, in + i * sizeof(From), sizeof(From));
    const To wide = value;
    std::memcpy(out + i * sizeof(To), &wide, sizeof(To));
  }
}

}  // namespace

void widen_portable(const std::uint8_t* in, std::size_t count, int from, int to,
                    std::uint8_t* out) {
  if (from == to) {
    std::memcpy(out, in, count * static_cast<std::size_t>(to));
  } else if (to == 4) {
    if (from == 1) widen_as<std::uint8_t, std::uint32_t>(in, count, out);
    if (from == 2) widen_as<std::uint16_t, std::uint32_t>(in, count, out);
  } else {
    if (from == 1) widen_as<std::uint8_t, std::uint64_t>(in, count, out);
    if (from == 2) widen_as<std::uint16_t, std::uint64_t>(in, count, out);
    if (from == 4) widen_as<std::uint32_t, std::uint64_t>(in, count, out);
  }
}

void widen(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out) {
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) return widen_avx2(in, count, from, to, out);
#endif
  widen_portable(in, count, from, to, out);
}

}  // namespace fastio
