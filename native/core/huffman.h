// Entropy decoding of baseline JPEG scans (ITU-T T.81, section F.2.2): the part of decoding that
// takes most of its time, and all of it for the pixels that a crop does not want.
//
// One table look-up gives up to two symbols and a block's end, so that the chain from one look-up
// to the next is a shift, a load and a shift. The bits are refilled while a look-up is under way.
// Stuffed zeros are removed beforehand, a window of bytes at a time, so that refilling needs no
// branch. Blocks outside the crop take the same look-ups and store nothing.
//
// The bytes are not to be trusted: nothing outside [begin, end) is read, and every stream ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// A Huffman table laid out for decoding. Plain data.
class HuffmanTable {
 public:
  // counts[1 .. 16]: codes of each length; symbols: one a code (T.81, section C). False if these
  // are no prefix code or hold sizes that 8-bit baseline files do not have.
  bool build(const std::uint8_t* counts, const std::uint8_t* symbols, bool dc);

 private:
  friend class ScanDecoder;
  static constexpr int kLookBits = 10;
  static constexpr int kShift = 64 - kLookBits;
  static constexpr int kMaxSize = 12;  // of a value, so that a symbol has at most 28 bits

  // A symbol is packed as total | length << 8 | run << 16 | size << 24: the bits of code and value
  // together, those of the code, the zeros before the value, the bits of the value. 0: the code is
  // longer than kLookBits, or none.
  using Symbol = std::uint32_t;
  static Symbol pack(int length, int run, int size) {
    return static_cast<Symbol>(length + size) | static_cast<Symbol>(length) << 8 |
           static_cast<Symbol>(run) << 16 | static_cast<Symbol>(size) << 24;
  }
  // For codes longer than kLookBits. What is no code takes 17 bits and stands for a block's end, as
  // in libjpeg: damaged files come out alike.
  Symbol find_long(std::uint64_t bits) const;

  // What a look-up finds: one or two AC symbols, and the block's end if it follows them.
  //   total | size << 8 | all << 16 | rest << 32 | first << 48 | value << 56
  // total: the number of bits of all of them, including values.
  // all, first: by how many coefficients all symbols, and the first symbol, advance. `all` includes
  //   kEnd if the block ends after them, is kEndAlone if the block ends before any symbol, and is
  //   kNone if the bits of the look-up are too few to find a symbol and its sign.
  // value: the signed value of the first of two symbols. If there is only one symbol, what is
  //   stored for the first is overwritten.
  // size, rest: the value of the last symbol is `rest` plus its last `size` bits. Only the sign has
  //   to be among the bits of the look-up. size is 0 if the whole value is among them.
  using Pair = std::uint64_t;
  static constexpr std::uint32_t kNone = 64, kEnd = 128, kEndAlone = 256;
  Pair pair_of(std::uint32_t bits) const;

  Pair pairs_[1 << kLookBits];
  Symbol look_[1 << kLookBits];
  std::uint32_t limit_[17];  // first code, left-aligned to 16 bits, that is longer than i bits
  std::int32_t offset_[17];  // index of a symbol less its code, for each length
  std::uint8_t symbols_[256];
  bool dc_ = false;
};

// The blocks of an MCU, in the order of the scan. Plain data.
struct McuLayout {
  static constexpr int kMost = 10;  // blocks of an MCU (T.81, B.2.3)
  struct Block {
    const HuffmanTable *dc, *ac;
    int component;  // index in the scan
  };
  int blocks = 0;
  Block block[kMost];
};

// Where the blocks of a run of MCUs go.
struct McuOutput {
  std::int16_t* first[McuLayout::kMost];  // block i of the first MCU; null: it is parsed only
  std::ptrdiff_t step[McuLayout::kMost];  // values from there to block i of the next MCU
};

// Decodes the blocks of a scan one after another. Plain data: safe to leave by longjmp.
class ScanDecoder {
 public:
  static constexpr int kMaxComponents = 4;

  // Begins a scan whose entropy-coded bytes are [begin, end).
  void start(const std::uint8_t* begin, const std::uint8_t* end);

  // Decodes the next block of component `index` into 64 coefficients in natural order, of which
  // those that are not zero are written; null parses only. Bits that the stream lacks are zeros.
  void block(const HuffmanTable& dc, const HuffmanTable& ac, int index, std::int16_t* out);

