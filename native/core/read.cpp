#include "read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "mapping.h"

namespace fastio {
namespace {

Status system_error(const char* what, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::not_found : Code::io;
  return Status::error(code, std::string(what) + ": " + std::strerror(error));
}

// Reads `length` bytes at `offset`, or fewer (`got`) if the file ends before.
Status read_fully(int fd, std::uint8_t* out, std::size_t length, std::int64_t offset,
                  std::size_t& got) {
  got = 0;
  while (got < length) {
    const ssize_t n =
        ::pread(fd, out + got, length - got, static_cast<off_t>(offset) + static_cast<off_t>(got));
    if (n == 0) break;
    if (n < 0) {
      if (errno == EINTR) continue;
      return system_error("cannot read", errno);
    }
    got += static_cast<std::size_t>(n);
  }
  return Status::okay();
}

// The default read-ahead window of Linux for a device, in bytes.
constexpr std::int64_t kReadAheadWindow = 128 << 10;

// The bytes of a cache line.
constexpr std::int64_t kLine = 64;

// If the process has no descriptors left: the number of attempts to open a file, and the time
// between them, in which other threads may release descriptors.
constexpr int kMostAttempts = 50;
constexpr std::chrono::milliseconds kForOthers{1};

}  // namespace

bool Buffer::resize(std::size_t size) {
  if (size > SIZE_MAX - 2 * kPad) return false;
  if (size + kPad > capacity_) {
    const std::size_t wanted = std::max(size + kPad, capacity_ + capacity_ / 2);
    data_.reset();
    capacity_ = size_ = 0;
    data_.reset(new (std::nothrow) std::uint8_t[wanted]);
    if (!data_) return false;
    capacity_ = wanted;
  }
  size_ = size;
  std::memset(data_.get() + size, 0, kPad);
  return true;
}

void Buffer::shrink(std::size_t keep) {
  if (capacity_ <= keep) return;
  data_.reset();
  size_ = capacity_ = 0;
}

DirectFile::~DirectFile() { ::close(fd); }

// An open regular file, and its size when it was opened.
class Descriptor {
 public:
  Descriptor(int fd, std::int64_t size) : fd_(fd), size_(size) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  std::int64_t size() const { return size_; }

  // Returns a mapping of the whole file, or null if it cannot be mapped.
  const Mapping* mapping() const {
    std::call_once(mapped_, [this] {
      std::shared_ptr<Mapping> mapping;
      if (!Mapping::open(fd_, static_cast<std::size_t>(size_), mapping).ok()) return;
      if (!mapping->guarded()) return;
      mapping->expect_scattered();
      mapping_ = std::move(mapping);
    });
    return mapping_.get();
  }

  // Returns the file, opened for direct reads. If that is not possible, returns null and sets
  // `allowed` to false.
  const std::shared_ptr<const DirectFile>& direct(
      const std::shared_ptr<std::atomic<bool>>& allowed) const {
    std::call_once(reopened_, [&] {
      // Reopens the same file, even if its path names another one by now.
      const std::string self = "/proc/self/fd/" + std::to_string(fd_);
      const int fd = ::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
      if (fd >= 0) direct_ = std::make_shared<const DirectFile>(fd, allowed);
      if (fd < 0) allowed->store(false, std::memory_order_relaxed);
    });
    return direct_;
  }

 private:
  const int fd_;
  const std::int64_t size_;
  mutable std::once_flag mapped_, reopened_;
  mutable std::shared_ptr<const Mapping> mapping_;
  mutable std::shared_ptr<const DirectFile> direct_;
};

namespace {

Status size_of(int fd, std::int64_t& size) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return system_error("cannot stat", errno);
  if (!S_ISREG(info.st_mode)) return Status::error(Code::io, "not a regular file");
  size = info.st_size;
  return Status::okay();
}

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

bool no_descriptors(int fd) { return fd < 0 && (errno == EMFILE || errno == ENFILE); }

}  // namespace

FileStamp stamp_of(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return {};
  return {static_cast<std::int64_t>(info.st_ino), info.st_size, nanoseconds(info.st_mtim),
          nanoseconds(info.st_ctim)};
}

FileSet::FileSet(bool keep_open, std::size_t max_open, bool direct)
    : keep_open_(keep_open),
      pid_(::getpid()),
      max_open_(std::max<std::size_t>(1, max_open)),
      direct_(std::make_shared<std::atomic<bool>>(keep_open && direct)) {}

