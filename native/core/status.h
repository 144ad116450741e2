// What went wrong, as a value. Core code never throws across a thread, prints or aborts: every
// fallible function returns a Status, and the binding turns the bad ones into Python exceptions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace fastio {

// The numbers cross into Python (bind/errors.cpp holds the one table); append, never renumber.
enum class Code : std::int32_t {
  ok = 0,
  not_found = 1,    // the file is not there
  io = 2,           // the system refused a read
  truncated = 3,    // fewer bytes than the format promises
  corrupt = 4,      // the bytes contradict the format
  unsupported = 5,  // sound, but nothing this build decodes
  foreign = 6,      // not a JPEG that libjpeg turns into gray or RGB: Pillow's turn
  memory = 7,       // an allocation failed
  cancelled = 8,    // the caller wanted no more of it
  unforeseen = 9,   // an exception that nothing here should have thrown
};

struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message;  // empty when ok; a clause without the file's name, which the caller knows

  static Status okay() { return {}; }
  static Status error(Code code, std::string message) { return {code, std::move(message)}; }
  bool ok() const { return code == Code::ok; }
};

}  // namespace fastio
