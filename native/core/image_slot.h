// One image field of one batch while threads fill it: what to decode, where to, what came out.
//
// Where the images' sizes differ there is no memory of the caller's, and the slot owns one
// allocation an image, to be taken over with take().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mapping.h"
#include "slot.h"

namespace fastio {

// Where the indexes of a batch's JPEGs lie (bytes of JpegIndex::bytes()): one entry per row.
struct IndexReads {
  std::vector<std::shared_ptr<const Mapping>> files;
  std::vector<std::int32_t> file;
  std::vector<std::int64_t> offset, length;  // 0 bytes: there is none

  // Code::corrupt: an index does not lie in its file.
  Status check() const;
  IndexReads part(std::size_t begin, std::size_t count) const;
};

// The reads of a batch, one entry a row; all vectors have the same length.
struct ImageReads {
  std::vector<std::int32_t> file;
  std::vector<std::int64_t> offset, length;  // or FileSet::kWholeFile
  std::vector<std::uint8_t> codec, orientation;
  std::vector<std::int32_t> height, width;
  std::vector<std::int64_t> row;
  std::vector<std::uint32_t> crc32c;  // of the bytes; empty: they have no checksums
  IndexReads index;                   // after check(); empty: there are none

  // The reads [begin, begin + count), which must exist.
  ImageReads part(std::size_t begin, std::size_t count) const;
};

// A part of the caller's memory that has images; offsets count from its beginning.
struct ImageMemory {
  const std::uint8_t* begin = nullptr;
  std::size_t size = 0;
};

// Where the bytes of a batch's images lie: in files, or in the caller's memory, which the caller
// keeps until the slot is done. In memory, a read's file is the number of one of the parts.
struct ImageBytes {
  ImageBytes(std::shared_ptr<FileSet> in_files) : files(std::move(in_files)) {}
  ImageBytes(std::vector<ImageMemory> parts, bool in_planes)
      : memory(std::move(parts)), planar(in_planes) {}

  std::shared_ptr<FileSet> files;  // null: the images are in memory
  std::vector<ImageMemory> memory;
  bool planar = false;  // raw images in memory are (channels, height, width)
};

struct OwnedImage {
  std::unique_ptr<std::uint8_t[]> pixels;
  std::int32_t height = 0, width = 0;
};

// One of the images that are made of each stored one, and where it goes to.
struct SlotView {
  std::shared_ptr<const Chain> chain;
  // Rows of height x width pixels one after the other; null: the images keep their own sizes.
  std::uint8_t* out = nullptr;
  std::int32_t height = 0, width = 0;
  StoreSpec store{};
};

class ImageSlot : public Slot {
 public:
  // views: at least one. codebook: null where no row is a block record. Rows whose codec is
  // Codec::encoded are not touched: their status is Code::foreign from the beginning, and Python
  // fills them. What the task says of views is not used.
  ImageSlot(ImageBytes bytes, std::vector<SlotView> views, std::shared_ptr<const Codebook> codebook,
            ImageTask task, ImageReads reads);

  int channels(std::size_t view) const { return task_.out_channels(view); }
  Layout layout(std::size_t view) const { return views_[view].store.layout; }
  std::size_t views() const { return views_.size(); }

  DirectRange direct(std::size_t row, OpenFiles& open) const override;
  void fill(std::size_t begin, std::size_t end, Worker& worker) override;
  // Leaves out what is read directly. For a large block record, returns its beginning only, which
  // says what else is needed.
  std::vector<WantedRange> wanted() const override;
  bool in_memory() const override;
  void ask_for(const WantedRange& range) const override;

  // After wait() said true. take(): an image goes to the first who asks, from whatever thread.
  const Status& status(std::size_t row) const { return status_[row]; }
  OwnedImage take(std::size_t row, std::size_t view = 0);

 protected:
  std::vector<Failure> noted() const override;

 private:
  bool is_direct(std::size_t row) const;
  Status read(std::size_t row, Worker& worker) const;
  bool look_up(std::size_t row, Worker& worker) const;
  Status look_up(std::size_t row, Buffer& bytes, ImageRequest& request) const;
  bool read_index(std::size_t row, Worker& worker) const;
  template <typename Decode>
  Status with_index(std::size_t row, Worker& worker, ImageRequest& request,
                    const Decode& decode) const;
  Status decode(std::size_t row, Worker& worker);
  static void* place(void* context, std::int32_t height, std::int32_t width);

  const ImageBytes bytes_;
  const std::vector<SlotView> views_;
  const std::shared_ptr<const Codebook> codebook_;
  ImageTask task_;
  const ImageReads reads_;
  const bool small_;   // all rows are small raw images in files, with checksums
  const bool direct_;  // rows of up to DirectRange::kMostBytes are read directly

  std::vector<Status> status_;
  std::mutex taking_;
  // Of each view that has no memory, the rows'; guarded by taking_, once all are there.
  std::vector<std::vector<OwnedImage>> images_;
};

}  // namespace fastio
