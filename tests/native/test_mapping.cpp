#include "core/mapping.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

using namespace fastio;

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
