// Reads local files, which are identified by numbers: byte ranges of shards, whose descriptors stay
// open up to a limit, or whole small files, which are opened for each read.
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

// A byte buffer that one thread reuses, so that the steady state allocates nothing. Its bytes are
// always followed by kPad zeros, because kernels may read past the end.
class Buffer {
 public:
  static constexpr std::size_t kPad = 128;

  std::uint8_t* data() { return data_.get(); }
  const std::uint8_t* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  // Makes room for `size` bytes and the padding. The contents become undefined. Returns false if
  // there is not enough memory.
  bool resize(std::size_t size);

  // Frees the memory if it has more than `keep` bytes, as after an unusually large image.
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

// Thread-safe. Files have the numbers that add() returned. keep_open: whether files stay open, as
// for shards, until more than `max_open` are open or the process has no descriptors left; otherwise
// they are opened for each read, as for the images of a folder. The first read of each file takes a
// lock, and every read does in a set of more than `max_open` files.
class FileSet {
 public:
  static constexpr std::int64_t kWholeFile = -1;  // as a length

  // direct: whether direct() may return ranges of files that stay open, to be read past the page
  // cache.
  explicit FileSet(bool keep_open, std::size_t max_open = 256, bool direct = false);
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  // Returns the first of the consecutive numbers given to `paths`.
  std::int64_t add(std::vector<std::string> paths);
  std::size_t size() const;

  // Reads [offset, offset + length) of a regular file, or all of it if `length` is kWholeFile.
  // Returns Code::truncated if the file has fewer bytes, and Code::corrupt if offset or length is
  // negative. If an open file seems too short, its size is read again.
  Status read(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out,
              OpenFiles& open);
  Status read(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out) {
    OpenFiles open;
    return read(file, offset, length, out, open);
  }

  // Copies [offset, offset + length) of an open file from a mapping of it, without a system call.
  // Returns false if that is not possible: use read() then. If the file was truncated or cannot be
  // read, the copy contains zeros and no error is reported, so use this only for bytes that have a
  // checksum.
  bool look_up(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out,
               OpenFiles& open);

  // Prefetches bytes that look_up() will copy soon into the processor's cache.
  void prefetch(std::int64_t file, std::int64_t offset, std::int64_t length, OpenFiles& open);

  // Whether direct reads were requested, and the file system has not refused one yet.
  bool reads_directly() const { return direct_->load(std::memory_order_relaxed); }

  // Returns a range to read directly of a file that stays open. If this is not possible, or if the
  // range does not lie in the file, the result has no file: use read() then.
  DirectRange direct(std::int64_t file, std::int64_t offset, std::int64_t length, OpenFiles& open);

  // Returns whether the byte at `offset` is in the page cache, without waiting. False for a file
  // that is not known to be open.
  bool in_memory(std::int64_t file, std::int64_t offset, OpenFiles& open);

  // Asks the system to read a range, or a whole file, into the page cache: at most kMostAhead
  // bytes. Does not wait for the reads, but opens a file that is not open, which may wait for its
  // directory.
  static constexpr std::int64_t kMostAhead = 32 << 20;
  void advise(std::int64_t file, std::int64_t offset, std::int64_t length);

  // Closes all descriptors. Those that a thread references in an OpenFiles are closed when the
  // thread releases them or reads from the set again. Does nothing in a forked child, where the
  // lock may appear held by a thread of the parent.
  void close();

  // Whether the current process was forked from the one that created the set. The set must then
  // neither be used nor destroyed.
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
  std::vector<std::int64_t> open_order_;  // a ring; the file at hand_ is closed next
  std::size_t hand_ = 0;
  // The contents of open_, published for threads to copy. Only for sets in which no file is
  // evicted.
  std::shared_ptr<const OpenFiles::Table> table_;
  std::atomic<const OpenFiles::Table*> published_{
      nullptr};  // table_, to be compared without a lock
};

}  // namespace fastio
