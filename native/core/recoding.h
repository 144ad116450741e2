// Recodes JPEG files to block records while other threads work: with threads that run only in idle
// processor time, or with threads of normal priority that rest between images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codebook.h"
#include "crew.h"
#include "read.h"

namespace fastio {

// The JPEG files to recode, as ranges of files. All vectors have one entry per image.
struct JpegPlaces {
  std::shared_ptr<FileSet> files;
  std::vector<std::int64_t> file, offset, length;
};

// The result for one image. The record is empty if the image was not recoded, because it is
// damaged, cannot be read, has a form that records cannot hold, or there was no memory for it.
struct RecodedImage {
  std::vector<std::uint8_t> record;
  std::int32_t height = 0, width = 0;
  std::int32_t orientation = 1;  // EXIF, 1 to 8
  std::uint32_t crc32c = 0;      // of the record
};

struct RecodingState;

// Encodes some images. Not thread-safe. The destructor waits a short time for the threads. Threads
// that do not end within that time keep references to all that they use and are not waited for. In
// a forked child, where the threads do not exist, the destructor touches nothing.
class Recoding {
 public:
  Recoding(JpegPlaces places, std::shared_ptr<const Codebook> codebook, std::int64_t max_pixels);
  ~Recoding();
  Recoding(const Recoding&) = delete;
  Recoding& operator=(const Recoding&) = delete;

  // Starts threads that run only while a processor would be idle (SCHED_IDLE; on systems without
  // it, at the lowest priority).
  void start_idle(int threads);

  // Starts threads of normal priority, each of which works for `share`, in (0, 1], of the time.
  // They also encode images that an idle thread has begun but has no time to finish.
  void start_resting(int threads, double share);

  // Waits for at most `timeout`. Returns whether all images are done.
  bool wait(std::chrono::nanoseconds timeout);

  // Tells the threads to end after their present image, and waits up to 50 ms for them.
  void stop();

  // Processor time that idle threads have spent on images that are done, in nanoseconds.
  std::int64_t idle_ns() const;

  // The images, once wait() has returned true.
  std::vector<RecodedImage>& images();

 private:
  std::shared_ptr<RecodingState> state_;
  Crew crew_;
  pid_t pid_;
};

}  // namespace fastio
