// JPEG files that become block records beside other work: by threads that take only what processor
// time nobody else wants, or by threads that rest between images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codebook.h"
#include "crew.h"
#include "read.h"

namespace fastio {

// Where JPEG files lie: ranges of files. All vectors have one entry an image.
struct JpegPlaces {
  std::shared_ptr<FileSet> files;
  std::vector<std::int64_t> file, offset, length;
};

// What became of an image. Without a record it stays as it is: it is damaged, cannot be read, or no
// record can hold it.
struct RecodedImage {
  std::vector<std::uint8_t> record;
  std::int32_t height = 0, width = 0;
  std::int32_t orientation = 1;  // EXIF, 1 to 8
  std::uint32_t crc32c = 0;      // of the record
};

struct RecodingState;

// Encodes some images. Not thread-safe. Its threads are waited for shortly when it is destroyed,
// and left alone if they do not get to their end: they hold all that they use. In a forked child,
// which has none of them, nothing of it is touched.
class Recoding {
 public:
  Recoding(JpegPlaces places, std::shared_ptr<const Codebook> codebook, std::int64_t max_pixels);
  ~Recoding();
  Recoding(const Recoding&) = delete;
  Recoding& operator=(const Recoding&) = delete;

  // Starts threads that run only while a processor would be idle (SCHED_IDLE; where the system has
  // no such thing, at the lowest priority).
  void start_idle(int threads);

  // Starts threads of normal priority, each of which works for `share`, in (0, 1], of the time.
  // They also encode what an idle thread has begun and does not get to finish.
  void start_resting(int threads, double share);

  // Returns whether all images are done, at the latest after `timeout`.
  bool wait(std::chrono::nanoseconds timeout);

  // Tells the threads to end after the image in hand.
  void stop();

  // Processor time of the idle threads' images that are done.
  std::int64_t idle_ns() const;

  // The images, once wait() has returned true.
  std::vector<RecodedImage>& images();

 private:
  std::shared_ptr<RecodingState> state_;
  Crew crew_;
  pid_t pid_;
};

}  // namespace fastio
