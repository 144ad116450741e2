// Local files by number. Workers read byte ranges of shards (whose descriptors are kept, up to a
// bound) or whole small files (opened, read, closed).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "status.h"

namespace fastio {

// A file that is open for direct reads (O_DIRECT). The address, offset and length of such a read
// must be multiples of a block.
struct DirectFile {
  DirectFile(int descriptor, std::shared_ptr<std::atomic<bool>> of_set)
      : fd(descriptor), allowed(std::move(of_set)) {}
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  const int fd;
  const std::shared_ptr<std::atomic<bool>> allowed;  // of its FileSet; see reads_directly()
};

// A range of a file to read directly. Without a file, the range is not to be read directly.
struct DirectRange {
  static constexpr std::int64_t kMostBytes = 1 << 20;  // of one direct read

  std::shared_ptr<const DirectFile> file;
  std::int64_t offset = 0, length = 0;
};

// A growing byte buffer of one thread: kept between images so that the steady state allocates
// nothing, and always followed by kPad zero bytes, so that kernels may read a little too far.
class Buffer {
 public:
  static constexpr std::size_t kPad = 128;

  std::uint8_t* data() { return data_.get(); }
  const std::uint8_t* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  // Makes room for `size` bytes and the padding; the contents are undefined. False: no memory.
  bool resize(std::size_t size);

  // Gives the memory back if it holds more than `keep` bytes (after an unusually large image).
  void shrink(std::size_t keep);

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

// Identifies a version of a file: it differs if the file was replaced or changed. All values are -1
// if there is no such file.
struct FileStamp {
  std::int64_t inode = -1, size = -1, modified_ns = -1, changed_ns = -1;
};
FileStamp stamp_of(const std::string& path);

class Descriptor;

// One thread's references to the open descriptors of a set, with which its reads take no lock and
// change no counter that other threads use. Not thread-safe. The descriptors stay open as long as
// they are referenced, so a thread calls let_go() before it waits for work.
class OpenFiles {
 public:
  void let_go() { files_.reset(); }

 private:
  friend class FileSet;
  // By the number of the file; null: it was not open. Never changed.
  using Table = std::vector<std::shared_ptr<const Descriptor>>;
  std::shared_ptr<const Table> files_;
};

// Thread-safe. A file is known by the number that add() returned. `keep_open` files (shards) keep
// their descriptor until more than `max_open` are open, or the process has no more; the others (a
// folder's images) are opened for each read. Reads of a set of more than `max_open` files, and the
// first one of each file, take a lock.
class FileSet {
 public:
  static constexpr std::int64_t kWholeFile = -1;  // as a length

  // direct: whether kept files are read past the page cache if the system supports it.
  explicit FileSet(bool keep_open, std::size_t max_open = 256, bool direct = false);
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  // Returns the first of the consecutive numbers given to `paths`.
  std::int64_t add(std::vector<std::string> paths);
  std::size_t size() const;

  // Reads [offset, offset + length) of `file`, which must be a regular one; length kWholeFile reads
  // all of it. Fewer bytes in the file than asked for are Code::truncated. A range that is no range
  // is Code::corrupt. The size of a kept file is read again if the file seems too short.
  Status read(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out,
              OpenFiles& open);
  Status read(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out) {
    OpenFiles open;
    return read(file, offset, length, out, open);
  }

  // Copies [offset, offset + length) of a kept file from a mapping of it, without a system call.
  // Returns false if that is not possible: use read() then. If the file was cut off or cannot be
  // read, the copy is wrong without an error, so use this only for bytes that have a checksum.
  bool look_up(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out,
               OpenFiles& open);

  // Asks the processor for bytes that look_up() will copy soon.
  void prefetch(std::int64_t file, std::int64_t offset, std::int64_t length, OpenFiles& open);

  // Whether direct reads are wanted, and the file system has not refused one yet.
  bool reads_directly() const { return direct_->load(std::memory_order_relaxed); }

  // Returns a range of a kept file to read directly. If this is not possible, or if the range does
  // not lie in the file, the result has no file: use read() then.
  DirectRange direct(std::int64_t file, std::int64_t offset, std::int64_t length, OpenFiles& open);

  // Returns whether the byte at `offset` is in the page cache, without waiting. False for a file
  // that is not known to be open.
  bool in_memory(std::int64_t file, std::int64_t offset, OpenFiles& open);

  // Tells the system that a range, or all of a file, will be wanted soon: it begins to read what it
  // has not cached, kMostAhead bytes at most, and does not wait for that. A file that is not kept
  // open is opened, which may wait for its directory.
  static constexpr std::int64_t kMostAhead = 32 << 20;
  void advise(std::int64_t file, std::int64_t offset, std::int64_t length);

  // Closes every kept descriptor. Descriptors that a thread references in an OpenFiles are closed
  // when the thread releases them or reads from the set again. Does nothing in a forked child,
  // where a thread of the parent may have left the lock held.
  void close();

  // Whether this is a child of the process that the set was made in: neither to be used nor
  // destroyed there.
  bool forked() const;

 private:
  using Shared = std::shared_ptr<const Descriptor>;
  Status open(std::int64_t file, Shared& out);
  Shared keep(std::int64_t file, Shared opened);
  const Descriptor* find(std::int64_t file, OpenFiles& open);
  Status find_or_open(std::int64_t file, OpenFiles& open, Shared& own, const Descriptor*& found);

  const bool keep_open_;
  const pid_t pid_;
  const std::size_t max_open_;
  const std::shared_ptr<std::atomic<bool>> direct_;
  mutable std::mutex mutex_;
  std::vector<std::string> paths_;
  std::unordered_map<std::int64_t, Shared> open_;
  std::vector<std::int64_t> open_order_;  // ring: the next to be closed stands at hand_
  std::size_t hand_ = 0;
  // The contents of open_, published for threads to copy. Only for sets in which no file is
  // evicted.
  std::shared_ptr<const OpenFiles::Table> table_;
  std::atomic<const OpenFiles::Table*> published_{
      nullptr};  // table_, to be compared without a lock
};

}  // namespace fastio
