// Decodes one image: from stored bytes to its row of a batch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "block_decoder.h"
#include "chain.h"
#include "jpeg.h"
#include "limits.h"
#include "pixel_runner.h"
#include "planar.h"
#include "read.h"
#include "resample.h"
#include "status.h"
#include "store.h"

namespace fastio {

// How an image is stored. The numbers are part of the disk format (the `.codec` column).
enum class Codec : std::uint8_t {
  jpeg = 0,     // a JPEG file's bytes
  raw = 1,      // uint8 (height, width, channels), row-major
  encoded = 2,  // PNG, WebP, CMYK JPEG, ...: Pillow decodes it, in Python
  blocks = 3,   // a block record
};

// One image to decode. Owns nothing.
struct ImageRequest {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0;
  // If `data` is null: the file and offset of a block record of `size` bytes, of which the decoder
  // reads the parts that it needs.
  FileSet* files = nullptr;
  OpenFiles* open = nullptr;  // of the thread
  std::int64_t file = 0, offset = 0;
  Codec codec = Codec::jpeg;
  std::uint8_t orientation = 0;        // EXIF, 1 to 8; 0: use that of the JPEG's bytes, if any
  std::int32_t height = 0, width = 0;  // of the stored pixels; required for raw, a hint for blocks
  std::int32_t channels = 3;           // of raw data: 1, 3 or 4 (the fourth is dropped)
  bool planar = false;                 // raw data is (channels, height, width)
  std::int64_t row = 0;                // keys the random draws
  // For a JPEG: its index, and the index that receives new points. Each may be null.
  const JpegIndex* index = nullptr;
  JpegIndex* found = nullptr;
};

// A view: one of the output images that are made of each stored image.
struct ViewTask {
  const Chain* chain = nullptr;
  StoreSpec store;
};

// What to make of every image of a batch: a view, and other views of the same decoded pixels.
struct ImageTask : ViewTask {
  const Codebook* codebook = nullptr;  // for block records
  std::uint64_t seed = 0, epoch = 0;
  int channels = 3;      // images are decoded to 3: RGB, or 1: gray, like Pillow's convert("L")
  int raw_channels = 3;  // of raw images as they are stored
  std::int64_t max_pixels = kAnyPixels;  // larger images are refused
  std::vector<ViewTask> others;

  std::size_t views() const { return 1 + others.size(); }
  const ViewTask& view(std::size_t i) const { return i ? others[i - 1] : *this; }
  int out_channels(std::size_t i) const {  // channels of view i in the batch
    return view(i).chain->channels(channels);
  }
};

// A counter that one thread increments, without an atomic addition, and that any thread may read.
class Count {
 public:
  void add(std::uint64_t n) { value_.store(load() + n, std::memory_order_relaxed); }
  std::uint64_t load() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Counts of one thread, and times in nanoseconds.
struct ImageCounters {
  Count images, bytes, read_ns, decode_ns, resample_ns;
  Count augment_ns;  // of operations on pixels
};

// Decodes, crops, resamples and stores one image at a time. Not thread-safe: each thread has its
// own. It keeps its scratch memory between images, at most kKeep bytes per buffer of pixels.
class ImageDecoder {
 public:
  explicit ImageDecoder(ImageCounters& counters) : counters_(counters) {}

  // Returns the memory for a view's pixels, store_bytes() of them, or null to refuse the size.
  // decode() calls it once for each view, in order, before it writes any.
  using Place = void* (*)(void* context, std::int32_t height, std::int32_t width);

  // Decodes an image to all views. Buffer::kPad readable bytes must follow those of the request.
  // Returns Code::foreign if this decoder does not support the image. If the status is not ok, some
  // of the pixels may have been written.
  //
  // The planes of block records, and those of baseline JPEGs in views that are resampled, are
  // resampled before colours are converted. Other views of a JPEG have libjpeg's pixels.
  //
  // A JPEG is decoded once for all its views, at the smallest reduction that one of them allows, or
  // twice if some views are resampled and others are not. A block record is decoded once for each
  // group of views that overlap enough.
  Status decode(const ImageTask& task, const ImageRequest& request, Place place, void* context);

 private:
  // One axis of the upright image.
  struct Axis {
    AxisSpec spec;                  // of the crop at the decoded scale
    std::int32_t crop_begin = 0;    // the offset of spec's first sample in the decoded image
    std::int32_t zeros_before = 0;  // padding at the beginning of the window
    bool empty = false;             // the whole window is padding
    bool padded = false;            // a part of the window, or all of it, is padding
  };
  // How a stored image is read.
  struct Reading {
    std::int32_t stored_height = 0, stored_width = 0;  // of the whole image at the decoded scale
    int orientation = 1, denominator = 1;
    int source_channels = 3, channels = 3;  // of the stored image; of the pixels to be resampled
    const BlockShape* shape = nullptr;      // that of the planes; null: there are only pixels
  };
  // The plan for one view of the upright image, complete before pixels are decoded.
  struct View {
    const ViewTask* task = nullptr;
    int out_channels = 3;
    DrawnChain drawn;
    CropPlan plan;  // of the current crop
    void* out = nullptr;
    Rect region;                     // upright pixels at the decoded scale
    std::int32_t top = 0, left = 0;  // zeros before the resampled part of the window
    bool empty = false;              // the whole window is padding
    bool padded = false;             // a part of the window, or all of it, is padding
    bool by_planes = false;          // planes are resampled, and not pixels
    Resampler resampler;
    PlanarResampler planar;  // of planes
    PlaneRegion planes;
    std::int32_t rows = 0, columns = 0;  // of the resampled upright result