std::int64_t FileSet::add(std::vector<std::string> paths) {
  const std::lock_guard lock(mutex_);
  const std::int64_t first = static_cast<std::int64_t>(paths_.size());
  if (paths_.empty()) {
    paths_ = std::move(paths);
  } else {
    paths_.insert(paths_.end(), std::make_move_iterator(paths.begin()),
                  std::make_move_iterator(paths.end()));
  }
  return first;
}

std::size_t FileSet::size() const {
  const std::lock_guard lock(mutex_);
  return paths_.size();
}

Status FileSet::open(std::int64_t file, Shared& out) {
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    if (file < 0 || static_cast<std::size_t>(file) >= paths_.size())
      return Status::error(Code::not_found, "there is no file number " + std::to_string(file));
    if (keep_open_) {
      if (const auto found = open_.find(file); found != open_.end()) {
        out = found->second;
        return Status::okay();
      }
    }
    path = paths_[static_cast<std::size_t>(file)];
  }
  // O_NONBLOCK, because opening a pipe would wait for its writer.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  int fd = ::open(path.c_str(), kFlags);
  for (int attempt = 0; no_descriptors(fd) && attempt < kMostAttempts; ++attempt) {
    close();
    if (attempt > 0) std::this_thread::sleep_for(kForOthers);
    fd = ::open(path.c_str(), kFlags);
  }
  if (fd < 0) return system_error("cannot open", errno);
  std::int64_t size = 0;
  Status status = size_of(fd, size);
  if (!status.ok()) {
    ::close(fd);
    return status;
  }
  try {
    out = std::make_shared<const Descriptor>(fd, size);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (keep_open_) out = keep(file, std::move(out));
  return status;
}

// Keeps a descriptor, unless another thread has opened the same file in the meantime. Returns the
// descriptor that is kept.
FileSet::Shared FileSet::keep(std::int64_t file, Shared opened) {
  const std::lock_guard lock(mutex_);
  if (open_order_.size() == open_order_.capacity())  // before open_ is changed, since it may throw
    open_order_.reserve(std::min(2 * open_order_.size() + 8, max_open_));
  const auto [entry, inserted] = open_.try_emplace(file, opened);
  if (!inserted) return entry->second;
  if (open_order_.size() < max_open_) {
    open_order_.push_back(file);
  } else {
    open_.erase(open_order_[hand_]);
    open_order_[hand_] = file;
    hand_ = (hand_ + 1) % max_open_;
  }
  std::shared_ptr<OpenFiles::Table> table;
  if (paths_.size() <= max_open_) {
    table = std::make_shared<OpenFiles::Table>(paths_.size());
    for (const auto& [number, descriptor] : open_)
      (*table)[static_cast<std::size_t>(number)] = descriptor;
  }
  published_.store(table.get(), std::memory_order_relaxed);
  table_ = std::move(table);
  return opened;
}

// Returns the descriptor of an open file, without a lock if the thread's table is current. Null:
// open the file, or look it up under the lock. Relaxed order suffices for `published_`, because it
// is only compared, never dereferenced: a thread that sees an old value uses its own table, whose
// descriptors are still open.
const Descriptor* FileSet::find(std::int64_t file, OpenFiles& open) {
  const OpenFiles::Table* const published = published_.load(std::memory_order_relaxed);
  if (published != open.files_.get()) {
    open.let_go();
    if (!published) return nullptr;
    const std::lock_guard lock(mutex_);
    open.files_ = table_;
  }
  const OpenFiles::Table* const known = open.files_.get();
  if (!known || file < 0 || static_cast<std::size_t>(file) >= known->size()) return nullptr;
  return (*known)[static_cast<std::size_t>(file)].get();
}

// Finds the descriptor of a file, and opens it if necessary. `own` keeps the descriptor if it is
// not in the thread's table.
Status FileSet::find_or_open(std::int64_t file, OpenFiles& open, Shared& own,
                             const Descriptor*& found) {
  found = find(file, open);
  if (found) return Status::okay();
  open.let_go();  // its descriptors may be the only ones that can be closed
  Status status = this->open(file, own);
  found = own.get();
  return status;
}

