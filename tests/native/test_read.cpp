#include "core/read.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace fastio;
namespace fs = std::filesystem;

namespace {

// A folder that goes when the test ends.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "fastio-read-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }

  // A file of `size` bytes, each of which tells its place and the file's salt.
  std::string write(const std::string& name, std::size_t size, int salt = 0) const {
    std::ofstream file(path(name), std::ios::binary);
    for (std::size_t i = 0; i < size; ++i) file.put(static_cast<char>(byte(i, salt)));
    return path(name);
  }

  static std::uint8_t byte(std::size_t place, int salt) {
    return static_cast<std::uint8_t>(place * 7 + place / 251 + static_cast<std::size_t>(salt) * 13);
  }

 private:
  fs::path path_;
};

bool holds(const Buffer& buffer, std::size_t offset, std::size_t size, int salt = 0) {
  if (buffer.size() != size) return false;
  for (std::size_t i = 0; i < size; ++i)
    if (buffer.data()[i] != Folder::byte(offset + i, salt)) return false;
  return true;
}

std::size_t open_descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(fs::begin(all), fs::end(all)));
}

Code read_whole(const std::string& path) {
  FileSet files(false);
  files.add({path});
  Buffer buffer;
  return files.read(0, 0, -1, buffer).code;
}

}  // namespace

TEST_CASE("ranges and whole files are read, and followed by zeros") {
  const Folder folder;
  for (const bool keep_open : {false, true}) {
    FileSet files(keep_open);
    CHECK(files.add({folder.write("a", 1000)}) == 0);
    CHECK(files.add({folder.write("b", 10, 1), folder.write("c", 0, 2)}) == 1);
    CHECK(files.size() == 3);
    Buffer buffer;
    REQUIRE(files.read(0, 0, -1, buffer).ok());
    CHECK(holds(buffer, 0, 1000));
    REQUIRE(files.read(0, 100, 20, buffer).ok());
    CHECK(holds(buffer, 100, 20));
    CHECK(std::all_of(buffer.data() + 20, buffer.data() + 20 + Buffer::kPad,
                      [](std::uint8_t b) { return b == 0; }));
    REQUIRE(files.read(1, 9, 1, buffer).ok());
    CHECK(holds(buffer, 9, 1, 1));
    REQUIRE(files.read(2, 0, -1, buffer).ok());
    CHECK(buffer.size() == 0);
    REQUIRE(files.read(0, 1000, 0, buffer).ok());
    CHECK(buffer.size() == 0);
  }
}

TEST_CASE("ranges past the end are truncated, and impossible ones corrupt") {
  const Folder folder;
  FileSet files(true);
  files.add({folder.write("a", 1000)});
  Buffer buffer;
  CHECK(files.read(0, 999, 2, buffer).code == Code::truncated);
  CHECK(files.read(0, 5000, 1, buffer).code == Code::truncated);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(files.read(0, kMost, 1, buffer).code != Code::ok);
  CHECK(files.read(0, kMost - 3, 100, buffer).code != Code::ok);
  CHECK(files.read(0, -1, 1, buffer).code == Code::corrupt);
  CHECK(files.read(0, std::numeric_limits<std::int64_t>::min(), 1, buffer).code == Code::corrupt);
  CHECK(files.read(0, 0, kMost, buffer).code != Code::ok);
  CHECK(files.read(0, 10, kMost - 5, buffer).code != Code::ok);
  CHECK(files.read(0, 0, std::numeric_limits<std::int64_t>::min(), buffer).code == Code::corrupt);
  REQUIRE(files.read(0, 0, 1000, buffer).ok());
  CHECK(holds(buffer, 0, 1000));
}

TEST_CASE("a length larger than the file asks for no memory") {
  const Folder folder;
  FileSet files(true);
  files.add({folder.write("a", 1000)});
  Buffer buffer;
  CHECK(files.read(0, 0, std::int64_t{1} << 40, buffer).code == Code::truncated);
}

TEST_CASE("files that are not there, or that nobody added, are not found") {
  const Folder folder;
  CHECK(read_whole(folder.path("none")) == Code::not_found);
  CHECK(read_whole(folder.write("file", 1) + "/below") == Code::not_found);
  CHECK(read_whole("") == Code::not_found);
  FileSet files(true);
  Buffer buffer;
  CHECK(files.read(0, 0, 1, buffer).code == Code::not_found);
  CHECK(files.read(-1, 0, 1, buffer).code == Code::not_found);
  files.advise(7, 0, 10);
}

TEST_CASE("what is no regular file is an error, and nothing waits for a pipe's writer") {
  const Folder folder;
  const std::string pipe = folder.path("pipe.jpg");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_whole(folder.path("")) == Code::io);
  CHECK(read_whole(pipe) == Code::io);
  CHECK(read_whole("/dev/zero") == Code::io);
  FileSet shards(true);
  shards.add({pipe, folder.path(""), "/dev/zero"});
  Buffer buffer;
  for (std::int64_t file = 0; file < 3; ++file) {
    shards.advise(file, 0, 10);
    CHECK(shards.read(file, 0, 10, buffer).code == Code::io);
  }
}

TEST_CASE("a file that shrinks or grows while it is open") {
  const Folder folder;
  const std::string path = folder.write("a", 1000);
  FileSet files(true);
  files.add({path});
  Buffer buffer;
  REQUIRE(files.read(0, 0, 1000, buffer).ok());
  fs::resize_file(path, 500);
  CHECK(files.read(0, 0, 1000, buffer).code == Code::truncated);
  REQUIRE(files.read(0, 0, -1, buffer).ok());
  CHECK(buffer.size() == 500);
  fs::resize_file(path, 2000);
  CHECK(files.read(0, 1500, 500, buffer).ok());
}

