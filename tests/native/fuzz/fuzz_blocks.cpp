// Block records that are not trusted: whatever the bytes are, every way to decode them ends, reads
// no byte that is not there and gives the same on every SIMD level; and what unpack_record() takes
// for sound decodes in every way and can be encoded again.
//
// The input is kSelectors bytes that say what to do (see Wanted) and a record, whose checksums are
// mended first in most runs.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/block_decoder.h"
#include "core/block_pixels.h"
#include "core/image.h"
#include "fuzz_inputs.h"
#include "fuzz_support.h"
#include "record_mutator.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace fastio::fuzz {
namespace {

constexpr std::size_t kMaxRow = std::size_t{16} << 20;       // bytes of a batch's row
constexpr std::size_t kMaxEncoded = std::size_t{256} << 10;  // pixels of what is encoded again

// What the selectors say.
struct Wanted {
  const std::uint8_t* s;

  bool mends() const { return (s[0] & 3) != 3; }
  bool mends_header_only() const { return (s[0] & 3) == 2; }
  int book_number() const { return s[0] >> 2 & 1; }
  const Codebook& book() const { return codebook(book_number()); }
  int channels() const { return s[0] & 8 ? 1 : 3; }
  bool encodes() const { return s[0] & 16; }
  bool from_file() const { return s[0] & 32; }
  bool pixels() const { return s[0] & 64; }
  int orientation() const { return 1 + s[1] % 8; }
  int request_orientation() const { return s[1] >> 4 == 15 ? s[1] : s[1] % 9; }
  std::uint64_t seed() const { return s[2]; }
  std::int32_t hint(int axis, std::int32_t size) const {  // of the image's size
    if (s[3] & 1) return size;
    constexpr std::int32_t kWrong[] = {0, 1, 65535, 65536, INT32_MAX, INT32_MIN, -1, 300};
    return kWrong[(s[3] >> (axis ? 1 : 4)) & 7];
  }
  StoreSpec store() const {
    StoreSpec spec;
    spec.layout = s[4] & 1 ? Layout::chw : Layout::hwc;
    spec.element = s[4] & 2 ? Element::f32 : Element::u8;
    for (float& scale : spec.scale) scale = 1.0f / 64;
    return spec;
  }
  // The part [first, last) of `size` that two selectors name.
  SampleRange range(int at, std::int32_t size) const {
    const std::int32_t first = size * s[at] / 256;
    return {first, first + 1 + (size - first - 1) * s[at + 1] / 255};
  }
  PlaneRegion region(const BlockShape& shape) const {
    PlaneRegion region;
    region.components = shape.components == 3 && s[5] & 1 ? 3 : 1;
    for (int c = 0; c < region.components; ++c) {
      const int reduce = region.reduce[c] = 1 << (s[5] >> (c ? 3 : 1) & 3);
      region.x[c] = range(6, (shape.samples_x(c) + reduce - 1) / reduce);
      region.y[c] = range(8, (shape.samples_y(c) + reduce - 1) / reduce);
    }
    return region;
  }
  Chain chain() const;
};

GeometryStep step_of(GeometryStep::Kind kind) {
  GeometryStep step;
  step.kind = kind;
  return step;
}

Chain Wanted::chain() const {
  using Kind = GeometryStep::Kind;
  std::vector<GeometryStep> steps;
  switch (s[10] % 6) {
    case 0:
    case 1:
      steps = {step_of(Kind::random_resized_crop)};
      break;
    case 2:
      steps = {step_of(Kind::resize), step_of(Kind::center_crop)};
      steps[0].width = s[10] & 128 ? 1 + s[15] : 0;
      break;
    case 3:
      steps = {step_of(Kind::center_crop)};
      break;
    case 4:
      steps = {step_of(Kind::random_crop)};
      steps[0].padding = s[15];
      break;
    default:
      break;
  }
  if (s[10] & 64) steps.push_back(step_of(Kind::horizontal_flip));
  if (s[10] & 32) steps.push_back(step_of(Kind::vertical_flip));
  Chain chain;
  for (GeometryStep& step : steps) {
    step.height = 1 + s[11];
    if (step.kind != Kind::resize) step.width = 1 + s[12];
    step.filter = static_cast<Filter>(s[13] % 3);
    step.antialias = !(s[13] & 16);
    step.scale[0] = (1 + s[14] % 16) / 256.0;
    step.scale[1] = (1 + s[14]) / 256.0;
    static_cast<void>(chain.add(step));
  }
  return chain;
}

// A file in memory that holds one record.
class RecordFile {
 public:
  RecordFile() : descriptor_(::memfd_create("record", 0)), files_(false) {
    require(descriptor_ >= 0, "no file in memory");
    files_.add({"/proc/self/fd/" + std::to_string(descriptor_)});
  }
  ~RecordFile() { ::close(descriptor_); }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  FileSet* write(const Padded& bytes) {
    require(::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, bytes.data(), bytes.size(),
                                                         0) == static_cast<ssize_t>(bytes.size()),
            "the file in memory cannot be written");
    return &files_;
  }

