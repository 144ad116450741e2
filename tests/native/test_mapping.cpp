#include "core/mapping.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace fastio;

namespace {

// What is called when memory was mapped over other memory, before mmap() returns.
std::atomic<void (*)()> after_fixed{nullptr};

}  // namespace

// Takes the place of the C library's, so that a test can look at the moment at which a page that
// a file has no more has become zeros. The sanitizers have their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FASTIO_OWN_MMAP 1
extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
  void* const result =
      reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
  if (flags & MAP_FIXED)
    if (void (*const call)() = after_fixed.load()) call();
  return result;
}
#endif

namespace {

constexpr std::size_t kPage = 4096;

// A file of pages whose bytes are all the page's number + 1.
class PageFile {
 public:
  explicit PageFile(std::size_t pages)
      : path_("/tmp/fastio_mapping_" + std::to_string(::getpid()) + "_" + std::to_string(next_++)) {
    std::ofstream out(path_, std::ios::binary);
    for (std::size_t i = 0; i < pages; ++i) out << std::string(kPage, static_cast<char>(i + 1));
  }
  ~PageFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }
  void cut(std::size_t pages) const {
    REQUIRE(::truncate(path_.c_str(), static_cast<off_t>(pages * kPage)) == 0);
  }

 private:
  static inline int next_ = 0;
  const std::string path_;
};

std::shared_ptr<Mapping> opened(const std::string& path) {
  std::shared_ptr<Mapping> mapping;
  REQUIRE(Mapping::open(path, mapping).ok());
  return mapping;
}

}  // namespace

TEST_CASE("a mapping has the file's bytes, also when the file is gone") {
  std::shared_ptr<Mapping> mapping;
  {
    const PageFile file(3);
    mapping = opened(file.path());
  }
  REQUIRE(mapping->size() == 3 * kPage);
  CHECK(mapping->data()[0] == 1);
  CHECK(mapping->data()[3 * kPage - 1] == 3);
  CHECK_FALSE(mapping->damaged());
}

TEST_CASE("what a mapped file has no more reads as zeros, and its mapping says so") {
  const PageFile file(4), other(4);
  const auto cut = opened(file.path()), whole = opened(other.path());
  file.cut(1);
  const volatile std::uint8_t* const data = cut->data();
  CHECK(data[10] == 1);
  CHECK_FALSE(cut->damaged());
  CHECK(data[2 * kPage + 7] == 0);
  CHECK(cut->damaged());
  CHECK(data[kPage] == 0);
  CHECK_FALSE(whole->damaged());
  CHECK(whole->data()[3 * kPage] == 4);
}

TEST_CASE("several threads may fault at once") {
  const PageFile file(64);
  const auto mapping = opened(file.path());
  file.cut(0);
  std::vector<std::thread> threads;
  std::vector<unsigned> sums(8);
  for (std::size_t i = 0; i < sums.size(); ++i)
    threads.emplace_back([&, i] {
      for (std::size_t at = 0; at < mapping->size(); at += 512)
        sums[i] += static_cast<const volatile std::uint8_t*>(mapping->data())[at];
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(std::accumulate(sums.begin(), sums.end(), 0u) == 0);
  CHECK(mapping->damaged());
}

#ifdef FASTIO_OWN_MMAP
namespace {
const Mapping* looked_at = nullptr;
std::atomic<int> looks{0}, seen_damaged{0};
}  // namespace

TEST_CASE("a mapping says that it is damaged before there are zeros that another thread can read") {
  const PageFile file(8);
  const auto mapping = opened(file.path());
  file.cut(0);
  looked_at = mapping.get();
  looks = seen_damaged = 0;
  after_fixed = [] {
    ++looks;
    if (looked_at->damaged() && Mapping::any_damaged()) ++seen_damaged;
  };
  const volatile std::uint8_t* const data = mapping->data();
  unsigned sum = 0;
  for (std::size_t page = 1; page < 8; ++page) sum += data[page * kPage];
  after_fixed = nullptr;
  CHECK(sum == 0);
  CHECK(looks == 1);  // the rest of the file, in one piece
  CHECK(seen_damaged == 1);
}
#endif

TEST_CASE("no thread reads zeros of a cut-off file and then finds its mapping undamaged") {
  for (int round = 0; round < 200; ++round) {
    const PageFile file(8);
    const auto mapping = opened(file.path());
    std::atomic<int> ready{0}, unnoticed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        const volatile std::uint8_t* const data = mapping->data();
        ++ready;
        while (ready < 4) {
        }
        for (std::size_t page = 8; page-- > 0;)
          if (data[page * kPage] == 0 && !mapping->damaged()) ++unnoticed;
      });
    file.cut(0);
    ++ready;
    for (std::thread& thread : threads) thread.join();
    REQUIRE(unnoticed == 0);
  }
}

