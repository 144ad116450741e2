#include "core/huffman.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "core/cpu.h"
#include "jpeg_files.h"

using namespace fastio;
using test::Bytes;
using test::JpegOptions;

namespace {

class ForceSimd {
 public:
  explicit ForceSimd(Simd level) : before_(simd_active()) { simd_force(level); }
  ~ForceSimd() { simd_force(before_); }

 private:
  Simd before_;
};

using Block = std::array<std::int16_t, 64>;

// A table's definition: counts[1 .. 16] and the symbols.
struct Definition {
  std::array<std::uint8_t, 17> counts{};
  std::vector<std::uint8_t> symbols = std::vector<std::uint8_t>(256);
};

// A sequential JPEG file with one scan of all components, taken apart.
struct File {
  int height = 0, width = 0, restart_interval = 0;
  struct Component {
    int id, h, v, dc, ac;
  };
  std::vector<Component> components;
  Definition dc[4], ac[4];
  std::size_t scan = 0;  // where the entropy-coded bytes begin
};

File take_apart(const Bytes& bytes) {
  File file;
  std::size_t at = 2;
  for (;;) {
    const int marker = bytes[at + 1];
    const std::size_t length = bytes[at + 2] * 256u + bytes[at + 3];
    const std::uint8_t* body = bytes.data() + at + 4;
    if (marker == 0xC0 || marker == 0xC1) {
      file.height = body[1] * 256 + body[2];
      file.width = body[3] * 256 + body[4];
      for (int i = 0; i < body[5]; ++i)
        file.components.push_back(
            {body[6 + 3 * i], body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15, 0, 0});
    } else if (marker == 0xC4) {
      const std::uint8_t* end = body + length - 2;
      while (body < end) {
        Definition& table = (*body & 16 ? file.ac : file.dc)[*body & 3];
        std::size_t total = 0;
        for (int i = 1; i <= 16; ++i) total += table.counts[static_cast<std::size_t>(i)] = body[i];
        std::copy(body + 17, body + 17 + total, table.symbols.begin());
        body += 17 + total;
      }
    } else if (marker == 0xDD) {
      file.restart_interval = body[0] * 256 + body[1];
    } else if (marker == 0xDA) {
      for (int i = 0; i < body[0]; ++i) {
        file.components[static_cast<std::size_t>(i)].dc = body[2 + 2 * i] >> 4;
        file.components[static_cast<std::size_t>(i)].ac = body[2 + 2 * i] & 15;
      }
      file.scan = at + 2 + length;
      return file;
    }
    at += 2 + length;
  }
}

struct Tables {
  HuffmanTable dc[4], ac[4];
  explicit Tables(const File& file) {
    for (int i = 0; i < 4; ++i) {
      REQUIRE(dc[i].build(file.dc[i].counts.data(), file.dc[i].symbols.data(), true));
      REQUIRE(ac[i].build(file.ac[i].counts.data(), file.ac[i].symbols.data(), false));
    }
  }
};

// The coefficients of every component as decode_coefficients() has them. `parsed(n)`: whether the
// n-th block is only parsed; it is zero then.
template <typename Parsed>
std::vector<std::vector<std::int16_t>> decode(const Bytes& bytes, Parsed parsed) {
  const File file = take_apart(bytes);
  const auto tables = std::make_unique<Tables>(file);
  int most_h = 1, most_v = 1;
  for (const auto& c : file.components)
    most_h = std::max(most_h, c.h), most_v = std::max(most_v, c.v);
  const bool alone = file.components.size() == 1;
  const auto up = [](int a, int b) { return (a + b - 1) / b; };
  const int across = up(file.width, 8 * (alone ? 1 : most_h));
  const int down = up(file.height, 8 * (alone ? 1 : most_v));

  auto scan = std::make_unique<ScanDecoder>();
  scan->start(bytes.data() + file.scan, bytes.data() + bytes.size());
  std::vector<std::vector<std::int16_t>> out(file.components.size());
  std::vector<int> columns;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto& c = file.components[i];
    columns.push_back(alone ? across : up(file.width * c.h, 8 * most_h));
    const int rows = alone ? down : up(file.height * c.v, 8 * most_v);
    out[i].resize(static_cast<std::size_t>(columns[i]) * rows * 64);
  }
  int block_number = 0;
  for (int mcu = 0; mcu < across * down; ++mcu) {
    if (mcu > 0 && file.restart_interval > 0 && mcu % file.restart_interval == 0) scan->restart();
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto& c = file.components[i];
      const int h = alone ? 1 : c.h, v = alone ? 1 : c.v;
      for (int y = 0; y < v; ++y) {
        for (int x = 0; x < h; ++x) {
          Block block{};
          const bool skip = parsed(block_number++);
          scan->block(tables->dc[c.dc], tables->ac[c.ac], static_cast<int>(i),
                      skip ? nullptr : block.data());
          const int column = mcu % across * h + x, row = mcu / across * v + y;
          const std::size_t to = (static_cast<std::size_t>(row) * columns[i] + column) * 64;
          if (column < columns[i] && to < out[i].size())
            std::copy(block.begin(), block.end(), out[i].begin() + static_cast<std::ptrdiff_t>(to));
        }
      }
    }
  }
  CHECK_FALSE(scan->insufficient());
  return out;
}

