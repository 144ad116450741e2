// The slot of rows whose sizes differ: threads copy ranges of mapped files into a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mapping.h"
#include "slot.h"

namespace fastio {

// A copy of `bytes` bytes of mapping `source`, from offset `begin` on, to offset `target` of the
// batch's memory. The rest of the `room` bytes there is filled with zeros.
struct Span {
  std::int32_t source;
  std::int64_t begin, bytes, target, room;
};

// A row of this slot is a span, also in failures().
class SpanSlot : public Slot {
 public:
  using Sources = std::vector<std::shared_ptr<const Mapping>>;

  // Checks that every span lies in its source, and in `size` bytes of memory. Targets must not
  // overlap, which is not checked: the memory would then have the bytes of either span.
  static Status check(const Sources& sources, const std::vector<Span>& spans, std::size_t size);

  // sources, spans: must have passed check(). out: the batch's memory.
  SpanSlot(Sources sources, std::vector<Span> spans, std::uint8_t* out);

  void fill(std::size_t begin, std::size_t end, Worker& worker) override;

 protected:
  std::vector<Failure> noted() const override;

 private:
  const Sources sources_;
  const std::vector<Span> spans_;
  std::uint8_t* const out_;
  mutable std::mutex failing_;
  std::vector<Failure> failures_;  // guarded by failing_
};

}  // namespace fastio
