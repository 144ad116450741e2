// Chains of transforms for Python: builds them from Python's arguments, and reports what was drawn.
#include "core/chain.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.h"

namespace fastio {
namespace {

using Kind = GeometryStep::Kind;

std::array<std::int32_t, 12> numbers_of(const CropPlan& p) {
  return {p.crop_y,        p.crop_x,       p.crop_height,     p.crop_width,
          p.out_height,    p.out_width,    p.window_y,        p.window_x,
          p.window_height, p.window_width, p.flip_horizontal, p.flip_vertical};
}

// Whether Python may create an operation. The others are only added by steps of a chain.
bool stands_alone(PixelOp op) {
  switch (op) {
    case PixelOp::one_channel:
    case PixelOp::crop:
    case PixelOp::mix_begin:
    case PixelOp::mix_add:
    case PixelOp::mix_end:
      return false;
    default:
      return true;
  }
}

// Returns how many numbers an operation has.
int count_of(PixelOp op) {
  switch (op) {
    case PixelOp::affine:
    case PixelOp::perspective:
      return 8;
    case PixelOp::pad:
      return 5;
    case PixelOp::erase:
      return 4;
    case PixelOp::gaussian_blur:
      return 3;
    case PixelOp::invert:
    case PixelOp::autocontrast:
    case PixelOp::equalize:
    case PixelOp::grayscale:
    case PixelOp::one_channel:
    case PixelOp::flip_horizontal:
    case PixelOp::flip_vertical:
    case PixelOp::mix_end:
      return 0;
    default:
      return 1;
  }
}

void add(SharedChain& self, const GeometryStep& step) {
  self.extend([&](Chain& chain) { chain.add(step); });
}

GeometryStep sized(Kind kind, std::int32_t height, std::int32_t width) {
  constexpr std::int32_t kLargest = 65535;
  if (height < 1 || width < 0 || height > kLargest || width > kLargest)
    throw nb::value_error("a size must be in [1, 65535]");
  GeometryStep step;
  step.kind = kind;
  step.height = height;
  step.width = width;
  return step;
}

GeometryStep flip(Kind kind, double probability) {
  GeometryStep step;
  step.kind = kind;
  step.probability = probability;
  return step;
}

// Returns an operation as a tuple for Python.
nb::tuple told(const DrawnOp& drawn, const DrawnChain& chain) {
  nb::list numbers;
  if (drawn.op == PixelOp::crop) {
    for (const std::int32_t number :
         numbers_of(chain.crops[static_cast<std::size_t>(drawn.numbers[0])]))
      numbers.append(number);
  } else {
    for (int i = 0; i < count_of(drawn.op); ++i)
      numbers.append(drawn.numbers[static_cast<std::size_t>(i)]);
  }
  const std::string_view name = name_of(drawn.op);
  return nb::make_tuple(nb::str(name.data(), name.size()), nb::tuple(numbers));
}

nb::list draws(const SharedChain& self, std::uint64_t seed, std::uint64_t epoch,
               const Vector<std::int64_t>& rows, const Vector<std::int32_t>& heights,
               const Vector<std::int32_t>& widths) {
  check_length("heights", heights.size(), rows.size());
  check_length("widths", widths.size(), rows.size());
  const std::vector<std::int32_t> height = copied(heights), width = copied(widths);
  const std::shared_ptr<const Chain> chain = self.get();
  nb::list out;
  DrawnChain drawn;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (height[i] < 1 || width[i] < 1)
      throw nb::value_error("heights and widths must be at least 1");
    raise_for(chain->draw(height[i], width[i], seed, epoch, rows.data()[i], drawn));
    nb::list ops;
    for (const DrawnOp& op : drawn.ops) ops.append(told(op, drawn));
    for (const DrawnOp& op : drawn.erased) ops.append(told(op, drawn));
    out.append(nb::make_tuple(nb::make_tuple(drawn.height, drawn.width),
                              nb::cast(numbers_of(drawn.crop)), nb::tuple(ops)));
  }
  return out;
}

// --- Trees of operations ---

Spread spread(const std::vector<double>& values, bool range, bool sign, const std::string& unit,
              const std::string& whole, double offset) {
  Spread out{values, range, sign, Spread::Unit::one, Spread::Whole::no, offset};
  if (values.empty() || (range && values.size() != 2))
    throw nb::value_error("values must not be empty, and must be two numbers if range is true");
  if (unit == "width") out.unit = Spread::Unit::width;
  if (unit == "height") out.unit = Spread::Unit::height;
  if (whole == "cut") out.whole = Spread::Whole::cut;
  if (whole == "rounded") out.whole = Spread::Whole::rounded;
  return out;
}

AugmentNode operation(const std::string& name, const std::vector<Spread>& numbers,
                      const PixelFill& fill) {
  AugmentNode node;
  if (name == "erase_area") {
    node.kind = AugmentNode::Kind::erase_area;
  } else if (name == "corners") {
    node.kind = AugmentNode::Kind::perspective;
  } else if (!op_named(name, node.op) || !stands_alone(node.op)) {
    throw nb::value_error(("no such operation: " + name).c_str());
  }
  const int wanted = node.kind == AugmentNode::Kind::erase_area    ? 2
                     : node.kind == AugmentNode::Kind::perspective ? 1
                                                                   : count_of(node.op);
  check_length(name.c_str(), numbers.size(), static_cast<std::size_t>(wanted));
  if (node.kind == AugmentNode::Kind::erase_area)
    for (const Spread& each : numbers)
      if (!each.range) throw nb::value_error("erase_area takes two ranges");
  if (node.kind == AugmentNode::Kind::perspective &&
      !(numbers[0].values[0] >= 0 && numbers[0].values[0] <= 1))
    throw nb::value_error("the distortion of corners must be in [0, 1]");
  node.numbers = numbers;
  node.fill = fill;
  return node;
}

AugmentNode parent(AugmentNode::Kind kind, std::vector<AugmentNode> children) {
  if (children.empty()) throw nb::value_error("children must not be empty");
  AugmentNode node;
  node.kind = kind;
  node.children = std::move(children);
  return node;
}

AugmentNode choice(const std::vector<double>& weights, std::vector<AugmentNode> children) {
  check_length("weights", weights.size(), children.size());
  AugmentNode node = parent(AugmentNode::Kind::choice, std::move(children));
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight >= 0)) throw nb::value_error("weights must not be negative or NaN");
    sum += weight;
  }
  if (!(sum > 0)) throw nb::value_error("at least one weight must be above 0");
  double so_far = 0;
  for (const double weight : weights) node.cumulated.push_back((so_far += weight) / sum);
  return node;
}

