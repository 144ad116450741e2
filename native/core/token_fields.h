// Writes the fields of a batch (inputs, targets, positions, ...) for a part of a document.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastio {

// The memory for each kind of field from FieldKind::inputs on, in that order; null: the field is
// not wanted.
constexpr std::size_t kTokenFields = 5;
using TokenFields = std::array<std::uint8_t*, kTokenFields>;

// A part of a document in a row of a batch. Tokens have `from` bytes (1, 2 or 4), the numbers of
// the fields have `to` (4 or 8).
struct TokenPart {
  const std::uint8_t* tokens;
  std::size_t count;
  // The first `known` tokens have a next token, which may be read. The targets of the others are
  // `no_target`.
  std::size_t known;
  std::int64_t no_target;
  std::int64_t document;  // the number of the document in the row
  int from, to;
};

// Writes all fields of a part, `count` numbers each, in one pass: if a batch is larger than the
// caches, writing four fields one after the other takes nearly twice as long. Pointers need not be
// aligned. Reads and writes nothing else.
void put_part(const TokenPart& part, const TokenFields& out);

// The kernels, for tests. put_part_avx2() writes as many numbers from the first on as fill whole
// vectors, and returns how many; put_part_portable() writes the numbers from `begin` on. prefetch:
// whether to prefetch the lines that are written; see prefetch_writes().
void put_part_portable(const TokenPart& part, const TokenFields& out, std::size_t begin = 0);
std::size_t put_part_avx2(const TokenPart& part, const TokenFields& out, bool prefetch);

// Writes `value` `count` times, as numbers of 4 or 8 bytes.
void put_value(std::uint8_t* out, std::size_t count, int bytes, std::int64_t value);

}  // namespace fastio
