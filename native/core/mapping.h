// Files mapped into memory, safe against truncation by other processes.
//
// If a file is truncated after it was mapped, reading a page past its new end raises SIGBUS, which
// kills the process by default. Here such pages read as zeros, and the mapping is marked as
// damaged, so that a truncated dataset is reported as an error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "status.h"

namespace fastio {

// Read-only. Thread-safe. The first mapping installs a handler for SIGBUS, which remains installed
// and passes faults outside of mappings to the previous handler. A handler that other code installs
// later takes precedence.
class Mapping {
 public:
  // Maps a whole regular file; an empty one has no data. No descriptor stays open.
  static Status open(const std::string& path, std::shared_ptr<Mapping>& out);
  // Maps the first `size` bytes of an open regular file, which may be closed afterwards.
  static Status open(int fd, std::size_t size, std::shared_ptr<Mapping>& out);

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Asks the system to begin to read the pages of bytes [offset, offset + bytes).
  void ahead(std::size_t offset, std::size_t bytes) const;

  // Unmaps the pages of bytes [offset, offset + bytes) until they are read again. Bytes outside of
  // the file are ignored.
  void release(std::size_t offset, std::size_t bytes) const;

  // Tells the system that pages are read in random order, so that it does not read ahead.
  void expect_scattered() const;

  // Whether pages that are missing in the file read as zeros. False if there are more mappings than
  // the signal handler can register: reading such a page then kills the process.
  bool guarded() const;

  // Whether a page was read that the file no longer has. Bytes that were read may then be zeros,
  // and all bytes from that page on are. Call this after reading: if it returns false, all bytes
  // that were read before are those of the file, whichever thread read a missing page first.
  bool damaged() const;

  // Installs the signal handler again if other code has replaced it. Call this before threads read
  // mapped memory.
  static void keep_guards();

  // Whether any mapping of this process was ever damaged. Faster than damaged().
  static bool any_damaged();

 private:
  Mapping(const std::uint8_t* data, std::size_t size, std::size_t guard)
      : data_(data), size_(size), guard_(guard) {}
  void advise(std::size_t offset, std::size_t bytes, int advice) const;

  const std::uint8_t* const data_;
  const std::size_t size_;
  const std::size_t guard_;  // the index of its entry in the handler's table, or kUnguarded
};

}  // namespace fastio
