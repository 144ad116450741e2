// Helpers that the benchmarks share.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/status.h"

namespace fastio {

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "benchmark: %s\n", what.c_str());
  std::exit(1);
}

inline void require(const Status& status, const std::string& what) {
  if (!status.ok()) fail(what + ": " + status.message);
}

inline std::vector<std::uint8_t> read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace fastio
