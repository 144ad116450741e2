// The slot of one image field of one batch: which images to decode, where to write them, and the
// status of each row.
//
// If the images keep their own sizes, the caller provides no memory for them: the slot owns one
// allocation per image, which take() hands over.
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

  // Returns Code::corrupt if an index does not lie in its file.
  Status check() const;
  // Returns the entries [begin, begin + count), which must exist.
  IndexReads part(std::size_t begin, std::size_t count) const;
};

// The reads of a batch, one entry a row; all vectors have the same length.
struct ImageReads {
  std::vector<std::int32_t> file;
  std::vector<std::int64_t> offset, length;  // or FileSet::kWholeFile
  std::vector<std::uint8_t> codec, orientation;
  std::vector<std::int32_t> height, width;
  std::vector<std::int64_t> row;
  std::vector<std::uint32_t> crc32c;  // of the stored bytes; empty: there are no checksums
  IndexReads index;                   // must have passed check(); empty: there are no indexes

  // Returns the reads [begin, begin + count), which must exist.
  ImageReads part(std::size_t begin, std::size_t count) const;
};

// A block of the caller's memory that holds images. Offsets of reads count from its beginning.
struct ImageMemory {
  const std::uint8_t* begin = nullptr;
  std::size_t size = 0;
};

// Where the stored bytes of a batch's images are: in files, or in memory that the caller keeps
// alive until the slot is done. For images in memory, ImageReads::file is an index into `memory`.
struct ImageBytes {
  ImageBytes(std::shared_ptr<FileSet> in_files) : files(std::move(in_files)) {}
  ImageBytes(std::vector<ImageMemory> parts, bool in_planes)
      : memory(std::move(parts)), planar(in_planes) {}

  std::shared_ptr<FileSet> files;  // null: the images are in memory
  std::vector<ImageMemory> memory;
  bool planar = false;  // raw images in memory are (channels, height, width)
};

// An image of its own size, in memory that the worker allocated.
struct OwnedImage {
  std::unique_ptr<std::uint8_t[]> pixels;
  std::int32_t height = 0, width = 0;
};

// A view: one of the output images that are made of each stored image, and where it is written.
struct SlotView {
  std::shared_ptr<const Chain> chain;
  // Consecutive rows of height x width pixels. Null: the images keep their own sizes.
  std::uint8_t* out = nullptr;
  std::int32_t height = 0, width = 0;
  StoreSpec store{};
};

class ImageSlot : public Slot {
 public:
  // views: at least one. codebook: may be null if no row is a block record. Rows whose codec is
  // Codec::encoded are not decoded here: their status is Code::foreign from the beginning, and
  // Python fills them. The views of `task` are replaced by `views`.
  ImageSlot(ImageBytes bytes, std::vector<SlotView> views, std::shared_ptr<const Codebook> codebook,
            ImageTask task, ImageReads reads);

  int channels(std::size_t view) const { return task_.out_channels(view); }
  Layout layout(std::size_t view) const { return views_[view].store.layout; }
  std::size_t views() const { return views_.size(); }

  DirectRange direct(std::size_t row, OpenFiles& open) const override;
  void fill(std::size_t begin, std::size_t end, Worker& worker) override;
  // Omits rows that are read directly. For a large block record, returns only its beginning, with
  // the header, which determines what else is read.
  std::vector<WantedRange> wanted() const override;
  bool in_memory() const override;
  void ask_for(const WantedRange& range) const override;

  // Call these only after wait() has returned true. take() moves the image of a row out of the
  // slot, so only the first call returns it; any thread may call it.
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
  // The images of each view without memory of the caller's, by row. Guarded by taking_ once all
  // rows are done.
  std::vector<std::vector<OwnedImage>> images_;
};

}  // namespace fastio
