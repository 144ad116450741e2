// Times operations on the pixels of one image and prints JSON. benchmarks/pixels.py builds and runs
// this program, and describes the figures.
//
//   pixels ROUNDS SIZE LEVEL PART
//
// SIZE is at least 128. LEVEL is portable, avx2, avx512 or all; PART is a name of kParts or all. A
// round runs every part on every instruction set. The program prints the microseconds of each
// round.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/cpu.h"
#include "core/pixel_runner.h"

namespace fastio {
namespace {

using Numbers = std::array<double, 8>;

struct Part {
  const char* name;
  PixelOp op;
  Numbers numbers{};
  PixelFill fill{};
};

// Parameters for an image of 224 x 224 pixels.
const PixelFill kSmooth{{}, false, true};
const PixelFill kFilled{{120, 110, 100}, true, true};
constexpr Numbers kRotation{30, 0, 0, 1};
constexpr Numbers kCorners{20, 10, 190, 25, 215, 200, 5, 213};
const std::vector<Part> kParts = {
    {"brightness", PixelOp::brightness, {1.3}},
    {"contrast", PixelOp::contrast, {1.3}},
    {"saturation", PixelOp::saturation, {1.3}},
    {"hue", PixelOp::hue, {0.1}},
    {"sharpness", PixelOp::sharpness, {1.9}},
    {"sharpness 2", PixelOp::sharpness, {2}},
    {"posterize", PixelOp::posterize, {4}},
    {"solarize", PixelOp::solarize, {128}},
    {"invert", PixelOp::invert},
    {"autocontrast", PixelOp::autocontrast},
    {"equalize", PixelOp::equalize},
    {"grayscale", PixelOp::grayscale},
    {"blur 5, sigma 1", PixelOp::gaussian_blur, {5, 5, 1}},
    {"blur 23, sigma 0.3", PixelOp::gaussian_blur, {23, 23, 0.3}},
    {"blur 23, sigma 1", PixelOp::gaussian_blur, {23, 23, 1}},
    {"blur 23, sigma 2", PixelOp::gaussian_blur, {23, 23, 2}},
    {"rotation", PixelOp::affine, kRotation},
    {"shear x", PixelOp::affine, {0, 0, 0, 1, 20, 0, -112, -112}},
    {"shear y", PixelOp::affine, {0, 0, 0, 1, 0, 20, -112, -112}},
    {"shift x", PixelOp::affine, {0, 30, 0, 1}},
    {"shift y", PixelOp::affine, {0, 0, -30, 1}},
    {"perspective", PixelOp::perspective, kCorners},
    {"rotation, bilinear", PixelOp::affine, kRotation, kSmooth},
    {"rotation, bilinear, fill", PixelOp::affine, kRotation, kFilled},
    {"shift x, bilinear", PixelOp::affine, {0, 30, 0, 1}, kSmooth},
    {"perspective, bilinear", PixelOp::perspective, kCorners, kSmooth},
    {"flip", PixelOp::flip_horizontal},
    {"erase", PixelOp::erase, {30, 40, 60, 80}},
    {"mix, begin", PixelOp::mix_begin, {0.5}},
    {"mix, add", PixelOp::mix_add, {0.2}},
    {"mix, end", PixelOp::mix_end},
};

// Returns smooth shapes with noise, which resemble a photo.
std::vector<std::uint8_t> picture(int size) {
  std::vector<std::uint8_t> out;
  std::uint32_t state = 1;
  for (int c = 0; c < 3; ++c)
    for (int y = 0; y < size; ++y)
      for (int x = 0; x < size; ++x) {
        state = state * 1664525 + 1013904223;
        const double wave = std::sin(x / (20.0 + 3 * c)) * std::cos(y / (30.0 - 4 * c));
        out.push_back(static_cast<std::uint8_t>(118 + 100 * wave + (state >> 24) / 16.0));
      }
  return out;
}

double microseconds_of(PixelRunner& runner, const Part& part, const Planes& image) {
  const auto start = std::chrono::steady_clock::now();
  runner.run(image, {part.op, part.numbers, part.fill});
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void print(const char* separator, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    std::printf("%s%.2f", i ? separator : "", values[i]);
}

int run(int rounds, int size, const std::string& level_asked, const std::string& part_asked) {
  std::vector<SimdLevel> levels;
  for (const SimdLevel& level : simd_levels())
    if (level_asked == "all" || level_asked == level.name) levels.push_back(level);
  const std::vector<std::uint8_t> photo = picture(size);
  std::vector<std::uint8_t> pixels(photo.size());
  const Planes image{pixels.data(), 3, size, size};
  PixelRunner runner;
  // found[part][level]: the times of the rounds.
  std::vector<std::vector<std::vector<double>>> found(
      kParts.size(), std::vector<std::vector<double>>(levels.size()));
  for (int round = -1; round < rounds; ++round)  // round -1 allocates memory and is not counted
    for (std::size_t p = 0; p < kParts.size(); ++p) {
      // The parts of a mix run only together.
      const bool mixes = kParts[p].op >= PixelOp::mix_begin && part_asked.rfind("mix", 0) == 0;
      if (part_asked != "all" && part_asked != kParts[p].name && !mixes) continue;
      for (std::size_t i = 0; i < levels.size(); ++i) {
        simd_force(levels[i].features);
        std::memcpy(pixels.data(), photo.data(), photo.size());
        const double took = microseconds_of(runner, kParts[p], image);
        if (round >= 0 && (part_asked == "all" || part_asked == kParts[p].name))
          found[p][i].push_back(took);
      }
    }
  const char* before = "{";
  for (std::size_t p = 0; p < kParts.size(); ++p) {
    if (found[p].empty() || found[p][0].empty()) continue;
    std::printf("%s\n \"%s\": {", before, kParts[p].name);
    before = ",";
    for (std::size_t i = 0; i < levels.size(); ++i) {
      std::printf("%s\"%s\": [", i ? ", " : "", levels[i].name);
      print(", ", found[p][i]);
      std::printf("]");
    }
    std::printf("}");
  }
  std::printf("\n}\n");
  return 0;
}

}  // namespace
}  // namespace fastio

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: pixels ROUNDS SIZE LEVEL PART\n");
    return 2;
  }
  const int size = std::max(128, std::atoi(arguments[2]));
  return fastio::run(std::atoi(arguments[1]), size, arguments[3], arguments[4]);
}