 private:
  int descriptor_;
  FileSet files_;
};

// Every way to decode a record, at the level that is active. Keeps its decoders, as a worker does.
class Ways {
 public:
  // filler: of the bytes behind the record's.
  void run(const Wanted& wanted, const Bytes& record, std::uint8_t filler, Outcome& out) {
    const Padded whole(record.data(), record.size(), Buffer::kPad, filler);
    const Codebook& book = wanted.book();
    JpegCoefficients coefficients;
    const Status unpacked = unpack_record(book, whole.data(), whole.size(), coefficients);
    out.add("unpack_record", unpacked);
    sound_ = unpacked.ok();
    if (sound_) {
      for (const auto& blocks : coefficients.blocks)
        out.add("coefficients", blocks.data(), blocks.size() * sizeof blocks[0]);
      if (wanted.encodes()) encode(wanted.book_number(), coefficients, out);
    }
    Status status = decoder_.open(book, whole.data(), whole.size(), whole.size());
    out.add("open", status);
    if (status.ok()) {
      region(wanted, whole, filler, out);
      if (wanted.pixels())
        for (const int denominator : {1, 2, 4, 8}) pixels(wanted, record, denominator, filler, out);
    }
    image(wanted, whole, out);
  }

 private:
  void check(const Status& status, const char* step) const {
    if (sound_ && !status.ok())
      fail(std::string(step) + " of a record that is sound: " + status.message);
  }

  // Encoded again, the coefficients are the same. A JPEG of them that is read has them too.
  void encode(int book, const JpegCoefficients& in, Outcome& out) {
    const BlockShape& shape = in.shape;
    if (static_cast<std::size_t>(shape.width) * static_cast<std::size_t>(shape.height) >
        kMaxEncoded)
      return;
    Bytes record;
    Status status = encoder(book).encode(in, record);
    out.add("encode", status);
    require(status.ok() || status.code == Code::foreign, "encode() says that a record is damaged");
    JpegCoefficients again;
    if (status.ok()) {
      out.add("encoded", record.data(), record.size());
      const Padded padded(record.data(), record.size(), kExpandPad, 0);
      status = unpack_record(codebook(book), padded.data(), padded.size(), again);
      require(status.ok(), "a record that encode() wrote is not sound");
      for (int c = 0; c < 3; ++c)
        require(again.blocks[c] == in.blocks[c], "encoding changes coefficients");
    }
    Bytes jpeg;
    status = write_jpeg(in, jpeg);
    out.add("write_jpeg", status);
    if (!status.ok()) return;
    status = read_coefficients(jpeg.data(), jpeg.size(), again);
    out.add("read_coefficients", status);
    if (!status.ok()) return;
    for (int c = 0; c < 3; ++c)
      require(again.blocks[c] == in.blocks[c], "a JPEG has other coefficients than the record");
  }

