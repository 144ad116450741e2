// Draws the augmentations of one sample: which operations are applied to its pixels, in which
// order, and with which parameters.
//
// A tree of AugmentNode describes the possible operations. draw() chooses from it, with the
// distributions of torchvision's transforms, and returns a flat list of DrawnOp. Draws come from
// rng.h, and depend only on (seed, epoch, row, step of the chain).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "rng.h"

namespace fastio {

// Operations with the names and meaning of torchvision's (transforms.v2.functional, on uint8
// tensors). The comments list the numbers of each operation in DrawnOp.
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
  one_channel,    // keeps one channel of a gray image; only at the top level of a chain
  gaussian_blur,  // kernel's columns and rows, sigma
  affine,         // degrees, x, y, scale, shear x and y in degrees, centre x and y
  perspective,    // 8 coordinates: the corners' new positions, (x, y) clockwise from top left
  flip_horizontal,
  flip_vertical,
  erase,  // top, left, height, width
  pad,    // left, top, right, bottom; mode of PadMode
  crop,   // index of the crop plan in DrawnChain::crops
  // AugMix: a weighted sum of images. mix_begin saves the image; each mix_add adds the image as it
  // is then to the sum, and restores the saved one; mix_end replaces the image by the sum.
  mix_begin,  // weight of the saved image
  mix_add,    // weight of the image as it is then
  mix_end,
};
// Returns the name of an operation. op_named() does the opposite; it returns false if there is no
// such operation.
std::string_view name_of(PixelOp op);
bool op_named(std::string_view name, PixelOp& op);

enum class PadMode : std::uint8_t { constant, edge, reflect, symmetric };

// The fill value for pixels outside of the image, and the interpolation.
struct PixelFill {
  std::array<float, 3> value{};
  bool given = false;     // false: no fill was given, which torchvision interpolates differently
  bool bilinear = false;  // false: nearest
  bool noise = false;     // of erase: normally distributed numbers instead of `value`
};

// An operation with the parameters that were drawn.
struct DrawnOp {
  PixelOp op;
  std::array<double, 8> numbers{};
  PixelFill fill;
  std::uint64_t key = 0;  // the key of the noise's random numbers
};

// The distribution of a number: a value is drawn, negated, multiplied by the unit, made an integer,
// and then the offset is added.
struct Spread {
  enum class Unit : std::uint8_t { one, width, height };  // of the image
  enum class Whole : std::uint8_t { no, cut, rounded };
  std::vector<double> values;  // one of them is drawn, with equal probabilities
  bool range = false;          // uniform between the two values instead
  bool sign = false;           // negated with a probability of 1/2
  Unit unit = Unit::one;
  Whole whole = Whole::no;
  double offset = 0;
};

// A node of the tree of possible operations.
struct AugmentNode {
  enum class Kind : std::uint8_t {
    op,
    sequence,     // all children
    apply,        // all children or none
    choice,       // one child
    order,        // all children in random order
    repeat,       // the child, `count` times
    mix,          // AugMix of `width` chains, each of `count` times the child
    erase_area,   // RandomErasing's box: the numbers are the ranges of its area and of its ratio
    perspective,  // RandomPerspective's corners: the number is its distortion
  };
  Kind kind = Kind::op;
  PixelOp op = PixelOp::brightness;
  std::vector<Spread> numbers;
  PixelFill fill;
  double probability = 1;         // of apply
  std::vector<double> cumulated;  // of choice: the children's cumulative probabilities
  int count = 1, width = 1;       // if the count of mix is <= 0, 1 to 3 is drawn
  double alpha = 1;               // of mix: the parameter of its distributions
  std::vector<AugmentNode> children;

  // Whether a flip before these operations gives the same result as a flip after them.
  bool commutes_with_flips() const;
};

// A stream of random words for one step of a row's chain.
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
      ++counter_[3];  // no step uses more than 256 times four words
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

// Draws the operations for an image of height x width, and appends them to `out`.
void draw(const AugmentNode& node, std::int32_t height, std::int32_t width, DrawStream& stream,
          std::vector<DrawnOp>& out);

}  // namespace fastio
