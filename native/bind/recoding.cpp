// Recoding of JPEGs to block records in the background, for Python: core/recoding.h.
#include "core/recoding.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "bind.h"

namespace fastio {
namespace {

template <typename T>
using Owned = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
Owned<T> owned(std::unique_ptr<T[]> data, std::size_t size) {
  T* first = data.release();
  const nb::capsule owner(first, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Owned<T>(first, {size}, owner);
}

void make(Recoding* self, const SharedFiles& files, const Vector<std::int32_t>& file,
          const Vector<std::int64_t>& offset, const Vector<std::int64_t>& length,
          const SharedCodebook& codebook, std::int64_t max_pixels) {
  check_length("offset", offset.size(), file.size());
  check_length("length", length.size(), file.size());
  JpegPlaces places{files.value, {}, copied(offset), copied(length)};
  places.file.assign(file.data(), file.data() + file.size());
  const auto known = static_cast<std::int64_t>(files.value->size());
  for (const std::int64_t number : places.file)
    if (number < 0 || number >= known)
      throw nb::value_error("file must have numbers of files in `files`");
  new (self) Recoding(std::move(places), codebook.value, max_pixels);
}

void start_idle(Recoding& self, int threads) {
  if (threads < 1) throw nb::value_error("threads must be at least 1");
  self.start_idle(threads);
}

void start_resting(Recoding& self, int threads, double share) {
  if (threads < 1) throw nb::value_error("threads must be at least 1");
  if (!(share > 0 && share <= 1)) throw nb::value_error("share must be in (0, 1]");
  self.start_resting(threads, share);
}

bool wait(Recoding& self, double timeout_s) {
  const std::chrono::duration<double> timeout(std::clamp(timeout_s, 0.0, 3600.0));
  const nb::gil_scoped_release release;
  return self.wait(std::chrono::duration_cast<std::chrono::nanoseconds>(timeout));
}

void stop(Recoding& self) {
  const nb::gil_scoped_release release;
  self.stop();
}

// Returns the results for all images, and their records, concatenated.
nb::tuple take(Recoding& self) {
  std::vector<RecodedImage> images;
  std::unique_ptr<std::uint8_t[]> data;
  std::size_t total = 0;
  {
    const nb::gil_scoped_release release;
    if (!self.wait(std::chrono::nanoseconds(0)))
      throw std::runtime_error("not all images are done: call wait() first");
    self.stop();  // without the GIL, because it may wait
    images.swap(self.images());
    for (const RecodedImage& image : images) total += image.record.size();
    data.reset(new std::uint8_t[total]);
    std::uint8_t* at = data.get();
    for (const RecodedImage& image : images)
      at = std::copy(image.record.begin(), image.record.end(), at);
  }
  const auto column = [&images]<typename T>(T RecodedImage::* member) {
    std::unique_ptr<T[]> values(new T[images.size()]);
    for (std::size_t i = 0; i < images.size(); ++i) values[i] = images[i].*member;
    return owned(std::move(values), images.size());
  };
  std::unique_ptr<std::int64_t[]> lengths(new std::int64_t[images.size()]);
  for (std::size_t i = 0; i < images.size(); ++i)
    lengths[i] = static_cast<std::int64_t>(images[i].record.size());
  return nb::make_tuple(owned(std::move(data), total), owned(std::move(lengths), images.size()),
                        column(&RecodedImage::height), column(&RecodedImage::width),
                        column(&RecodedImage::orientation), column(&RecodedImage::crc32c));
}

}  // namespace

void bind_recoding(nb::module_& m) {
  nb::class_<Recoding>(m, "Recoding", "Recodes JPEG files to block records; see recoding.h.")
      .def("__init__", &make, nb::arg("files"), nb::arg("file"), nb::arg("offset"),
           nb::arg("length"), nb::arg("codebook"), nb::arg("max_pixels"))
      .def("start_idle", &start_idle, nb::arg("threads"),
           "Starts threads that run only while a processor would be idle.")
      .def("start_resting", &start_resting, nb::arg("threads"), nb::arg("share"),
           "Starts threads of normal priority, each of which works for `share` of the time.")
      .def("wait", &wait, nb::arg("timeout_s"),
           "Waits for at most timeout_s seconds. Returns whether all images are done.")
      .def("stop", &stop, "Tells the threads to end after their present image.")
      .def_prop_ro("idle_ns", &Recoding::idle_ns,
                   "Processor time in ns that idle threads have spent on images that are done.")
      .def("take", &take,
           "Returns (records, lengths, heights, widths, EXIF orientations, CRC-32Cs) of the "
           "images; call it after wait() has returned True. records: uint8, the records of all "
           "images, concatenated. Length 0: the image was not recoded.");
}

}  // namespace fastio
