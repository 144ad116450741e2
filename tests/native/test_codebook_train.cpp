#include "core/codebook_train.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/codebook.h"
#include "core/crc32c.h"
#include "core/rng.h"

using namespace fastio;

namespace {

using Blocks = std::vector<std::int16_t>;
using Bytes = std::vector<std::uint8_t>;

// Appends a block that has these values at these zigzag positions.
void append(Blocks& blocks, std::initializer_list<std::pair<int, int>> values) {
  blocks.resize(blocks.size() + 64);
  for (const auto& [z, value] : values)
    (blocks.data() + blocks.size() - 64)[z] = static_cast<std::int16_t>(value);
}

// Blocks as of photos: fewer and smaller coefficients at higher positions, of many kinds.
Blocks photo_like(std::size_t n) {
  Blocks blocks(n * 64);
  for (std::size_t i = 0; i < n; ++i) {
    const auto block = static_cast<std::uint32_t>(i);
    const Philox kind = philox(7, {block, 64, 0, 0});
    const int last = below(kind[0], 1 + below(kind[1], 63));
    for (int z = 0; z <= last; ++z) {
      const Philox bits = philox(7, {block, static_cast<std::uint32_t>(z), 0, 0});
      if (below(bits[0], 4 + z) > 4) continue;
      const int range = 1 + (below(kind[2], 200) >> (z / 3));
      blocks[i * 64 + static_cast<std::size_t>(z)] =
          static_cast<std::int16_t>(below(bits[1], 2 * range + 1) - range);
    }
  }
  return blocks;
}

std::unique_ptr<Codebook> parsed(const Bytes& bytes) {
  auto codebook = std::make_unique<Codebook>();
  const Status status = codebook->parse(bytes.data(), bytes.size());
  CHECK_MESSAGE(status.ok(), status.message);
  return codebook;
}

Bytes trained(const Blocks& blocks, int iterations = 20, std::uint64_t seed = 1) {
  Bytes bytes;
  const Status status = train_codebook(blocks.data(), blocks.size() / 64, iterations, seed, bytes);
  CHECK_MESSAGE(status.ok(), status.message);
  return bytes;
}

// The bits of a number's magnitude.
int magnitude_bits(int value) {
  int bits = 0;
  for (int rest = std::abs(value); rest != 0; rest /= 2) ++bits;
  return bits;
}

// Bits of a block in a class of a record, its escape and exceptions included; -1: the class cannot
// hold it.
int bits_in_class(const std::int16_t* block, const Codebook& codebook, int c) {
  const int dc_bits = codebook.dc_bits[c];
  if (block[0] != 0 && dc_bits == 0) return -1;
  int bits = codebook.mask_bits[c] + dc_bits;
  // The lowest number is the escape.
  if (block[0] != 0 && 1 + magnitude_bits(block[0]) > dc_bits) bits += 16;
  for (int z = 1; z < 64; ++z) {
    if (block[z] == 0) continue;
    if (z > codebook.mask_bits[c]) return -1;
    const int width = codebook.width[c][z];
    const bool odd = std::abs(block[z]) == 128 && codebook.planes[c] <= 8;
    const bool fits = 1 + magnitude_bits(std::abs(block[z]) - 1) <= width && !odd;
    bits += width + (fits ? 0 : 24);
  }
  return bits;
}

// Bits of all blocks, each in its cheapest class, without the byte that names the class.
std::int64_t bits_of(const Blocks& blocks, const Bytes& bytes) {
  const auto codebook = parsed(bytes);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < blocks.size(); i += 64) {
    int least = bits_in_class(blocks.data() + i, *codebook, 0);
    for (int c = 1; c < kClasses; ++c)
      if (const int bits = bits_in_class(blocks.data() + i, *codebook, c); bits >= 0)
        least = std::min(least, bits);
    sum += least;
  }
  return sum;
}

// An image of so many samples, whose DCs are the numbers of blocks squared, and whose AC
// coefficients are their zigzag positions.
JpegCoefficients numbered(int components, int width, int height, int sub_x, int sub_y) {
  JpegCoefficients image;
  image.shape.components = components;
  image.shape.colour = components == 3 ? Colour::ycbcr : Colour::gray;
  image.shape.width = width;
  image.shape.height = height;
  image.shape.sub_x = sub_x;
  image.shape.sub_y = sub_y;
  int number = 0;
  for (int c = 0; c < components; ++c)
    for (int i = 0; i < image.shape.blocks_x(c) * image.shape.blocks_y(c); ++i, ++number) {
      image.blocks[c].push_back(static_cast<std::int16_t>(number * number));
      for (int natural = 1; natural < 64; ++natural)
        image.blocks[c].push_back(kZigzagInverse[natural]);
    }
  return image;
}

