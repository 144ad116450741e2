#include "parquet_runs.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu.h"

namespace fastio {
namespace {

using Byte = std::uint8_t;

constexpr std::size_t kBlock = 1024;  // indices that are unpacked at a time
constexpr std::size_t kGroup = 16;    // indices that are looked up at a time

template <typename T>
T load(const Byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void store(Byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Whether indices are consecutive numbers.
inline bool consecutive(const std::uint32_t* indices) {
  if (indices[kGroup - 1] - indices[0] != kGroup - 1) return false;
  std::uint32_t other = 0;
  for (std::uint32_t i = 0; i < kGroup; ++i) other |= indices[i] - indices[0] - i;
  return !other;
}

// Writes the values that `count` indices, which are all valid, have in a dictionary. New values are
// appended to a dictionary in order, so indices of values that seldom repeat are consecutive.
template <typename T>
void take(const std::uint32_t* indices, std::size_t count, const Byte* dictionary, Byte* out) {
  std::size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    if (consecutive(indices + i)) {
      std::memcpy(out + sizeof(T) * i, dictionary + sizeof(T) * indices[i], sizeof(T) * kGroup);
      continue;
    }
    for (std::size_t k = i; k < i + kGroup; ++k)
      store(out + sizeof(T) * k, load<T>(dictionary + sizeof(T) * indices[k]));
  }
  for (; i < count; ++i) store(out + sizeof(T) * i, load<T>(dictionary + sizeof(T) * indices[i]));
}

template <typename T>
bool look_up_as(Runs runs, int bits, const Byte* dictionary, std::size_t entries, Byte* out) {
  std::uint32_t indices[kBlock];
  Run run;
  while (runs.left()) {
    if (!runs.next(run)) return false;
    if (!run.packed) {
      if (run.value >= entries) return false;
      const T value = load<T>(dictionary + sizeof(T) * run.value);
      for (std::size_t i = 0; i < run.count; ++i) store(out + sizeof(T) * i, value);
      out += sizeof(T) * run.count;
      continue;
    }
    for (std::size_t done = 0; done < run.count; done += kBlock) {
      const std::size_t count = std::min(kBlock, run.count - done);
      const Byte* const bytes = run.bytes + done / 8 * static_cast<std::size_t>(bits);
      if (unpack(bytes, run.end, bits, count, indices) >= entries) return false;
      take<T>(indices, count, dictionary, out);
      out += sizeof(T) * count;
    }
  }
  return true;
}

template <typename T>
void spread_as(const Byte* bits, std::size_t count, std::size_t valid, Byte* out) {
  std::size_t from = valid;
  for (std::size_t i = count; i-- > from;) {  // once i == from, all values are in their positions
    const bool is_valid = bits[i / 8] >> i % 8 & 1;
    store<T>(out + sizeof(T) * i, is_valid ? load<T>(out + sizeof(T) * --from) : T{0});
  }
}

}  // namespace

bool Runs::next(Run& run) {
  std::uint64_t head = 0;
  for (int shift = 0;; shift += 7) {
    if (at_ == end_ || shift > 28) return false;
    const Byte byte = *at_++;
    head |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) break;
  }
  const auto bits = static_cast<std::size_t>(bits_);
  const auto there = static_cast<std::size_t>(end_ - at_);
  run.packed = head & 1;
  run.value = 0;
  run.bytes = at_;
  run.end = end_;
  if (run.packed) {
    const std::size_t groups = head >> 1;
    run.count = std::min(8 * groups, left_);
    // The last group may be truncated after the numbers that are used; earlier ones are complete.
    if ((run.count * bits + 7) / 8 > there) return false;
    if (bits && groups > 1 && (groups - 1) * bits >= there) return false;
    at_ += std::min(groups * bits, there);
  } else {
    run.count = std::min<std::size_t>(head >> 1, left_);
    const std::size_t bytes = (bits + 7) / 8;
    if (bytes > there) return false;
    for (std::size_t i = 0; i < bytes; ++i) run.value |= std::uint32_t{at_[i]} << 8 * i;
    at_ += bytes;
  }
  left_ -= run.count;
  return run.count > 0;
}

std::uint32_t unpack_portable(const Byte* in, const Byte* end, int bits, std::size_t count,
                              std::uint32_t* out) {
  if (bits == 0) {
    std::memset(out, 0, count * sizeof(*out));
    return 0;
  }
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const auto bytes = static_cast<std::size_t>(end - in);
  std::uint32_t most = 0;
  std::size_t bit = 0;
  for (std::size_t i = 0; i < count; ++i, bit += static_cast<std::size_t>(bits)) {
    std::uint64_t word = 0;
    const std::size_t at = bit / 8;
    if (at + 8 <= bytes) {
      word = load<std::uint64_t>(in + at);
    } else {
      std::memcpy(&word, in + at, bytes - at);
    }
    out[i] = static_cast<std::uint32_t>(word >> bit % 8 & mask);
    most = std::max(most, out[i]);
  }
  return most;
}

std::uint32_t unpack(const Byte* in, const Byte* end, int bits, std::size_t count,
                     std::uint32_t* out) {
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) return unpack_avx2(in, end, bits, count, out);
#endif
  return unpack_portable(in, end, bits, count, out);
}

bool look_up(const Byte* in, const Byte* end, int bits, std::size_t count, const Byte* dictionary,
             std::size_t entries, int width, Byte* out) {
  const Runs runs(in, end, bits, count);
  if (width == 8) return look_up_as<std::uint64_t>(runs, bits, dictionary, entries, out);
  return look_up_as<std::uint32_t>(runs, bits, dictionary, entries, out);
}

void spread_portable(const Byte* bits, std::size_t count, std::size_t valid, int width, Byte* out) {
  if (width == 8) return spread_as<std::uint64_t>(bits, count, valid, out);
  spread_as<std::uint32_t>(bits, count, valid, out);
}

void spread(const Byte* bits, std::size_t count, std::size_t valid, int width, Byte* out) {
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2 | kPdep)) return spread_avx2(bits, count, valid, width, out);
#endif
  spread_portable(bits, count, valid, width, out);
}

}  // namespace fastio