void bind_nodes(nb::module_& m) {
  nb::class_<Spread>(m, "Spread", "A random number of an operation; see augment.h.")
      .def(
          "__init__",
          [](Spread* self, const std::vector<double>& values, bool range, bool sign,
             const std::string& unit, const std::string& whole, double offset) {
            new (self) Spread(spread(values, range, sign, unit, whole, offset));
          },
          nb::arg("values"), nb::arg("range") = false, nb::arg("sign") = false,
          nb::arg("unit") = "one", nb::arg("whole") = "no", nb::arg("offset") = 0.0);
  nb::class_<AugmentNode>(m, "Augment", "A tree of operations on pixels; see augment.h.")
      .def_static(
          "op",
          [](const std::string& name, const std::vector<Spread>& numbers,
             const std::optional<std::array<float, 3>>& fill, bool bilinear, bool noise) {
            const std::array<float, 3> value = fill.value_or(std::array<float, 3>{});
            return operation(name, numbers, {value, fill.has_value(), bilinear, noise});
          },
          nb::arg("name"), nb::arg("numbers"), nb::arg("fill").none() = nb::none(),
          nb::arg("bilinear") = false, nb::arg("noise") = false)
      .def_static(
          "sequence",
          [](std::vector<AugmentNode> children) {
            AugmentNode node;
            node.kind = AugmentNode::Kind::sequence;
            node.children = std::move(children);
            return node;
          },
          nb::arg("children"), "Applies all children in order. Without children, it does nothing.")
      .def_static(
          "apply",
          [](double probability, std::vector<AugmentNode> children) {
            AugmentNode node = parent(AugmentNode::Kind::apply, std::move(children));
            node.probability = probability;
            return node;
          },
          nb::arg("probability"), nb::arg("children"))
      .def_static("choice", &choice, nb::arg("weights"), nb::arg("children"))
      .def_static(
          "order",
          [](std::vector<AugmentNode> children) {
            return parent(AugmentNode::Kind::order, std::move(children));
          },
          nb::arg("children"))
      .def_static(
          "repeat",
          [](int count, std::vector<AugmentNode> children) {
            AugmentNode node = parent(AugmentNode::Kind::repeat, std::move(children));
            node.count = count;
            return node;
          },
          nb::arg("count"), nb::arg("children"))
      .def_static(
          "mix",
          [](int width, int depth, double alpha, const AugmentNode& child) {
            if (width < 1 || width > 16 || depth > 16 || !(alpha > 0))
              throw nb::value_error(
                  "width must be in [1, 16], depth at most 16, and alpha above 0");
            AugmentNode node = parent(AugmentNode::Kind::mix, {child});
            node.width = width;
            node.count = depth;
            node.alpha = alpha;
            return node;
          },
          nb::arg("width"), nb::arg("depth"), nb::arg("alpha"), nb::arg("child"));
}

}  // namespace