Status FileSet::read(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out,
                     OpenFiles& open) {
  Shared own;
  const Descriptor* descriptor = nullptr;
  if (Status status = find_or_open(file, open, own, descriptor); !status.ok()) return status;
  const int fd = descriptor->fd();
  std::int64_t size = descriptor->size();
  if (length == kWholeFile) {
    if (keep_open_)
      if (Status status = size_of(fd, size); !status.ok()) return status;
    offset = 0;
    length = size;
  }
  if (offset < 0 || length < 0)
    return Status::error(Code::corrupt, "invalid range: " + std::to_string(length) +
                                            " bytes from byte " + std::to_string(offset));
  // Compare with the size before memory is allocated: the range may come from a damaged file.
  if (length > size - offset)
    if (Status status = size_of(fd, size); !status.ok()) return status;
  const std::size_t wanted = static_cast<std::size_t>(length);
  std::size_t got = 0;
  if (length <= size - offset) {
    if (!out.resize(wanted))
      return Status::error(Code::memory, "no memory for " + std::to_string(length) + " bytes");
    if (Status status = read_fully(fd, out.data(), wanted, offset, got); !status.ok())
      return status;
    if (got < wanted)  // the file was truncated after it was opened
      if (Status status = size_of(fd, size); !status.ok()) return status;
  }
  if (got < wanted)
    return Status::error(Code::truncated, "the file ends too early: it has " +
                                              std::to_string(size) + " bytes, but " +
                                              std::to_string(length) + " from byte " +
                                              std::to_string(offset) + " on are needed");
  return Status::okay();
}

bool FileSet::look_up(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out,
                      OpenFiles& open) {
  const Descriptor* const descriptor = find(file, open);
  if (!descriptor || offset < 0 || length < 0 || length > descriptor->size() - offset) return false;
  const Mapping* const mapping = descriptor->mapping();
  const auto bytes = static_cast<std::size_t>(length);
  if (!mapping || !out.resize(bytes)) return false;
  if (bytes) std::memcpy(out.data(), mapping->data() + offset, bytes);
  return true;
}

void FileSet::prefetch(std::int64_t file, std::int64_t offset, std::int64_t length,
                       OpenFiles& open) {
  const Descriptor* const descriptor = find(file, open);
  if (!descriptor || offset < 0 || length < 0 || length > descriptor->size() - offset) return;
  const Mapping* const mapping = descriptor->mapping();
  if (!mapping) return;
  const std::uint8_t* const first = mapping->data() + offset;
  for (std::int64_t at = 0; at < length; at += kLine) __builtin_prefetch(first + at, 0, 2);
}

DirectRange FileSet::direct(std::int64_t file, std::int64_t offset, std::int64_t length,
                            OpenFiles& open) {
  Shared own;
  const Descriptor* descriptor = nullptr;
  if (!reads_directly() || !find_or_open(file, open, own, descriptor).ok()) return {};
  if (offset < 0 || length < 1 || length > descriptor->size() - offset) return {};
  return {descriptor->direct(direct_), offset, length};
}

bool FileSet::in_memory(std::int64_t file, std::int64_t offset, OpenFiles& open) {
#ifdef RWF_NOWAIT
  const Descriptor* const descriptor = find(file, open);
  if (!descriptor) return false;
  char byte;
  const struct iovec to{&byte, 1};
  return ::preadv2(descriptor->fd(), &to, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
#else
  static_cast<void>(file), static_cast<void>(offset), static_cast<void>(open);
  return false;
#endif
}

void FileSet::advise(std::int64_t file, std::int64_t offset, std::int64_t length) {
  if (length != kWholeFile && (offset < 0 || length <= 0)) return;
  Shared descriptor;
  // A file that cannot be opened is reported by the read that follows.
  if (const Status status = open(file, descriptor); !status.ok()) return;
  const int fd = descriptor->fd();
  if (length == kWholeFile) {
    offset = 0;
    length = descriptor->size();
  }
  length = std::min(length, kMostAhead);
  if (length <= 0 || offset > INT64_MAX - length) return;
  ::posix_fadvise(fd, offset, length, POSIX_FADV_WILLNEED);
  // Linux reads at most the device's read-ahead window per call, whatever the length. So request
  // the rest in parts no larger than the default window. For parts that are being read already, a
  // call costs only a look-up.
  for (std::int64_t done = kReadAheadWindow; done < length; done += kReadAheadWindow)
    ::posix_fadvise(fd, offset + done, std::min(kReadAheadWindow, length - done),
                    POSIX_FADV_WILLNEED);
}

bool FileSet::forked() const { return ::getpid() != pid_; }

void FileSet::close() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  published_.store(nullptr, std::memory_order_relaxed);
  table_.reset();
  open_.clear();
  open_order_.clear();
  hand_ = 0;
}

}  // namespace fastio
