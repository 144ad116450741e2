// Kernel: the fields that a batch has of the tokens of a part of a document.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastio {

// Of each kind of field from FieldKind::inputs on, in that order, where its numbers go; null: the
// field is not wanted.
constexpr std::size_t kTokenFields = 5;
using TokenFields = std::array<std::uint8_t*, kTokenFields>;

// A part of a document in a row of a batch. Tokens have `from` bytes (1, 2 or 4), the numbers of
// the fields have `to` (4 or 8).
struct TokenPart {
  const std::uint8_t* tokens;
  std::size_t count;
  // So many of them, from the first on, have a next token, which may be read; the targets of the
  // others are `no_target`.
  std::size_t known;
  std::int64_t no_target;
  std::int64_t document;  // its number in the row
  int from, to;
};

// Writes all fields of a part, `count` numbers each, in one pass: four fields that are written one
// after the other take nearly twice as long as all of them line by line where a batch is larger
// than the caches. Nothing need be aligned. Reads and writes nothing else.
void put_part(const TokenPart& part, const TokenFields& out);

// The kernels, for tests. The vectors' one writes what it can of the numbers from the first on, and
// returns how many; the other writes those from `begin` on. prefetch: whether to prefetch the lines
// that are written; see prefetch_writes().
void put_part_portable(const TokenPart& part, const TokenFields& out, std::size_t begin = 0);
std::size_t put_part_avx2(const TokenPart& part, const TokenFields& out, bool prefetch);

// Writes `value` `count` times, as numbers of 4 or 8 bytes.
void put_value(std::uint8_t* out, std::size_t count, int bytes, std::int64_t value);

}  // namespace fastio
