#include "core/token_fields.h"

#include "core/cpu.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

using namespace fastio;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Put = void (*)(const TokenPart&, const TokenFields&);

std::int64_t number(const std::uint8_t* from, int bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, static_cast<std::size_t>(bytes));
  return static_cast<std::int64_t>(value);
}

// What a field has of token `i`, computed one by one.
std::int64_t expected(const TokenPart& part, std::size_t kind, std::size_t i) {
  const std::uint8_t* const token = part.tokens + i * static_cast<std::size_t>(part.from);
  switch (kind) {
    case 0:
      return number(token, part.from);
    case 1:
      return i < part.known ? number(token + part.from, part.from) : part.no_target;
    case 2:
      return static_cast<std::int64_t>(i);
    case 3:
      return part.document;
    default:
      return 1;
  }
}

// put_part, the portable kernel, and the vectors' one with and without prefetching.
std::vector<Put> all_kernels() {
  std::vector<Put> found{put_part, [](const TokenPart& part, const TokenFields& out) {
                           put_part_portable(part, out);
                         }};
#ifdef FASTIO_X86
  if (simd_best().has(kAvx2)) {
    found.push_back([](const TokenPart& part, const TokenFields& out) {
      put_part_portable(part, out, put_part_avx2(part, out, false));
    });
    found.push_back([](const TokenPart& part, const TokenFields& out) {
      put_part_portable(part, out, put_part_avx2(part, out, true));
    });
  }
#endif
  return found;
}

// The five fields, one after the other with a byte before and behind each; those that `wanted` has
// no bit for stay as they are.
Bytes written(const TokenPart& part, unsigned wanted, Put put) {
  const std::size_t bytes = part.count * static_cast<std::size_t>(part.to) + 2;
  Bytes all(kTokenFields * bytes, 0x5a);
  TokenFields out{};
  for (std::size_t kind = 0; kind < kTokenFields; ++kind)
    if (wanted >> kind & 1) out[kind] = all.data() + kind * bytes + 1;
  put(part, out);
  return all;
}

Bytes wished(const TokenPart& part, unsigned wanted) {
  const auto to = static_cast<std::size_t>(part.to);
  const std::size_t bytes = part.count * to + 2;
  Bytes all(kTokenFields * bytes, 0x5a);
  for (std::size_t kind = 0; kind < kTokenFields; ++kind)
    for (std::size_t i = 0; (wanted >> kind & 1) && i < part.count; ++i) {
      const std::int64_t value = expected(part, kind, i);
      std::memcpy(all.data() + kind * bytes + 1 + i * to, &value, to);
    }
  return all;
}

}  // namespace

TEST_CASE("the fields of a part of a document, alike on every instruction set") {
  for (const int from : {1, 2, 4})
    for (const int to : {4, 8})
      for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 33u, 300u})
        for (const std::size_t behind : {0u, 1u})  // tokens whose next one is not known
          for (const unsigned wanted : {0u, 1u, 2u, 3u, 12u, 15u, 17u, 30u, 31u}) {
            const std::size_t known = count - std::min(count, behind);
            // Exactly what may be read: a sanitizer sees it if more is.
            Bytes tokens((std::max(count, known + 1)) * static_cast<std::size_t>(from));
            for (std::size_t i = 0; i < tokens.size(); ++i)
              tokens[i] = static_cast<std::uint8_t>(i * 151 + 9);
            const TokenPart part{tokens.data(), count, known, -100, 70'000, from, to};
            const Bytes wish = wished(part, wanted);
            for (const Put put : all_kernels()) CHECK(written(part, wanted, put) == wish);
          }
}

TEST_CASE("a value is written again and again, and nothing around it") {
  for (const int bytes : {4, 8})
    for (const std::size_t count : {0u, 1u, 5u, 33u}) {
      Bytes out(count * static_cast<std::size_t>(bytes) + 2, 0x5a), wish = out;
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t value = -100;
        std::memcpy(&wish[1 + i * static_cast<std::size_t>(bytes)], &value,
                    static_cast<std::size_t>(bytes));
      }
      put_value(out.data() + 1, count, bytes, -100);
      CHECK(out == wish);
    }
}
