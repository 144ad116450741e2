#include "core/idct.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "core/cpu.h"
#include "jpeg_files.h"

using namespace fastio;
using fastio::test::Bytes;

namespace {

const Simd kLevels[] = {Simd::portable, Simd::avx2, Simd::avx512bw, Simd::avx512, Simd::neon};
const int kSizes[] = {8, 4, 2};
constexpr int kReadAhead = 3;  // blocks past the last that idct() may read

std::mt19937& rng() {
  static std::mt19937 engine(20240611);
  return engine;
}

int random_int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng()); }

struct alignas(64) Block {
  std::int16_t at[64] = {};
};
using Blocks = std::vector<Block>;

class ForceSimd {
 public:
  explicit ForceSimd(Simd level) : before_(simd_active()) { simd_force(level); }
  ~ForceSimd() { simd_force(before_); }

 private:
  Simd before_;
};

// The coefficients of blocks in natural order, in the order of idct().
Blocks placed(const Blocks& blocks) {
  Blocks out(blocks.size());
  for (std::size_t b = 0; b < blocks.size(); ++b)
    for (int n = 0; n < 64; ++n) out[b].at[idct_place(n)] = blocks[b].at[n];
  return out;
}

// What idct() makes of blocks[0, count): size rows of count * size samples, closely packed. The
// memory is exactly what idct() may touch, as far as the sanitizers see.
Bytes transform(int size, const Blocks& blocks, int count, Simd level) {
  ForceSimd force(level);
  Blocks input(blocks.begin(), blocks.begin() + count);
  input.resize(input.size() + kReadAhead);
  input.shrink_to_fit();
  const std::size_t row = static_cast<std::size_t>(count) * size;
  const std::size_t stride = row + kIdctSlack;
  Bytes out(stride * size);
  idct(size, placed(input)[0].at, count, out.data(), static_cast<std::ptrdiff_t>(stride));
  Bytes packed;
  for (int y = 0; y < size; ++y) {
    packed.insert(packed.end(), out.begin() + y * stride, out.begin() + y * stride + row);
  }
  return packed;
}

// ---- libjpeg as the reference

// A grey JPEG one row of blocks high, with these coefficients and quantisers of 1.
Bytes jpeg_of(const Blocks& blocks) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = 8;
  info.image_width = static_cast<JDIMENSION>(8 * blocks.size());
  info.input_components = 1;
  info.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  info.optimize_coding = TRUE;
  const auto width = static_cast<JDIMENSION>(blocks.size());
  jvirt_barray_ptr array = info.mem->request_virt_barray(reinterpret_cast<j_common_ptr>(&info),
                                                         JPOOL_IMAGE, TRUE, width, 1, 1);
  jpeg_write_coefficients(&info, &array);
  JBLOCKARRAY rows =
      info.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&info), array, 0, 1, TRUE);
  for (std::size_t b = 0; b < blocks.size(); ++b) std::copy_n(blocks[b].at, 64, rows[0][b]);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes file(memory, memory + size);
  std::free(memory);
  return file;
}

