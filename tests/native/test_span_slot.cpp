#include "core/span_slot.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/engine.h"

using namespace fastio;

namespace {

constexpr auto kLong = std::chrono::seconds(60);

// A mapped file of the bytes 0, 1, 2, ...
std::shared_ptr<const Mapping> counting(std::size_t size) {
  const std::string path = "/tmp/fastio_spans_" + std::to_string(::getpid());
  std::vector<char> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(size));
  std::shared_ptr<Mapping> mapping;
  REQUIRE(Mapping::open(path, mapping).ok());
  std::remove(path.c_str());
  return mapping;
}

}  // namespace

TEST_CASE("spans: bytes go where they are said to, with zeros behind them") {
  const SpanSlot::Sources sources{counting(100), counting(7)};
  const std::vector<Span> spans{{1, 5, 2, 8, 4}, {0, 90, 10, 12, 10}, {0, 0, 0, 0, 3}};
  std::vector<std::uint8_t> out(23, 0xee);
  REQUIRE(SpanSlot::check(sources, spans, out.size()).ok());
  Engine engine(2);
  const auto slot = std::make_shared<SpanSlot>(sources, spans, out.data());
  engine.submit(slot);
  REQUIRE(slot->wait(kLong));
  CHECK(slot->failures().empty());
  CHECK(out == std::vector<std::uint8_t>{0,  0,  0,  0xee, 0xee, 0xee, 0xee, 0xee, 5,  6,  0,   0,
                                         90, 91, 92, 93,   94,   95,   96,   97,   98, 99, 0xee});
}

TEST_CASE("spans: those that leave their file or the memory are refused") {
  const SpanSlot::Sources sources{counting(100)};
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const Span& span : std::vector<Span>{{1, 0, 1, 0, 1},
                                            {-1, 0, 1, 0, 1},
                                            {0, 100, 1, 0, 1},
                                            {0, -1, 1, 0, 1},
                                            {0, kHuge, 1, 0, 1},
                                            {0, 0, kHuge, 0, kHuge},
                                            {0, 0, 2, 0, 1},
                                            {0, 0, 1, 50, 1},
                                            {0, 0, 1, -1, 1},
                                            {0, 0, 1, kHuge, 1}})
    CHECK(SpanSlot::check(sources, {span}, 50).code == Code::corrupt);
}