    bool augmented() const { return !drawn.ops.empty(); }
  };

  // Pixels in memory: the first one, and the bytes from one row to the next.
  struct Pixels {
    const std::uint8_t* first = nullptr;
    std::ptrdiff_t stride = 0;
  };

  Status open(const ImageTask& task, const ImageRequest& request, Reading& reading);
  Status open_jpeg(const ImageRequest& request, Reading& reading);
  Status open_raw(const ImageRequest& request, Reading& reading) const;
  Status draw(const ImageTask& task, const ImageRequest& request, const Reading& reading);
  void divide_views(const ImageRequest& request, Reading& reading);
  Status place(Place place, void* context);

  // Views that are made from pixels; in image_pixels.cpp.
  Status decode_pixels(const ImageTask& task, const ImageRequest& request, const Reading& reading);
  Status plan(const ImageRequest& request, Reading& reading);
  Status plan_pixels(const Reading& reading, View& view);
  Status plan_axis(const Reading& reading, const CropPlan& plan, bool vertical, double begin,
                   double size, std::int32_t limit, Axis& axis) const;
  Status read_region(const ImageRequest& request, const Reading& reading, const Rect& upright,
                     Pixels& out);
  Status interleave(const ImageRequest& request, const Reading& reading, const Rect& region,
                    Pixels& out);
  Status turn_upright(const Reading& reading, const Rect& upright, Pixels& pixels);
  Status convert(const Reading& reading, const Rect& upright, Pixels& pixels);
  Status finish(const ImageTask& task, const Reading& reading, const Pixels& pixels, View& view);

  // Views that are made from planes; in image_planes.cpp.
  struct Reductions {
    int luma, chroma;
  };
  Status decode_planes(const ImageTask& task, const ImageRequest& request, const Reading& reading);
  Status open_blocks(const ImageTask& task, const ImageRequest& request, Reading& reading);
  Status plan_planes(const ImageRequest& request, const Reading& reading);
  Status plan_view(const Reading& reading, const Reductions& reduced, View& view);
  void group_views(bool all);
  Status read_planes(const ImageRequest& request, const PlaneRegion& region, PlaneView* planes);
  Status fetch(const ImageRequest& request, const ByteRange& range, Buffer& scratch,
               const std::uint8_t*& bytes);

  // The memory for the first crop: View::out, or a buffer, which deliver() converts to the form of
  // the batch. Images that are augmented have one plane for each channel of the batch.
  struct Window {
    std::uint8_t* pixels = nullptr;
    std::uint8_t* first = nullptr;         // the first resampled pixel, inside the padding
    std::ptrdiff_t stride = 0, plane = 0;  // in bytes; plane 0: channels are interleaved
  };
  Status place_result(const ImageTask& task, const Reading& reading, const View& view,
                      Window& window);
  Status deliver(const ImageTask& task, const Reading& reading, const Window& window, View& view);
  Status deliver_augmented(const ImageTask& task, const Reading& reading, const Window& window,
                           View& view);
  Status augment(View& view, Planes& image);
  Status crop_again(const CropPlan& plan, View& view, Planes& image);
  Status pad(const DrawnOp& drawn, Planes& image);

  Status finish_planes(const ImageTask& task, const Reading& reading, const PlaneView* planes,
                       View& view);
  Status turn_planes(const Reading& reading, const PlaneView* planes, const Window& window,
                     View& view);

  static constexpr std::size_t kKeep = 32u << 20;

  // Views that are decoded together, and the region of the planes that they need.
  struct Group {
    PlaneRegion region;
    std::vector<std::size_t> views;
  };

  ImageCounters& counters_;
  JpegDecoder jpeg_;
  std::size_t count_ = 0;   // the number of views_ that the current image has
  std::deque<View> views_;  // a deque, because views must not move
  PixelRunner pixels_;
  BlockDecoder blocks_;
  std::vector<Group> groups_;
  std::size_t group_count_ = 0;
  void shrink();

  Buffer block_, upright_, packed_, result_;
  Buffer moved_, stored_;   // for images whose size changes; for conversion to another layout
  Buffer header_, dc_;      // parts of a block record
  std::vector<Buffer> ac_;  // ranges of its AC section
  std::vector<const std::uint8_t*> ac_bytes_;
};

}  // namespace fastio