  // A region from the header, and the bytes that plan() names, each alone in memory; it is a part
  // of the whole planes.
  void region(const Wanted& wanted, const Padded& whole, std::uint8_t filler, Outcome& out) {
    const PlaneRegion region = wanted.region(decoder_.shape());
    PlaneRegion all = region;
    for (int c = 0; c < region.components; ++c) {
      const int reduce = region.reduce[c];
      all.x[c] = {0, (decoder_.shape().samples_x(c) + reduce - 1) / reduce};
      all.y[c] = {0, (decoder_.shape().samples_y(c) + reduce - 1) / reduce};
    }
    BlockDecoder parts;
    const Padded head(whole.data(), decoder_.header().bytes, 0, 0);
    Status status = parts.open(wanted.book(), head.data(), head.size(), whole.size());
    require(status.ok(), "a header is not sound alone");
    const RecordReads& reads = parts.plan(region);
    std::size_t end = reads.dc.end;
    const Padded dc_bytes(whole.data() + reads.dc.begin, reads.dc.size(), kExpandPad, filler);
    std::vector<std::unique_ptr<Padded>> ac_bytes;
    std::vector<const std::uint8_t*> ac;
    for (const ByteRange& range : reads.ac) {
      require(range.begin >= end, "plan() names bytes twice");
      end = range.end;
      require(end <= whole.size(), "plan() goes past the record");
      ac_bytes.push_back(
          std::make_unique<Padded>(whole.data() + range.begin, range.size(), kExpandPad, filler));
      ac.push_back(ac_bytes.back()->data());
    }
    PlaneView planes[3] = {}, all_planes[3] = {};
    status = parts.decode(dc_bytes.data(), ac.data(), planes);
    out.add("region", status);
    check(status, "a region");
    if (!status.ok()) return;
    for (int c = 0; c < region.components; ++c) add_plane(planes[c], region, c, out);

    const RecordReads& everything = decoder_.plan(all);
    ac.clear();
    for (const ByteRange& range : everything.ac) ac.push_back(whole.data() + range.begin);
    status = decoder_.decode(whole.data() + everything.dc.begin, ac.data(), all_planes);
    out.add("planes", status);
    check(status, "whole planes");
    if (!status.ok()) return;
    for (int c = 0; c < region.components; ++c) {
      add_plane(all_planes[c], all, c, out);
      const auto width = static_cast<std::size_t>(region.x[c].last - region.x[c].first);
      for (std::int32_t y = region.y[c].first; y < region.y[c].last; ++y)
        require(std::memcmp(planes[c].first + (y - region.y[c].first) * planes[c].stride,
                            all_planes[c].first + y * all_planes[c].stride + region.x[c].first,
                            width) == 0,
                "a region differs from the whole plane");
    }
  }

  static void add_plane(const PlaneView& plane, const PlaneRegion& region, int c, Outcome& out) {
    const auto width = static_cast<std::size_t>(region.x[c].last - region.x[c].first);
    const std::int32_t rows = region.y[c].last - region.y[c].first;
    Bytes samples;
    for (std::int32_t y = 0; y < rows; ++y)
      samples.insert(samples.end(), plane.first + y * plane.stride,
                     plane.first + y * plane.stride + width);
    out.add("samples", samples.data(), samples.size());
    // The bytes behind a row are promised to be readable.
    const Bytes behind(plane.first + (rows - 1) * plane.stride + width,
                       plane.first + (rows - 1) * plane.stride + width + kReadPad);
    require(behind.size() == kReadPad, "no bytes behind a row");
  }

  // Whole images; at an eighth of the size from the header and the DC section alone.
  void pixels(const Wanted& wanted, const Bytes& record, int denominator, std::uint8_t filler,
              Outcome& out) {
    const std::size_t size = denominator == 8 ? decoder_.header().dc_begin.back() : record.size();
    const Padded bytes(record.data(), size, kExpandPad, filler);
    Status status = pixels_.open(wanted.book(), bytes.data(), size, record.size(),
                                 wanted.orientation(), denominator, wanted.channels());
    check(status, "opening for pixels");
    if (!status.ok()) return out.add("pixels", status);
    Bytes image(static_cast<std::size_t>(pixels_.height()) *
                static_cast<std::size_t>(pixels_.width()) *
                static_cast<std::size_t>(wanted.channels()));
    status = pixels_.read(image.data());
    out.add("pixels", status);
    check(status, "pixels");
    if (status.ok()) out.add("pixels", image.data(), image.size());
  }

