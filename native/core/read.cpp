#include "read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

namespace fastio {
namespace {

Status system_error(const char* what, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::not_found : Code::io;
  return Status::error(code, std::string(what) + ": " + std::strerror(error));
}

// Reads up to `length` bytes at `offset`; got < length means the end of the file.
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

// The read-ahead window that Linux gives a device where nobody set another.
constexpr std::int64_t kReadAheadWindow = 128 << 10;

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

class FileSet::Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

FileSet::FileSet(bool keep_open, std::size_t max_open)
    : keep_open_(keep_open), pid_(::getpid()), max_open_(std::max<std::size_t>(1, max_open)) {}

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

Status FileSet::open(std::int64_t file, std::shared_ptr<Descriptor>& out) {
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    if (file < 0 || static_cast<std::size_t>(file) >= paths_.size())
      return Status::error(Code::not_found, "no file number " + std::to_string(file));
    if (keep_open_) {
      if (const auto found = open_.find(file); found != open_.end()) {
        out = found->second;
        return Status::okay();
      }
    }
    path = paths_[static_cast<std::size_t>(file)];
  }
  // Non-blocking: opening a pipe would wait for its writer.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  int fd = ::open(path.c_str(), kFlags);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
    close();
    fd = ::open(path.c_str(), kFlags);
  }
  if (fd < 0) return system_error("cannot open", errno);
  try {
    out = std::make_shared<Descriptor>(fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (!keep_open_) return Status::okay();

  // Two threads may have opened the same file meanwhile: the first to come back is kept.
  const std::lock_guard lock(mutex_);
  if (open_order_.size() == open_order_.capacity())  // first, since it may throw
    open_order_.reserve(std::min(2 * open_order_.size() + 8, max_open_));
  const auto [entry, inserted] = open_.try_emplace(file, out);
  if (!inserted) {
    out = entry->second;
  } else if (open_order_.size() < max_open_) {
    open_order_.push_back(file);
  } else {
    open_.erase(open_order_[hand_]);
    open_order_[hand_] = file;
    hand_ = (hand_ + 1) % max_open_;
  }
  return Status::okay();
}

Status FileSet::read(std::int64_t file, std::int64_t offset, std::int64_t length, Buffer& out) {
  std::shared_ptr<Descriptor> descriptor;
  if (Status status = open(file, descriptor); !status.ok()) return status;
  struct stat info;
  if (::fstat(descriptor->fd(), &info) != 0) return system_error("cannot stat", errno);
  if (!S_ISREG(info.st_mode)) return Status::error(Code::io, "not a regular file");
  if (length == kWholeFile) {
    offset = 0;
    length = info.st_size;
  }
  if (offset < 0 || length < 0)
    return Status::error(Code::corrupt, "no range: " + std::to_string(length) +
                                            " bytes from byte " + std::to_string(offset));
  const std::size_t wanted = static_cast<std::size_t>(length);
  std::size_t got = 0;
  // Asked for before memory is: the range may come from a damaged file.
  if (length <= info.st_size - offset) {
    if (!out.resize(wanted))
      return Status::error(Code::memory, "no memory for " + std::to_string(length) + " bytes");
    if (Status status = read_fully(descriptor->fd(), out.data(), wanted, offset, got); !status.ok())
      return status;
  }
  if (got < wanted)
    return Status::error(Code::truncated, "the file ends too early: it has " +
                                              std::to_string(info.st_size) + " bytes, " +
                                              std::to_string(length) + " from byte " +
                                              std::to_string(offset) + " on were wanted");
  return Status::okay();
}

void FileSet::advise(std::int64_t file, std::int64_t offset, std::int64_t length) {
  if (length != kWholeFile && (offset < 0 || length <= 0)) return;
  std::shared_ptr<Descriptor> descriptor;
  // A file that cannot be opened is reported by the read that follows.
  if (const Status status = open(file, descriptor); !status.ok()) return;
  const int fd = descriptor->fd();
  if (length == kWholeFile) {
    struct stat info;
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return;
    offset = 0;
    length = info.st_size;
  }
  length = std::min(length, kMostAhead);
  if (length <= 0 || offset > INT64_MAX - length) return;
  ::posix_fadvise(fd, offset, length, POSIX_FADV_WILLNEED);
  // Linux reads no more than the device's read-ahead window for one call, whatever its length. The
  // rest again, in parts that any window holds: where it is on its way already, that costs a look.
  for (std::int64_t done = kReadAheadWindow; done < length; done += kReadAheadWindow)
    ::posix_fadvise(fd, offset + done, std::min(kReadAheadWindow, length - done),
                    POSIX_FADV_WILLNEED);
}

bool FileSet::forked() const { return ::getpid() != pid_; }

void FileSet::close() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  open_.clear();
  open_order_.clear();
  hand_ = 0;
}

}  // namespace fastio
