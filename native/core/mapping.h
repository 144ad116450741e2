// Files mapped into memory that outlive what others do to them.
//
// A mapped page of a file that was made shorter meanwhile cannot be read: the system sends SIGBUS,
// which ends a process that does not catch it. Here such a page reads as zeros and its mapping says
// that it is damaged, so that a truncated dataset is an error with a name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "status.h"

namespace fastio {

// Read-only. Thread-safe. The first one puts a handler for SIGBUS in place, which stays and hands
// on every fault outside of mappings to the handler that was there before. Where another handler is
// put in its place later, that one decides.
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

  // Has the system begin to read the pages of bytes [offset, offset + bytes).
  void ahead(std::size_t offset, std::size_t bytes) const;

  // Lets go of the pages of bytes [offset, offset + bytes), which come from the page cache, or the
  // disk, when they are read again. What lies outside of the file is left out.
  void release(std::size_t offset, std::size_t bytes) const;

  // Says that pages are used in no order, and others bring what is next to them if it is wanted.
  void expect_scattered() const;

  // Whether a page that was cut off from the file reads as zeros. False if there were more mappings
  // than the signal handler can register: reading such a page then ends the process.
  bool guarded() const;

  // Whether a page was read that the file did not have any more. What was read up to then may be
  // zeros, and goes on being zeros from there to the end. Asked after the bytes were read: false
  // says that they were the file's, whichever thread met the missing page first.
  bool damaged() const;

  // Puts the handler back that turns a cut-off file into an error, where somebody else's took its
  // place: before memory of mappings is read by threads.
  static void keep_guards();

  // Whether one of all mappings that there ever were was damaged: a quick look.
  static bool any_damaged();

 private:
  Mapping(const std::uint8_t* data, std::size_t size, std::size_t guard)
      : data_(data), size_(size), guard_(guard) {}
  void advise(std::size_t offset, std::size_t bytes, int advice) const;

  const std::uint8_t* const data_;
  const std::size_t size_;
  const std::size_t guard_;  // number of its entry in the handler's table, or kUnguarded
};

}  // namespace fastio
