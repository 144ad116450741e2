// Block records for Python: encoding and decoding them, reading pixels, and training codebooks.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "bind.h"
#include "core/block_decoder.h"
#include "core/block_encoder.h"
#include "core/block_pixels.h"
#include "core/codebook_train.h"
#include "core/jpeg_coefficients.h"

namespace fastio {
namespace {

// The objects that a thread needs to encode, which are reused for the next image.
struct Workbench {
  explicit Workbench(const Codebook& book) : encoder(book) {}

  JpegCoefficients coefficients;
  BlockEncoder encoder;
  std::vector<std::uint8_t> record;
};

// A codebook as Python holds it.
struct HeldCodebook : SharedCodebook {
  // Returns a workbench that no other thread uses. Return it with put().
  std::unique_ptr<Workbench> take() {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        std::unique_ptr<Workbench> bench = std::move(idle.back());
        idle.pop_back();
        return bench;
      }
    }
    return std::make_unique<Workbench>(*value);
  }
  void put(std::unique_ptr<Workbench> bench) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(bench));
  }

  std::vector<std::uint8_t> bytes;
  std::mutex mutex;
  std::vector<std::unique_ptr<Workbench>> idle;
};

nb::bytes as_bytes(const std::vector<std::uint8_t>& data) {
  return nb::bytes(reinterpret_cast<const char*>(data.data()), data.size());
}

// Copies a record to a buffer, which has the padding that decoders need.
Status padded(const std::uint8_t* data, std::size_t size, Buffer& out) {
  if (!out.resize(size)) return Status::error(Code::memory, "no memory for a block record");
  if (size > 0) std::memcpy(out.data(), data, size);
  return Status::okay();
}

void make_codebook(HeldCodebook* self, const Bytes& data) {
  auto book = std::make_shared<Codebook>();
  std::vector<std::uint8_t> bytes = copied(data);
  raise_for(book->parse(bytes.data(), bytes.size()));
  new (self) HeldCodebook();
  self->value = std::move(book);
  self->bytes = std::move(bytes);
}

std::optional<nb::tuple> encode(const Bytes& jpeg, HeldCodebook& book, std::int64_t max_pixels) {
  const std::uint8_t* data = jpeg.data();
  const std::size_t size = jpeg.size();
  std::unique_ptr<Workbench> bench;
  Status status;
  {
    const nb::gil_scoped_release release;
    bench = book.take();
    status = read_coefficients(data, size, bench->coefficients, max_pixels);
    if (status.ok()) status = bench->encoder.encode(bench->coefficients, bench->record);
  }
  std::optional<nb::tuple> result;
  if (status.ok()) {
    const JpegCoefficients& in = bench->coefficients;
    result =
        nb::make_tuple(as_bytes(bench->record), in.shape.height, in.shape.width, in.orientation);
  }
  book.put(std::move(bench));
  if (status.code == Code::foreign) return std::nullopt;
  raise_for(status);
  return result;
}

// Decodes a whole record, and checks every byte.
Status unpack(const Codebook& book, const std::uint8_t* data, std::size_t size,
              JpegCoefficients& out, std::int64_t max_pixels = kAnyPixels) {
  Buffer record;
  const Status status = padded(data, size, record);
  return status.ok() ? unpack_record(book, record.data(), size, out, max_pixels) : status;
}

nb::bytes export_jpeg(const Bytes& record, const HeldCodebook& book) {
  const std::uint8_t* data = record.data();
  const std::size_t size = record.size();
  std::vector<std::uint8_t> jpeg;
  Status status;
  {
    const nb::gil_scoped_release release;
    JpegCoefficients coefficients;
    status = unpack(*book.value, data, size, coefficients);
    if (status.ok()) status = write_jpeg(coefficients, jpeg);
  }
  raise_for(status);
  return as_bytes(jpeg);
}

nb::tuple check(const Bytes& record, const HeldCodebook& book, std::int64_t max_pixels) {
  const std::uint8_t* data = record.data();
  const std::size_t size = record.size();
  JpegCoefficients coefficients;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = unpack(*book.value, data, size, coefficients, max_pixels);
  }
  raise_for(status);
  return nb::make_tuple(coefficients.shape.height, coefficients.shape.width);
}

using Image = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<3>>;

Image pixels(const Bytes& record, const HeldCodebook& book, int orientation, int denominator,
             int channels, std::size_t record_size, std::int64_t max_pixels) {
  if (orientation < 1 || orientation > 8) throw nb::value_error("orientation must be 1 to 8");
  if (denominator != 1 && denominator != 2 && denominator != 4 && denominator != 8)
    throw nb::value_error("denominator must be 1, 2, 4 or 8");
  if (channels != 1 && channels != 3) throw nb::value_error("channels must be 1 or 3");
  const std::uint8_t* data = record.data();
  const std::size_t size = record.size();
  BlockPixels image;
  std::unique_ptr<std::uint8_t[]> out;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = image.open(*book.value, data, size, record_size ? record_size : size, orientation,
                        denominator, channels, max_pixels);
    if (status.ok()) {
      const std::size_t bytes = static_cast<std::size_t>(image.height()) *
                                static_cast<std::size_t>(image.width()) *
                                static_cast<std::size_t>(channels);
      out.reset(new (std::nothrow) std::uint8_t[bytes]);
      status = out ? image.read(out.get()) : Status::error(Code::memory, "no memory for pixels");
    }
  }
  raise_for(status);
  std::uint8_t* first = out.release();
  const nb::capsule owner(first, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  return Image(first,
               {static_cast<std::size_t>(image.height()), static_cast<std::size_t>(image.width()),
                static_cast<std::size_t>(channels)},
               owner);
}

