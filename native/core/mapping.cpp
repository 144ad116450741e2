#include "mapping.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <system_error>

namespace fastio {
namespace {

// A mapping's entry in the table of the signal handler. The handler may run between any two
// instructions of any thread, so everything that it reads is atomic, and nothing is ever freed:
// entries are reused, and blocks of entries are added at the end.
struct Guard {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin 0: not in use
  std::atomic<bool> damaged{false};
};

constexpr std::size_t kBlock = 512;
constexpr std::size_t kBlocks = 1024;         // more mappings than the system lets a process have
constexpr std::size_t kUnguarded = SIZE_MAX;  // the index of a mapping without an entry

struct GuardTable {
  std::atomic<Guard*> blocks[kBlocks] = {};
  std::atomic<std::size_t> used{0};  // entries [0, used) may be in use
  std::mutex mutex;                  // held to add and remove entries
  std::size_t hint = 0;              // no entry before this one is free

  Guard& at(std::size_t number) {
    return blocks[number / kBlock].load(std::memory_order_acquire)[number % kBlock];
  }
};

// Never destroyed, because the handler may run while the process ends.
GuardTable& table() {
  static GuardTable& kept = *new GuardTable;
  return kept;
}

GuardTable* the_table = nullptr;   // for the handler, which must not initialise a local static
struct sigaction before;           // the previous handler
std::atomic<pid_t> passing_on{0};  // the thread in which our handler has called the previous one
std::uintptr_t page_bytes = 0;
std::atomic<bool> once_damaged{false};

// Replaces the pages [begin, end) by zeros.
bool put_zeros(std::uintptr_t begin, std::uintptr_t end) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer takes mmap() for a write to the pages, which other threads may be reading.
  return ::syscall(SYS_mmap, begin, end - begin, PROT_READ, kFlags, -1, 0) != -1;
#else
  return ::mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ, kFlags, -1, 0) !=
         MAP_FAILED;
#endif
}

// Returns true if the address lies in a mapping and now reads as zeros. Async-signal-safe: uses
// only atomics and mmap.
bool mend(std::uintptr_t address) {
  GuardTable& guards = *the_table;
  const std::size_t used = guards.used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < used; ++i) {
    Guard& guard = guards.at(i);
    const std::uintptr_t begin = guard.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= guard.end.load(std::memory_order_acquire))
      continue;
    // If the entry is being reused, begin and end may be those of different mappings.
    if (guard.begin.load(std::memory_order_acquire) != begin) continue;
    // Set the flags before there are zeros: a thread that reads zeros then sees them (see
    // damaged()).
    guard.damaged.store(true, std::memory_order_relaxed);
    once_damaged.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uintptr_t end =
        (guard.end.load(std::memory_order_relaxed) + page_bytes - 1) / page_bytes * page_bytes;
    const int saved = errno;
    // One mapping of zeros up to the end, because a process may have only 65530 mappings. If even
    // this one, which splits the file's mapping, is one too many, all of it becomes zeros: its rows
    // are reported as damaged in any case.
    const bool mapped = put_zeros(address / page_bytes * page_bytes, end) || put_zeros(begin, end);
    errno = saved;
    return mapped;
  }
  return false;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  // BUS_ADRERR is a page past the file's end. Other codes of the kernel, and kill(), are passed on.
  if (info->si_code == BUS_ADRERR && mend(reinterpret_cast<std::uintptr_t>(info->si_addr))) return;
  const pid_t self = ::gettid();
  // A handler that was installed after ours may call ours again, from the call below. Stop there.
  const bool again = passing_on.exchange(self) == self;
  if (!again && before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (again || before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
    // A fault cannot be ignored: restore the default action, which is taken when the instruction is
    // repeated, or when the signal is raised again if it was sent.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGBUS, &standard, nullptr);
    if (info->si_code <= 0) ::raise(number);
  } else {
    before.sa_handler(number);
  }
  passing_on.store(0);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    the_table = &table();
    page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    // If another thread held the lock at a fork, the child would wait for it forever.
    ::pthread_atfork([] { table().mutex.lock(); }, [] { table().mutex.unlock(); },
                     [] { table().mutex.unlock(); });
  });
  // Other code may have replaced the handler: Lightning's Trainer resets all signals at its end.
  struct sigaction now = {};
  ::sigaction(SIGBUS, nullptr, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == &on_bus_error) return;
  const std::lock_guard lock(table().mutex);
  struct sigaction ours = {};
  ours.sa_sigaction = &on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  before = now;
  ::sigaction(SIGBUS, &ours, nullptr);
}

