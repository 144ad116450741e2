// The encoder of the block record (docs/block_record.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "codebook.h"
#include "jpeg_coefficients.h"
#include "status.h"

namespace fastio {

// Encodes one image after another; keeps its tables (230 KB) and scratch memory. For one thread.
class BlockEncoder {
 public:
  // The codebook must outlive it.
  explicit BlockEncoder(const Codebook& codebook);
  ~BlockEncoder();
  BlockEncoder(const BlockEncoder&) = delete;
  BlockEncoder& operator=(const BlockEncoder&) = delete;

  // Each block gets the class that makes it shortest, of equals the one with the lowest number, so
  // that the record is the same on every machine. Code::foreign: AC coefficients outside
  // [-2047, 2047].
  // Code::corrupt: parts of `in` contradict each other.
  Status encode(const JpegCoefficients& in, std::vector<std::uint8_t>& record);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fastio
