#include "image_slot.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "crc32c.h"
#include "ring.h"

namespace fastio {
namespace {

// A thread claims one row at a time, so that the last rows of a batch are shared evenly. Small raw
// images take only a microsecond each, so a thread claims about kClaimBytes of them, at most
// kMostClaimed rows, to keep the overhead of claims small.
constexpr std::int64_t kClaimBytes = 128 << 10;
constexpr std::int64_t kMostClaimed = 256;

// Raw images of up to this many bytes are copied from a mapping of their file. Outside the page
// cache each page costs a page fault, and a larger image would wait for several.
constexpr std::int64_t kLookUp = 8 << 10;

// Returns `count` values of a column from `begin` on; an empty column stays empty.
template <typename T>
std::vector<T> piece(const std::vector<T>& column, std::size_t begin, std::size_t count) {
  if (column.empty()) return {};
  return std::vector<T>(column.data() + begin, column.data() + begin + count);
}

// Returns the size in bytes of the longest image if all images are raw, else -1.
std::int64_t longest_raw(const ImageReads& reads) {
  constexpr auto kRaw = static_cast<std::uint8_t>(Codec::raw);
  std::int64_t longest = 1;
  for (std::size_t row = 0; row < reads.length.size(); ++row) {
    if (reads.codec[row] != kRaw) return -1;
    longest = std::max(longest, reads.length[row]);
  }
  return longest;
}

// The least mean size in bytes of rows that are read directly. For smaller rows, the readahead of
// the page cache fetches many at a time if they are read in the order of the files.
constexpr std::int64_t kLeastDirect = 32 << 10;

bool reads_directly(const ImageBytes& bytes, const ImageReads& reads) {
  if (!bytes.files || !bytes.files->reads_directly() || !Ring::permitted()) return false;
  const auto rows = static_cast<std::int64_t>(reads.length.size());
  std::int64_t total = 0;
  for (const std::int64_t length : reads.length)
    total += std::clamp<std::int64_t>(length, 0, DirectRange::kMostBytes);
  return total >= rows * kLeastDirect;
}

// Returns how many rows a thread claims at a time. Rows that are read directly are claimed singly.
std::size_t claim_size(const ImageBytes& bytes, const ImageReads& reads) {
  const std::int64_t longest = longest_raw(reads);
  if (longest < 0 || reads_directly(bytes, reads)) return 1;
  return static_cast<std::size_t>(std::clamp<std::int64_t>(kClaimBytes / longest, 1, kMostClaimed));
}

bool all_small(const ImageReads& reads) {
  const std::int64_t longest = longest_raw(reads);
  return longest >= 0 && longest <= kLookUp;
}

// The most scratch memory that a thread keeps between claims: points of a JPEG index, and bytes.
constexpr std::size_t kKeepPoints = 64 << 10;
constexpr std::size_t kKeepScratch = 16u << 20;

// Block records of more bytes are read in parts, only those that the crop needs. For smaller ones,
// the additional reads cost more than they save.
constexpr std::int64_t kReadWhole = 48 << 10;

// Of block records of more bytes, only the beginning is read ahead: a crop of a large photo may
// need no more than a tenth of the record.
constexpr std::int64_t kWantWhole = 1 << 20;

// Ranges with gaps of at most this many bytes are read ahead as one, because most of the gap lies
// on pages that the two ranges need anyway.
constexpr std::int64_t kJoin = 8 << 10;

// The number of rows of a batch that are tested to estimate whether it is in the page cache. Of
// small raw images at most every kLookedAt-th row is tested, because a test takes nearly as long as
// such a row.
constexpr std::size_t kLookedAt = 8;

bool before(const WantedRange& a, const WantedRange& b) {
  return a.file != b.file ? a.file < b.file : a.offset < b.offset;
}

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

// The context of place(): the row that is being filled.
struct Target {
  const ImageSlot* slot;
  const std::vector<SlotView>* views;
  std::vector<std::vector<OwnedImage>>* images;
  std::size_t row;
  std::size_t next;  // the view that place() is called for next
  Status refused;    // why place() returned null
};

}  // namespace

Status IndexReads::check() const {
  for (std::size_t row = 0; row < file.size(); ++row) {
    const auto number = static_cast<std::size_t>(file[row]);
    const auto begin = static_cast<std::size_t>(offset[row]);
    const auto size = static_cast<std::size_t>(length[row]);
    // A negative number wraps to one beyond all files.
    if (number >= files.size() || begin > files[number]->size() ||
        size > files[number]->size() - begin)
      return Status::error(Code::corrupt, "an index is outside of its file");
  }
  return Status::okay();
}

IndexReads IndexReads::part(std::size_t begin, std::size_t count) const {
  return {files, piece(file, begin, count), piece(offset, begin, count),
          piece(length, begin, count)};
}

ImageReads ImageReads::part(std::size_t begin, std::size_t count) const {
  return {piece(file, begin, count),  piece(offset, begin, count),      piece(length, begin, count),
          piece(codec, begin, count), piece(orientation, begin, count), piece(height, begin, count),
          piece(width, begin, count), piece(row, begin, count),         piece(crc32c, begin, count),
          index.part(begin, count)};
}

ImageSlot::ImageSlot(ImageBytes bytes, std::vector<SlotView> views,
                     std::shared_ptr<const Codebook> codebook, ImageTask task, ImageReads reads)
    : Slot(reads.file.size(), claim_size(bytes, reads)),
      bytes_(std::move(bytes)),
      views_(std::move(views)),
      codebook_(std::move(codebook)),
      task_(std::move(task)),
      reads_(std::move(reads)),
      small_(bytes_.files && !reads_.crc32c.empty() && all_small(reads_)),
      direct_(reads_directly(bytes_, reads_)),
      status_(reads_.file.size()),
      images_(views_.size()) {
  if (small_ || !reads_.index.files.empty()) Mapping::keep_guards();
  task_.codebook = codebook_.get();
  task_.others.clear();
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (!views_[i].out) images_[i].resize(reads_.file.size());
    const ViewTask view{views_[i].chain.get(), views_[i].store};
    if (i == 0) {
      static_cast<ViewTask&>(task_) = view;
    } else {
      task_.others.push_back(view);
    }
  }
}

