// Augmentations of one sample: which operations on its pixels, in which order and how strongly.
//
// A tree of AugmentNode says what may happen; draw() decides what does, with the distributions of
// torchvision's transforms, and gives a flat list of DrawnOp. Draws come from rng.h: they are a
// function of (seed, epoch, row, step of the chain) alone.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rng.h"

namespace fastio {

// Operations with torchvision's names and meaning (transforms.v2.functional, on uint8 tensors). The
// numbers that each takes stand behind it.
enum class PixelOp : std::uint8_t {
  brightness,     // factor
  contrast,       // factor
  saturation,     // factor
  hue,            // turns, in [-0.5, 0.5]
  sharpness,      // factor
  posterize,      // bits
  solarize,       // threshold
  invert,         //
  autocontrast,   //
  equalize,       //
  grayscale,      //
  one_channel,    // gray alone is kept; stands at the top of a chain
  gaussian_blur,  // kernel's columns and rows, sigma
  affine,         // degrees, x, y, scale, shear x and y in degrees, centre x and y
  perspective,    // 8 coordinates: where the corners come to lie, (x, y) clockwise from top left
  flip_horizontal,
  flip_vertical,
  erase,  // top, left, height, width
  pad,    // left, top, right, bottom; mode of PadMode
  crop,   // number of the crop plan in DrawnChain
  // AugMix: the image as it is now counts `weight`; the next operations begin with it again.
  mix_begin,  // weight of the image itself
  mix_add,    // weight of the image as it is now
  mix_end,
};
std::string_view name_of(PixelOp op);
bool op_named(std::string_view name, PixelOp& op);

enum class PadMode : std::uint8_t { constant, edge, reflect, symmetric };

// How pixels without a source are filled, and between which pixels is interpolated.
struct PixelFill {
  std::array<float, 3> value{};
  bool given = false;  // else zeros; the difference shows at edges where is interpolated
  bool bilinear = false;
  bool noise = false;  // of erase: normally distributed numbers in place of `value`
};

struct DrawnOp {
  PixelOp op;
  std::array<double, 8> numbers{};
  PixelFill fill;
  std::uint64_t key = 0;  // of the noise
};

// A number that is drawn.
struct Spread {
  enum class Unit : std::uint8_t { one, width, height };  // that it is a multiple of
  enum class Whole : std::uint8_t { no, cut, rounded };
  std::vector<double> values;  // one of them, all with equal chances
  bool range = false;          // of two values: uniform between them
  bool sign = false;           // negated with a probability of a half
  Unit unit = Unit::one;
  Whole whole = Whole::no;
  double offset = 0;  // added to all that
};

struct AugmentNode {
  enum class Kind : std::uint8_t {
    op,
    sequence,     // all children
    apply,        // all children or none
    choice,       // one child
    order,        // all children in random order
    repeat,       // the child, `count` times
    mix,          // AugMix of `width` chains of `count` times the child
    erase_area,   // RandomErasing's box: numbers are the ranges of its area and of its ratio
    perspective,  // RandomPerspective's corners: one number, its distortion
  };
  Kind kind = Kind::op;
  PixelOp op = PixelOp::brightness;
  std::vector<Spread> numbers;
  PixelFill fill;
  double probability = 1;         // of apply
  std::vector<double> cumulated;  // of choice: chances of the children, added up, the last one 1
  int count = 1, width = 1;       // count of mix <= 0: 1 to 3, drawn
  double alpha = 1;
  std::vector<AugmentNode> children;

  // Whether a flip before all of it gives the same as one after it.
  bool commutes_with_flips() const;
};

// The random words of one step of one row's chain, one after the other.
class DrawStream {
 public:
  DrawStream(std::uint64_t seed, std::uint64_t epoch, std::int64_t row, std::uint32_t step)
      : seed_(seed),
        counter_{static_cast<std::uint32_t>(row),
                 static_cast<std::uint32_t>(static_cast<std::uint64_t>(row) >> 32),
                 static_cast<std::uint32_t>(epoch), step << 8} {}

  std::uint32_t word() {
    if (left_ == 0) {
      words_ = philox(seed_, counter_);
      ++counter_[3];  // 256 times four words suffice for every step
      left_ = 4;
    }
    return words_[static_cast<std::size_t>(4 - left_--)];
  }
  double between(double low, double high) { return uniform(word(), low, high); }
  std::int32_t whole_below(std::int32_t n) { return below(word(), n); }

 private:
  const std::uint64_t seed_;
  Philox counter_, words_{};
  int left_ = 0;
};

// Appends what happens to an image of height x width.
void draw(const AugmentNode& node, std::int32_t height, std::int32_t width, DrawStream& stream,
          std::vector<DrawnOp>& out);

}  // namespace fastio
