#include "jpeg_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fastio {
namespace {

// The approximate bytes of a table entry and its allocations, without the serialised points.
constexpr std::size_t kEntryBytes = 128;

// load() and unsaved() use records of the key, the length of the index, and its bytes. This is the
// size of the first two.
constexpr std::size_t kRecordHead = sizeof(std::uint64_t) + sizeof(std::uint32_t);

// Appends a number in LEB128: 7 bits per byte, the lowest first, with the highest bit set in all
// bytes but the last one.
void put(std::uint64_t value, std::vector<std::uint8_t>& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::uint8_t>(value | 0x80));
  out.push_back(static_cast<std::uint8_t>(value));
}

// Reads numbers that put() wrote.
class Numbers {
 public:
  Numbers(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  // Reads a number. Returns false if there is none, or if it exceeds `most`, which is below 2^56.
  bool get(std::uint64_t most, std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; at_ < end_ && shift < 56; shift += 7) {
      const std::uint8_t byte = *at_++;
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value <= most;
    }
    return false;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* const end_;
};

// Zigzag encoding of signed numbers: maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
std::uint64_t folded(std::int32_t value) {
  return value < 0 ? static_cast<std::uint64_t>(~value) * 2 + 1
                   : static_cast<std::uint64_t>(value) * 2;
}

std::int32_t unfolded(std::uint64_t value) {
  const auto half = static_cast<std::int32_t>(value / 2);
  return value % 2 ? ~half : half;
}

// Returns the point that predicts the DCs of point i: the one in the row above, or else the one
// before it.
JpegIndex::Point expected(const JpegIndex& index, std::size_t i) {
  const auto row = static_cast<std::size_t>(index.scan.points_a_row());
  return i >= row ? index.points[i - row] : i > 0 ? index.points[i - 1] : JpegIndex::Point{};
}

constexpr std::uint64_t kMostEdge = 65535;            // pixels along an edge, and thus MCUs
constexpr std::uint64_t kMostDcStep = 2 * 65535 + 1;  // folded difference of two 16-bit numbers
constexpr std::uint64_t kMostScan = UINT32_MAX;       // the largest Point::byte

bool read_scan(Numbers& numbers, JpegIndex::Scan& scan) {
  std::uint64_t rows, columns, mcu_width, interval, components, middle, step;
  if (!numbers.get(kMostScan, scan.bytes) || !numbers.get(kMostEdge, rows) ||
      !numbers.get(kMostEdge, columns) || !numbers.get(kMostEdge, mcu_width) ||
      !numbers.get(kMostEdge, interval) || !numbers.get(3, components) ||
      !numbers.get(UINT32_MAX, middle) || !numbers.get(kMostEdge, step))
    return false;
  scan.rows = static_cast<std::int32_t>(rows);
  scan.columns = static_cast<std::int32_t>(columns);
  scan.mcu_width = static_cast<std::int32_t>(mcu_width);
  scan.restart_interval = static_cast<std::uint32_t>(interval);
  scan.middle = static_cast<std::uint32_t>(middle);
  scan.components = static_cast<std::int32_t>(components);
  scan.step = static_cast<std::int32_t>(step);
  return rows && columns && mcu_width && components && step;
}

}  // namespace

std::vector<std::uint8_t> JpegIndex::bytes() const {
  std::vector<std::uint8_t> out;
  out.reserve(32 + points.size() * 8);
  put(scan.bytes, out);
  for (const std::int32_t number : {scan.rows, scan.columns, scan.mcu_width})
    put(static_cast<std::uint64_t>(number), out);
  put(scan.restart_interval, out);
  put(static_cast<std::uint64_t>(scan.components), out);
  put(scan.middle, out);
  put(static_cast<std::uint64_t>(scan.step), out);
  put(points.size(), out);
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::uint64_t bit = std::uint64_t{points[i].byte} * 8 + points[i].bit;
    put(bit - last, out);
    last = bit;
    const Point like = expected(*this, i);
    for (int c = 0; c < scan.components; ++c) put(folded(points[i].dc[c] - like.dc[c]), out);
  }
  return out;
}

