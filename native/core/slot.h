// One image field of one batch while threads fill it: what to decode, where to, what came out.
//
// Ownership: the pixel memory belongs to the caller, who keeps it alive until wait() said true (a
// cancelled slot too: rows in hand are finished first). Where the images' sizes differ there is no
// such memory, and the slot owns one allocation an image, to be taken over with take().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "image.h"
#include "read.h"
#include "status.h"

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

// Bytes of a file that rows of a slot will be read from.
struct WantedRange {
  std::int32_t file = 0;
  std::int64_t offset = 0, length = 0;  // or FileSet::kWholeFile
  std::size_t last_row = 0;             // of those in it; kNeverClaimed: it is not a worker's
  static constexpr std::size_t kNeverClaimed = SIZE_MAX;
};

struct OwnedImage {
  std::unique_ptr<std::uint8_t[]> pixels;
  std::int32_t height = 0, width = 0;
};

class Slot {
 public:
  // `out`: rows of out_height x out_width pixels, row i at out + i * row_bytes; null: the images
  // keep their own sizes. codebook: null where no row is a block record. Rows whose codec is
  // Codec::encoded are not touched: their status is Code::foreign from the beginning, and Python
  // fills them.
  Slot(std::shared_ptr<FileSet> files, std::shared_ptr<const Geometry> geometry,
       std::shared_ptr<const Codebook> codebook, ImageTask task, ImageReads reads,
       std::uint8_t* out, std::int32_t out_height, std::int32_t out_width);
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  std::size_t rows() const { return status_.size(); }
  int channels() const { return task_.channels; }

  // The workers' side. claim() hands out the next rows, [begin, end); false when none are left.
  bool claim(std::size_t most, std::size_t& begin, std::size_t& end);
  // fill() may be called once for a claimed row; what goes wrong is the row's status.
  void fill(std::size_t row, ImageDecoder& decoder, Buffer& scratch, ImageCounters& counters);
  void finish(std::size_t rows);  // so many claimed rows are done

  // What the rows will need, by file and offset, neighbours joined: see ReadAhead. Of a large block
  // record it is the beginning, which tells what else is needed.
  std::vector<WantedRange> wanted() const;
  // Asks the system for it, unless workers have begun with all rows of it.
  void ask_for(const WantedRange& range) const;

  // The consumer's side. cancel(): rows not yet claimed are left out. wait(): true once no thread
  // touches the slot any more, false after `timeout`.
  void cancel();
  bool wait(std::chrono::nanoseconds timeout);
  bool cancelled() const { return cancelled_.load(); }

  // After wait() said true.
  const Status& status(std::size_t row) const { return status_[row]; }
  OwnedImage take(std::size_t row) {
    return row < images_.size() ? std::move(images_[row]) : OwnedImage();
  }

 private:
  Status read(std::size_t row, Buffer& bytes, ImageCounters& counters) const;
  Status decode(std::size_t row, ImageDecoder& decoder, Buffer& scratch, ImageCounters& counters);
  static void* place(void* context, std::int32_t height, std::int32_t width);

  const std::shared_ptr<FileSet> files_;
  const std::shared_ptr<const Geometry> geometry_;
  const std::shared_ptr<const Codebook> codebook_;
  ImageTask task_;
  const ImageReads reads_;
  std::uint8_t* const out_;
  const std::int32_t out_height_, out_width_;
  std::size_t row_bytes_;

  std::vector<Status> status_;
  std::vector<OwnedImage> images_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t left_;  // rows neither finished nor cancelled; guarded by mutex_
};

}  // namespace fastio
