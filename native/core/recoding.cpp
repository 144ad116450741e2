#include "recoding.h"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "block_encoder.h"
#include "crc32c.h"
#include "jpeg_coefficients.h"

namespace fastio {
namespace {

// The time to wait for threads whose results are no longer needed.
constexpr std::chrono::milliseconds kEnd{50};

std::int64_t thread_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Makes the calling thread run only while a processor would be idle.
void become_idle() {
#ifdef SCHED_IDLE
  const sched_param none{};
  if (::sched_setscheduler(0, SCHED_IDLE, &none) == 0) return;
#endif
  static_cast<void>(::nice(19));
}

}  // namespace

// The state that the threads of a Recoding share.
struct RecodingState {
  JpegPlaces places;
  std::shared_ptr<const Codebook> codebook;
  std::int64_t max_pixels = 0;
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> idle_ns{0};
  std::atomic<bool> ended{false};  // told to end, or all is done

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RecodedImage> images;  // this and the members below are guarded by mutex
  std::vector<bool> done;
  std::size_t left = 0;

  std::size_t count() const { return places.file.size(); }
  bool is_done(std::size_t i) {
    const std::lock_guard lock(mutex);
    return done[i];
  }
  void finish(std::size_t i, RecodedImage image) {
    const std::lock_guard lock(mutex);
    if (done[i] || ended) return;
    done[i] = true;
    images[i] = std::move(image);
    if (--left == 0) ended = true;
    if (ended) changed.notify_all();
  }
};

namespace {

// The memory that a thread keeps from one image to the next.
class Worker {
 public:
  explicit Worker(std::shared_ptr<RecodingState> state)
      : state_(std::move(state)), encoder_(*state_->codebook) {}

  // Encodes image i, and returns the processor time that it took. Catches all exceptions: if one
  // ended the thread, the image would never be done.
  std::int64_t encode(std::size_t i) {
    const std::int64_t begin = thread_ns();
    RecodedImage image;
    try {
      make(i, image);
    } catch (const std::exception&) {
      image = RecodedImage();
    }
    bytes_.shrink(kKeep);
    state_->finish(i, std::move(image));
    return thread_ns() - begin;
  }

  RecodingState& state() { return *state_; }

 private:
  static constexpr std::size_t kKeep = 8 << 20;

  void make(std::size_t i, RecodedImage& image) {
    const JpegPlaces& in = state_->places;
    Status status = in.files->read(in.file[i], in.offset[i], in.length[i], bytes_);
    if (status.ok())
      status = read_coefficients(bytes_.data(), bytes_.size(), coefficients_, state_->max_pixels);
    if (status.ok()) status = encoder_.encode(coefficients_, image.record);
    if (status.ok()) {
      image.height = coefficients_.shape.height;
      image.width = coefficients_.shape.width;
      image.orientation = coefficients_.orientation;
      image.crc32c = crc32c(image.record.data(), image.record.size());
    } else {
      image.record.clear();
    }
  }

  std::shared_ptr<RecodingState> state_;
  BlockEncoder encoder_;
  JpegCoefficients coefficients_;
  Buffer bytes_;
};

void work_idle(Worker& worker) {
  become_idle();
  RecodingState& all = worker.state();
  while (!all.ended) {
    const std::size_t i = all.next++;
    if (i >= all.count()) return;
    all.idle_ns += worker.encode(i);
  }
}

void work_and_rest(Worker& worker, double share) {
  RecodingState& all = worker.state();
  const auto rest = [&all, share](std::int64_t worked_ns) {
    const auto pause = static_cast<std::int64_t>(static_cast<double>(worked_ns) * (1 / share - 1));
    std::unique_lock lock(all.mutex);
    all.changed.wait_for(lock, std::chrono::nanoseconds(pause),
                         [&all] { return all.ended.load(); });
  };
  for (std::size_t i = all.next++; i < all.count() && !all.ended; i = all.next++)
    rest(worker.encode(i));
  // The remaining images were begun by idle threads.
  for (std::size_t i = 0; i < all.count() && !all.ended; ++i)
    if (!all.is_done(i)) rest(worker.encode(i));
}

}  // namespace

Recoding::Recoding(JpegPlaces places, std::shared_ptr<const Codebook> codebook,
                   std::int64_t max_pixels)
    : state_(std::make_shared<RecodingState>()), pid_(::getpid()) {
  state_->places = std::move(places);
  state_->codebook = std::move(codebook);
  state_->max_pixels = max_pixels;
  state_->left = state_->count();
  state_->images.resize(state_->count());
  state_->done.resize(state_->count());
  state_->ended = state_->left == 0;
}

Recoding::~Recoding() {
  if (::getpid() != pid_) {
    static_cast<void>(new std::shared_ptr<RecodingState>(std::move(state_)));
    return;
  }
  stop();
}

void Recoding::start_idle(int threads) {
  for (int i = 0; i < threads; ++i)
    crew_.start([worker = std::make_shared<Worker>(state_)] { work_idle(*worker); });
}

void Recoding::start_resting(int threads, double share) {
  for (int i = 0; i < threads; ++i)
    crew_.start(
        [worker = std::make_shared<Worker>(state_), share] { work_and_rest(*worker, share); });
}

bool Recoding::wait(std::chrono::nanoseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, timeout, [this] { return state_->ended.load(); });
  return state_->left == 0;
}

void Recoding::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
    state_->changed.notify_all();
  }
  crew_.end(kEnd);
}

std::int64_t Recoding::idle_ns() const { return state_->idle_ns; }

std::vector<RecodedImage>& Recoding::images() { return state_->images; }

}  // namespace fastio
