#include "token_fields.h"

#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "widen.h"

namespace fastio {
namespace {

template <typename T>
void put_value_as(std::uint8_t* out, std::size_t count, std::int64_t value) {
  const T number = static_cast<T>(value);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + sizeof(T) * i, &number, sizeof(T));
}

// Writes first, first + 1, ...
template <typename T>
void put_count_as(std::uint8_t* out, std::size_t count, std::size_t first) {
  for (std::size_t i = 0; i < count; ++i) {
    const T number = static_cast<T>(first + i);
    std::memcpy(out + sizeof(T) * i, &number, sizeof(T));
  }
}

}  // namespace

void put_value(std::uint8_t* out, std::size_t count, int bytes, std::int64_t value) {
  if (bytes == 8) return put_value_as<std::int64_t>(out, count, value);
  put_value_as<std::int32_t>(out, count, value);
}

void put_part_portable(const TokenPart& part, const TokenFields& out, std::size_t begin) {
  const auto [inputs, targets, positions, documents, mask] = out;
  const std::size_t count = part.count - begin, known = std::max(part.known, begin) - begin;
  const std::size_t from = static_cast<std::size_t>(part.from);
  const std::size_t to = static_cast<std::size_t>(part.to);
  const std::uint8_t* const tokens = part.tokens + begin * from;
  const std::size_t at = begin * to;
  if (inputs) widen_portable(tokens, count, part.from, part.to, inputs + at);
  if (targets) {
    widen_portable(tokens + from, known, part.from, part.to, targets + at);
    put_value(targets + at + known * to, count - known, part.to, part.no_target);
  }
  if (positions && part.to == 8) put_count_as<std::int64_t>(positions + at, count, begin);
  if (positions && part.to == 4) put_count_as<std::int32_t>(positions + at, count, begin);
  if (documents) put_value(documents + at, count, part.to, part.document);
  if (mask) put_value(mask + at, count, part.to, 1);
}

void put_part(const TokenPart& part, const TokenFields& out) {
  std::size_t begin = 0;
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) begin = put_part_avx2(part, out, prefetch_writes());
#endif
  put_part_portable(part, out, begin);
}

}  // namespace fastio
