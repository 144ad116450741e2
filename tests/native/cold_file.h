#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace fastio::test {

// A file on a disk, if the test can have one, with none of it in the page cache.
class ColdFile {
 public:
  explicit ColdFile(std::size_t bytes) : ColdFile(std::vector<std::uint8_t>(bytes, 'x')) {}
  explicit ColdFile(const std::vector<std::uint8_t>& data) : bytes_(data.size()) {
    path = (std::filesystem::current_path() / "fastio-cold-XXXXXX").string();
    const int fd = ::mkstemp(path.data());
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, data.data(), bytes_) == static_cast<ssize_t>(bytes_));
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  ~ColdFile() { std::filesystem::remove(path); }
  ColdFile(const ColdFile&) = delete;
  ColdFile& operator=(const ColdFile&) = delete;

  // How many of the pages of [offset, offset + length) are in the page cache.
  std::size_t cached(std::size_t offset, std::size_t length) const {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    void* map = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    std::vector<unsigned char> pages((bytes_ + 4095) / 4096);
    REQUIRE(::mincore(map, bytes_, pages.data()) == 0);
    ::munmap(map, bytes_);
    std::size_t count = 0;
    for (std::size_t page = offset / 4096; page <= (offset + length - 1) / 4096; ++page)
      count += pages[page] & 1;
    return count;
  }

  // Waits until the disk has brought so many pages; false if it does not.
  bool comes(std::size_t offset, std::size_t length, std::size_t pages) const {
    for (int i = 0; i < 20'000; ++i) {
      if (cached(offset, length) >= pages) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  std::string path;

 private:
  std::size_t bytes_;
};

}  // namespace fastio::test