Blocks sampled(const JpegCoefficients& image, std::size_t every, std::size_t phase) {
  Blocks out;
  sample_blocks(image, every, phase, out);
  return out;
}

// The first number of each block.
std::vector<int> differences(const Blocks& blocks) {
  std::vector<int> out;
  for (std::size_t i = 0; i < blocks.size(); i += 64) out.push_back(blocks[i]);
  return out;
}

// What the DC is of block `to`, counted from that of block `from`.
int step(int from, int to) { return to * to - from * from; }

Status error_of(const Blocks& blocks) {
  Bytes bytes = {1, 2, 3};
  Status status = train_codebook(blocks.data(), blocks.size() / 64, 5, 1, bytes);
  CHECK(bytes == Bytes{1, 2, 3});
  return status;
}

}  // namespace

TEST_CASE("a trained codebook is valid however few the blocks and the passes") {
  const Blocks blocks = photo_like(300);
  for (const std::size_t n : {1, 2, 3, 10, 254, 300})
    for (const int iterations : {1, 2, 5, 20}) {
      CAPTURE(n);
      CAPTURE(iterations);
      parsed(trained(Blocks(blocks.data(), blocks.data() + n * 64), iterations));
    }
}

TEST_CASE("training takes few bits where the classes can be as many as the kinds of block") {
  Blocks blocks;
  for (int i = 0; i < 500; ++i) {
    append(blocks, {});                                             // 0 bits
    append(blocks, {{0, -1}, {1, 1}});                              // 1 + 2 + 1
    append(blocks, {{0, 5}, {5, -7}});                              // 4 + 5 + 4
    append(blocks, {{1, 100}, {2, -100}, {63, 1}});                 // 63 + 8 + 8 + 1
    append(blocks, {{0, 2047}, {1, 2047}, {2, -2047}, {3, 2047}});  // 12 + 3 + 3 * 12
  }
  CHECK(bits_of(blocks, trained(blocks)) == 500 * (0 + 4 + 13 + 80 + 51));
}

TEST_CASE("training on many kinds of block halves what one class takes") {
  const Blocks blocks = photo_like(4000);
  const std::int64_t none = bits_of(blocks, trained(blocks, 1));
  const std::int64_t few = bits_of(blocks, trained(blocks, 5));
  const std::int64_t many = bits_of(blocks, trained(blocks, 20));
  CHECK(few < none);
  CHECK(many < few);
  CHECK(many * 2 < none);
}

TEST_CASE("blocks that were not trained on gain too") {
  const Blocks all = photo_like(8000);
  const Blocks seen(all.data(), all.data() + 4000 * 64);
  const Blocks unseen(all.data() + 4000 * 64, all.data() + 8000 * 64);
  CHECK(bits_of(unseen, trained(seen)) * 10 < bits_of(unseen, trained(seen, 1)) * 7);
}

TEST_CASE("a rare wide coefficient becomes an exception and does not widen its class") {
  Blocks blocks;
  for (int i = 0; i < 1000; ++i) append(blocks, {{1, i % 2 ? 1 : -1}, {2, 1}});
  append(blocks, {{1, 2000}, {2, 1}});
  // No second kind of block is worth a class here that is not free, so count the first kind alone.
  const auto codebook = parsed(trained(blocks));
  int least = bits_in_class(blocks.data(), *codebook, 0);
  for (int c = 1; c < kClasses; ++c)
    if (const int bits = bits_in_class(blocks.data(), *codebook, c); bits >= 0)
      least = std::min(least, bits);
  CHECK(least == 2 + 1 + 1);
}

TEST_CASE("magnitudes of 128 get a class that holds them without exceptions") {
  Blocks blocks;
  for (int i = 0; i < 100; ++i) append(blocks, {{1, i % 2 ? 128 : -128}});
  CHECK(bits_of(blocks, trained(blocks)) == 100 * (1 + 9));
}

TEST_CASE("the same blocks, passes and seed give the same bytes on every machine") {
  const Blocks blocks = photo_like(2000);
  const Bytes bytes = trained(blocks, 15, 42);
  CHECK(trained(blocks, 15, 42) == bytes);
  CHECK(trained(blocks, 15, 43) != bytes);
  CHECK(crc32c(bytes.data(), bytes.size()) == 0xBA399021u);
}