TEST_CASE("descriptors stay within their bound, and close() closes them") {
  const Folder folder;
  const std::size_t before = open_descriptors();
  FileSet files(true, 4);
  std::vector<std::string> paths;
  for (int i = 0; i < 20; ++i) paths.push_back(folder.write(std::to_string(i), 50, i));
  files.add(paths);
  Buffer buffer;
  std::mt19937 rng(1);
  for (int i = 0; i < 500; ++i) {
    const int file = static_cast<int>(rng() % 20);
    REQUIRE(files.read(file, 3, 40, buffer).ok());
    REQUIRE(holds(buffer, 3, 40, file));
    REQUIRE(open_descriptors() <= before + 4);
  }
  files.close();
  CHECK(open_descriptors() == before);
  REQUIRE(files.read(3, 0, 50, buffer).ok());
  CHECK(holds(buffer, 0, 50, 3));
}

TEST_CASE("a thread keeps descriptors until it lets go of them, or reads again") {
  const Folder folder;
  const std::size_t before = open_descriptors();
  FileSet files(true);
  files.add({folder.write("a", 50), folder.write("b", 50, 1)});
  Buffer buffer;
  OpenFiles open;
  for (const std::int64_t file : {0, 1, 0}) REQUIRE(files.read(file, 3, 40, buffer, open).ok());
  CHECK(open_descriptors() == before + 2);
  files.close();
  CHECK(open_descriptors() == before + 2);
  REQUIRE(files.read(1, 3, 40, buffer, open).ok());
  CHECK(holds(buffer, 3, 40, 1));
  CHECK(open_descriptors() == before + 1);
  REQUIRE(files.read(1, 3, 40, buffer, open).ok());
  files.close();
  open.let_go();
  CHECK(open_descriptors() == before);
}

TEST_CASE("what a thread keeps of one set is not taken for another's") {
  const Folder folder;
  FileSet first(true), second(true), folders(false);
  first.add({folder.write("a", 50)});
  second.add({folder.write("b", 50, 1)});
  folders.add({folder.write("c", 50, 2)});
  Buffer buffer;
  OpenFiles open;
  for (int i = 0; i < 4; ++i) {
    REQUIRE(first.read(0, 0, 50, buffer, open).ok());
    CHECK(holds(buffer, 0, 50, 0));
    REQUIRE(second.read(0, 0, 50, buffer, open).ok());
    CHECK(holds(buffer, 0, 50, 1));
    REQUIRE(folders.read(0, 0, FileSet::kWholeFile, buffer, open).ok());
    CHECK(holds(buffer, 0, 50, 2));
  }
}

TEST_CASE("files that are added to a set are found, also by threads that know it") {
  const Folder folder;
  FileSet files(true, 3);
  Buffer buffer;
  OpenFiles open;
  for (int i = 0; i < 6; ++i) {  // beyond 3, others are pushed out
    files.add({folder.write(std::to_string(i), 50, i)});
    for (int file = 0; file <= i; ++file) {
      REQUIRE(files.read(file, 0, 50, buffer, open).ok());
      CHECK(holds(buffer, 0, 50, file));
    }
  }
}

TEST_CASE("many threads read while descriptors come and go") {
  const Folder folder;
  for (const std::size_t most : {3, 12}) {  // some are pushed out; all are known to threads
    FileSet files(true, most);
    std::vector<std::string> paths;
    for (int i = 0; i < 12; ++i) paths.push_back(folder.write(std::to_string(i), 3000, i));
    files.add(paths);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 6; ++t) {
      threads.emplace_back([&files, &wrong, t] {
        std::mt19937 rng(t);
        Buffer buffer;
        OpenFiles open;
        for (int i = 0; i < 400; ++i) {
          const auto file = static_cast<std::int64_t>(rng() % 12);
          const std::size_t offset = rng() % 2000, size = rng() % 1000;
          if (i % 50 == 49) files.close();
          if (i % 7 == 0) files.advise(file, 0, 3000);
          const Status status = files.read(file, static_cast<std::int64_t>(offset),
                                           static_cast<std::int64_t>(size), buffer, open);
          wrong += !status.ok() || !holds(buffer, offset, size, static_cast<int>(file));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("where descriptors run out, kept ones are given up") {
  const Folder folder;
  FileSet files(true, 256);
  std::vector<std::string> paths;
  for (int i = 0; i < 40; ++i) paths.push_back(folder.write(std::to_string(i), 50, i));
  files.add(paths);
  struct rlimit before;
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  struct rlimit few = before;
  few.rlim_cur = open_descriptors() + 10;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  int good = 0;
  Buffer buffer;
  for (int i = 0; i < 120; ++i)
    good += files.read(i % 40, 0, 50, buffer).ok() && holds(buffer, 0, 50, i % 40);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(good == 120);
}

TEST_CASE("a buffer keeps its memory, and gives it back") {
  Buffer buffer;
  REQUIRE(buffer.resize(100));
  const std::uint8_t* first = buffer.data();
  REQUIRE(buffer.resize(50));
  CHECK(buffer.data() == first);
  buffer.shrink(1000);
  CHECK(buffer.data() == first);
  buffer.shrink(10);
  CHECK(buffer.data() == nullptr);
  CHECK(buffer.size() == 0);
  CHECK_FALSE(buffer.resize(SIZE_MAX));
  REQUIRE(buffer.resize(0));
  CHECK(buffer.data()[0] == 0);
}
