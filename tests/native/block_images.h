// One image through ImageDecoder, as a JPEG file and as a block record of it, for tests.
#pragma once

#include <memory>
#include <random>

#include "block_records.h"
#include "core/image.h"

namespace fastio::test {

struct Result {
  Status status;
  std::int32_t height = 0, width = 0;
  std::size_t bytes_a_pixel = 0;
  Bytes out;  // exactly as large as asked for
};

inline void* place(void* context, std::int32_t height, std::int32_t width) {
  auto& result = *static_cast<Result*>(context);
  result.height = height;
  result.width = width;
  result.out = Bytes(
      static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * result.bytes_a_pixel,
      0xA5);
  return result.out.data();
}

struct Bench {
  ImageCounters counters;
  ImageDecoder decoder{counters};

  Result decode(const ImageTask& task, ImageRequest request, Codec codec, const Bytes& bytes) {
    const PaddedBytes padded(bytes);
    request.codec = codec;
    request.data = padded.data();
    request.size = padded.size();
    Result result;
    result.bytes_a_pixel = store_bytes(task.store, 1, 1, task.channels);
    result.status = decoder.decode(task, request, place, &result);
    return result;
  }
};

struct Sample {
  std::unique_ptr<Codebook> book = random_codebook(1);
  Bytes jpeg, record;

  Sample() = default;
  Sample(const JpegOptions& o, std::uint32_t seed) : jpeg(make_jpeg(o, seed)) {
    record = record_of(*book, jpeg);
  }
  // Of coefficients, which need not be those of any picture.
  explicit Sample(JpegCoefficients in) {
    in.metadata.clear();
    if (in.shape.colour == Colour::rgb)
      for (std::size_t c = 0; c < 3; ++c) in.shape.ids[c] = static_cast<std::uint8_t>("RGB"[c]);
    REQUIRE(write_jpeg(in, jpeg).ok());
    record = encode_record(*book, in);
  }
};

inline GeometryStep sized(GeometryStep::Kind kind, std::int32_t height, std::int32_t width) {
  GeometryStep s;
  s.kind = kind;
  s.height = height;
  s.width = width;
  return s;
}

inline GeometryStep random_step(std::mt19937& rng, int largest) {
  using Kind = GeometryStep::Kind;
  static constexpr Kind kKinds[] = {Kind::center_crop, Kind::random_crop, Kind::horizontal_flip,
                                    Kind::vertical_flip};
  GeometryStep s =
      sized(kKinds[rng() % 4], random_int(rng, 1, largest), random_int(rng, 1, largest));
  s.padding = random_int(rng, 0, 20);
  return s;
}

}  // namespace fastio::test