constexpr auto kNone = [](int) { return false; };

// A decoder as T.81 draws it, bit by bit.
struct Reference {
  std::vector<bool> bits;
  std::size_t at = 0;

  int bit() { return at < bits.size() ? bits[at++] : (++at, 0); }
  int value(int size) {
    int v = 0;
    for (int i = 0; i < size; ++i) v = v * 2 + bit();
    return size > 0 && v < 1 << (size - 1) ? v - (1 << size) + 1 : v;
  }
  int symbol(const Definition& table) {
    int code = 0, first = 0;
    std::size_t index = 0;
    for (std::size_t length = 1; length <= 16; ++length) {
      code = code * 2 + bit();
      if (code - first < table.counts[length])
        return table.symbols[index + static_cast<std::size_t>(code - first)];
      index += table.counts[length];
      first = (first + table.counts[length]) * 2;
    }
    bit();  // as libjpeg: what is no code takes 17 bits and is 0
    return 0;
  }
  Block block(const Definition& dc, const Definition& ac, int& last) {
    static constexpr int kNatural[64] = {
        0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
        41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
        30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};
    Block out{};
    last += value(symbol(dc));
    out[0] = static_cast<std::int16_t>(last);
    for (int k = 1; k < 64; ++k) {
      const int s = symbol(ac);
      k += s >> 4;
      if ((s & 15) == 0) {
        if (s >> 4 != 15) break;
        continue;
      }
      out[static_cast<std::size_t>(kNatural[std::min(k, 63)])] =
          static_cast<std::int16_t>(value(s & 15));
    }
    return out;
  }
};

// A prefix code of random shape, not always complete.
Definition random_definition(std::mt19937& rng, bool dc) {
  Definition table;
  unsigned free = 1;
  std::size_t total = 0;
  for (std::size_t length = 1; length <= 16; ++length) {
    free *= 2;
    const unsigned most = std::min<unsigned>(free, dc ? 13 : 256 - static_cast<unsigned>(total));
    unsigned count = rng() % 3 == 0 && free > 1 ? rng() % (std::min(most, free - 1) + 1) : 0;
    if (length > 13 && rng() % 2) count = most;
    count = std::min<unsigned>({count, 255, 256 - static_cast<unsigned>(total)});
    table.counts[length] = static_cast<std::uint8_t>(count);
    free -= count;
    total += count;
  }
  for (auto& symbol : table.symbols)
    symbol = static_cast<std::uint8_t>(dc ? rng() % 13 : (rng() % 16) << 4 | rng() % 13);
  return table;
}

}  // namespace

TEST_CASE("coefficients are those that libjpeg reads") {
  std::mt19937 rng(1);
  for (const Simd level : {Simd::portable, Simd::avx512}) {
    const ForceSimd force(level);
    for (int round = 0; round < 250; ++round) {
      const JpegOptions o = test::random_options(rng);
      const Bytes file = test::make_jpeg(o, rng());
      CAPTURE(test::describe(o));
      REQUIRE(decode(file, kNone) == test::decode_coefficients(file).coefficients);
    }
  }
}

