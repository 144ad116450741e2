#include "node_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace fastio {
namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr std::size_t kPlace = 64u << 10;  // the alignment of copies: a multiple of any page size
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;  // Linux 6.1; older systems refuse it
#endif

constexpr std::size_t rounded(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Maps bytes [0, size) of a file for reading, at an address that is aligned to a huge page.
const std::uint8_t* mapped(int fd, std::size_t size) {
  const std::size_t wanted = rounded(size, kHugePage);
  void* const room = ::mmap(nullptr, wanted + kHugePage, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t aligned = rounded(begin, kHugePage);
  if (aligned > begin) ::munmap(room, aligned - begin);
  const std::uintptr_t end = begin + wanted + kHugePage;
  if (end > aligned + wanted)
    ::munmap(reinterpret_cast<void*>(aligned + wanted), end - aligned - wanted);
  void* const data =
      ::mmap(reinterpret_cast<void*>(aligned), size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    ::munmap(reinterpret_cast<void*>(aligned), wanted);
    return nullptr;
  }
#ifdef MADV_HUGEPAGE
  ::madvise(data, size, MADV_HUGEPAGE);
#endif
  return static_cast<const std::uint8_t*>(data);
}

// Allocates memory for bytes of a file in memory. Returns false if there is none. Without this, the
// process would be killed by SIGBUS if there were none when it writes.
bool allocated(int fd, std::size_t at, std::size_t bytes) {
#ifdef __linux__
  while (::fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) != 0)
    if (errno != EINTR) return errno == EOPNOTSUPP;
#else
  static_cast<void>(fd), static_cast<void>(at), static_cast<void>(bytes);
#endif
  return true;
}

}  // namespace

std::size_t NodeMemory::data_begin(std::size_t shards) {
  return rounded(sizeof(Header) + shards * sizeof(Entry), kHugePage);
}

std::size_t NodeMemory::bytes_for(std::size_t shards, std::size_t data) {
  return data_begin(shards) + rounded(data + shards * kPlace, kHugePage);
}

NodeMemory::NodeMemory(int fd, std::size_t shards) : shards_(shards) {
  struct stat found;
  if (::fstat(fd, &found) != 0 || !S_ISREG(found.st_mode) ||
      static_cast<std::uint64_t>(found.st_size) < bytes_for(shards, 0))
    throw std::invalid_argument("the file is too small for so many entries");
  size_ = static_cast<std::size_t>(found.st_size) / kHugePage * kHugePage;
  fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd_ < 0) throw std::system_error(errno, std::generic_category());
  void* const header =
      ::mmap(nullptr, data_begin(shards), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  data_ = header == MAP_FAILED ? nullptr : mapped(fd_, size_);
  if (!data_) {
    const int error = errno;
    if (header != MAP_FAILED) ::munmap(header, data_begin(shards));
    ::close(fd_);
    throw std::system_error(error, std::generic_category());
  }
  header_ = static_cast<Header*>(header);
  entries_ = reinterpret_cast<Entry*>(header_ + 1);
}

NodeMemory::~NodeMemory() {
  ::munmap(header_, data_begin(shards_));
  ::munmap(const_cast<std::uint8_t*>(data_), size_);
  ::close(fd_);
}

std::uint64_t NodeMemory::published(std::size_t shard) const {
  return entry(shard).what.load(std::memory_order_acquire);
}

const std::uint8_t* NodeMemory::find(std::size_t shard, std::uint64_t what,
                                     std::size_t bytes) const {
  if (what == 0 || published(shard) != what) return nullptr;
  const Entry& found = entry(shard);
  if (found.bytes != bytes || found.offset < data_begin(shards_) || found.offset > size_ ||
      size_ - found.offset < bytes)
    return nullptr;
  return data_ + found.offset;
}

bool NodeMemory::lock(std::size_t shard, short type) const {
#ifdef F_OFD_SETLK
  struct flock wanted = {};
  wanted.l_type = type;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = static_cast<off_t>(shard);
  wanted.l_len = 1;
  return ::fcntl(fd_, F_OFD_SETLK, &wanted) == 0;
#else
  static_cast<void>(shard);
  static_cast<void>(type);
  return false;
#endif
}

bool NodeMemory::claim(std::size_t shard) { return lock(shard, F_WRLCK); }

void NodeMemory::release(std::size_t shard) { lock(shard, F_UNLCK); }

std::shared_ptr<std::uint8_t> NodeMemory::room(std::size_t shard, std::size_t bytes) {
  Entry& mine = entry(shard);
  // If a process was killed while it filled this entry, its space is reused.
  if (mine.offset < data_begin(shards_) || mine.bytes != bytes) {
    const std::size_t place = rounded(bytes, kPlace);
    const std::uint64_t before = header_->used.fetch_add(place, std::memory_order_relaxed);
    if (place > size_ || before > size_ - place || data_begin(shards_) > size_ - place - before)
      return nullptr;
    mine.bytes = bytes;
    mine.offset = data_begin(shards_) + before;
  }
  if (mine.offset > size_ || size_ - mine.offset < bytes) return nullptr;
  const std::size_t begin = mine.offset / kHugePage * kHugePage;
  const std::size_t end = rounded(mine.offset + bytes, kHugePage);
  // Collapse empty pages to huge pages now, which costs less than after they are filled. The system
  // collapses only ranges in which a page is present, so touch one page of each.
  for (std::size_t at = begin; at < end; at += kHugePage) {
    if (!allocated(fd_, at, 1)) return nullptr;
    static_cast<void>(*static_cast<const volatile std::uint8_t*>(data_ + at));
  }
  ::madvise(const_cast<std::uint8_t*>(data_) + begin, end - begin, kCollapse);
  for (std::size_t at = 0; at < bytes; at += kHugePage)
    if (!allocated(fd_, mine.offset + at, std::min(kHugePage, bytes - at))) return nullptr;
  void* const writable = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                                static_cast<off_t>(mine.offset));
  if (writable == MAP_FAILED) return nullptr;
  return {static_cast<std::uint8_t*>(writable),
          [bytes](std::uint8_t* memory) { ::munmap(memory, bytes); }};
}

void NodeMemory::publish(std::size_t shard, std::uint64_t what) {
  entry(shard).what.store(what, std::memory_order_release);
}

}  // namespace fastio
