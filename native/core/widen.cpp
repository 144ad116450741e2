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

template <typename T>
void put_as(std::uint8_t* out, std::size_t count, std::int64_t first, bool counts) {
  for (std::size_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(first + (counts ? static_cast<std::int64_t>(i) : 0));
    std::memcpy(out + sizeof(T) * i, &value, sizeof(T));
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

void put_portable(std::uint8_t* out, std::size_t count, int bytes, std::int64_t first,
                  bool counts) {
  if (bytes == 8) return put_as<std::int64_t>(out, count, first, counts);
  put_as<std::int32_t>(out, count, first, counts);
}

void put(std::uint8_t* out, std::size_t count, int bytes, std::int64_t first, bool counts) {
#ifdef FASTIO_X86
  if (simd_active() >= Simd::avx2) return put_avx2(out, count, bytes, first, counts);
#endif
  put_portable(out, count, bytes, first, counts);
}

void widen(const std::uint8_t* in, std::size_t count, int from, int to, std::uint8_t* out) {
#ifdef FASTIO_X86
  if (simd_active() >= Simd::avx2) return widen_avx2(in, count, from, to, out);
#endif
  widen_portable(in, count, from, to, out);
}

}  // namespace fastio
