#include "core/geometry.h"

#include "bind.h"

namespace fastio {
namespace {

using Kind = GeometryStep::Kind;
using Out = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
constexpr std::size_t kColumns = 12;

void add(SharedGeometry& self, const GeometryStep& step) { raise_for(self.add(step)); }

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

void plans(const SharedGeometry& self, std::uint64_t seed, std::uint64_t epoch,
           const Vector<std::int64_t>& rows, const Vector<std::int32_t>& heights,
           const Vector<std::int32_t>& widths, Out out) {
  check_length("heights", heights.size(), rows.size());
  check_length("widths", widths.size(), rows.size());
  check_length("out", out.size(), rows.size() * kColumns);
  const std::vector<std::int32_t> height = copied(heights), width = copied(widths);
  const std::shared_ptr<const Geometry> geometry = self.get();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (height[i] < 1 || width[i] < 1) throw nb::value_error("a height or width is less than 1");
    CropPlan p;
    raise_for(geometry->plan(height[i], width[i], seed, epoch, rows.data()[i], p));
    const std::int32_t values[kColumns] = {p.crop_y,       p.crop_x,          p.crop_height,
                                           p.crop_width,   p.out_height,      p.out_width,
                                           p.window_y,     p.window_x,        p.window_height,
                                           p.window_width, p.flip_horizontal, p.flip_vertical};
    std::copy(values, values + kColumns, out.data() + i * kColumns);
  }
}

}  // namespace

void bind_geometry(nb::module_& m) {
  nb::enum_<Filter>(m, "Filter", "Resampling filters, as Pillow defines them.")
      .value("nearest", Filter::nearest)
      .value("bilinear", Filter::bilinear)
      .value("bicubic", Filter::bicubic);

  nb::class_<SharedGeometry>(m, "Geometry", "A chain of crops, resizes and flips; see geometry.h.")
      .def(nb::init<>())
      .def(
          "random_resized_crop",
          [](SharedGeometry& self, std::int32_t height, std::int32_t width, double scale_low,
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
          [](SharedGeometry& self, std::int32_t height, std::int32_t width, std::int32_t max_size,
             Filter filter, bool antialias) {
            GeometryStep step = sized(Kind::resize, height, width);
            step.max_size = max_size;
            step.filter = filter;
            step.antialias = antialias;
            add(self, step);
          },
          nb::arg("height"), nb::arg("width"), nb::arg("max_size"), nb::arg("filter"),
          nb::arg("antialias"), "width 0: the shorter edge becomes height.")
      .def(
          "center_crop",
          [](SharedGeometry& self, std::int32_t height, std::int32_t width) {
            add(self, sized(Kind::center_crop, height, width));
          },
          nb::arg("height"), nb::arg("width"))
      .def(
          "random_crop",
          [](SharedGeometry& self, std::int32_t height, std::int32_t width, std::int32_t padding) {
            GeometryStep step = sized(Kind::random_crop, height, width);
            if (padding < 0 || padding > 65535)
              throw nb::value_error("padding must be in [0, 65535]");
            step.padding = padding;
            add(self, step);
          },
          nb::arg("height"), nb::arg("width"), nb::arg("padding"))
      .def(
          "horizontal_flip",
          [](SharedGeometry& self, double p) { add(self, flip(Kind::horizontal_flip, p)); },
          nb::arg("p"))
      .def(
          "vertical_flip",
          [](SharedGeometry& self, double p) { add(self, flip(Kind::vertical_flip, p)); },
          nb::arg("p"))
      .def("plans", &plans, nb::arg("seed"), nb::arg("epoch"), nb::arg("rows"), nb::arg("heights"),
           nb::arg("widths"), nb::arg("out").noconvert(),
           "What the chain does to images of heights x widths (upright): int32 rows of crop y, x, "
           "height, width; resampled height, width; window y, x, height, width; flips horizontal, "
           "vertical.");
}

}  // namespace fastio
