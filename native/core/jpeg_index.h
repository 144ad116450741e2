// Where MCUs begin in the Huffman-coded scan of a JPEG, so that a crop is decoded without what
// comes before it. An index is made while the image is decoded, as far as that goes, and found
// again by the checksum of the file's bytes: bytes that changed have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace fastio {

// The points of one scan: at each row of MCUs one at its beginning, and one at every kIndexPixels
// from there. Those that are known are the first ones.
struct JpegIndex {
  static constexpr int kPixels = 128;

  // The state of the decoder before an MCU. A restart marker before it is still to come.
  struct Point {
    std::uint32_t byte = 0;  // of the scan, with stuffed zeros
    std::uint8_t bit = 0;    // 0 to 7: how many of its bits are taken
    std::int16_t dc[3] = {};
  };
  // The scan that the points are of. They are used for no other: other bytes may have the same
  // checksum, and a point must lie in the scan's bytes.
  struct Scan {
    std::uint64_t bytes = 0;  // from its first one to the end of the file
    std::int32_t rows = 0, columns = 0, mcu_width = 0;
    unsigned restart_interval = 0;
    bool operator==(const Scan&) const = default;
  };
  Scan scan;
  std::vector<Point> points;
};

// Indexes of images that were decoded. Thread-safe. Never waits: a call that finds another thread
// at work gives or keeps nothing.
class JpegIndexes {
 public:
  static constexpr std::size_t kMostBytes = 256u << 20;

  explicit JpegIndexes(std::size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // Of a file of `size` bytes with this CRC-32C; null: none.
  std::shared_ptr<const JpegIndex> find(std::size_t size, std::uint32_t crc32c);

  // Keeps the points that `index` has (null: none) and those that follow them, if there is room.
  void add(std::size_t size, std::uint32_t crc32c, const JpegIndex* index, const JpegIndex& more);

 private:
  using Key = std::uint64_t;
  static constexpr std::size_t kParts = 16;  // so that threads seldom meet
  static Key key(std::size_t size, std::uint32_t crc32c) {
    return static_cast<Key>(size) << 32 | crc32c;
  }
  struct Part {
    std::mutex mutex;
    std::size_t bytes = 0;
    std::unordered_map<Key, std::shared_ptr<const JpegIndex>> found;
  };
  const std::size_t most_bytes_;
  Part parts_[kParts];
};

}  // namespace fastio