void* ImageSlot::place(void* context, std::int32_t height, std::int32_t width) {
  auto& target = *static_cast<Target*>(context);
  if (target.slot->abandoned()) {
    target.refused = Status::error(Code::cancelled, "given up");
    return nullptr;
  }
  const std::size_t at = target.next++;
  const SlotView& view = (*target.views)[at];
  const std::size_t bytes = store_bytes(view.store, height, width, target.slot->channels(at));
  if (view.out) {
    if (height == view.height && width == view.width) return view.out + target.row * bytes;
    target.refused =
        Status::error(Code::unsupported,
                      "the transforms give " + std::to_string(height) + " x " +
                          std::to_string(width) + " pixels, but the images of the batch have " +
                          std::to_string(view.height) + " x " + std::to_string(view.width));
    return nullptr;
  }
  OwnedImage& image = (*target.images)[at][target.row];
  image.pixels.reset(new (std::nothrow) std::uint8_t[bytes]);
  image.height = height;
  image.width = width;
  if (!image.pixels)
    target.refused =
        Status::error(Code::memory, "no memory for " + std::to_string(bytes) + " bytes of pixels");
  return image.pixels.get();
}

void ImageSlot::fill(std::size_t begin, std::size_t end, Worker& worker) {
  for (std::size_t row = begin; row < end; ++row) {
    if (small_ && row + 1 < end)
      bytes_.files->prefetch(reads_.file[row + 1], reads_.offset[row + 1], reads_.length[row + 1],
                             worker.open);
    status_[row] = decode(row, worker);
    worker.fetched = {};
  }
  worker.bytes.shrink(kKeepScratch);
}

bool ImageSlot::is_direct(std::size_t row) const {
  const std::int64_t length = reads_.length[row];
  return direct_ && length > 0 && length <= DirectRange::kMostBytes &&
         static_cast<Codec>(reads_.codec[row]) != Codec::encoded;
}

DirectRange ImageSlot::direct(std::size_t row, OpenFiles& open) const {
  if (!is_direct(row)) return {};
  return bytes_.files->direct(reads_.file[row], reads_.offset[row], reads_.length[row], open);
}

