// Encodes coefficients as a block record (docs/block_record.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codebook.h"
#include "jpeg_coefficients.h"
#include "status.h"

namespace fastio {

// Encodes one image after another, and keeps its tables (230 KB) and scratch memory. Not
// thread-safe: each thread has its own.
class BlockEncoder {
 public:
  // The codebook must outlive it.
  explicit BlockEncoder(const Codebook& codebook);
  ~BlockEncoder();
  BlockEncoder(const BlockEncoder&) = delete;
  BlockEncoder& operator=(const BlockEncoder&) = delete;

  // Gives each block the class that makes it shortest, and the lowest of those that are equal, so
  // that the record is the same on every machine. Returns Code::foreign if an AC coefficient is
  // outside [-2047, 2047], and Code::corrupt if parts of `in` contradict each other.
  Status encode(const JpegCoefficients& in, std::vector<std::uint8_t>& record);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastio
