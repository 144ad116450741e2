#include "core/cpu_features.h"

#include <doctest/doctest.h>

#ifdef FASTIO_X86

#include <fstream>
#include <set>
#include <sstream>
#include <string>

using namespace fastio;

namespace {

// The flags that Linux lists for the first processor.
std::set<std::string> listed() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> found;
    for (std::string word; words >> word;) found.insert(word);
    return found;
  }
  return {};
}

}  // namespace

TEST_CASE("the features found are those that the operating system lists") {
  const std::set<std::string> flags = listed();
  if (flags.empty()) return;  // no /proc
  const std::pair<CpuFeature, const char*> names[] = {
      {CpuFeature::popcnt, "popcnt"},
      {CpuFeature::pclmul, "pclmulqdq"},
      {CpuFeature::sse42, "sse4_2"},
      {CpuFeature::fma, "fma"},
      {CpuFeature::f16c, "f16c"},
      {CpuFeature::lzcnt, "abm"},
      {CpuFeature::bmi, "bmi1"},
      {CpuFeature::bmi2, "bmi2"},
      {CpuFeature::avx2, "avx2"},
      {CpuFeature::avx512f, "avx512f"},
      {CpuFeature::avx512dq, "avx512dq"},
      {CpuFeature::avx512bw, "avx512bw"},
      {CpuFeature::avx512vl, "avx512vl"},
      {CpuFeature::avx512vbmi, "avx512vbmi"},
      {CpuFeature::avx512vnni, "avx512_vnni"},
      {CpuFeature::gfni, "gfni"},
      {CpuFeature::vpclmulqdq, "vpclmulqdq"},
  };
  for (const auto& [feature, name] : names) {
    CAPTURE(name);
    CHECK(cpu_supports(feature) == (flags.count(name) > 0));
  }
}

#endif