// Returns false if a signal handler raised. Long operations call this regularly without the GIL, so
// that Ctrl-C ends them.
bool no_signal_waits() {
  const nb::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() == 0;
}

// Trains a codebook on these JPEG files: on at most about `most_blocks` of their blocks, evenly
// distributed. Skips files that are damaged, or that no record can hold.
Status train_on(const std::vector<Bytes>& jpegs, std::size_t most_blocks, int iterations,
                std::uint64_t seed, std::vector<std::uint8_t>& codebook) {
  // A block takes about 13 bytes of a file. For the odd step, see sample_blocks().
  std::size_t bytes = 0;
  for (const Bytes& jpeg : jpegs) bytes += jpeg.size();
  const std::size_t every =
      std::max<std::size_t>(bytes / 13 / std::max<std::size_t>(most_blocks, 1), 1) | 1;
  JpegCoefficients coefficients;
  std::vector<std::int16_t> blocks;
  std::size_t phase = 0;
  for (const Bytes& jpeg : jpegs) {
    const Status status = read_coefficients(jpeg.data(), jpeg.size(), coefficients);
    if (status.code == Code::memory) return status;
    if (!status.ok()) continue;
    sample_blocks(coefficients, every, phase++ % every, blocks);
  }
  return train_codebook(blocks.data(), blocks.size() / 64, iterations, seed, codebook,
                        &no_signal_waits);
}

nb::bytes train(const std::vector<Bytes>& jpegs, std::uint64_t seed, int iterations,
                std::size_t most_blocks) {
  if (iterations < 1) throw nb::value_error("iterations must be at least 1");
  std::vector<std::uint8_t> codebook;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = train_on(jpegs, most_blocks, iterations, seed, codebook);
  }
  raise_for(status);
  return as_bytes(codebook);
}

}  // namespace

void bind_blocks(nb::module_& m) {
  nb::class_<SharedCodebook>(m, "SharedCodebook",
                             "The base class of Codebook, which the engine takes.");
  nb::class_<HeldCodebook, SharedCodebook>(
      m, "Codebook", "The classes of the blocks of a dataset; see codebook.h.")
      .def("__init__", &make_codebook, nb::arg("data"),
           "Parses the 16,640 bytes of a codebook in a manifest (uint8 array). Raises ValueError "
           "if they are not a valid codebook.")
      .def_prop_ro("data", [](const HeldCodebook& self) { return as_bytes(self.bytes); });
  m.def("blocks_encode", &encode, nb::arg("jpeg"), nb::arg("codebook"),
        nb::arg("max_pixels") = kAnyPixels,
        "Encodes a JPEG file (uint8 array) and returns (block record, height, width, EXIF "
        "orientation). Returns None if a record cannot hold the image (CMYK, arithmetic coding, "
        "...). Raises ValueError if the file is damaged, or has more than max_pixels.");
  m.def("blocks_export", &export_jpeg, nb::arg("record"), nb::arg("codebook"),
        "Returns a JPEG file with the coefficients, quantisation tables and metadata of a record. "
        "Raises ValueError if the record is damaged.");
  m.def("blocks_check", &check, nb::arg("record"), nb::arg("codebook"),
        nb::arg("max_pixels") = kAnyPixels,
        "Checks every byte of a record and returns its (height, width). Raises ValueError if it is "
        "damaged, or has more than max_pixels.");
  m.def("blocks_pixels", &pixels, nb::arg("record"), nb::arg("codebook"),
        nb::arg("orientation") = 1, nb::arg("denominator") = 1, nb::arg("channels") = 3,
        nb::arg("record_size") = 0, nb::arg("max_pixels") = kAnyPixels,
        "Decodes a record and returns the upright image at 1/denominator of its size (1, 2, 4 or "
        "8), as uint8 (H, W, C). For 1/8, the first blocks_header_bytes() of the record suffice; "
        "record_size is then the size of the whole record. Raises ValueError if the record is "
        "damaged, or the stored image has more than max_pixels.");
  m.def("blocks_header_bytes", &dc_bytes_bound, nb::arg("height"), nb::arg("width"),
        "Returns an upper bound, in bytes, of the header and DC section of a record of an image of "
        "this size.");
  m.def("train_codebook", &train, nb::arg("jpegs"), nb::arg("seed") = 0, nb::arg("iterations") = 40,
        nb::arg("most_blocks") = std::size_t{500000},
        "Trains a codebook on JPEG files (uint8 arrays) and returns its 16,640 bytes. Skips "
        "damaged files; raises ValueError if no file is left. Ctrl-C ends the training.");
}

}  // namespace fastio
