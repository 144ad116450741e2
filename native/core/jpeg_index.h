// Where MCUs begin in the Huffman-coded scan of a JPEG, so that a crop is decoded without what
// comes before it. An index is made while the image is decoded, as far as that goes, and found
// again by the checksum of the file's bytes: bytes that changed have none. Packed datasets have
// whole ones in a column (docs/format.md describes their bytes).
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
  // Smaller files are decoded without an index: little comes before a crop.
  static constexpr std::size_t kLeastFile = 16 << 10;

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
    std::int32_t rows = 0, columns = 0, mcu_width = 0, components = 0;
    std::uint32_t restart_interval = 0;
    // Four bytes of the middle, the lowest first: of a million files, some two have the same size
    // and CRC-32C.
    std::uint32_t middle = 0;
    bool operator==(const Scan&) const = default;

    // MCUs from one point of a row to the next; points of a row, and of all rows.
    std::int32_t step() const {
      return mcu_width > 0 && mcu_width < kPixels ? kPixels / mcu_width : 1;
    }
    std::int32_t points_a_row() const { return (columns + step() - 1) / step(); }
    std::size_t all_points() const {
      return static_cast<std::size_t>(rows) * static_cast<std::size_t>(points_a_row());
    }
  };
  Scan scan;
  std::vector<Point> points;

  bool whole() const { return !points.empty() && points.size() == scan.all_points(); }

  // The index in few bytes, about six a point.
  std::vector<std::uint8_t> bytes() const;
  // Takes over what bytes() wrote. False for any other bytes, after which the index is undefined.
  // What was taken over may still be wrong, but JpegScan can use it for a scan that is `scan`:
  // points lie in its bytes, each behind the one before.
  bool read(const std::uint8_t* data, std::size_t size);
};

// Indexes of images that were decoded. Thread-safe. find() and add() never wait: a call that finds
// another thread at work gives or keeps nothing.
class JpegIndexes {
 public:
  static constexpr std::size_t kMostBytes = 256u << 20;
  using Bytes = std::shared_ptr<const std::vector<std::uint8_t>>;

  explicit JpegIndexes(std::size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // Of a file of `size` bytes with this CRC-32C, for JpegIndex::read(); null: none.
  Bytes find(std::size_t size, std::uint32_t crc32c);

  // Keeps the points that `index` has (null: none) and those that follow them, if there is room.
  void add(std::size_t size, std::uint32_t crc32c, const JpegIndex* index, const JpegIndex& more);

  // Keeps what unsaved() gave, perhaps in another process. Bytes of other kinds are passed over, or
  // are indexes that no file has.
  void load(const std::uint8_t* data, std::size_t size);

  // Those that are new, or have grown by a fourth, since they were loaded or given; or all.
  std::vector<std::uint8_t> unsaved(bool all);

 private:
  using Key = std::uint64_t;
  static constexpr std::size_t kParts = 16;  // so that threads seldom meet
  static Key key(std::size_t size, std::uint32_t crc32c) {
    return static_cast<Key>(size) << 32 | crc32c;
  }
  struct Entry {
    Bytes bytes;
    std::uint32_t points = 0, saved = 0;  // in `bytes`, and in what was loaded or given
  };
  struct Part {
    std::mutex mutex;
    std::size_t bytes = 0;
    std::unordered_map<Key, Entry> found;
  };
  Part& part_of(Key key) { return parts_[static_cast<std::uint32_t>(key) % kParts]; }
  static std::size_t bytes_of(const Entry& entry);
  void keep(Part& part, Key key, Entry entry);

  const std::size_t most_bytes_;
  Part parts_[kParts];
};

}  // namespace fastio
