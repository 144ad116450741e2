// One image field of one batch while threads fill it: what to decode, where to, what came out.
//
// Where the images' sizes differ there is no memory of the caller's, and the slot owns one
// allocation an image, to be taken over with take().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "slot.h"

namespace fastio {

// The reads of a batch, one entry a row; all vectors have the same length.
struct ImageReads {
  std::vector<std::int32_t> file;
  std::vector<std::int64_t> offset, length;  // or FileSet::kWholeFile
  std::vector<std::uint8_t> codec, orientation;
  std::vector<std::int32_t> height, width;
  std::vector<std::int64_t> row;
  std::vector<std::uint32_t> crc32c;  // of the bytes; empty: they have no checksums
};

struct OwnedImage {
  std::unique_ptr<std::uint8_t[]> pixels;
  std::int32_t height = 0, width = 0;
};

class ImageSlot : public Slot {
 public:
  // `out`: rows of out_height x out_width pixels, row i at out + i * row_bytes; null: the images
  // keep their own sizes. codebook: null where no row is a block record. Rows whose codec is
  // Codec::encoded are not touched: their status is Code::foreign from the beginning, and Python
  // fills them.
  ImageSlot(std::shared_ptr<FileSet> files, std::shared_ptr<const Chain> chain,
            std::shared_ptr<const Codebook> codebook, ImageTask task, ImageReads reads,
            std::uint8_t* out, std::int32_t out_height, std::int32_t out_width);

  int channels() const { return task_.out_channels(); }
  Layout layout() const { return task_.store.layout; }

  void fill(std::size_t begin, std::size_t end, Worker& worker) override;
  // Of a large block record it is the beginning, which tells what else is needed.
  std::vector<WantedRange> wanted() const override;
  void ask_for(const WantedRange& range) const override;

  // After wait() said true. take(): an image goes to the first who asks, from whatever thread.
  const Status& status(std::size_t row) const { return status_[row]; }
  OwnedImage take(std::size_t row);

 protected:
  std::vector<Failure> noted() const override;

 private:
  Status read(std::size_t row, Buffer& bytes, ImageCounters& counters) const;
  Status decode(std::size_t row, Worker& worker);
  static void* place(void* context, std::int32_t height, std::int32_t width);

  const std::shared_ptr<FileSet> files_;
  const std::shared_ptr<const Chain> chain_;
  const std::shared_ptr<const Codebook> codebook_;
  ImageTask task_;
  const ImageReads reads_;
  std::uint8_t* const out_;
  const std::int32_t out_height_, out_width_;
  std::size_t row_bytes_;

  std::vector<Status> status_;
  std::mutex taking_;
  std::vector<OwnedImage> images_;  // guarded by taking_, once all are there
};

}  // namespace fastio
