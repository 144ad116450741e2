#include "core/parquet_column.h"

#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "parquet_pages.h"

using namespace fastio;
using pages::append;
using pages::Bytes;

namespace {

struct Result {
  Status status;
  std::vector<std::uint32_t> values;
  Bytes validity;
  std::size_t nulls = 0;
};

// A column of four-byte numbers, from and to memory of exactly the promised sizes.
Result decode(const Bytes& chunk, std::size_t rows, bool nullable, bool snappy = false) {
  const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[chunk.size()]);
  if (!chunk.empty()) std::memcpy(exact.get(), chunk.data(), chunk.size());
  Result found;
  found.values.resize(rows);
  found.validity.resize(nullable ? (rows + 7) / 8 : 0);
  ColumnDecoder decoder;
  found.status = decoder.decode({exact.get(), chunk.size(), rows, 4, nullable, snappy},
                                reinterpret_cast<std::uint8_t*>(found.values.data()),
                                found.validity.data(), found.nulls);
  return found;
}

using Numbers = std::vector<std::uint32_t>;

Bytes indices(int bits, const Bytes& runs) {
  Bytes out{static_cast<std::uint8_t>(bits)};
  append(out, runs);
  return out;
}

// Two pages with a dictionary and a plain one, with nulls in all but the first.
Bytes mixed(bool snappy) {
  using pages::packed, pages::plain, pages::run_of;
  Bytes chunk = pages::dictionary_page(plain(Numbers{10, 20, 30}), 3, snappy);
  append(chunk, pages::data_page(9, Encoding::rle_dictionary, run_of(1, 9, 1),
                                 indices(2, run_of(2, 9, 2)), snappy));
  append(chunk, pages::data_page_v2(3, 1, Encoding::rle_dictionary, packed({1, 0, 1}, 1),
                                    indices(2, packed({0, 1}, 2)), snappy));
  append(chunk,
         pages::data_page(3, Encoding::plain, packed({0, 1, 0}, 1), plain(Numbers{99}), snappy));
  return chunk;
}

}  // namespace

TEST_CASE("pages of both versions, with dictionaries and without, and nulls") {
  for (const bool snappy : {false, true}) {
    const Result found = decode(mixed(snappy), 15, true, snappy);
    REQUIRE_MESSAGE(found.status.ok(), found.status.message);
    CHECK(found.nulls == 3);
    CHECK(found.values == Numbers{30, 30, 30, 30, 30, 30, 30, 30, 30, 10, 0, 20, 0, 99, 0});
    CHECK(found.validity[0] == 0xFF);
    CHECK((found.validity[1] & 0x7F) == 0b0101011);
  }
}

TEST_CASE("a column without nulls needs no levels") {
  Numbers values(1000);
  std::iota(values.begin(), values.end(), 5u);
  const Result found = decode(
      pages::data_page(1000, Encoding::plain, {}, pages::plain(values), true), 1000, false, true);
  REQUIRE(found.status.ok());
  CHECK(found.values == values);
  CHECK(found.nulls == 0);
}