TEST_CASE("a cut-off file of more pages than a process may have mappings ends nothing") {
  // Every second page, in both directions: each would take two mappings of its own.
  constexpr std::size_t kPages = 150000;
  for (const bool backwards : {false, true}) {
    const PageFile file(0);
    REQUIRE(::truncate(file.path().c_str(), static_cast<off_t>(kPages * kPage)) == 0);
    const auto mapping = opened(file.path());
    file.cut(0);
    const volatile std::uint8_t* const data = mapping->data();
    unsigned sum = 0;
    for (std::size_t i = 0; i < kPages; i += 2)
      sum += data[(backwards ? kPages - 1 - i : i) * kPage];
    CHECK(sum == 0);
    CHECK(mapping->damaged());
  }
}

// ThreadSanitizer needs mappings of its own meanwhile.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("a cut-off file is noticed where the process can have no more mappings") {
  const pid_t child = ::fork();
  if (child == 0) {
    const PageFile file(8);
    const auto mapping = opened(file.path());
    file.cut(0);
    // Pages that cannot be joined, until there are no more but the one that taking any place needs.
    const int fd = ::open(file.path().c_str(), O_RDONLY);
    std::vector<void*> pages;
    pages.reserve(1 << 20);
    for (int access = PROT_READ; pages.empty() || pages.back() != MAP_FAILED; access ^= PROT_WRITE)
      pages.push_back(::mmap(nullptr, kPage, access, MAP_PRIVATE, fd, 0));
    ::munmap(pages[pages.size() / 2], kPage);
    const std::uint8_t read = static_cast<const volatile std::uint8_t*>(mapping->data())[4 * kPage];
    ::_exit(read == 0 && mapping->damaged() ? 0 : 1);
  }
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  CHECK(WIFEXITED(state));
  CHECK(WEXITSTATUS(state) == 0);
}
#endif

TEST_CASE("entries of the table of mappings are used again") {
  const PageFile file(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Mapping>> many;
    for (int i = 0; i < 1500; ++i) many.push_back(opened(file.path()));
    CHECK_FALSE(many.back()->damaged());
    CHECK(many.front()->data()[5] == 1);
  }
}

TEST_CASE("a signal that is sent ends the process as it always did") {
  const PageFile file(1);
  const auto mapping = opened(file.path());
  const pid_t child = ::fork();
  if (child == 0) {
    ::kill(::getpid(), SIGBUS);
    ::_exit(0);
  }
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  CHECK(WIFSIGNALED(state));
  CHECK(WTERMSIG(state) == SIGBUS);
}

TEST_CASE("what cannot be mapped is told") {
  std::shared_ptr<Mapping> mapping;
  CHECK(Mapping::open("/tmp/fastio_no_such_file", mapping).code == Code::not_found);
  CHECK(Mapping::open("/tmp", mapping).code == Code::io);
  CHECK_FALSE(mapping);
}

TEST_CASE("what was let go of is read again") {
  const PageFile file(4);
  const std::shared_ptr<Mapping> mapping = opened(file.path());
  mapping->expect_scattered();
  CHECK(mapping->data()[kPage] == 2);
  mapping->release(kPage + 1, 2 * kPage);
  mapping->release(3 * kPage, SIZE_MAX);
  mapping->release(SIZE_MAX, SIZE_MAX);
  for (std::size_t i = 0; i < 4; ++i) CHECK(mapping->data()[i * kPage] == i + 1);
}

TEST_CASE("an empty file has no bytes") {
  const PageFile file(0);
  CHECK(opened(file.path())->size() == 0);
}