TEST_CASE("no blocks are an error") {
  const Status status = error_of({});
  CHECK(status.code == Code::corrupt);
  CHECK(status.message == "no blocks to train a codebook on");
}

TEST_CASE("coefficients that no record can hold are an error that names the block") {
  for (const auto& [z, value] : std::vector<std::pair<int, int>>{
           {1, 2048}, {1, -2048}, {63, 2048}, {5, -32768}, {5, 32767}}) {
    CAPTURE(z);
    CAPTURE(value);
    Blocks blocks;
    append(blocks, {});
    append(blocks, {{z, value}});
    const Status status = error_of(blocks);
    CHECK(status.code == Code::corrupt);
    CHECK(status.message == "block 1 has a coefficient of more than 12 bits");
  }
}

TEST_CASE("blocks at the limits of a record are taken") {
  Blocks blocks;
  append(blocks, {{0, 2047}, {1, 2047}, {63, -2047}});
  append(blocks, {{0, -32768}});
  append(blocks, {{0, 32767}});
  parsed(trained(blocks));
}

TEST_CASE("sampled blocks are in zigzag order") {
  const Blocks blocks = sampled(numbered(1, 20, 8, 1, 1), 1, 0);
  REQUIRE(blocks.size() == 3 * 64);
  for (int i = 0; i < 3; ++i)
    for (int z = 1; z < 64; ++z) CHECK(blocks[static_cast<std::size_t>(i * 64 + z)] == z);
}

TEST_CASE("DC differences begin anew in every tile row, and run on across its tiles") {
  // 18 x 2 blocks in tiles of 16 x 1.
  const std::vector<int> found = differences(sampled(numbered(1, 18 * 8, 16, 1, 1), 1, 0));
  REQUIRE(found.size() == 36);
  for (int i = 0; i < 36; ++i) {
    CAPTURE(i);
    const int x = i % 18;
    CHECK(found[static_cast<std::size_t>(i)] == (x == 0 ? 0 : step(i - 1, i)));
  }
}

TEST_CASE("DC differences of a tile row's further block rows begin from the row above") {
  // 4:2:0, 17 x 3 blocks in tiles of 16 x 2; 9 x 2 blocks of each other component in 8 x 1.
  const std::vector<int> found = differences(sampled(numbered(3, 17 * 8, 24, 2, 2), 1, 0));
  REQUIRE(found.size() == 51 + 18 + 18);
  for (const int first : {0, 34, 51, 51 + 9, 69, 69 + 9}) {
    CAPTURE(first);
    CHECK(found[static_cast<std::size_t>(first)] == 0);
  }
  CHECK(found[17] == step(0, 17));
  CHECK(found[16] == step(15, 16));
  CHECK(found[33] == step(32, 33));
  CHECK(found[18] == step(17, 18));
  CHECK(found[35] == step(34, 35));
  CHECK(found[51 + 10] == step(60, 61));
}

TEST_CASE("DC differences are modulo 2^16") {
  JpegCoefficients image = numbered(1, 16, 8, 1, 1);
  image.blocks[0][0] = 32767;
  image.blocks[0][64] = -32768;
  CHECK(differences(sampled(image, 1, 0)) == std::vector<int>{0, 1});
}

TEST_CASE("every k-th block is sampled, through all components") {
  const JpegCoefficients image = numbered(3, 50, 30, 2, 1);
  const Blocks all = sampled(image, 1, 0);
  const std::size_t n = all.size() / 64;
  CHECK(n == 7 * 4 + 4 * 4 + 4 * 4);
  for (const std::size_t every : {1, 2, 5, 7, 59, 100})
    for (const std::size_t phase : {0, 1, 4, 30, 59, 60, 1000}) {
      CAPTURE(every);
      CAPTURE(phase);
      Blocks expected;
      for (std::size_t i = phase; i < n; i += every)
        expected.insert(expected.end(), all.data() + i * 64, all.data() + (i + 1) * 64);
      CHECK(sampled(image, every, phase) == expected);
    }
}

TEST_CASE("sampled blocks are appended to those of other images") {
  const JpegCoefficients image = numbered(1, 16, 8, 1, 1);
  Blocks blocks = {1, 2, 3};
  sample_blocks(image, 1, 0, blocks);
  CHECK(blocks.size() == 3 + 128);
  CHECK(blocks[1] == 2);
}