TEST_CASE("blocks that are parsed only leave the others as they are") {
  std::mt19937 rng(2);
  for (const Simd level : {Simd::portable, Simd::avx512}) {
    const ForceSimd force(level);
    for (int round = 0; round < 100; ++round) {
      const JpegOptions o = test::random_options(rng);
      const Bytes file = test::make_jpeg(o, rng());
      CAPTURE(test::describe(o));
      const unsigned salt = rng();
      const auto some = [&](int n) {
        return (static_cast<unsigned>(n) * 2654435761u ^ salt) >> 30 != 0;
      };
      const auto whole = decode(file, kNone);
      const auto part = decode(file, some);
      for (std::size_t c = 0; c < whole.size(); ++c) {
        for (std::size_t at = 0; at < whole[c].size(); at += 64) {
          const auto from = static_cast<std::ptrdiff_t>(at);
          const bool zero = std::all_of(part[c].begin() + from, part[c].begin() + from + 64,
                                        [](int v) { return v == 0; });
          if (!zero)
            REQUIRE(std::equal(part[c].begin() + from, part[c].begin() + from + 64,
                               whole[c].begin() + from));
        }
      }
    }
  }
}

TEST_CASE("any bits with any prefix code are decoded as T.81 says") {
  std::mt19937 rng(3);
  const auto dc = std::make_unique<HuffmanTable>(), ac = std::make_unique<HuffmanTable>();
  const auto scan = std::make_unique<ScanDecoder>();
  for (const Simd level : {Simd::portable, Simd::avx512}) {
    const ForceSimd force(level);
    for (int round = 0; round < 300; ++round) {
      const Definition dc_of = random_definition(rng, true), ac_of = random_definition(rng, false);
      REQUIRE(dc->build(dc_of.counts.data(), dc_of.symbols.data(), true));
      REQUIRE(ac->build(ac_of.counts.data(), ac_of.symbols.data(), false));
      Reference reference;
      Bytes bytes;
      const std::size_t size = 1 + rng() % (round % 10 == 0 ? 20000 : 1000);
      for (std::size_t i = 0; i < size; ++i) {
        const auto byte = static_cast<std::uint8_t>(rng() % 8 ? rng() : 0xFF);
        bytes.push_back(byte);
        if (byte == 0xFF) bytes.push_back(0);
        for (int b = 7; b >= 0; --b) reference.bits.push_back(byte >> b & 1);
      }
      bytes.shrink_to_fit();
      scan->start(bytes.data(), bytes.data() + bytes.size());
      int last = 0;
      for (int n = 0; n < 3000; ++n) {
        Block block{};
        const bool parse = rng() % 4 == 0;
        scan->block(*dc, *ac, 0, parse ? nullptr : block.data());
        const Block expected = reference.block(dc_of, ac_of, last);
        if (reference.at > reference.bits.size()) {
          REQUIRE(scan->insufficient());
          REQUIRE(scan->ran_out());
          break;
        }
        REQUIRE_FALSE(scan->insufficient());
        if (!parse) REQUIRE(block == expected);
      }
    }
  }
}

TEST_CASE("tables that are no prefix codes, or hold impossible sizes, are refused") {
  const auto table = std::make_unique<HuffmanTable>();
  Definition of;
  CHECK(table->build(of.counts.data(), of.symbols.data(), true));  // an empty one: no code at all
  of.counts[1] = 2;
  CHECK(table->build(of.counts.data(), of.symbols.data(), true));
  of.counts[1] = 3;
  CHECK_FALSE(table->build(of.counts.data(), of.symbols.data(), true));
  of.counts[1] = 2;
  of.counts[16] = 1;
  CHECK_FALSE(table->build(of.counts.data(), of.symbols.data(), true));
  of.counts.fill(255);
  CHECK_FALSE(table->build(of.counts.data(), of.symbols.data(), false));

  Definition sizes;
  sizes.counts[2] = 1;
  sizes.symbols[0] = 12;
  CHECK(table->build(sizes.counts.data(), sizes.symbols.data(), true));
  sizes.symbols[0] = 13;
  CHECK_FALSE(table->build(sizes.counts.data(), sizes.symbols.data(), true));
  CHECK_FALSE(table->build(sizes.counts.data(), sizes.symbols.data(), false));
  sizes.symbols[0] = 0xFC;
  CHECK(table->build(sizes.counts.data(), sizes.symbols.data(), false));
  CHECK_FALSE(table->build(sizes.counts.data(), sizes.symbols.data(), true));
}
