// Single images for Python: headers, checks, and one image with a chain of transforms.
#include "core/image.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "bind.h"
#include "core/crc32c.h"

namespace fastio {
namespace {

using Pixels = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutPixels = nb::ndarray<nb::ndim<3>, nb::c_contig, nb::device::cpu>;

const char* kind_name(JpegHeader::Kind kind) {
  switch (kind) {
    case JpegHeader::Kind::progressive:
      return "progressive";
    case JpegHeader::Kind::arithmetic:
      return "arithmetic";
    case JpegHeader::Kind::baseline:
      break;
  }
  return "baseline";
}

nb::tuple probe(const Bytes& data, std::int64_t max_pixels) {
  const std::uint8_t* bytes = data.data();
  const std::size_t size = data.size();
  JpegHeader header;
  std::vector<std::uint8_t> index;
  Status status;
  {
    const nb::gil_scoped_release release;
    JpegDecoder decoder;
    status = decoder.open(bytes, size, true, header);
    // A JPEG with 2 or 4 components is valid; Pillow decodes it.
    if (status.ok() || (status.code == Code::foreign && header.components > 0))
      status = check_pixels(header.height, header.width, max_pixels);
    JpegIndex found;
    if (status.ok()) status = decoder.check(found);
    if (status.ok() && size >= JpegIndex::kLeastFile && found.whole()) index = found.bytes();
  }
  raise_for(status);
  return nb::make_tuple(header.height, header.width, header.components, header.orientation,
                        kind_name(header.kind), nb::bytes(index.data(), index.size()));
}

struct Target {
  std::uint8_t* data;
  std::int32_t height, width;
};

void* place(void* context, std::int32_t height, std::int32_t width) {
  const auto& target = *static_cast<const Target*>(context);
  return height == target.height && width == target.width ? target.data : nullptr;
}

void transform(const SharedChain& chain, std::uint64_t seed, std::uint64_t epoch, std::int64_t row,
               const Pixels& pixels, const OutPixels& out, bool channels_last,
               const Normalize& normalize) {
  const std::shared_ptr<const Chain> kept = chain.get();
  ImageTask task;
  task.chain = kept.get();
  task.seed = seed;
  task.epoch = epoch;
  const int channels = static_cast<int>(out.shape(channels_last ? 2 : 0));
  if (channels != 1 && channels != 3) throw nb::value_error("out must have 1 or 3 channels");
  task.channels = kept->channels(3) == 1 ? 3 : channels;  // the chain converts colours to gray
  if (out.dtype() != (normalize ? nb::dtype<float>() : nb::dtype<std::uint8_t>()))
    throw nb::value_error("out must be float32 if normalize is given, else uint8");
  task.store = store_spec(channels_last, normalize, channels);
  if (task.out_channels(0) != channels)
    throw nb::value_error("out must have 1 channel, because the chain converts images to gray");
  ImageRequest request;
  request.codec = Codec::raw;
  request.height = static_cast<std::int32_t>(pixels.shape(0));
  request.width = static_cast<std::int32_t>(pixels.shape(1));
  request.channels = static_cast<std::int32_t>(pixels.shape(2));
  request.orientation = 1;
  request.row = row;
  const std::uint8_t* source = pixels.data();
  Target target{static_cast<std::uint8_t*>(out.data()),
                static_cast<std::int32_t>(out.shape(channels_last ? 0 : 1)),
                static_cast<std::int32_t>(out.shape(channels_last ? 1 : 2))};
  Status status;
  {
    const nb::gil_scoped_release release;
    Buffer padded;  // the resampler reads past the end
    if (padded.resize(pixels.size())) {
      std::memcpy(padded.data(), source, pixels.size());
      request.data = padded.data();
      request.size = padded.size();
      ImageCounters counters;
      ImageDecoder decoder(counters);
      status = decoder.decode(task, request, place, &target);
    } else {
      status = Status::error(Code::memory, "no memory for the pixels");
    }
  }
  raise_for(status);
}

}  // namespace

StoreSpec store_spec(bool channels_last, const Normalize& normalize, int channels) {
  StoreSpec spec;
  spec.layout = channels_last ? Layout::hwc : Layout::chw;
  if (!normalize) return spec;
  spec.element = Element::f32;
  for (const auto& part : *normalize)
    check_length("normalize", part.size(), static_cast<std::size_t>(channels));
  for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
    spec.scale[c] = static_cast<float>((*normalize)[0][c]);
    spec.bias[c] = static_cast<float>((*normalize)[1][c]);
  }
  return spec;
}

void bind_image(nb::module_& m) {
  m.attr("CODEC_JPEG") = static_cast<int>(Codec::jpeg);
  m.attr("CODEC_RAW") = static_cast<int>(Codec::raw);
  m.attr("CODEC_ENCODED") = static_cast<int>(Codec::encoded);
  m.attr("CODEC_BLOCKS") = static_cast<int>(Codec::blocks);
  m.def(
      "crc32c",
      [](const Bytes& data) {
        const std::uint8_t* bytes = data.data();
        const std::size_t size = data.size();
        const nb::gil_scoped_release release;
        return crc32c(bytes, size);
      },
      nb::arg("data"), "Returns the CRC-32C (Castagnoli) of the bytes of a uint8 array.");
  m.def(
      "crc32c_mismatch",
      [](const Bytes& data, const Vector<std::int64_t>& starts,
         const Vector<std::uint32_t>& expected) -> std::int64_t {
        const std::size_t rows = expected.size();
        check_length("starts", starts.size(), rows + 1);
        const std::uint8_t* bytes = data.data();
        const std::vector<std::int64_t> at = copied(starts);
        const std::uint32_t* sums = expected.data();
        const auto size = static_cast<std::int64_t>(data.size());
        const nb::gil_scoped_release release;
        for (std::size_t i = 0; i < rows; ++i) {
          const std::int64_t begin = at[i], end = at[i + 1];
          const bool inside = 0 <= begin && begin <= end && end <= size;
          const auto length = static_cast<std::size_t>(end - begin);
          if (!inside || crc32c(bytes + begin, length) != sums[i]) {
            return static_cast<std::int64_t>(i);
          }
        }
        return -1;
      },
      nb::arg("data"), nb::arg("starts"), nb::arg("expected"),
      "Returns the first of n ranges [starts[i], starts[i + 1]) of a uint8 array whose CRC-32C is "
      "not expected[i] (uint32), or that does not lie in the array; -1 if there is none. starts: "
      "int64 (n + 1,).");
  m.def("jpeg_probe", &probe, nb::arg("data"), nb::arg("max_pixels") = kAnyPixels,
        "Decodes every coefficient of a JPEG file (uint8 array), and returns (height, width, "
        "components, EXIF orientation, kind, index). The index, as bytes, says where parts of the "
        "image begin (docs/format.md); it is empty if there is none. Raises ValueError if the file "
        "is damaged, or has more than max_pixels.");
  m.def("transform", &transform, nb::arg("chain"), nb::arg("seed"), nb::arg("epoch"),
        nb::arg("row"), nb::arg("pixels"), nb::arg("out").noconvert(), nb::arg("channels_last"),
        nb::arg("normalize").none(),
        "Applies a chain to an image and writes the result to `out`. pixels: uint8 (H, W, C) with "
        "1, 3 or 4 channels. out: an array of the size that the chain gives, (H, W, C) if "
        "channels_last, else (C, H, W), with 1 or 3 channels; float32 if normalize is given, as "
        "(scales, biases) of the channels, else uint8.");
}

}  // namespace fastio
