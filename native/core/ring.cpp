#include "ring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

namespace fastio {

#ifdef IORING_FEAT_FAST_POLL

namespace {

// Flags of Linux 6.1, defined here because the headers may be older than the kernel. With them,
// completions are processed only when the thread calls io_uring_enter(), and do not interrupt it at
// other times.
constexpr unsigned kSingleIssuer = 1u << 12, kDeferTaskRun = 1u << 13;

// A submission may also fail because of a temporary lack of memory: the number of attempts, and the
// time between them.
constexpr int kMostAttempts = 200;
constexpr std::chrono::milliseconds kForMemory{1};

int setup(unsigned depth, unsigned flags, io_uring_params& params) {
  params = {};
  params.flags = flags;
  return static_cast<int>(::syscall(__NR_io_uring_setup, depth, &params));
}

void* map(int fd, std::size_t bytes, off_t what) {
  void* const found =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
  if (found == MAP_FAILED) return nullptr;
  ::madvise(found, bytes, MADV_DONTFORK);  // a child must not use the parent's ring
  return found;
}

}  // namespace

bool Ring::permitted() {
  static const bool found = [] {
    io_uring_params params;
    const int fd = setup(1, 0, params);
    if (fd >= 0) ::close(fd);
    // FAST_POLL came with 5.7; 5.6 has reads into plain memory, but nothing says so.
    return fd >= 0 && (params.features & IORING_FEAT_SINGLE_MMAP) != 0 &&
           (params.features & IORING_FEAT_FAST_POLL) != 0;
  }();
  return found;
}

bool Ring::open(unsigned depth) {
  io_uring_params params;
  fd_ = setup(depth, kSingleIssuer | kDeferTaskRun, params);
  if (fd_ < 0 && errno == EINVAL) fd_ = setup(depth, 0, params);
  if (fd_ < 0) return false;
  const std::size_t submissions = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const std::size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  rings_bytes_ = submissions > completions ? submissions : completions;
  rings_ = map(fd_, rings_bytes_, IORING_OFF_SQ_RING);
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  entries_ = static_cast<io_uring_sqe*>(map(fd_, entries_bytes_, IORING_OFF_SQES));
  if (!rings_ || !entries_) return false;
  auto* const base = static_cast<std::uint8_t*>(rings_);
  const auto word = [base](unsigned at) { return reinterpret_cast<unsigned*>(base + at); };
  submission_tail_ = word(params.sq_off.tail);
  submissions_ = word(params.sq_off.array);
  submission_mask_ = *word(params.sq_off.ring_mask);
  completion_head_ = word(params.cq_off.head);
  completion_tail_ = word(params.cq_off.tail);
  completion_mask_ = *word(params.cq_off.ring_mask);
  completions_ = reinterpret_cast<const io_uring_cqe*>(base + params.cq_off.cqes);
  return true;
}

Ring::~Ring() {
  if (rings_) ::munmap(rings_, rings_bytes_);
  if (entries_) ::munmap(entries_, entries_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void Ring::read(int fd, std::int64_t offset, void* to, unsigned bytes, std::uint64_t tag) {
  const unsigned tail = *submission_tail_;  // only this thread changes it
  const unsigned at = tail & submission_mask_;
  io_uring_sqe& entry = entries_[at];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = IORING_OP_READ;
  entry.fd = fd;
  entry.off = static_cast<std::uint64_t>(offset);
  entry.addr = reinterpret_cast<std::uint64_t>(to);
  entry.len = bytes;
  entry.user_data = tag;
  submissions_[at] = at;
  __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
  ++queued_;
}

bool Ring::submit(bool wait) {
  for (int attempt = 0; attempt < kMostAttempts;) {
    const bool done = __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE) != *completion_head_;
    if (queued_ == 0 && (done || !wait)) return true;
    const long submitted = ::syscall(__NR_io_uring_enter, fd_, queued_, wait && !done ? 1u : 0u,
                                     IORING_ENTER_GETEVENTS, nullptr, 0);
    if (submitted >= 0) {
      queued_ -= static_cast<unsigned>(submitted);
    } else if (errno != EINTR) {
      ++attempt;
      std::this_thread::sleep_for(kForMemory);
    }
  }
  // Not closed: if other code has closed the descriptor, its number may be that of another file.
  fd_ = -1;
  return false;
}

bool Ring::take(std::uint64_t& tag, std::int32_t& result) {
  const unsigned head = *completion_head_;  // only this thread changes it
  if (head == __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE)) return false;
  const io_uring_cqe& done = completions_[head & completion_mask_];
  tag = done.user_data;
  result = done.res;
  __atomic_store_n(completion_head_, head + 1, __ATOMIC_RELEASE);
  return true;
}

#else  // headers of a kernel without io_uring

bool Ring::permitted() { return false; }
Ring::~Ring() {}
bool Ring::open(unsigned) { return false; }
void Ring::read(int, std::int64_t, void*, unsigned, std::uint64_t) {}
bool Ring::submit(bool) { return false; }
bool Ring::take(std::uint64_t&, std::int32_t&) { return false; }

#endif

}  // namespace fastio
