// Copies of shards that all processes of one user on one machine share.
//
// They are in an anonymous file in memory (memfd_create), which fastio/runtime/node.py creates and
// finds. The system frees it when the last process that has it open or mapped has ended, for
// whatever reason. The file contains an entry for each shard, and then the copies.
//
// - A process claims an entry with a file lock before it fills it. If the process is killed, the
//   lock is released, and the next process that claims the entry starts again. No process waits for
//   another one.
// - An entry is published after its copy is complete: `what`, a number that identifies the file
// that
//   was copied, is written last. After that, neither the entry nor the copy is changed.
// - A reader uses a copy only if `what` is the number of the file that it has opened itself, so
// that
//   a dataset that was replaced is never read from a copy of the old one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastio {

// Thread-safe, except that only one thread at a time may claim, fill and release entries. Locks
// belong to the open file description, so a forked child must not claim entries.
class NodeMemory {
 public:
  // fd: a file of at least bytes_for(shards, ...) bytes, which must be sealed against shrinking.
  // The descriptor is duplicated. Throws std::invalid_argument if the file is too small, and
  // std::system_error if it cannot be mapped.
  NodeMemory(int fd, std::size_t shards);
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  // Returns the size of a file for `shards` shards, whose copies have `data` bytes in total. Unused
  // parts of the file take no memory.
  static std::size_t bytes_for(std::size_t shards, std::size_t data);

  std::size_t shards() const { return shards_; }

  // Returns `what` of a shard's entry, or 0 if it is not published.
  std::uint64_t published(std::size_t shard) const;

  // Returns the copy of a shard, or null if it is not published, is the copy of another file, or
  // has another size.
  const std::uint8_t* find(std::size_t shard, std::uint64_t what, std::size_t bytes) const;

  // Locks an entry. Returns false if another process has locked it, or if the system does not
  // support such locks.
  bool claim(std::size_t shard);
  void release(std::size_t shard);

  // Returns the memory for the copy of a claimed entry, in huge pages if possible, or null if there
  // is no room. It is writable as long as the pointer is kept.
  std::shared_ptr<std::uint8_t> room(std::size_t shard, std::size_t bytes);

  // Publishes a claimed entry. what: not 0.
  void publish(std::size_t shard, std::uint64_t what);

 private:
  struct Entry {
    std::atomic<std::uint64_t> what;
    std::uint64_t offset, bytes;  // of the copy; changed only by the process that has the claim
  };
  struct Header {
    std::atomic<std::uint64_t> used;  // bytes that are allocated to copies
  };
  static std::size_t data_begin(std::size_t shards);
  bool lock(std::size_t shard, short type) const;
  Entry& entry(std::size_t shard) const { return entries_[shard]; }

  const std::size_t shards_;
  int fd_ = -1;
  std::size_t size_ = 0;
  Header* header_ = nullptr;  // mapped for reading and writing, up to the first copy
  Entry* entries_ = nullptr;
  const std::uint8_t* data_ = nullptr;  // the whole file, read-only, aligned to a huge page
};

}  // namespace fastio