// Adds an entry and returns its index, or kUnguarded if there is no room or no memory.
std::size_t add_guard(std::uintptr_t begin, std::size_t size) {
  GuardTable& guards = table();
  const std::lock_guard lock(guards.mutex);
  const std::size_t used = guards.used.load(std::memory_order_relaxed);
  std::size_t number = guards.hint;
  while (number < used && guards.at(number).begin.load(std::memory_order_relaxed) != 0) ++number;
  if (number == used) {
    if (used == kBlock * kBlocks) return kUnguarded;
    std::atomic<Guard*>& block = guards.blocks[used / kBlock];
    if (!block.load(std::memory_order_relaxed)) {
      Guard* const fresh = new (std::nothrow) Guard[kBlock];
      if (!fresh) return kUnguarded;
      block.store(fresh, std::memory_order_release);
    }
    guards.used.store(used + 1, std::memory_order_release);
  }
  guards.hint = number + 1;
  Guard& guard = guards.at(number);
  guard.damaged.store(false, std::memory_order_relaxed);
  guard.end.store(begin + size, std::memory_order_release);
  guard.begin.store(begin, std::memory_order_release);
  return number;
}

void remove_guard(std::size_t number) {
  GuardTable& guards = table();
  const std::lock_guard lock(guards.mutex);
  guards.at(number).begin.store(0, std::memory_order_release);
  if (number < guards.hint) guards.hint = number;
}

Status failed(const char* what) {
  return Status::error(Code::io, std::string(what) + ": " + std::generic_category().message(errno));
}

class Descriptor {
 public:
  // O_NONBLOCK, because opening a pipe would wait for its writer.
  explicit Descriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

Status Mapping::open(const std::string& path, std::shared_ptr<Mapping>& out) {
  const Descriptor file(path);
  if (file.get() < 0)
    return errno == ENOENT || errno == ENOTDIR ? Status::error(Code::not_found, "no such file")
                                               : failed("cannot be opened");
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return failed("fstat");
  if (!S_ISREG(info.st_mode)) return Status::error(Code::io, "not a regular file");
  return open(file.get(), static_cast<std::size_t>(info.st_size), out);
}

Status Mapping::open(int fd, std::size_t size, std::shared_ptr<Mapping>& out) {
  install();
  if (size == 0) {
    out.reset(new Mapping(nullptr, 0, kUnguarded));
    return Status::okay();
  }
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return failed("cannot be mapped");
  const std::size_t guard = add_guard(reinterpret_cast<std::uintptr_t>(data), size);
  out.reset(new Mapping(static_cast<const std::uint8_t*>(data), size, guard));
  return Status::okay();
}

Mapping::~Mapping() {
  // Before munmap(), so that the entry never applies to what another thread maps at this address.
  if (guard_ != kUnguarded) remove_guard(guard_);
  if (data_) ::munmap(const_cast<std::uint8_t*>(data_), size_);
}

void Mapping::advise(std::size_t offset, std::size_t bytes, int advice) const {
  if (offset >= size_) return;
  const std::size_t end = offset + std::min(bytes, size_ - offset);
  const std::size_t begin = offset / page_bytes * page_bytes;  // the mapping begins with a page
  ::madvise(const_cast<std::uint8_t*>(data_) + begin, end - begin, advice);
}

void Mapping::ahead(std::size_t offset, std::size_t bytes) const {
  advise(offset, bytes, MADV_WILLNEED);
}

void Mapping::release(std::size_t offset, std::size_t bytes) const {
  advise(offset, bytes, MADV_DONTNEED);
}

void Mapping::expect_scattered() const {
  if (data_) ::madvise(const_cast<std::uint8_t*>(data_), size_, MADV_RANDOM);
}

// The fence orders the flag's load after the reads of the bytes; an acquire load would only order
// what comes after it. The handler sets the flag before there are zeros, so a thread that has read
// zeros sees it set.
bool Mapping::damaged() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return guard_ != kUnguarded && table().at(guard_).damaged.load(std::memory_order_relaxed);
}

bool Mapping::guarded() const { return guard_ != kUnguarded; }

void Mapping::keep_guards() { install(); }

bool Mapping::any_damaged() {
  std::atomic_thread_fence(std::memory_order_acquire);
  return once_damaged.load(std::memory_order_relaxed);
}

}  // namespace fastio
