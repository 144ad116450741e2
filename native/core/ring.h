// Reads that the kernel does while a thread goes on: an io_uring, by its system calls.
#pragma once

#include <cstddef>
#include <cstdint>

struct io_uring_sqe;
struct io_uring_cqe;

namespace fastio {

// For the thread that made it. The caller keeps no more than `depth` reads, and their memory, until
// take() returned each of them.
class Ring {
 public:
  // Returns whether this process may use io_uring: kernels before 5.6 do not have it, and
  // containers often forbid it. The kernel is asked once.
  static bool permitted();

  Ring() = default;
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Makes a ring for so many reads. Returns false if the system refuses.
  bool open(unsigned depth);

  // Queues a read, which begins with the next call of submit().
  void read(int fd, std::int64_t offset, void* to, unsigned bytes, std::uint64_t tag);

  // Begins the reads that were queued, and waits until take() has at least one, if asked to.
  // Returns false if the ring does not work any more; the kernel may still write to the memory of
  // reads.
  bool submit(bool wait);

  // Returns the next read that is done: its tag and the number of bytes, or minus an error number.
  bool take(std::uint64_t& tag, std::int32_t& result);

 private:
  int fd_ = -1;
  unsigned queued_ = 0;
  void* rings_ = nullptr;  // of submissions and of completions
  std::size_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  unsigned *submission_tail_ = nullptr, *submissions_ = nullptr, submission_mask_ = 0;
  unsigned *completion_head_ = nullptr, *completion_tail_ = nullptr, completion_mask_ = 0;
  const io_uring_cqe* completions_ = nullptr;
};

}  // namespace fastio