// Reads all bytes of a row and compares their checksum. Block records contain checksums, which the
// decoder compares.
Status ImageSlot::read(std::size_t row, Worker& worker) const {
  if (worker.fetched.empty()) {
    if (small_ && look_up(row, worker)) return Status::okay();
    const auto start = std::chrono::steady_clock::now();
    Status status = bytes_.files->read(reads_.file[row], reads_.offset[row], reads_.length[row],
                                       worker.bytes, worker.open);
    worker.counters.read_ns.add(nanoseconds_since(start));
    if (!status.ok()) return status;
    worker.fetched = {worker.bytes.data(), worker.bytes.size()};
  }
  worker.counters.bytes.add(worker.fetched.size());
  const bool checked =
      !reads_.crc32c.empty() && static_cast<Codec>(reads_.codec[row]) != Codec::blocks;
  if (checked && crc32c(worker.fetched.data(), worker.fetched.size()) != reads_.crc32c[row])
    return Status::error(Code::corrupt,
                         "the stored bytes are damaged: their CRC-32C does not match");
  return Status::okay();
}

// Copies the bytes of a row from a mapping of their file, which for a small row takes a third of
// the time of a system call. Returns false if that is not possible or the checksum is wrong; read()
// then reports the reason.
bool ImageSlot::look_up(std::size_t row, Worker& worker) const {
  Buffer& bytes = worker.bytes;
  if (!bytes_.files->look_up(reads_.file[row], reads_.offset[row], reads_.length[row], bytes,
                             worker.open) ||
      crc32c(bytes.data(), bytes.size()) != reads_.crc32c[row])
    return false;
  worker.counters.bytes.add(bytes.size());
  worker.fetched = {bytes.data(), bytes.size()};
  return true;
}

// Finds the bytes of a row in the caller's memory. Raw pixels are used in place. Other bytes are
// copied, because another thread might change them between their validation and their use.
Status ImageSlot::look_up(std::size_t row, Buffer& bytes, ImageRequest& request) const {
  const std::int64_t offset = reads_.offset[row], length = reads_.length[row];
  const auto part = static_cast<std::size_t>(reads_.file[row]);  // a negative one wraps
  if (part >= bytes_.memory.size())
    return Status::error(Code::corrupt, "there is no array number " + std::to_string(part));
  const auto size = static_cast<std::int64_t>(bytes_.memory[part].size);
  if (offset < 0 || length < 0 || length > size || offset > size - length)
    return Status::error(Code::corrupt, "invalid range: " + std::to_string(length) +
                                            " bytes from byte " + std::to_string(offset));
  request.data = bytes_.memory[part].begin + offset;
  request.size = static_cast<std::size_t>(length);
  const bool raw = static_cast<Codec>(reads_.codec[row]) == Codec::raw;
  const bool padded = size - length - offset >= static_cast<std::int64_t>(Buffer::kPad);
  if (raw && padded) return Status::okay();
  if (!bytes.resize(request.size))
    return Status::error(Code::memory, "no memory for " + std::to_string(length) + " bytes");
  if (length) std::memcpy(bytes.data(), request.data, request.size);
  request.data = bytes.data();
  return Status::okay();
}

// Parses the index that the batch has for a row; returns false if there is none. If the file was
// truncated meanwhile, the mapping reads as zeros, which are not a valid index.
bool ImageSlot::read_index(std::size_t row, Worker& worker) const {
  const IndexReads& reads = reads_.index;
  const auto size = reads.length.empty() ? 0 : static_cast<std::size_t>(reads.length[row]);
  if (size == 0) return false;
  const Mapping& file = *reads.files[static_cast<std::size_t>(reads.file[row])];
  return worker.index.read(file.data() + reads.offset[row], size);
}

// Decodes a JPEG with its index: the one that came with the batch, or the one that was recorded
// when the image was decoded before. Adds the new points to the recorded index.
template <typename Decode>
Status ImageSlot::with_index(std::size_t row, Worker& worker, ImageRequest& request,
                             const Decode& decode) const {
  const std::uint32_t crc =
      reads_.crc32c.empty() ? crc32c(request.data, request.size) : reads_.crc32c[row];
  bool known = read_index(row, worker);
  if (!known) {
    const JpegIndexes::Bytes kept = worker.indexes.find(request.size, crc);
    known = kept && worker.index.read(kept.data, kept.size);
  }
  if (known) request.index = &worker.index;
  worker.found.points.clear();  // needed where JpegScan is not used for this file
  request.found = &worker.found;
  const Status status = decode();
  if (status.ok() && !worker.found.points.empty())
    worker.indexes.add(request.size, crc, request.index, worker.found);
  if (worker.found.points.capacity() > kKeepPoints) worker.found = {};
  if (worker.index.points.capacity() > kKeepPoints) worker.index = {};
  return status;
}

