// The engine, its slots and files for Python: core/engine.h. held_slot.h says how the memory of
// batches is kept alive.
#include "core/engine.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <variant>

#include "bind.h"
#include "core/gather_slot.h"
#include "core/image_slot.h"
#include "core/span_slot.h"
#include "held_slot.h"

namespace fastio {
namespace {

struct OutArray {
  std::uint8_t* data = nullptr;
  std::int32_t height = 0, width = 0;
};

// Checks the array for a batch: (rows, H, W, C) or (rows, C, H, W), uint8 or float32.
OutArray check_out(const nb::ndarray<nb::c_contig, nb::device::cpu>& out, const StoreSpec& store,
                   int channels, std::size_t rows) {
  const bool hwc = store.layout == Layout::hwc;
  const auto type = store.element == Element::f32 ? nb::dtype<float>() : nb::dtype<std::uint8_t>();
  if (out.ndim() != 4 || out.dtype() != type || out.shape(0) < rows ||
      out.shape(hwc ? 3 : 1) != static_cast<std::size_t>(channels))
    throw nb::value_error("out has the wrong shape or type for these rows, layout and channels");
  return {static_cast<std::uint8_t*>(out.data()), static_cast<std::int32_t>(out.shape(hwc ? 1 : 2)),
          static_cast<std::int32_t>(out.shape(hwc ? 2 : 3))};
}

// A view: its chain, whether the layout is channels-last, how to normalise, and the array for the
// batch, or none if the images keep their own sizes.
using ViewArguments = std::tuple<const SharedChain*, bool, Normalize, std::optional<Memory>>;

// Images in memory: the arrays, whose indices the reads have as numbers of files, and whether the
// images are (channels, height, width).
using MemoryArguments =
    std::tuple<std::vector<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>, bool>;

using ImageSource = std::variant<const SharedFiles*, MemoryArguments>;

// Returns where the images are. Adds arrays to `sources`, which keeps them alive.
ImageBytes image_bytes(const ImageSource& source, std::vector<Source>& sources) {
  if (const auto* files = std::get_if<const SharedFiles*>(&source)) {
    if (!*files) throw nb::type_error("source must be a FileSet, not None");
    return (*files)->value;
  }
  const auto& [arrays, planar] = std::get<MemoryArguments>(source);
  std::vector<ImageMemory> parts;
  for (const auto& array : arrays) {
    sources.emplace_back(array);
    parts.push_back({static_cast<const std::uint8_t*>(array.data()), array.nbytes()});
  }
  return {std::move(parts), planar};
}

// The indexes of the rows' JPEGs: the files, and for each row the file's number, offset and length.
using IndexArguments = std::tuple<std::vector<const SharedMapping*>, Vector<std::int32_t>,
                                  Vector<std::int64_t>, Vector<std::int64_t>>;

IndexReads index_reads(const std::optional<IndexArguments>& arguments, std::size_t rows) {
  IndexReads reads;
  if (!arguments) return reads;
  const auto& [files, file, offset, length] = *arguments;
  check_length("index file", file.size(), rows);
  check_length("index offset", offset.size(), rows);
  check_length("index length", length.size(), rows);
  for (const SharedMapping* mapping : files) {
    if (!mapping) throw nb::type_error("index must have Mappings, not None");
    reads.files.push_back(mapping->value);
  }
  reads.file = copied(file);
  reads.offset = copied(offset);
  reads.length = copied(length);
  raise_for(reads.check());
  return reads;
}

// The reads of several batches, which are converted and checked once. submit() adds the keys of
// random draws.
struct SharedReads {
  std::shared_ptr<const ImageReads> value;
};

void make_reads(SharedReads* self, const Vector<std::int32_t>& file,
                const Vector<std::int64_t>& offset, const Vector<std::int64_t>& length,
                const Vector<std::uint8_t>& codec, const Vector<std::uint8_t>& orientation,
                const Vector<std::int32_t>& height, const Vector<std::int32_t>& width,
                const std::optional<Vector<std::uint32_t>>& crc32c,
                const std::optional<IndexArguments>& index) {
  const std::size_t rows = file.size();
  check_length("offset", offset.size(), rows);
  check_length("length", length.size(), rows);
  check_length("codec", codec.size(), rows);
  check_length("orientation", orientation.size(), rows);
  check_length("height", height.size(), rows);
  check_length("width", width.size(), rows);
  if (crc32c) check_length("crc32c", crc32c->size(), rows);
  ImageReads reads{copied(file),
                   copied(offset),
                   copied(length),
                   copied(codec),
                   copied(orientation),
                   copied(height),
                   copied(width),
                   {},
                   crc32c ? copied(*crc32c) : std::vector<std::uint32_t>(),
                   index_reads(index, rows)};
  new (self) SharedReads{std::make_shared<const ImageReads>(std::move(reads))};
}

HeldSlot submit(HeldEngine& held, const ImageSource& source, std::vector<ViewArguments> views,
                std::uint64_t seed, std::uint64_t epoch, const SharedReads& all, std::size_t first,
                const Vector<std::int64_t>& key, const SharedCodebook* codebook, int channels,
                std::int64_t max_pixels, std::optional<int> raw_channels) {
  const std::size_t rows = key.size(), there = all.value->file.size();
  if (first > there || rows > there - first)
    throw nb::value_error("first + len(key) is more than there are reads");
  const int raw = raw_channels.value_or(channels);
  for (const int count : {channels, raw})
    if (count != 1 && count != 3) throw nb::value_error("channels must be 1 or 3");
  ImageTask task;
  task.seed = seed;
  task.epoch = epoch;
  task.max_pixels = max_pixels;
  task.channels = channels;
  task.raw_channels = raw;
  if (views.empty()) throw nb::value_error("views must not be empty");
  std::vector<SlotView> slots;
  std::vector<Memory> kept;
  for (auto& [chain, channels_last, normalize, out] : views) {
    if (!chain) throw nb::type_error("views must have Chains, not None");
    SlotView& view = slots.emplace_back();
    view.chain = chain->get();
    const int out_channels = view.chain->channels(channels);
    view.store = store_spec(channels_last, normalize, out_channels);
    if (!out) continue;
    const OutArray memory = check_out(*out, view.store, out_channels, rows);
    view.out = memory.data;
    view.height = memory.height;
    view.width = memory.width;
    kept.push_back(std::move(*out));
  }
  ImageReads reads = all.value->part(first, rows);
  reads.row = copied(key);

  std::shared_ptr<const Codebook> book = codebook ? codebook->value : nullptr;

  std::vector<Source> sources;
  auto slot = std::make_shared<ImageSlot>(image_bytes(source, sources), std::move(slots),
                                          std::move(book), std::move(task), std::move(reads));
  return queue(held, HeldSlot(std::move(slot), std::move(kept), std::move(sources), held.away));
}

// Returns the memory for the rows of each field. Arrays may have any type, but must be large
// enough.
std::vector<std::uint8_t*> check_outs(const Table& table,
                                      const std::vector<std::optional<Memory>>& outs,
                                      std::size_t rows) {
  check_length("out", outs.size(), table.fields().size());
  std::vector<std::uint8_t*> pointers;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (outs[i] && outs[i]->nbytes() / table.fields()[i].out_bytes() < rows)
      throw nb::value_error("an array of out has fewer rows than the batch");
    pointers.push_back(outs[i] ? static_cast<std::uint8_t*>(outs[i]->data()) : nullptr);
  }
  return pointers;
}

HeldSlot gather(HeldEngine& held, const SharedTable& table, const Vector<std::int64_t>& rows,
                std::vector<std::optional<Memory>> out) {
  std::vector<std::int64_t> kept = copied(rows);
  check_rows(*table.value, kept);
  auto slot = std::make_shared<GatherSlot>(table.value, std::move(kept),
                                           check_outs(*table.value, out, rows.size()));
  // Batches of at most this many bytes are copied here, because waking a thread takes longer.
  constexpr std::size_t kFewBytes = 32 << 10;
  const bool here = !table.memory.empty() && slot->bytes() <= kFewBytes && !held.engine.closed() &&
                    !held.engine.forked();
  std::vector<Memory> memory;
  for (auto& array : out)
    if (array) memory.push_back(std::move(*array));
  if (here) {
    const Unlocked unlocked(held.away);
    slot->fill_here();
  }
  if (here) return HeldSlot(std::shared_ptr<Slot>(slot), std::move(memory), {}, held.away);
  return queue(held, HeldSlot(std::shared_ptr<Slot>(std::move(slot)), std::move(memory),
                              table.memory, held.away));
}

HeldSlot copy(HeldEngine& held, const std::vector<const SharedMapping*>& sources,
              const Vector<std::int32_t>& source, const Vector<std::int64_t>& begin,
              const Vector<std::int64_t>& bytes, const Vector<std::int64_t>& target,
              const Vector<std::int64_t>& room, Memory out) {
  const std::size_t count = source.size();
  check_length("begin", begin.size(), count);
  check_length("bytes", bytes.size(), count);
  check_length("target", target.size(), count);
  check_length("room", room.size(), count);
  SpanSlot::Sources kept;
  for (const SharedMapping* mapping : sources) {
    if (!mapping) throw nb::type_error("sources must be Mappings, not None");
    kept.push_back(mapping->value);
  }
  std::vector<Span> spans(count);
  for (std::size_t i = 0; i < count; ++i)
    spans[i] = {source.data()[i], begin.data()[i], bytes.data()[i], target.data()[i],
                room.data()[i]};
  raise_for(SpanSlot::check(kept, spans, out.nbytes()));
  std::shared_ptr<Slot> slot = std::make_shared<SpanSlot>(std::move(kept), std::move(spans),
                                                          static_cast<std::uint8_t*>(out.data()));
  std::vector<Memory> memory;
  memory.push_back(std::move(out));
  return queue(held, HeldSlot(std::move(slot), std::move(memory), {}, held.away));
}

bool wait(const HeldSlot& slot, double timeout_s) {
  constexpr double kLongest = 1e6;  // seconds; fits into 64 bits as nanoseconds
  const double bounded = timeout_s > 0 ? std::min(timeout_s, kLongest) : 0;
  return slot.wait(std::chrono::nanoseconds(static_cast<std::int64_t>(bounded * 1e9)));
}

void check_done(const HeldSlot& slot) {
  if (!slot.slot().wait(std::chrono::nanoseconds(0)))
    throw std::runtime_error("threads still work on this slot: call wait() first");
}

// Returns the rows that failed, as (row, code, message).
nb::list failures(const HeldSlot& slot) {
  check_done(slot);
  nb::list found;
  for (const auto& [row, status] : slot.slot().failures())
    found.append(nb::make_tuple(row, static_cast<int>(status.code), status.message));
  return found;
}

using Image = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<3>>;

// Returns an image that keeps its own size, as an array that owns the memory. None: the row failed.
std::optional<Image> take(const HeldSlot& slot, std::size_t row, std::size_t view) {
  check_done(slot);
  if (!slot.images() || row >= slot.slot().rows() || view >= slot.images()->views())
    throw nb::index_error("row or view is out of range, or the images were written to `out`");
  OwnedImage image = slot.images()->take(row, view);
  if (!image.pixels) return std::nullopt;
  std::uint8_t* pixels = image.pixels.release();
  const nb::capsule owner(pixels, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  const auto height = static_cast<std::size_t>(image.height);
  const auto width = static_cast<std::size_t>(image.width);
  const auto channels = static_cast<std::size_t>(slot.images()->channels(view));
  if (slot.images()->layout(view) == Layout::chw)
    return Image(pixels, {channels, height, width}, owner);
  return Image(pixels, {height, width, channels}, owner);
}

void make_engine(HeldEngine* self, int threads) {
  try {
    new (self) HeldEngine(threads);
  } catch (const std::system_error& error) {
    raise_for(Status::error(
        Code::io, "cannot start " + std::to_string(HeldEngine::checked(threads)) +
                      " threads: " + error.code().message() +
                      "; the limit of processes (ulimit -u) or that of the container (pids.max) "
                      "may be reached"));
  }
}

void load_indexes(HeldEngine& held, const SharedMapping& file) {
  const std::shared_ptr<const Mapping> mapping = file.value;
  if (held.engine.forked()) return;
  const Unlocked unlocked(held.away);
  held.engine.indexes().load({mapping, mapping->data(), mapping->size()});
}

nb::bytes unsaved_indexes(HeldEngine& held, bool all) {
  std::vector<std::uint8_t> found;
  if (!held.engine.forked()) {
    const Unlocked unlocked(held.away);
    found = held.engine.indexes().unsaved(all);
  }
  return nb::bytes(found.data(), found.size());
}

using Stamps = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>;

Stamps file_stamps(const std::vector<FilePath>& paths) {
  auto* const found = new std::vector<FileStamp>(paths.size());
  const nb::capsule owner(found,
                          [](void* p) noexcept { delete static_cast<std::vector<FileStamp>*>(p); });
  {
    const nb::gil_scoped_release release;
    for (std::size_t i = 0; i < paths.size(); ++i) (*found)[i] = stamp_of(paths[i].value);
  }
  return {found->data(), {found->size(), 4}, owner};
}

nb::tuple counters(const HeldEngine& held) {
  const ImageTotals c = held.engine.counters();
  return nb::make_tuple(c.images, c.bytes, c.read_ns, c.decode_ns, c.resample_ns, c.augment_ns);
}

}  // namespace

void bind_engine(nb::module_& m) {
  m.attr("WHOLE_FILE") = FileSet::kWholeFile;
  m.attr("PATIENCE_S") = std::chrono::duration<double>(kPatience).count();
  nb::class_<SharedFiles>(m, "FileSet",
                          "A list of local files, which are used by their numbers; see read.h.")
      .def(
          "__init__",
          [](SharedFiles* self, bool keep_open, std::size_t max_open, bool direct) {
            new (self) SharedFiles(std::make_shared<FileSet>(keep_open, max_open, direct));
          },
          nb::arg("keep_open"), nb::arg("max_open") = 256, nb::arg("direct") = false)
      .def(
          "add",
          [](SharedFiles& self, std::vector<FilePath> paths) {
            std::vector<std::string> values;
            values.reserve(paths.size());
            for (FilePath& path : paths) values.push_back(std::move(path.value));
            return self.value->add(std::move(values));
          },
          nb::arg("paths"), "Appends files and returns the number of the first one.")
      .def("__len__", [](const SharedFiles& self) { return self.value->size(); })
      .def("close", [](SharedFiles& self) { self.value->close(); });

  m.def("file_stamps", &file_stamps, nb::arg("paths"),
        "Returns the inode, size, and times of the last modification and status change in ns of "
        "files, int64 (n, 4). The numbers of a file that does not exist are -1.");

  nb::class_<SharedReads>(m, "ImageReads", "The places of the images of one or more batches.")
      .def("__init__", &make_reads, nb::arg("file"), nb::arg("offset"), nb::arg("length"),
           nb::arg("codec"), nb::arg("orientation"), nb::arg("height"), nb::arg("width"),
           nb::arg("crc32c") = nb::none(), nb::arg("index") = nb::none(),
           "The place of row i is `length[i]` bytes from byte offset[i] of file number file[i] on. "
           "index: (mappings, number, offset, length), the place of the index of each row's JPEG; "
           "length 0: the JPEG has no index.");

  nb::class_<HeldSlot>(m, "Slot", "A part of a batch while threads fill it; see slot.h.")
      .def("wait", &wait, nb::arg("timeout_s"),
           "Returns True once no thread touches the slot any more, or False after timeout_s "
           "seconds.")
      .def("cancel", &HeldSlot::cancel)
      .def_prop_ro("cancelled", [](const HeldSlot& slot) { return slot.shared()->cancelled(); })
      .def("abandon", &HeldSlot::abandon,
           "Cancels the slot and gives up waiting for its threads. If a thread hangs, the memory "
           "of the slot is kept for it.")
      .def("failures", &failures,
           "Returns the rows that failed, as (row, code, message). Call it after wait() has "
           "returned True.")
      .def("take", &take, nb::arg("row"), nb::arg("view") = 0,
           "Returns an image that keeps its own size, as uint8 (H, W, C) or (C, H, W), as was "
           "submitted; None if the row failed, or the image was taken before. Call it after wait() "
           "has returned True.");

  nb::class_<HeldEngine>(m, "Engine",
                         "Worker threads that read and decode the rows of batches; see engine.h.")
      .def("__init__", &make_engine, nb::arg("threads"))
      .def(
          "set_threads",
          [](HeldEngine& held, int threads) {
            HeldEngine::checked(threads);
            if (held.engine.closed()) return threads;
            const Unlocked unlocked(held.away);
            return held.engine.set_threads(threads);
          },
          nb::arg("threads"),
          "Sets how many threads take rows from now on. Returns their number, which is smaller if "
          "the system refuses to start more threads.")
      .def(
          "submit", &submit, nb::arg("source").noconvert(), nb::arg("views").noconvert(),
          nb::arg("seed"), nb::arg("epoch"), nb::arg("reads"), nb::arg("first"), nb::arg("key"),
          nb::arg("codebook").none(), nb::arg("channels"), nb::arg("max_pixels") = kAnyPixels,
          nb::arg("raw_channels") = nb::none(),
          "Queues the images of a batch and returns their slot. source: a FileSet, or (arrays, "
          "whether the images in them are (C, H, W)); for arrays, the file numbers of `reads` are "
          "indices of arrays. views: a tuple (chain, channels_last, normalize, out) for each view "
          "of the images. normalize: (scales, biases) of the channels, for float32; None: uint8. "
          "out: the array for the batch, which threads write to until wait() returns True; None: "
          "the images keep their own sizes, see take(). If the slot is deleted earlier, it waits "
          "for the threads, unless one hangs. key: the key of the random draws of each row. "
          "reads, first: row i is read from place first + i of `reads`. An image of more than "
          "max_pixels is a failure of its row. channels: what images are decoded to. raw_channels: "
          "of raw images as they are stored; None: as many.")
      .def("gather", &gather, nb::arg("table"), nb::arg("rows"), nb::arg("out").noconvert(),
           "Queues rows of a table and returns their slot. out: for each field of the table an "
           "array with room for the rows, or None; threads write to it as in submit(). Raises "
           "IndexError if a row is not in the table.")
      .def("copy", &copy, nb::arg("sources"), nb::arg("source"), nb::arg("begin"), nb::arg("bytes"),
           nb::arg("target"), nb::arg("room"), nb::arg("out").noconvert(),
           "Queues copies of pieces of mapped files and returns their slot. Piece i has bytes[i] "
           "bytes, from byte begin[i] of sources[source[i]] on. It is copied to byte target[i] of "
           "`out`, followed by zeros up to room[i] bytes. The rows of failures() are numbers of "
           "pieces.")
      .def("close", &HeldEngine::close)
      .def("load_indexes", &load_indexes, nb::arg("file"),
           "Adds the indexes of JPEGs in a file that contains what unsaved_indexes() returned. "
           "They are used without a copy.")
      .def("unsaved_indexes", &unsaved_indexes, nb::arg("all") = false,
           "Returns the indexes of JPEGs that are new or have grown since they were loaded, or "
           "since the last call. all: returns all indexes. An index belongs to the CRC-32C of its "
           "file, so a file that has changed has another one.")
      .def("counters", &counters,
           "Returns the sums of all threads: (images, bytes, ns of reading, decoding, resampling "
           "and augmentation).");
}

}  // namespace fastio
