#include "jpeg_index.h"

namespace fastio {
namespace {

// An entry of the table and what its allocations take beside the points, about.
constexpr std::size_t kEntryBytes = 128;

std::size_t bytes_of(const JpegIndex& index) {
  return kEntryBytes + index.points.size() * sizeof(JpegIndex::Point);
}

// Numbers of 7 bits a byte, the lowest first; all bytes but the last one have their highest bit
// set.
void put(std::uint64_t value, std::vector<std::uint8_t>& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::uint8_t>(value | 0x80));
  out.push_back(static_cast<std::uint8_t>(value));
}

class Numbers {
 public:
  Numbers(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  // A number up to `most`, which has less than 2^56. False: there is none.
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

// 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
std::uint64_t folded(std::int32_t value) {
  return value < 0 ? static_cast<std::uint64_t>(~value) * 2 + 1
                   : static_cast<std::uint64_t>(value) * 2;
}

std::int32_t unfolded(std::uint64_t value) {
  const auto half = static_cast<std::int32_t>(value / 2);
  return value % 2 ? ~half : half;
}

constexpr std::uint64_t kMostEdge = 65535;            // pixels of a JPEG, and thus MCUs
constexpr std::uint64_t kMostDcStep = 2 * 65535 + 1;  // between two numbers of 16 bits, folded
constexpr std::uint64_t kMostScan = UINT32_MAX;       // bytes that a point's `byte` can tell

bool read_scan(Numbers& numbers, JpegIndex::Scan& scan) {
  std::uint64_t rows, columns, mcu_width, interval, components;
  if (!numbers.get(kMostScan, scan.bytes) || !numbers.get(kMostEdge, rows) ||
      !numbers.get(kMostEdge, columns) || !numbers.get(kMostEdge, mcu_width) ||
      !numbers.get(kMostEdge, interval) || !numbers.get(3, components))
    return false;
  scan.rows = static_cast<std::int32_t>(rows);
  scan.columns = static_cast<std::int32_t>(columns);
  scan.mcu_width = static_cast<std::int32_t>(mcu_width);
  scan.restart_interval = static_cast<std::uint32_t>(interval);
  scan.components = static_cast<std::int32_t>(components);
  return rows && columns && mcu_width && components;
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
  put(points.size(), out);
  Point last;
  for (const Point& point : points) {
    put((std::uint64_t{point.byte} * 8 + point.bit) - (std::uint64_t{last.byte} * 8 + last.bit),
        out);
    for (int c = 0; c < scan.components; ++c) put(folded(point.dc[c] - last.dc[c]), out);
    last = point;
  }
  return out;
}

bool JpegIndex::read(const std::uint8_t* data, std::size_t size) {
  points.clear();
  Numbers numbers(data, size);
  std::uint64_t count;
  if (!read_scan(numbers, scan) || !numbers.get(scan.all_points(), count)) return false;
  const auto a_point = static_cast<std::size_t>(1 + scan.components);  // bytes at least
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
    for (int c = 0; c < scan.components; ++c) {
      if (!numbers.get(kMostDcStep, step)) return false;
      const std::int32_t dc = point.dc[c] + unfolded(step);
      point.dc[c] = static_cast<std::int16_t>(dc);
      if (point.dc[c] != dc) return false;
    }
    points.push_back(point);
  }
  return numbers.left() == 0;
}

std::shared_ptr<const JpegIndex> JpegIndexes::find(std::size_t size, std::uint32_t crc32c) {
  Part& part = parts_[crc32c % kParts];
  const std::unique_lock lock(part.mutex, std::try_to_lock);
  if (!lock) return nullptr;
  const auto at = part.found.find(key(size, crc32c));
  return at == part.found.end() ? nullptr : at->second;
}

void JpegIndexes::add(std::size_t size, std::uint32_t crc32c, const JpegIndex* index,
                      const JpegIndex& more) {
  auto whole = std::make_shared<JpegIndex>();
  whole->scan = more.scan;
  const std::size_t known = index ? index->points.size() : 0;
  whole->points.reserve(known + more.points.size());
  if (index) whole->points = index->points;
  whole->points.insert(whole->points.end(), more.points.begin(), more.points.end());
  Part& part = parts_[crc32c % kParts];
  const std::unique_lock lock(part.mutex, std::try_to_lock);
  if (!lock) return;
  const auto at = part.found.find(key(size, crc32c));
  // Another thread may have kept as much meanwhile.
  const JpegIndex* const before = at == part.found.end() ? nullptr : at->second.get();
  if (before && before->points.size() >= whole->points.size()) return;
  const std::size_t bytes = part.bytes + bytes_of(*whole) - (before ? bytes_of(*before) : 0);
  if (bytes > most_bytes_ / kParts) return;
  part.bytes = bytes;
  part.found[key(size, crc32c)] = std::move(whole);
}

}  // namespace fastio
