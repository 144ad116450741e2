// Copies of shards, and marks of them, that all processes of one user on one machine share.
//
// It is a file in memory without a name (memfd_create), which fastio/runtime/node.py creates and
// finds. Nobody has to free it: the system does when the last process that has it open or mapped
// has ended, for whatever reason. In the file are an entry for each shard, and then the copies.
//
// - A process that wants to fill an entry claims it with a lock of the system. If it is killed, the
//   lock goes, and the next process that claims the entry begins again. Nobody waits for it.
// - An entry is published after its copy is complete: `what`, a number that identifies the file
//   that was copied, is written last. It is never changed again, and so is the copy.
// - A reader uses a copy only if `what` is the number of the file that it has opened itself. So a
//   dataset that was replaced is never read from the copy of the old one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastio {

// Thread-safe, except that one thread at a time claims, fills and releases entries. The lock
// belongs to the open file description: a forked child must not claim entries.
class NodeMemory {
 public:
  // fd: of a file of bytes_for(shards, ...) bytes or more, which cannot become smaller. It is
  // duplicated. Throws std::invalid_argument, or std::system_error where it cannot be mapped.
  NodeMemory(int fd, std::size_t shards);
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  // The size of a file for so many shards, whose copies have `data` bytes in all. What no copy was
  // written to takes no memory.
  static std::size_t bytes_for(std::size_t shards, std::size_t data);

  std::size_t shards() const { return shards_; }

  // `what` of a shard's entry; 0: it was not published.
  std::uint64_t published(std::size_t shard) const;

  // The copy of a shard, in which its entry says there are so many bytes; null if it was not
  // published, or is that of another file.
  const std::uint8_t* find(std::size_t shard, std::uint64_t what, std::size_t bytes) const;

  // Locks an entry. False: another process has it, or the system has no such locks.
  bool claim(std::size_t shard);
  void release(std::size_t shard);

  // The memory that a claimed entry's copy is to be written to, in huge pages if the system has
  // some. Null: there is no room. It can be written to while it is held.
  std::shared_ptr<std::uint8_t> room(std::size_t shard, std::size_t bytes);

  // Publishes a claimed entry. what: not 0.
  void publish(std::size_t shard, std::uint64_t what);

 private:
  struct Entry {
    std::atomic<std::uint64_t> what;
    std::uint64_t offset, bytes;  // of the copy; changed only by who has claimed the entry
  };
  struct Header {
    std::atomic<std::uint64_t> used;  // bytes of copies for which there is a place
  };
  static std::size_t data_begin(std::size_t shards);
  bool lock(std::size_t shard, short type) const;
  Entry& entry(std::size_t shard) const { return entries_[shard]; }

  const std::size_t shards_;
  int fd_ = -1;
  std::size_t size_ = 0;
  Header* header_ = nullptr;  // mapped for reading and writing, up to the first copy
  Entry* entries_ = nullptr;
  const std::uint8_t* data_ = nullptr;  // the whole file, for reading; begins with a huge page
};

}  // namespace fastio
