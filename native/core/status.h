// Errors as values. Core code never throws across threads, prints or aborts: functions that can
// fail return a Status, which the binding turns into a Python exception.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace fastio {

// Python uses the numbers (the table is in bind/errors.cpp): append codes, never renumber them.
enum class Code : std::int32_t {
  ok = 0,
  not_found = 1,    // the file does not exist
  io = 2,           // a system call failed
  truncated = 3,    // there are fewer bytes than the format requires
  corrupt = 4,      // the bytes contradict the format
  unsupported = 5,  // valid, but this build cannot process it
  foreign = 6,      // not decoded here, for example not a JPEG: Python passes it to Pillow
  memory = 7,       // an allocation failed
  cancelled = 8,    // the caller cancelled the operation
  unforeseen = 9,   // an exception that should not have been thrown
};

struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message;  // empty if ok; does not name the file, which the caller knows

  static Status okay() { return {}; }
  static Status error(Code code, std::string message) { return {code, std::move(message)}; }
  bool ok() const { return code == Code::ok; }
};

}  // namespace fastio