TEST_CASE("what contradicts itself is refused, and says which page") {
  using pages::data_page, pages::dictionary_page, pages::plain, pages::run_of;
  const auto code = [](const Bytes& chunk, std::size_t rows, bool nullable = false) {
    const Result found = decode(chunk, rows, nullable);
    CHECK(found.status.message.find("page ") == 0);
    return found.status.code;
  };
  const Bytes two = plain(Numbers{1, 2});
  const Bytes first = indices(1, run_of(0, 2, 1));
  CHECK(code({}, 1) == Code::truncated);
  CHECK(code(data_page(2, Encoding::plain, {}, two), 3) == Code::truncated);
  CHECK(code(data_page(2, Encoding::plain, {}, two), 1) == Code::corrupt);
  CHECK(code(data_page(3, Encoding::plain, {}, two), 3) == Code::corrupt);
  CHECK(code(data_page(2, Encoding::rle_dictionary, {}, first), 2) == Code::corrupt);
  CHECK(code(data_page(2, Encoding::rle_dictionary, run_of(0, 2, 1), {1}), 2, true) ==
        Code::corrupt);
  CHECK(code(data_page(2, Encoding::delta_binary_packed, {}, two), 2) == Code::unsupported);
  CHECK(code(data_page(2, Encoding::plain, run_of(2, 2, 1), two), 2, true) == Code::corrupt);
  CHECK(code(data_page(2, Encoding::plain, run_of(1, 1, 1), two), 2, true) == Code::corrupt);
  CHECK(code(pages::data_page_v2(2, 1, Encoding::plain, run_of(1, 2, 1), two), 2, true) ==
        Code::corrupt);
  CHECK(code(dictionary_page(two, 3), 1) == Code::corrupt);
  Bytes twice = dictionary_page(two, 2);
  append(twice, dictionary_page(two, 2));
  CHECK(code(twice, 1) == Code::corrupt);
  Bytes wide = dictionary_page(two, 2);
  append(wide, data_page(2, Encoding::rle_dictionary, {}, indices(33, run_of(0, 2, 32))));
  CHECK(code(wide, 2) == Code::corrupt);
  Bytes outside = dictionary_page(two, 2);
  append(outside, data_page(2, Encoding::rle_dictionary, {}, indices(2, run_of(2, 2, 2))));
  CHECK(code(outside, 2) == Code::corrupt);
  const auto about = [](std::int64_t count) {
    return pages::Struct().i32(1, count).i32(2, 0).i32(3, 3).i32(4, 3);
  };
  CHECK(code(pages::page(0, 0x7FFFFFFF, two, 5, about(2)), 2) == Code::corrupt);
  CHECK(code(pages::page(0, 8, two, 5, about(-2)), 2) == Code::corrupt);
  const auto of_version_2 = [](std::int64_t rows) {
    const auto values = pages::Struct().i32(1, 2).i32(2, 0).i32(3, rows).i32(4, 0);
    return pages::Struct(values).i32(5, 0).i32(6, 0).boolean(7, false);
  };
  CHECK(decode(pages::page(3, 8, two, 8, of_version_2(2)), 2, false).status.ok());
  CHECK(code(pages::page(3, 8, two, 8, of_version_2(-2)), 2) == Code::corrupt);
  // A bomb: three bytes that say they are two gigabytes.
  const Bytes bomb = pages::page(0, 0x7FFFFFFF, {1, 2, 3}, 5, about(2));
  CHECK(decode(bomb, 2, false, true).status.code == Code::corrupt);
}

TEST_CASE("a header without a field that it must have is refused") {
  const Bytes values = pages::plain(Numbers{5});
  const auto header = [](const std::vector<std::int64_t>& fields, int missing) {
    pages::Struct out;
    for (int id = 1; id <= static_cast<int>(fields.size()); ++id)
      if (id != missing) out.i32(id, fields[static_cast<std::size_t>(id) - 1]);
    return out;
  };
  for (int missing = 0; missing <= 6; ++missing) {
    CAPTURE(missing);
    const bool sound = missing == 0;
    const Bytes second = pages::page(3, 4, values, 8, header({1, 0, 1, 0, 0, 0}, missing));
    CHECK(decode(second, 1, false).status.ok() == sound);
    if (missing > 4) continue;
    const Bytes first = pages::page(0, 4, values, 5, header({1, 0, 3, 3}, missing));
    CHECK(decode(first, 1, false).status.ok() == sound);
    if (missing > 2) continue;
    Bytes indexed = pages::page(2, 4, values, 7, header({1, 0}, missing));
    append(indexed, pages::data_page(1, Encoding::rle_dictionary, {}, indices(0, {2})));
    CHECK(decode(indexed, 1, false).status.ok() == sound);
  }
}

TEST_CASE("a header of lists in lists ends") {
  Bytes deep(100000, 0x19);  // field 1, a list; then lists of one list
  CHECK(decode(deep, 1, false).status.code == Code::corrupt);
  CHECK(decode(Bytes(100000, 0x1C), 1, false).status.code == Code::corrupt);
  CHECK(decode({0x19, 0xF2, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F}, 1, false).status.code == Code::corrupt);
}

TEST_CASE("damage anywhere is refused or harmless") {
  std::mt19937 rng(1);
  for (const bool snappy : {false, true}) {
    const Bytes sound = mixed(snappy);
    for (std::size_t size = 0; size < sound.size(); ++size)
      CHECK_FALSE(decode(Bytes(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size)),
                         15, true, snappy)
                      .status.ok());
    for (std::size_t at = 0; at < sound.size(); ++at)
      for (int value = 0; value < 256; ++value) {
        Bytes damaged = sound;
        damaged[at] = static_cast<std::uint8_t>(value);
        const Result found = decode(damaged, 15, true, snappy);
        CHECK(found.nulls <= 15);
      }
  }
}