  struct Row {
    const ImageTask* task;
    std::unique_ptr<std::uint8_t[]> bytes;
    std::size_t size = 0;
  };
  static void* place(void* context, std::int32_t height, std::int32_t width) {
    Row& row = *static_cast<Row*>(context);
    row.size = store_bytes(row.task->store, height, width, row.task->channels);
    if (row.size > kMaxRow) return nullptr;
    row.bytes.reset(new std::uint8_t[row.size]);
    return row.bytes.get();
  }

  // A row of a batch, as the loader decodes it.
  void image(const Wanted& wanted, const Padded& whole, Outcome& out) {
    const Chain chain = wanted.chain();
    ImageTask task;
    task.chain = &chain;
    task.codebook = &wanted.book();
    task.seed = wanted.seed();
    task.channels = wanted.channels();
    task.store = wanted.store();
    ImageRequest request;
    request.size = whole.size();
    request.codec = Codec::blocks;
    request.orientation = static_cast<std::uint8_t>(wanted.request_orientation());
    BlockShape shape;
    if (read_shape(whole.data(), whole.size(), shape)) {
      request.height = wanted.hint(0, shape.height);
      request.width = wanted.hint(1, shape.width);
    }
    if (wanted.from_file()) {
      static RecordFile file;
      static OpenFiles open;
      request.files = file.write(whole);
      request.open = &open;
    } else {
      request.data = whole.data();
    }
    Row row{&task, nullptr};
    const Status status = images_.decode(task, request, &Ways::place, &row);
    out.add("image", status);
    if (status.ok()) out.add("image", row.bytes.get(), row.size);
    if (status.code != Code::unsupported && request.orientation <= 8) check(status, "an image");
  }

  bool sound_ = false;
  BlockDecoder decoder_;
  BlockPixels pixels_;
  ImageCounters counters_;
  ImageDecoder images_{counters_};
};

void run(const std::uint8_t* data, std::size_t size) {
  if (size < kSelectors) return;
  const Wanted wanted{data};
  Bytes record(data + kSelectors, data + size);
  BlockShape shape;
  const bool named = record.size() >= 20 && record[4] + record[5] > 0;
  if (named && !read_shape(record.data(), record.size(), shape) && shape.check().ok()) return;
  if (wanted.mends()) mend(record, wanted.mends_header_only());
  // One set of decoders for all inputs, and fresh ones for the first level: what an image leaves
  // behind must not show in the next.
  static Ways kept;
  Outcome first;
  std::uint8_t filler = 0;
  for (const auto& [name, level] : simd_levels()) {
    simd_force(level);
    Outcome outcome;
    if (level == Simd::portable) {
      Ways fresh;
      fresh.run(wanted, record, filler, first);
      continue;
    }
    filler ^= 0xA7;
    kept.run(wanted, record, filler, outcome);
    first.require_equal(outcome, name);
  }
  simd_force(simd_best());
}

}  // namespace
}  // namespace fastio::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fastio::fuzz::run(data, size);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace fastio::fuzz;
  std::mt19937 rng(seed);
  if (size < kSelectors || rng() % 6 == 0) return LLVMFuzzerMutate(data, size, max_size);
  if (rng() % 4 == 0) data[rng() % kSelectors] = static_cast<std::uint8_t>(rng());
  RecordParts parts;
  if (!take_apart(data + kSelectors, size - kSelectors, parts))
    return LLVMFuzzerMutate(data, size, max_size);
  mutate(parts, Wanted{data}.book(), rng);
  Bytes record = put_together(parts);
  if (rng() % 16 == 0) record.resize(rng() % (record.size() + 1));
  if (rng() % 16 == 0 && !record.empty())
    record[rng() % std::min<std::size_t>(record.size(), 400)] = static_cast<std::uint8_t>(rng());
  if (kSelectors + record.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(record.begin(), record.end(), data + kSelectors);
  return kSelectors + record.size();
}