Status ImageSlot::decode(std::size_t row, Worker& worker) {
  const auto codec = static_cast<Codec>(reads_.codec[row]);
  if (codec == Codec::encoded)
    return Status::error(Code::foreign, "stored in another image format");
  ImageRequest request;
  if (!bytes_.files) {
    const Status status = look_up(row, worker.bytes, request);
    if (!status.ok()) return status;
    request.planar = bytes_.planar;
  } else if (codec == Codec::blocks && reads_.length[row] > kReadWhole && worker.fetched.empty()) {
    request.files = bytes_.files.get();
    request.open = &worker.open;
    request.file = reads_.file[row];
    request.offset = reads_.offset[row];
    request.size = static_cast<std::size_t>(reads_.length[row]);
  } else {
    const Status status = read(row, worker);
    if (!status.ok()) return status;
    request.data = worker.fetched.data();
    request.size = worker.fetched.size();
  }
  request.codec = codec;
  request.orientation = reads_.orientation[row];
  request.height = reads_.height[row];
  request.width = reads_.width[row];
  request.channels = task_.raw_channels;
  request.row = reads_.row[row];
  Target target{this, &views_, &images_, row, 0, Status::okay()};
  const auto decode = [&] {
    return worker.decoder.decode(task_, request, &ImageSlot::place, &target);
  };
  const bool indexed = codec == Codec::jpeg && request.size >= JpegIndex::kLeastFile;
  const Status status = indexed ? with_index(row, worker, request, decode) : decode();
  return target.refused.ok() ? status : target.refused;
}

std::vector<WantedRange> ImageSlot::wanted() const {
  if (!bytes_.files) return {};
  std::vector<WantedRange> ranges;
  ranges.reserve(direct_ ? 0 : rows());
  for (std::size_t i = 0; i < rows(); ++i) {
    if (is_direct(i)) continue;
    const auto codec = static_cast<Codec>(reads_.codec[i]);
    std::int64_t length = reads_.length[i];
    if (codec == Codec::blocks && length > kWantWhole) length = kReadWhole;
    const std::size_t last = codec == Codec::encoded ? WantedRange::kNeverClaimed : i;
    ranges.push_back({reads_.file[i], reads_.offset[i], length, last});
  }
  std::sort(ranges.begin(), ranges.end(), before);
  std::size_t kept = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    WantedRange& range = ranges[kept];
    const WantedRange& next = ranges[i];
    // Offsets and lengths may come from a damaged file: the sums below must not overflow.
    const bool joined = next.file == range.file && range.offset >= 0 && range.length >= 0 &&
                        next.length >= 0 && next.offset - range.offset - kJoin <= range.length &&
                        range.length <= kWantWhole && next.length <= kWantWhole;
    if (!joined) {
      ranges[++kept] = next;
      continue;
    }
    range.length = std::max(range.length, next.offset - range.offset + next.length);
    range.last_row = std::max(range.last_row, next.last_row);
  }
  if (!ranges.empty()) ranges.resize(kept + 1);
  return ranges;
}

bool ImageSlot::in_memory() const {
  if (!bytes_.files) return true;
  OpenFiles open;
  const std::size_t step = std::max<std::size_t>(rows() / kLookedAt, small_ ? kLookedAt : 1);
  for (std::size_t i = 0; i < rows(); i += step)
    if (!is_direct(i) && !bytes_.files->in_memory(reads_.file[i], reads_.offset[i], open))
      return false;
  return true;
}

void ImageSlot::ask_for(const WantedRange& range) const {
  if (cancelled() || begun(range.last_row)) return;
  bytes_.files->advise(range.file, range.offset, range.length);
}

OwnedImage ImageSlot::take(std::size_t row, std::size_t view) {
  const std::lock_guard lock(taking_);
  std::vector<OwnedImage>& images = images_[view];
  return row < images.size() ? std::exchange(images[row], OwnedImage()) : OwnedImage();
}

std::vector<Failure> ImageSlot::noted() const {
  std::vector<Failure> found;
  for (std::size_t row = 0; row < status_.size(); ++row)
    if (!status_[row].ok()) found.emplace_back(row, status_[row]);
  return found;
}

}  // namespace fastio
