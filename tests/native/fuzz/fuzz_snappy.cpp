// Snappy streams that are not trusted: snappy_decompress() from and to exactly the memory that it
// is promised, compared with a decompressor that takes the format's description word for word.
//
// The input is kSnappySelectors bytes, the size that the caller expects (little endian), then the
// stream.
#include "core/snappy.h"

#include <memory>

#include "../snappy_streams.h"
#include "fuzz_inputs.h"
#include "fuzz_support.h"

namespace fastio::fuzz {
namespace {

void run(const std::uint8_t* data, std::size_t size) {
  if (size < kSnappySelectors) return;
  const std::size_t wanted = data[0] | std::size_t{data[1]} << 8;
  const Bytes stream(data + kSnappySelectors, data + size);
  const Padded in(stream.data(), stream.size(), 0, 0);
  const std::unique_ptr<std::uint8_t[]> out(new std::uint8_t[wanted + kSnappySlack]);
  const bool sound = snappy_decompress(in.data(), in.size(), out.get(), wanted);
  Bytes expected;
  require(snappy::reference(stream, wanted, expected) == sound,
          sound ? "a damaged stream is taken" : "a sound stream is refused");
  if (!sound) return;
  require(wanted <= snappy_most(stream.size()), "a stream stands for more than snappy_most()");
  require(std::equal(expected.begin(), expected.end(), out.get()), "wrong bytes");
}

}  // namespace
}  // namespace fastio::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fastio::fuzz::run(data, size);
  return 0;
}