  // Decodes the next `count` MCUs, with no restart marker before any of them: each block into 64
  // coefficients in natural order, all of which are written. They are zeros in MCUs that begin
  // where bits are lacking.
  void mcus(const McuLayout& layout, std::int32_t count, const McuOutput& out);
  // Parses them only.
  void skip(const McuLayout& layout, std::int32_t count);

  // Returns where the next MCU begins: its bit from `begin` on, stuffed zeros included, and the
  // components' last DCs. False if that is not known: bits were lacking, or a DC exceeds 16 bits.
  bool tell(std::uint64_t& bit, std::int16_t* dc);
  // Continues at a place that tell() returned; restarts: the number of restart markers before it.
  void resume(std::uint64_t bit, const std::int16_t* dc, std::uint64_t restarts);

  // Goes on after the restart marker that is due. Where markers are missing or damaged, as libjpeg.
  void restart();

  // A block lacked bits: a marker or the end came first. MCUs that begin so are to be left alone,
  // as libjpeg leaves them, up to the next restart.
  bool insufficient() const { return insufficient_; }

  // ... and what came was the end of the bytes, not a marker.
  bool ran_out() const { return insufficient_ && source_ >= end_; }

  // After the last block: the marker that ends the scan, or the end of the bytes.
  const std::uint8_t* pass_scan();

 private:
  static constexpr std::size_t kWindow = 4096;
  // Bytes that a block can take: 64 symbols of 28 bits, and the 8 that a load may read ahead.
  static constexpr std::size_t kBlockBytes = 64 * 28 / 8 + 16;

  // Where the stream stands, in registers while a block is decoded. Before a look-up, the highest
  // HuffmanTable::kLookBits bits are those of the stream.
  struct Bits {
    std::uint64_t bits = 0;              // the next bits, from the highest down
    int count = 0;                       // how many count; those below are bytes from `next` on
    const std::uint8_t* next = nullptr;  // in the window: the next byte for `bits`

    void refill();
  };
  using Run = void(ScanDecoder&, const McuLayout&, std::int32_t, const McuOutput*);

  template <bool kStore>
  static void decode_block(const HuffmanTable& dc, const HuffmanTable& ac, Bits& bits,
                           std::int32_t& last_dc, std::int16_t* out);
  template <bool kStore>
  static std::uint32_t decode_one(const HuffmanTable& ac, Bits& bits, std::uint32_t k,
                                  std::int16_t* out);
  // The attribute stands here too, or a use before the definition would go without.
  template <bool kStore>
  [[gnu::always_inline]] static inline void run(ScanDecoder& scan, const McuLayout& layout,
                                                std::int32_t count, const McuOutput* out);
#ifdef FASTIO_X86
  static void decode_bmi2(ScanDecoder& scan, const McuLayout& layout, std::int32_t count,
                          const McuOutput* out);
  static void parse_bmi2(ScanDecoder& scan, const McuLayout& layout, std::int32_t count,
                         const McuOutput* out);
#endif
  static void clear(const McuLayout& layout, std::int32_t begin, std::int32_t end,
                    const McuOutput& out);
  void provide();
  void take_zeros();
  void note_safe();
  void note_insufficient();
  void fill_window();
  bool pass_restart();
  void next_marker();

  Bits bits_;
  Run *decode_ = nullptr, *parse_ = nullptr;  // this machine's
  std::size_t filled_ = 0;                    // bytes in the window; zeros follow
  const std::uint8_t* safe_ = nullptr;
  bool at_marker_ = false;  // the window holds all bytes up to the next marker, or the end
  bool filler_ = false;     // ... and bytes to be passed over were among them
  bool insufficient_ = false;
  unsigned next_restart_ = 0;             // the number of the marker that is due, 0 to 7
  const std::uint8_t* source_ = nullptr;  // what the window was not filled with yet
  const std::uint8_t* begin_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  // A byte of the window that is not ahead, and its place in the file. The stuffed zeros from there
  // on are counted when tell() asks for a place.
  const std::uint8_t* known_ = nullptr;
  const std::uint8_t* known_place_ = nullptr;
  std::int32_t last_dc_[kMaxComponents] = {};
  std::uint8_t window_[kWindow + kBlockBytes];
};

}  // namespace fastio
