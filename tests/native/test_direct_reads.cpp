// Rows that are read directly, past the page cache.
#include "core/direct_reads.h"

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cold_file.h"
#include "core/crc32c.h"
#include "core/engine.h"
#include "core/image_slot.h"

using namespace fastio;
using namespace std::chrono_literals;
using test::ColdFile;
namespace fs = std::filesystem;

namespace {

constexpr auto kLong = 10min;  // a test that waits so long hangs
constexpr std::size_t kRows = 60;
constexpr std::int32_t kWidth = 100;

// Raw grey images of random pixels and of 20,000 to 150,000 bytes, at any offset of a file that
// ends with the last one.
class Images {
 public:
  Images() : file_(make()) {
    files = std::make_shared<FileSet>(true, 256, true);
    files->add({file_.path});
  }

  std::shared_ptr<ImageSlot> batch(std::vector<std::size_t> rows) const {
    ImageReads reads;
    for (const std::size_t row : rows) {
      reads.file.push_back(0);
      reads.offset.push_back(offsets_[row]);
      reads.length.push_back(lengths_[row]);
      reads.codec.push_back(1);
      reads.orientation.push_back(1);
      reads.height.push_back(static_cast<std::int32_t>(lengths_[row] / kWidth));
      reads.width.push_back(kWidth);
      reads.row.push_back(static_cast<std::int64_t>(row));
      reads.crc32c.push_back(
          crc32c(bytes_.data() + offsets_[row], static_cast<std::size_t>(lengths_[row])));
    }
    ImageTask task;
    task.channels = task.raw_channels = 1;
    return std::make_shared<ImageSlot>(files, std::vector{SlotView{std::make_shared<Chain>()}},
                                       nullptr, task, std::move(reads));
  }
  std::shared_ptr<ImageSlot> all() const {
    std::vector<std::size_t> rows(kRows);
    for (std::size_t i = 0; i < kRows; ++i) rows[i] = i * 7 % kRows;
    return batch(rows);
  }

  // Whether a row of all() has its pixels.
  bool is_whole(ImageSlot& slot, std::size_t place) const {
    const std::size_t row = place * 7 % kRows;
    const OwnedImage image = slot.take(place);
    return slot.status(place).ok() && image.pixels &&
           std::memcmp(image.pixels.get(), bytes_.data() + offsets_[row],
                       static_cast<std::size_t>(lengths_[row])) == 0;
  }
  bool are_whole(ImageSlot& slot) const {
    bool whole = true;
    for (std::size_t place = 0; place < kRows; ++place) whole = whole && is_whole(slot, place);
    return whole;
  }

  // Whether direct reads can be expected here.
  bool possible() const {
    OpenFiles open;
    return Ring::permitted() && files->direct(0, 0, 100, open).file != nullptr;
  }
  bool any_cached() const { return file_.cached(0, bytes_.size()) > 0; }
  void cut(std::int64_t row) const { fs::resize_file(file_.path, offset(row)); }
  std::uint64_t offset(std::int64_t row) const {
    return static_cast<std::uint64_t>(offsets_[static_cast<std::size_t>(row)]);
  }
  const std::string& path() const { return file_.path; }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

  std::shared_ptr<FileSet> files;

 private:
  const std::vector<std::uint8_t>& make() {
    std::mt19937 rng(1);
    std::int64_t at = 13;
    for (std::size_t i = 0; i < kRows; ++i) {
      offsets_.push_back(at);
      lengths_.push_back(kWidth * static_cast<std::int64_t>(200 + rng() % 1300));
      at += lengths_.back() + static_cast<std::int64_t>(rng() % 50);
    }
    bytes_.resize(static_cast<std::size_t>(offsets_.back() + lengths_.back()));
    for (std::uint8_t& byte : bytes_) byte = static_cast<std::uint8_t>(rng());
    return bytes_;
  }

