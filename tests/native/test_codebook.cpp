#include "core/codebook.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "block_records.h"
#include "core/idct.h"

using namespace fastio;
using test::Bytes;

namespace {

Status parsed(const Bytes& bytes) {
  return std::make_unique<Codebook>()->parse(bytes.data(), bytes.size());
}

bool is_corrupt(const Bytes& bytes) {
  const Status status = parsed(bytes);
  CAPTURE(status.message);
  return status.code == Code::corrupt && status.message.starts_with("codebook: ");
}

}  // namespace

TEST_CASE("zigzag positions are those of ITU-T T.81, figure 5") {
  int row = 0, column = 0;
  for (int z = 0; z < 64; ++z) {
    CHECK(kZigzag[z] == row * 8 + column);
    CHECK(kZigzagInverse[row * 8 + column] == z);
    const bool up = (row + column) % 2 == 0;
    int& along = up ? column : row;
    int& against = up ? row : column;
    if (along == 7) {
      ++against;
    } else {
      ++along;
      if (against > 0) --against;
    }
  }
}

TEST_CASE("a codebook's tables are what its bytes say") {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    const auto book = test::random_codebook(seed);
    for (int c = 0; c < kClasses; ++c) {
      const std::uint8_t* width = book->width[c];
      REQUIRE(book->dc_bits[c] == width[0]);
      REQUIRE(book->planes[c] == *std::max_element(width + 1, width + 64));
      if (width[0] > 0) REQUIRE(book->dc_escape[c] == -(1 << (width[0] - 1)));
      for (int z = 1; z < 64; ++z) REQUIRE((width[z] > 0) == (z <= book->mask_bits[c]));
      std::vector<int> order = test::class_order(*book, c);
      order.insert(order.begin(), 0);
      while (order.size() < 64) order.push_back(static_cast<int>(order.size()));
      for (std::size_t r = 0; r < 64; ++r) {
        REQUIRE(book->natural[c][r] == kZigzag[order[r]]);
        const int place = idct_place(kZigzag[order[r]]);
        REQUIRE(book->place[c][r] == place);
        REQUIRE(book->rank[c][place] == r);
        REQUIRE(book->rank_pairs[c][2 * (r % 32) + r / 32] == book->rank[c][r]);
        REQUIRE(book->rank_width[c][r] == width[order[r]]);
        const int byte = book->avx2_byte(c, static_cast<int>(r));
        for (int q = 0; q < 4; ++q)
          REQUIRE(book->shuffle[c][q][2 * (place % 32) + place / 32] ==
                  (byte / 16 == q ? byte % 16 : 0x80));
      }
      for (int j = 0; j < 8; ++j)
        REQUIRE((book->has_words[c][j / 4] >> j % 4 * 16 & 0xffff) == (book->has[c][j] & 0xffff));
      for (int j = 0; j < kPlanes; ++j) {
        std::uint64_t expected = 0;
        for (std::size_t r = 1; r < 64; ++r) expected |= std::uint64_t{width[order[r]] > j} << r;
        REQUIRE((expected & (expected + 2)) == 0);  // the first ranks
        REQUIRE((j < 8 ? book->has[c][j] : book->has_wide[c][j - 8]) == expected);
      }
    }
  }
}

TEST_CASE("a class without DC bits has no escape: its differences are 0") {
  const auto book = test::parse_codebook(test::codebook_bytes(5, 0, 3));
  CHECK(book->dc_escape[1] != 0);
}

TEST_CASE("the widths that a codebook was parsed from are those of its bytes") {
  const Bytes bytes = test::codebook_bytes(17, 5, 7);
  const auto book = test::parse_codebook(bytes);
  for (int c = 0; c < kClasses; ++c) {
    CHECK(book->mask_bits[c] == bytes[static_cast<std::size_t>(c) * 65]);
    CHECK(std::equal(book->width[c], book->width[c] + 64, bytes.data() + c * 65 + 1));
  }
}

TEST_CASE("parsing again forgets the codebook before") {
  const Bytes wide = test::codebook_bytes(63, 12, 12), narrow = test::codebook_bytes(3, 2, 1);
  const auto fresh = test::parse_codebook(narrow);
  auto used = test::parse_codebook(wide);
  REQUIRE(used->parse(narrow.data(), narrow.size()).ok());
  for (int c = 0; c < kClasses; ++c) {
    CHECK(std::equal(used->has[c], used->has[c] + 8, fresh->has[c]));
    CHECK(std::equal(used->has_wide[c], used->has_wide[c] + 4, fresh->has_wide[c]));
    CHECK(used->planes[c] == fresh->planes[c]);
  }
}

TEST_CASE("a codebook of another size is corrupt") {
  Bytes bytes = test::codebook_bytes(10, 8, 4);
  REQUIRE(parsed(bytes).ok());
  bytes.push_back(0);
  CHECK(is_corrupt(bytes));
  for (const std::size_t size : {kCodebookBytes - 1, std::size_t{65}, std::size_t{0}}) {
    bytes.resize(size);
    CHECK(is_corrupt(bytes));
  }
}

TEST_CASE("every byte of a class is checked, and its number is named") {
  constexpr int kLast = 30;
  const Bytes sound = test::codebook_bytes(kLast, 8, 4);
  for (const int c : {1, 77, 255}) {
    const auto with = [&](int at, int value) {
      Bytes bytes = sound;
      bytes[static_cast<std::size_t>(c * 65 + at)] = static_cast<std::uint8_t>(value);
      return parsed(bytes);
    };
    const auto refused = [&](int at, int value) {
      const Status status = with(at, value);
      return status.code == Code::corrupt &&
             status.message.find("class " + std::to_string(c) + " ") != std::string::npos;
    };
    for (int value = 0; value < 256; ++value) {
      CHECK((value == kLast) == with(0, value).ok());    // L
      CHECK((value <= kPlanes) == with(1, value).ok());  // W[0]
      for (const int z : {1, kLast})                     // the first and last with values
        CHECK((value >= 1 && value <= kPlanes) == with(1 + z, value).ok());
      for (const int z : {kLast + 1, 63})  // beyond L
        CHECK((value == 0) == with(1 + z, value).ok());
    }
    CHECK(refused(0, 64));
    CHECK(refused(1, 13));
    CHECK(refused(2, 0));
    CHECK(refused(64, 1));
  }
}

TEST_CASE("class 0 holds every block, or it is no codebook") {
  const Bytes sound = test::codebook_bytes(10, 8, 4);
  for (std::size_t at = 0; at < 65; ++at) {
    Bytes bytes = sound;
    --bytes[at];
    CHECK(is_corrupt(bytes));
  }
  Bytes shorter = sound;
  shorter[0] = 62;
  shorter[64] = 0;
  CHECK(is_corrupt(shorter));
}
