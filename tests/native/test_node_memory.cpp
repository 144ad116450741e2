#include "core/node_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace fastio;

namespace {

// A file in memory, which a second descriptor opens as another process would.
class File {
 public:
  explicit File(std::size_t size) : fd_(::memfd_create("fastio_test", MFD_CLOEXEC)) {
    REQUIRE(fd_ >= 0);
    REQUIRE(::ftruncate(fd_, static_cast<off_t>(size)) == 0);
    other_ = ::open(("/proc/self/fd/" + std::to_string(fd_)).c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(other_ >= 0);
  }
  ~File() {
    ::close(fd_);
    ::close(other_);
  }
  int fd() const { return fd_; }
  int other() const { return other_; }

 private:
  int fd_, other_ = -1;
};

constexpr std::size_t kBytes = 100'000;

void fill(NodeMemory& memory, std::size_t shard, std::uint8_t value) {
  REQUIRE(memory.claim(shard));
  const auto room = memory.room(shard, kBytes);
  REQUIRE(room);
  std::memset(room.get(), value, kBytes);
  memory.publish(shard, shard + 1);
  memory.release(shard);
}

bool is_filled(const NodeMemory& memory, std::size_t shard, std::uint8_t value) {
  const std::uint8_t* const data = memory.find(shard, shard + 1, kBytes);
  if (!data) return false;
  for (std::size_t i = 0; i < kBytes; ++i)
    if (data[i] != value) return false;
  return true;
}

}  // namespace

TEST_CASE("what one has published, the others find") {
  constexpr std::size_t kShards = 50;
  const File file(NodeMemory::bytes_for(kShards, kShards * kBytes));
  NodeMemory one(file.fd(), kShards), other(file.other(), kShards);
  for (std::size_t shard = 0; shard < kShards; ++shard)
    fill(shard % 2 ? one : other, shard, static_cast<std::uint8_t>(shard));
  for (std::size_t shard = 0; shard < kShards; ++shard)
    for (NodeMemory* each : {&one, &other})
      CHECK(is_filled(*each, shard, static_cast<std::uint8_t>(shard)));
}

TEST_CASE("an entry is found by what it is, and by its size") {
  const File file(NodeMemory::bytes_for(2, kBytes));
  NodeMemory memory(file.fd(), 2);
  CHECK(memory.find(0, 1, kBytes) == nullptr);
  fill(memory, 0, 7);
  CHECK(memory.published(0) == 1);
  CHECK(memory.find(0, 2, kBytes) == nullptr);
  CHECK(memory.find(0, 0, kBytes) == nullptr);
  CHECK(memory.find(0, 1, kBytes - 1) == nullptr);
  CHECK(memory.published(1) == 0);
  CHECK(memory.find(1, 0, kBytes) == nullptr);
}

TEST_CASE("one at a time claims an entry, and a place is used again") {
  const File file(NodeMemory::bytes_for(2, 2 * kBytes));
  NodeMemory one(file.fd(), 2);
  const std::uint8_t* place = nullptr;
  {
    NodeMemory other(file.other(), 2);
    REQUIRE(other.claim(0));
    CHECK_FALSE(one.claim(0));
    CHECK(one.claim(1));
    one.release(1);
    const auto room = other.room(0, kBytes);
    REQUIRE(room);
    other.publish(0, 1);
    place = one.find(0, 1, kBytes);
    REQUIRE(place);
    other.publish(0, 0);  // as if it had been killed before it published
    other.release(0);
  }
  fill(one, 0, 3);
  CHECK(one.find(0, 1, kBytes) == place);
  CHECK(is_filled(one, 0, 3));
}

TEST_CASE("there is no room beyond the file, and no memory in a file that is too small") {
  const File file(NodeMemory::bytes_for(3, kBytes));
  NodeMemory memory(file.fd(), 3);
  CHECK_FALSE(memory.room(0, std::size_t{64} << 20));
  CHECK_FALSE(memory.room(1, SIZE_MAX / 2));
  CHECK_THROWS_AS(NodeMemory(file.fd(), 1'000'000), std::invalid_argument);
  CHECK_THROWS_AS(NodeMemory(-1, 1), std::invalid_argument);
}

TEST_CASE("entries of any bytes lead nowhere else") {
  constexpr std::size_t kShards = 8;
  const File file(NodeMemory::bytes_for(kShards, kBytes));
  NodeMemory memory(file.fd(), kShards);
  std::mt19937_64 rng(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint64_t> words(1 + 3 * kShards);
    for (auto& word : words) word = rng() >> (rng() % 64);
    for (std::size_t shard = 0; shard < kShards; ++shard) words[1 + 3 * shard] = 5;
    const auto size = static_cast<ssize_t>(words.size() * 8);
    REQUIRE(::pwrite(file.fd(), words.data(), words.size() * 8, 0) == size);
    for (std::size_t shard = 0; shard < kShards; ++shard) {
      const auto bytes = static_cast<std::size_t>(words[3 + 3 * shard]);
      volatile std::uint8_t sum = 0;
      if (const std::uint8_t* const data = memory.find(shard, 5, bytes)) {
        for (std::size_t i = 0; i < bytes; i += 4096) sum = sum + data[i];
        if (bytes) sum = sum + data[bytes - 1];
      }
      if (const auto room = memory.room(shard, 1 + rng() % kBytes)) room.get()[0] = 1;
    }
  }
}