  std::vector<std::int64_t> offsets_, lengths_;
  std::vector<std::uint8_t> bytes_;
  ColdFile file_;
};

// Whether `body` returns true in a forked child.
template <typename Body>
bool in_child(const Body& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// From now on, this process gets EPERM for a new io_uring, as in many containers.
bool forbid_rings() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof *program, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

bool reads_all(const Images& images, int threads) {
  Engine engine(threads);
  const auto slot = images.all();
  engine.submit(slot);
  return slot->wait(kLong) && images.are_whole(*slot);
}

}  // namespace

TEST_CASE("rows are read directly, wherever they lie, and leave nothing in the page cache") {
  const Images images;
  if (images.any_cached()) return;  // on a file system of memory
  for (const int threads : {1, 2, 5}) {
    CHECK(reads_all(images, threads));
    CHECK(images.any_cached() != images.possible());
  }
}

TEST_CASE("rows that are read directly are not requested ahead, and are claimed one by one") {
  const Images images;
  if (!images.possible()) return;
  const auto slot = images.all();
  CHECK(slot->wanted().empty());
  CHECK(slot->in_memory());
  std::size_t begin = 0, end = 0;
  REQUIRE(slot->claim(begin, end));
  CHECK(end - begin == 1);
}

TEST_CASE("small rows use the page cache, and so do files that are not kept open") {
  const Images images;
  ImageReads reads;
  reads.file = {0};
  reads.offset = {0};
  reads.length = {20'000};
  reads.codec = {0};
  OpenFiles open;
  const std::vector views{SlotView{std::make_shared<Chain>()}};
  CHECK_FALSE(ImageSlot(images.files, views, nullptr, {}, reads).direct(0, open).file);
  reads.length = {200'000};
  CHECK(
      static_cast<bool>(ImageSlot(images.files, views, nullptr, {}, reads).direct(0, open).file) ==
      images.possible());
  const auto opened = std::make_shared<FileSet>(false, 256, true);
  opened->add({images.path()});
  CHECK_FALSE(ImageSlot(opened, views, nullptr, {}, reads).direct(0, open).file);
}

TEST_CASE("ranges that do not lie in the file are left to other reads, which say what is wrong") {
  const Images images;
  const auto size = static_cast<std::int64_t>(images.bytes().size());
  OpenFiles open;
  for (const std::int64_t offset : {std::int64_t{-1}, size, INT64_MAX, INT64_MIN})
    for (const std::int64_t length : {std::int64_t{1}, size, INT64_MAX})
      CHECK_FALSE(images.files->direct(0, offset, length, open).file);
  CHECK_FALSE(images.files->direct(0, 0, 0, open).file);
  CHECK_FALSE(images.files->direct(0, 0, -1, open).file);
  CHECK_FALSE(images.files->direct(7, 0, 100, open).file);
}

TEST_CASE("rows that were cut off are errors of their own, and the others are whole") {
  const Images images;
  Engine engine(2);
  for (const bool opened : {false, true}) {
    if (opened) images.cut(kRows / 2);
    const auto slot = images.all();
    engine.submit(slot);
    REQUIRE(slot->wait(kLong));
    for (std::size_t place = 0; place < kRows; ++place) {
      const bool lost = opened && place * 7 % kRows >= kRows / 2;
      CHECK(images.is_whole(*slot, place) == !lost);
      CHECK((slot->status(place).code == Code::truncated) == lost);
    }
  }
}

TEST_CASE("damaged bytes are noticed") {
  const Images images;
  {
    std::FILE* const file = std::fopen(images.path().c_str(), "r+");
    REQUIRE(file);
    std::fseek(file, static_cast<long>(images.offset(21) + 5), SEEK_SET);
    std::fputc(images.bytes()[images.offset(21) + 5] ^ 1, file);
    std::fclose(file);
  }
  Engine engine(2);
  const auto slot = images.all();
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  for (std::size_t place = 0; place < kRows; ++place)
    CHECK((slot->status(place).code == Code::corrupt) == (place * 7 % kRows == 21));
}

TEST_CASE("batches are cancelled, and engines closed, while rows are read") {
  const Images images;
  std::mt19937 rng(2);
  for (int round = 0; round < 60; ++round) {
    Engine engine(1 + round % 3);
    std::vector<std::shared_ptr<ImageSlot>> slots;
    for (int i = 0; i < 4; ++i) {
      slots.push_back(images.all());
      engine.submit(slots.back());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 3000));
    if (round % 2) slots[rng() % 4]->cancel();
    if (round % 5 == 0) engine.set_threads(1);
    if (round % 3) engine.close();
    for (const auto& slot : slots) {
      REQUIRE(slot->wait(kLong));
      CHECK((slot->cancelled() || images.are_whole(*slot)));
    }
  }
}

TEST_CASE("small batches are shared by all threads") {
  const Images images;
  Engine engine(4);
  std::vector<std::shared_ptr<ImageSlot>> slots;
  for (std::size_t i = 0; i < 200; ++i) {
    slots.push_back(images.batch({i % kRows, i * 11 % kRows}));
    engine.submit(slots.back());
  }
  for (const auto& slot : slots) {
    REQUIRE(slot->wait(kLong));
    CHECK(slot->failures().empty());
  }
}

TEST_CASE("a thread does not claim rows ahead that others could begin with at once") {
  const Images images;
  SlotQueue queue(2);
  Claim claim;
  CHECK(queue.spares(0, claim));
  CHECK_FALSE(queue.spares(1, claim));
  queue.push(images.batch({0, 1, 2, 3}));
  queue.push(images.batch({4, 5}));
  CHECK(queue.spares(3, claim));  // 6 rows are left, three for each thread
  CHECK_FALSE(queue.spares(4, claim));
  REQUIRE(queue.claim(0, claim));
  CHECK(queue.spares(2, claim));
  CHECK_FALSE(queue.spares(3, claim));
  claim.slot->finish(1);
  queue.close();
}

TEST_CASE("where io_uring is forbidden, rows are read through the page cache") {
  const Images images;
  CHECK(in_child([&] { return forbid_rings() && reads_all(images, 2); }));
}

#ifndef __SANITIZE_THREAD__  // which does not allow threads in a child of a process with threads
TEST_CASE("a forked child reads with rings of its own while its parent reads") {
  const Images images;
  Engine engine(2);
  std::vector<std::shared_ptr<ImageSlot>> slots;
  for (int i = 0; i < 6; ++i) {
    slots.push_back(images.all());
    engine.submit(slots.back());
  }
  CHECK(in_child([&] {
    const Images own;
    return reads_all(own, 2);
  }));
  for (const auto& slot : slots) {
    REQUIRE(slot->wait(kLong));
    CHECK(images.are_whole(*slot));
  }
}
#endif

TEST_CASE("a ring whose descriptor somebody closes is given up, and rows are read without it") {
  const Images images;
  if (!images.possible()) return;
  CHECK(in_child([&] {
    Engine engine(2);
    for (int round = 0; round < 3; ++round) {
      const auto slot = images.all();
      engine.submit(slot);
      if (!slot->wait(kLong) || !images.are_whole(*slot)) return false;
      for (int fd = 3; fd < 100 && round == 0; ++fd) {
        std::error_code error;
        const std::string link = "/proc/self/fd/" + std::to_string(fd);
        if (fs::read_symlink(link, error).string().find("io_uring") != std::string::npos)
          ::close(fd);
      }
    }
    return true;
  }));
}

TEST_CASE("a file system without direct reads is read through the page cache") {
  if (!fs::exists("/dev/shm")) return;
  const Images images;
  const std::string copy = "/dev/shm/fastio-direct-" + std::to_string(::getpid());
  fs::copy_file(images.path(), copy);
  images.files->close();
  const auto files = std::make_shared<FileSet>(true, 256, true);
  files->add({copy});
  Buffer buffer;
  OpenFiles open;
  const DirectRange range = files->direct(0, 5, 100'000, open);
  CHECK(static_cast<bool>(range.file) == files->reads_directly());
  CHECK(files->read(0, 5, 100'000, buffer, open).ok());
  fs::remove(copy);
}
