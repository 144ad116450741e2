// Where MCUs begin in the Huffman-coded scan of a JPEG, so that a crop is decoded without what
// comes before it. An index is made while the image is decoded, up to where decoding stops, and is
// found again by the size and the checksum of the file: a file that changed has no index. Packed
// datasets store whole indexes in a column (docs/format.md describes their bytes).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace fastio {

// The points of one scan: one at the beginning of each row of MCUs, and then about one per kBytes
// bytes. `points` has the first points of the scan, but not always all of them.
struct JpegIndex {
  // A point takes 4 to 7 bytes, so that an index takes about 1% of the file.
  static constexpr std::uint64_t kBytes = 800;
  // Smaller files are decoded without an index: little comes before a crop.
  static constexpr std::size_t kLeastFile = 16 << 10;

  // The state of the decoder before an MCU. A restart marker before it is still to come.
  struct Point {
    std::uint32_t byte = 0;  // offset in the scan; stuffed zeros count
    std::uint8_t bit = 0;    // 0 to 7: bits of this byte that were consumed
    std::int16_t dc[3] = {};
  };
  // Identifies the scan of the points. They are used for no other scan: other bytes may have the
  // same checksum, and a point must lie in the scan's bytes.
  struct Scan {
    std::uint64_t bytes = 0;  // from the first one of the scan to the end of the file
    std::int32_t rows = 0, columns = 0, mcu_width = 0, components = 0;
    std::int32_t step = 1;  // MCUs from one point of a row to the next
    std::uint32_t restart_interval = 0;
    // Four bytes from the middle, little-endian: among millions of files, two may have the same
    // size and CRC-32C.
    std::uint32_t middle = 0;
    bool operator==(const Scan&) const = default;

    // Returns the step for these bytes, rows and columns, as docs/format.md defines it.
    std::int32_t usual_step() const {
      const auto mcus = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(columns);
      const std::uint64_t wanted = bytes > 0 ? kBytes * mcus / bytes : 1;
      return static_cast<std::int32_t>(
          std::clamp<std::uint64_t>(wanted, 1, static_cast<std::uint64_t>(columns)));
    }
    // The number of points in a row, and in all rows.
    std::int32_t points_a_row() const { return (columns + step - 1) / step; }
    std::size_t all_points() const {
      return static_cast<std::size_t>(rows) * static_cast<std::size_t>(points_a_row());
    }
  };
  Scan scan;
  std::vector<Point> points;

  bool whole() const { return !points.empty() && points.size() == scan.all_points(); }

  // Serialises the index, in about six bytes per point.
  std::vector<std::uint8_t> bytes() const;
  // Parses what bytes() wrote. Returns false if the bytes are not valid; the index is undefined
  // then. A parsed index may still be wrong, but JpegScan can use it safely for a scan that equals
  // `scan`: points lie in its bytes, each behind the one before.
  bool read(const std::uint8_t* data, std::size_t size);
};

// Indexes of images that were decoded. Thread-safe. find() and add() never wait: if another thread
// holds the lock, they return null or keep nothing.
class JpegIndexes {
 public:
  static constexpr std::size_t kMostBytes = 256u << 20;
  // The bytes of an index, and what keeps them: the memory of this process, or a mapped file, which
  // the processes of a machine share.
  struct Bytes {
    std::shared_ptr<const void> owner;
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    explicit operator bool() const { return data != nullptr; }
  };

  explicit JpegIndexes(std::size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // Returns the index of a file with this size and CRC-32C, for JpegIndex::read(), or no bytes.
  Bytes find(std::size_t size, std::uint32_t crc32c);

  // Keeps the points of `index`, which may be null, followed by those of `more`, if there is room.
  void add(std::size_t size, std::uint32_t crc32c, const JpegIndex* index, const JpegIndex& more);

  // Adds the indexes that unsaved() returned, perhaps in another process. The bytes are not copied:
  // `all.owner` keeps them, and they replace copies in this process. Bytes that unsaved() did not
  // return do no harm, even if they change later: they are ignored, or kept as indexes of files
  // that do not exist.
  void load(const Bytes& all);

  // Returns, serialised, the indexes that are new or have grown by a quarter since they were loaded
  // or last returned. all: returns every index.
  std::vector<std::uint8_t> unsaved(bool all);

 private:
  using Key = std::uint64_t;
  static constexpr std::size_t kParts = 16;  // hash table shards, so that threads seldom contend
  static Key key(std::size_t size, std::uint32_t crc32c) {
    return static_cast<Key>(size) << 32 | crc32c;
  }
  struct Entry {
    Bytes bytes;
    std::uint32_t points = 0, saved = 0;  // the number in `bytes`, and when last loaded or returned
    bool loaded = false;                  // `bytes` was given to load()
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