bool JpegIndex::read(const std::uint8_t* data, std::size_t size) {
  points.clear();
  Numbers numbers(data, size);
  std::uint64_t count;
  if (!read_scan(numbers, scan) || !numbers.get(scan.all_points(), count)) return false;
  const auto a_point = static_cast<std::size_t>(1 + scan.components);  // the least bytes of one
  if (count == 0 || count > numbers.left() / a_point) return false;
  points.reserve(count);
  Point point;
  std::uint64_t bit = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t step;
    if (!numbers.get(kMostScan * 8, step)) return false;
    bit += step;
    if ((step == 0) != (i == 0) || bit / 8 >= scan.bytes) return false;
    point.byte = static_cast<std::uint32_t>(bit / 8);
    point.bit = static_cast<std::uint8_t>(bit % 8);
    const Point like = expected(*this, i);
    for (int c = 0; c < scan.components; ++c) {
      if (!numbers.get(kMostDcStep, step)) return false;
      const std::int32_t dc = like.dc[c] + unfolded(step);
      point.dc[c] = static_cast<std::int16_t>(dc);
      if (point.dc[c] != dc) return false;
    }
    points.push_back(point);
  }
  return numbers.left() == 0;
}

std::size_t JpegIndexes::bytes_of(const Entry& entry) { return kEntryBytes + entry.bytes.size; }

JpegIndexes::Bytes JpegIndexes::find(std::size_t size, std::uint32_t crc32c) {
  Part& part = parts_[crc32c % kParts];
  const std::unique_lock lock(part.mutex, std::try_to_lock);
  if (!lock) return {};
  const auto at = part.found.find(key(size, crc32c));
  return at == part.found.end() ? Bytes{} : at->second.bytes;
}

void JpegIndexes::add(std::size_t size, std::uint32_t crc32c, const JpegIndex* index,
                      const JpegIndex& more) {
  JpegIndex whole;
  whole.scan = more.scan;
  const std::size_t known = index ? index->points.size() : 0;
  whole.points.reserve(known + more.points.size());
  if (index) whole.points = index->points;
  whole.points.insert(whole.points.end(), more.points.begin(), more.points.end());
  const auto made = std::make_shared<const std::vector<std::uint8_t>>(whole.bytes());
  Entry entry{{made, made->data(), made->size()},
              static_cast<std::uint32_t>(whole.points.size()),
              0,
              false};
  Part& part = parts_[crc32c % kParts];
  const std::unique_lock lock(part.mutex, std::try_to_lock);
  if (lock) keep(part, key(size, crc32c), std::move(entry));
}

// Stores an entry if it has more points than the one that is there, or if it replaces a copy by
// loaded bytes. The part must be locked.
void JpegIndexes::keep(Part& part, Key key, Entry entry) {
  const auto at = part.found.find(key);
  const Entry* const before = at == part.found.end() ? nullptr : &at->second;
  if (before) entry.saved = std::max(entry.saved, before->saved);
  const bool moves = entry.loaded && before && before->points == entry.points;
  if (before && before->points >= entry.points && !moves) {
    at->second.saved = entry.saved;
    return;
  }
  const std::size_t bytes = part.bytes + bytes_of(entry) - (before ? bytes_of(*before) : 0);
  if (bytes > most_bytes_ / kParts) return;
  part.bytes = bytes;
  part.found[key] = std::move(entry);
}

void JpegIndexes::load(const Bytes& all) {
  const std::uint8_t* data = all.data;
  std::size_t size = all.size;
  JpegIndex index;
  while (size >= kRecordHead) {
    Key key;
    std::uint32_t length;
    std::memcpy(&key, data, sizeof key);
    std::memcpy(&length, data + sizeof key, sizeof length);
    data += kRecordHead;
    size -= kRecordHead;
    if (length > size) return;
    if (index.read(data, length)) {
      const auto points = static_cast<std::uint32_t>(index.points.size());
      Entry entry{{all.owner, data, length}, points, points, true};
      Part& part = part_of(key);
      const std::lock_guard lock(part.mutex);
      keep(part, key, std::move(entry));
    }
    data += length;
    size -= length;
  }
}

std::vector<std::uint8_t> JpegIndexes::unsaved(bool all) {
  std::vector<std::uint8_t> out;
  for (Part& part : parts_) {
    const std::lock_guard lock(part.mutex);
    for (auto& [key, entry] : part.found) {
      // Crops of later epochs extend many indexes by a few points, which is not worth another copy.
      if (!all && std::uint64_t{entry.points} * 4 < std::uint64_t{entry.saved} * 5) continue;
      const auto length = static_cast<std::uint32_t>(entry.bytes.size);
      const std::size_t at = out.size();
      out.resize(at + kRecordHead + length);
      std::memcpy(out.data() + at, &key, sizeof key);
      std::memcpy(out.data() + at + sizeof key, &length, sizeof length);
      std::memcpy(out.data() + at + kRecordHead, entry.bytes.data, length);
      entry.saved = entry.points;
    }
  }
  return out;
}

}  // namespace fastio
