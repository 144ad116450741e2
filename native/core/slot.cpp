#include "slot.h"

#include <algorithm>
#include <cstdio>

namespace fastio {

Slot::Slot(std::size_t rows, std::size_t chunk)
    : rows_(rows),
      chunk_(chunk),
      broken_(std::make_unique<std::atomic<std::uint8_t>[]>((rows + chunk - 1) / chunk)),
      left_(rows),
      done_(rows == 0) {}

void Slot::broke(std::size_t begin, Code code, const char* what) noexcept {
  const std::lock_guard lock(mutex_);
  if (!any_broken_) std::snprintf(what_, sizeof what_, "%s", what);
  broken_[begin / chunk_] = static_cast<std::uint8_t>(code);
  any_broken_ = true;
}

std::vector<Failure> Slot::failures() const {
  std::vector<Failure> found = noted();
  if (any_broken_) {
    // All rows of these claims fail, so failures that fill() recorded before it threw are replaced.
    const auto broken = [this](std::size_t row) {
      return static_cast<Code>(broken_[row / chunk_].load());
    };
    std::erase_if(found, [&](const Failure& failure) { return broken(failure.first) != Code::ok; });
    const std::lock_guard lock(mutex_);
    for (std::size_t row = 0; row < rows_; ++row) {
      if (const Code code = broken(row); code == Code::memory) {
        found.emplace_back(row, Status::error(code, "out of memory"));
      } else if (code != Code::ok) {
        found.emplace_back(row, Status::error(code, std::string("an unforeseen error: ") + what_));
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Failure& a, const Failure& b) { return a.first < b.first; });
  return found;
}

}  // namespace fastio