void bind_chain(nb::module_& m) {
  nb::enum_<Filter>(m, "Filter", "Resampling filters, as Pillow defines them.")
      .value("nearest", Filter::nearest)
      .value("bilinear", Filter::bilinear)
      .value("bicubic", Filter::bicubic);

  nb::class_<SharedChain>(
      m, "Chain", "The chain of transforms of an image field; see chain.h. Methods append steps.")
      .def(nb::init<>())
      .def(
          "random_resized_crop",
          [](SharedChain& self, std::int32_t height, std::int32_t width, double scale_low,
             double scale_high, double ratio_low, double ratio_high, Filter filter,
             bool antialias) {
            GeometryStep step = sized(Kind::random_resized_crop, height, width);
            step.scale[0] = scale_low;
            step.scale[1] = scale_high;
            step.ratio[0] = ratio_low;
            step.ratio[1] = ratio_high;
            step.filter = filter;
            step.antialias = antialias;
            add(self, step);
          },
          nb::arg("height"), nb::arg("width"), nb::arg("scale_low"), nb::arg("scale_high"),
          nb::arg("ratio_low"), nb::arg("ratio_high"), nb::arg("filter"), nb::arg("antialias"))
      .def(
          "resize",
          [](SharedChain& self, std::int32_t height, std::int32_t width, std::int32_t max_size,
             Filter filter, bool antialias) {
            GeometryStep step = sized(Kind::resize, height, width);
            step.max_size = max_size;
            step.filter = filter;
            step.antialias = antialias;
            add(self, step);
          },
          nb::arg("height"), nb::arg("width"), nb::arg("max_size"), nb::arg("filter"),
          nb::arg("antialias"),
          "Appends a Resize. width 0: the shorter edge gets the length `height`.")
      .def(
          "center_crop",
          [](SharedChain& self, std::int32_t height, std::int32_t width) {
            add(self, sized(Kind::center_crop, height, width));
          },
          nb::arg("height"), nb::arg("width"))
      .def(
          "random_crop",
          [](SharedChain& self, std::int32_t height, std::int32_t width, std::int32_t padding) {
            GeometryStep step = sized(Kind::random_crop, height, width);
            if (padding < 0 || padding > 65535)
              throw nb::value_error("padding must be in [0, 65535]");
            step.padding = padding;
            add(self, step);
          },
          nb::arg("height"), nb::arg("width"), nb::arg("padding"))
      .def(
          "horizontal_flip",
          [](SharedChain& self, double p) { add(self, flip(Kind::horizontal_flip, p)); },
          nb::arg("p"))
      .def(
          "vertical_flip",
          [](SharedChain& self, double p) { add(self, flip(Kind::vertical_flip, p)); },
          nb::arg("p"))
      .def(
          "augment",
          [](SharedChain& self, const AugmentNode& node) {
            self.extend([&](Chain& chain) { chain.add(node); });
          },
          nb::arg("node"), "Appends operations on pixels.")
      .def(
          "to_gray", [](SharedChain& self) { self.extend([](Chain& chain) { chain.to_gray(); }); },
          "Appends the conversion to gray, with one channel.")
      .def(
          "erase_at_end",
          [](SharedChain& self, const AugmentNode& node) {
            self.extend([&](Chain& chain) { chain.erase_at_end(node); });
          },
          nb::arg("node"), "Erases boxes of the normalised float32 image, after all other steps.")
      .def(
          "count_from",
          [](SharedChain& self, std::uint32_t step) {
            self.extend([&](Chain& chain) { chain.count_from(step); });
          },
          nb::arg("step"),
          "Sets the number that keys the random draws of the next step; see chain.h.")
      .def("draws", &draws, nb::arg("seed"), nb::arg("epoch"), nb::arg("rows"), nb::arg("heights"),
           nb::arg("widths"),
           "Returns what the chain draws for images of these heights and widths (upright): for "
           "each image ((height, width) of the result, crop, operations). A crop has 12 numbers: "
           "y, x, height and width of the crop; the height and width that it is resampled to; y, "
           "x, height and width of the window of the result; whether it is flipped horizontally "
           "and vertically. An operation is (name, numbers); the numbers of an operation named "
           "\"crop\" are those of a crop.");
  bind_nodes(m);
}

}  // namespace fastio
