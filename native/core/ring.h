// An io_uring, used directly through its system calls, so that the kernel reads while the thread
// does other work.
#pragma once

#include <cstddef>
#include <cstdint>

struct io_uring_sqe;
struct io_uring_cqe;

namespace fastio {

// Not thread-safe: only the thread that called open() may use it. The caller must not have more
// than `depth` reads in flight, and must keep the memory of each one until take() has returned it.
class Ring {
 public:
  // Returns whether this process may use io_uring: it needs Linux 5.7, and containers often forbid
  // it. The kernel is asked once.
  static bool permitted();

  Ring() = default;
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Makes a ring for `depth` reads. Returns false if the system refuses.
  bool open(unsigned depth);

  // Queues a read. The next call of submit() starts it.
  void read(int fd, std::int64_t offset, void* to, unsigned bytes, std::uint64_t tag);

  // Starts the queued reads. wait: whether to wait until at least one read is done. Returns false
  // if the ring has failed; the kernel may then still write to the memory of reads in flight.
  bool submit(bool wait);

  // Takes the next read that is done: sets its tag and its result, which is the number of bytes or
  // a negative error number. Returns false if no read is done.
  bool take(std::uint64_t& tag, std::int32_t& result);

 private:
  int fd_ = -1;
  unsigned queued_ = 0;
  void* rings_ = nullptr;  // the mapping of both rings, of submissions and of completions
  std::size_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  unsigned *submission_tail_ = nullptr, *submissions_ = nullptr, submission_mask_ = 0;
  unsigned *completion_head_ = nullptr, *completion_tail_ = nullptr, completion_mask_ = 0;
  const io_uring_cqe* completions_ = nullptr;
};

}  // namespace fastio
