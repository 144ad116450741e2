// Column chunks of Parquet that are not trusted: ColumnDecoder::decode() on every SIMD level, from
// and to exactly the memory that it is promised.
//
// The input is kParquetSelectors bytes (see Wanted), then the pages.
#include <memory>

#include "core/parquet_column.h"
#include "fuzz_inputs.h"
#include "fuzz_support.h"

namespace fastio::fuzz {
namespace {

// What the selectors say.
struct Wanted {
  const std::uint8_t* s;

  int width() const { return s[0] & 1 ? 8 : 4; }
  bool nullable() const { return s[0] & 2; }
  bool snappy() const { return s[0] & 4; }
  std::size_t rows() const { return s[1] | std::size_t{s[2]} << 8; }
};

void decode(const Wanted& wanted, const Padded& pages, Outcome& out) {
  const std::size_t rows = wanted.rows();
  const std::size_t size = rows * static_cast<std::size_t>(wanted.width());
  const std::size_t bits = wanted.nullable() ? (rows + 7) / 8 : 0;
  const std::unique_ptr<std::uint8_t[]> to(new std::uint8_t[size]), valid(new std::uint8_t[bits]);
  std::size_t nulls = 0;
  ColumnDecoder decoder;
  const Status status = decoder.decode(
      {pages.data(), pages.size(), rows, wanted.width(), wanted.nullable(), wanted.snappy()},
      to.get(), valid.get(), nulls);
  out.add("decode()", status);
  if (!status.ok()) return;
  require(nulls <= rows, "decode() finds more nulls than rows");
  require(!nulls || wanted.nullable(), "decode() finds nulls where there are none");
  out.add("values", to.get(), size);
  if (nulls) out.add("validity", valid.get(), bits);
}

void run(const std::uint8_t* data, std::size_t size) {
  if (size < kParquetSelectors) return;
  const Wanted wanted{data};
  Outcome first;
  std::uint8_t filler = 0;
  for (const auto& [name, level] : simd_levels()) {
    simd_force(level);
    Outcome outcome;
    decode(wanted, Padded(data + kParquetSelectors, size - kParquetSelectors, 0, filler),
           level == Simd::portable ? first : outcome);
    if (level != Simd::portable) first.require_equal(outcome, name);
    filler ^= 0xA7;
  }
  simd_force(simd_best());
}

}  // namespace
}  // namespace fastio::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fastio::fuzz::run(data, size);
  return 0;
}
