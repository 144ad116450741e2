#include "jpeg_index.h"

namespace fastio {
namespace {

// An entry of the table and what its allocations take beside the points, about.
constexpr std::size_t kEntryBytes = 128;

std::size_t bytes_of(const JpegIndex& index) {
  return kEntryBytes + index.points.size() * sizeof(JpegIndex::Point);
}

}  // namespace

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