// What libjpeg makes of it at size / 8 of its height and width.
Bytes decoded(const Bytes& file, int size) {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_read_header(&info, TRUE);
  info.scale_num = static_cast<unsigned>(size);
  info.scale_denom = 8;
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  const std::size_t row = info.output_width;
  Bytes pixels(row * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW to = pixels.data() + info.output_scanline * row;
    jpeg_read_scanlines(&info, &to, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return pixels;
}

void check_against_libjpeg(const Blocks& blocks) {
  const Bytes file = jpeg_of(blocks);
  const int count = static_cast<int>(blocks.size());
  for (const int size : kSizes) {
    const Bytes expected = decoded(file, size);
    for (const Simd level : kLevels) {
      CAPTURE(size);
      CAPTURE(simd_name(level));
      CHECK(transform(size, blocks, count, level) == expected);
    }
  }
  std::vector<std::int16_t> dc;
  for (const Block& block : blocks) dc.push_back(block.at[0]);
  Bytes out(blocks.size());
  idct_dc(dc.data(), count, out.data());
  CHECK(out == decoded(file, 1));
}

// ---- kinds of blocks

// DC and AC as far as baseline JPEG with 8-bit samples goes.
Block random_block(int coefficients, int largest) {
  Block block;
  block.at[0] = static_cast<std::int16_t>(random_int(-1024, 1016));
  for (int i = 0; i < coefficients; ++i) {
    block.at[random_int(1, 63)] = static_cast<std::int16_t>(random_int(-largest, largest));
  }
  return block;
}

// Coefficients of frequencies below `rows` and `columns` alone, the shape of most blocks of photos.
Block smooth_block(int rows, int columns) {
  Block block;
  for (int y = 0; y < rows; ++y)
    for (int x = 0; x < columns; ++x)
      block.at[8 * y + x] = static_cast<std::int16_t>(random_int(-300, 300));
  return block;
}

Block wild_block(int kind) {
  Block block;
  for (std::int16_t& value : block.at) {
    value = static_cast<std::int16_t>(kind == 0   ? random_int(-32768, 32767)
                                      : kind == 1 ? (random_int(0, 1) ? 32767 : -32768)
                                                  : (random_int(0, 7) ? 0 : -32768));
  }
  return block;
}

template <class Make>
Blocks many(int count, Make make) {
  Blocks blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(make());
  return blocks;
}

void check_paths_agree(const Blocks& blocks) {
  const int count = static_cast<int>(blocks.size());
  for (const int size : kSizes) {
    const Bytes portable = transform(size, blocks, count, Simd::portable);
    for (const Simd level : kLevels) {
      CAPTURE(size);
      CAPTURE(simd_name(level));
      CHECK(transform(size, blocks, count, level) == portable);
    }
  }
}

}  // namespace

TEST_CASE("Blocks of one coefficient become what libjpeg makes of them") {
  Blocks blocks;
  for (int k = 0; k < 64; ++k) {
    for (const int value : {1, -1, 7, -40, 500, -1000}) {
      blocks.emplace_back();
      blocks.back().at[k] = static_cast<std::int16_t>(value);
    }
  }
  check_against_libjpeg(blocks);
}

TEST_CASE("Blocks without AC become what libjpeg makes of them") {
  Blocks blocks;
  for (int dc = -1024; dc <= 1023; ++dc) {
    blocks.emplace_back();
    blocks.back().at[0] = static_cast<std::int16_t>(dc);
  }
  check_against_libjpeg(blocks);
}

TEST_CASE("Sparse blocks become what libjpeg makes of them") {
  check_against_libjpeg(many(2000, [] { return random_block(random_int(1, 6), 400); }));
  check_against_libjpeg(
      many(2000, [] { return smooth_block(random_int(1, 8), random_int(1, 8)); }));
}

TEST_CASE("Dense blocks become what libjpeg makes of them") {
  check_against_libjpeg(many(2000, [] { return random_block(200, 60); }));
}

TEST_CASE("Smooth blocks beside dense ones become what libjpeg makes of them") {
  check_against_libjpeg(many(2000, [] {
    return random_int(0, 3) ? smooth_block(random_int(1, 4), random_int(1, 4))
                            : random_block(100, 60);
  }));
}

TEST_CASE("All paths give equal bytes, whatever the coefficients") {
  for (int kind = 0; kind < 3; ++kind) {
    check_paths_agree(many(1000, [kind] { return wild_block(kind); }));
  }
  check_paths_agree(many(1000, [] { return random_block(200, 2000); }));
}

TEST_CASE("A block's samples do not depend on how many are transformed with it") {
  const Blocks blocks = many(17, [] { return random_block(random_int(0, 30), 200); });
  for (const Simd level : kLevels) {
    for (const int size : kSizes) {
      std::vector<Bytes> alone;
      for (const Block& block : blocks) alone.push_back(transform(size, {block}, 1, level));
      for (int count = 1; count <= 17; ++count) {
        CAPTURE(size);
        CAPTURE(count);
        const Bytes out = transform(size, blocks, count, level);
        for (int b = 0; b < count; ++b) {
          for (int y = 0; y < size; ++y) {
            const auto* row = &out[static_cast<std::size_t>(y * count + b) * size];
            CHECK(std::equal(row, row + size, &alone[b][static_cast<std::size_t>(y) * size]));
          }
        }
      }
    }
  }
}

TEST_CASE("Nothing is written outside the rows and their slack, whatever the stride") {
  const Blocks blocks = many(17 + kReadAhead, [] { return random_block(30, 200); });
  for (const Simd level : kLevels) {
    ForceSimd force(level);
    for (const int size : kSizes) {
      for (int count = 1; count <= 17; ++count) {
        const int row = count * size;
        const int stride = row + kIdctSlack + random_int(0, 20);
        const bool upwards = random_int(0, 1) == 1;
        const int margin = 64;
        Bytes expected(static_cast<std::size_t>(2 * margin + size * stride));
        for (std::uint8_t& byte : expected) byte = static_cast<std::uint8_t>(rng()());
        Bytes out = expected;
        const int first = margin + (upwards ? (size - 1) * stride : 0);
        const int step = upwards ? -stride : stride;
        idct(size, blocks[0].at, count, out.data() + first, step);
        for (int y = 0; y < size; ++y) {
          const int begin = first + y * step;
          std::copy_n(&out[begin], row + kIdctSlack, &expected[begin]);
        }
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(simd_name(level));
        CHECK(out == expected);
      }
    }
  }
}

TEST_CASE("Blocks past the last do not change the samples") {
  Blocks blocks = many(4, [] { return random_block(20, 200); });
  for (const Simd level : kLevels) {
    ForceSimd force(level);
    for (const int size : kSizes) {
      const Bytes expected = transform(size, blocks, 1, level);
      Bytes out(static_cast<std::size_t>(size) * (size + kIdctSlack));
      // Three dense blocks follow.
      idct(size, placed(blocks)[0].at, 1, out.data(), size + kIdctSlack);
      for (int y = 0; y < size; ++y) {
        CHECK(std::equal(&expected[y * size], &expected[y * size] + size,
                         &out[static_cast<std::size_t>(y) * (size + kIdctSlack)]));
      }
    }
  }
}

TEST_CASE("Every DC becomes its rounded mean, clamped, and nothing else is written") {
  std::vector<std::int16_t> dc;
  for (int value = -32768; value <= 32767; ++value) dc.push_back(static_cast<std::int16_t>(value));
  Bytes out(dc.size() + 64, 77);
  idct_dc(dc.data(), static_cast<int>(dc.size()), out.data());
  int wrong = 0;
  for (std::size_t i = 0; i < dc.size(); ++i) {
    wrong += out[i] != std::clamp(((dc[i] + 4) >> 3) + 128, 0, 255);
  }
  CHECK(wrong == 0);
  CHECK(std::count(out.begin() + static_cast<std::ptrdiff_t>(dc.size()), out.end(), 77) == 64);
}
