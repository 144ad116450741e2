// Pieces of mapped files while threads copy them into a batch: the rows of fields whose sizes
// differ from row to row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mapping.h"
#include "slot.h"

namespace fastio {

// `bytes` bytes of a mapping, from `begin` on, go to `target` of the batch's memory; what is left
// of `room` there becomes zeros.
struct Span {
  std::int32_t source;
  std::int64_t begin, bytes, target, room;
};

// A "row" of this slot is a span; the rows of its failures are numbers of spans.
class SpanSlot : public Slot {
 public:
  using Sources = std::vector<std::shared_ptr<const Mapping>>;

  // Whether every span lies in its source and in `size` bytes of memory. Targets that overlap are
  // the caller's fault, and end in either's bytes.
  static Status check(const Sources& sources, const std::vector<Span>& spans, std::size_t size);

  // sources, spans: as they passed check(). out: the memory.
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
