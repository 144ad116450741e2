// Entropy decoding of baseline JPEG scans (ITU-T T.81, section F.2.2). It takes most of the time of
// decoding, and all of the time of blocks outside a crop, which are parsed only.
//
// One table look-up yields up to two symbols and the end of the block, so that the dependency chain
// from one look-up to the next is a shift, a load and a shift. The bit buffer is refilled while a
// look-up is in flight. Stuffed zeros (the 00 of FF 00) are removed beforehand, one window of bytes
// at a time, so that a refill needs no branch. Blocks outside the crop take the same look-ups and
// store nothing.
//
// The bytes are not trusted: nothing outside [begin, end) is read, and every stream terminates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastio {

// A Huffman table laid out for decoding. Plain data.
class HuffmanTable {
 public:
  // counts[1 .. 16]: the number of codes of each length. symbols: one for each code, shortest code
  // first (T.81, annex C). Returns false if the counts are not those of a prefix code, or if a
  // symbol has a size that 8-bit baseline files do not have.
  bool build(const std::uint8_t* counts, const std::uint8_t* symbols, bool dc);

 private:
  friend class ScanDecoder;
  static constexpr int kLookBits = 10;
  static constexpr int kShift = 64 - kLookBits;
  // The most bits of a value. A symbol, which is a code of up to 16 bits and its value, has at most
  // 28 bits.
  static constexpr int kMaxSize = 12;

  // A symbol is packed as total | length << 8 | run << 16 | size << 24:
  // length, size: the number of bits of the code and of the value; total: their sum.
  // run: the number of zero coefficients before the value.
  // 0 in a look-up table: the code is longer than kLookBits, or the bits are not a code.
  using Symbol = std::uint32_t;
  static Symbol pack(int length, int run, int size) {
    return static_cast<Symbol>(length + size) | static_cast<Symbol>(length) << 8 |
           static_cast<Symbol>(run) << 16 | static_cast<Symbol>(size) << 24;
  }
  // Returns the symbol of a code that is longer than kLookBits, at the top of `bits`. Bits that are
  // not a code are treated as in libjpeg, so that damaged files give the same pixels: 17 bits are
  // consumed, and the symbol is 0, which ends the block (or is a DC difference of 0).
  Symbol find_long(std::uint64_t bits) const;

  // The result of a look-up: one or two AC symbols, and the end of the block if it follows them.
  //   total | size << 8 | all << 16 | rest << 32 | first << 48 | value << 56
  // total: the number of bits of all symbols, including values.
  // first, all: how far the first symbol, and all symbols, advance the zigzag index. `all` includes
  //   kEnd if the block ends after them. It is kEndAlone if the block ends before any symbol, and
  //   kNone if kLookBits bits are too few for a code and the sign of its value.
  // value: the signed value of the first of two symbols. If there is only one symbol, `first`
  //   equals `all` and `value` is 0: the decoder stores it, and then overwrites it with `rest`.
  // rest, size: the value of the last symbol is `rest` plus its last `size` bits, since only its
  //   sign has to be among the bits of the look-up. size is 0 if the whole value is among them.
  using Pair = std::uint64_t;
  static constexpr std::uint32_t kNone = 64, kEnd = 128, kEndAlone = 256;
  Pair pair_of(std::uint32_t bits) const;

  Pair pairs_[1 << kLookBits];
  Symbol look_[1 << kLookBits];
  // Codes of at most i bits, left-aligned to 16 bits, are below limit_[i].
  std::uint32_t limit_[17];
  std::int32_t offset_[17];  // for each code length: index into symbols_ minus the code
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

// Where coefficients are stored in a block, by zigzag index: in natural order (row * 8 + column),
// or by idct_place(). Indices above 63 occur at the end of a block, and where a run is too long.
struct CoefficientOrder {
  std::uint8_t at[256 + 64];
};
extern const CoefficientOrder kNaturalOrder, kIdctOrder;

// Where the blocks of a run of MCUs go.
struct McuOutput {
  std::int16_t* first[McuLayout::kMost];  // block i of the first MCU; null: it is parsed only
  std::ptrdiff_t step[McuLayout::kMost];  // values from there to block i of the next MCU
  const CoefficientOrder* order = &kNaturalOrder;
};

// Decodes the blocks of a scan one after another. Plain data: safe to leave by longjmp.
class ScanDecoder {
 public:
  static constexpr int kMaxComponents = 4;

  // Begins a scan whose entropy-coded bytes are [begin, end).
  void start(const std::uint8_t* begin, const std::uint8_t* end);

  // Decodes the next block of component `index` into `out`: 64 coefficients in natural order, all
  // of which are written. Null: the block is only parsed. Where the stream ends too early, the
  // missing bits are taken as zeros.
  void block(const HuffmanTable& dc, const HuffmanTable& ac, int index, std::int16_t* out);

  // Decodes the next `count` MCUs, which must have no restart marker before any of them. All 64
  // coefficients of each block are written, in the order *out.order. MCUs that begin while
  // insufficient() is true become zeros.
  void mcus(const McuLayout& layout, std::int32_t count, const McuOutput& out);
  // Parses the next `count` MCUs without storing them.
  void skip(const McuLayout& layout, std::int32_t count);

  // Gets the position of the next MCU: its bit offset from `begin` in the file, stuffed zeros
  // included, and the last DC of each component. Returns false if the position is not known:
  // because bits were missing, fill bytes were passed, or a DC exceeds 16 bits.
  bool tell(std::uint64_t& bit, std::int16_t* dc);
  // Continues at a position that tell() returned. restarts: the number of restart markers before
  // it.
  void resume(std::uint64_t bit, const std::int16_t* dc, std::uint64_t restarts);

  // Continues after the restart marker that is due. Missing and damaged markers are handled as in
  // libjpeg.
  void restart();

  // Whether a block lacked bits, because a marker or the end of the bytes came first. As in
  // libjpeg, MCUs that begin in this state must not be decoded until the next restart: mcus() sees
  // to that, callers of block() must.
  bool insufficient() const { return insufficient_; }

  // Whether a block lacked bits because the bytes ended, and not because of a marker.
  bool ran_out() const { return insufficient_ && source_ >= end_; }

  // Call this after the last block. Returns the marker that ends the scan, or the end of the bytes.
  const std::uint8_t* pass_scan();

 private:
  static constexpr std::size_t kWindow = 4096;
  // The most bytes that decoding a block reads: 64 symbols of 28 bits, and those that the bit
  // buffer holds or loads beyond them.
  static constexpr std::size_t kBlockBytes = 64 * 28 / 8 + 16;

  // The bit buffer, kept in registers while blocks are decoded. Before a look-up, it must have at
  // least HuffmanTable::kLookBits valid bits.
  struct Bits {
    std::uint64_t bits = 0;  // the next bits of the stream, the first one highest
    // The number of valid bits. Bits below them are 0, or already those of the bytes at `next`.
    int count = 0;
    const std::uint8_t* next = nullptr;  // in the window: the next byte to be loaded

    void refill();
  };
  using Run = void(ScanDecoder&, const McuLayout&, std::int32_t, const McuOutput*);

  template <bool kStore>
  static void decode_block(const HuffmanTable& dc, const HuffmanTable& ac, Bits& bits,
                           std::int32_t& last_dc, const CoefficientOrder& order, std::int16_t* out);
  template <bool kStore>
  static std::uint32_t decode_one(const HuffmanTable& ac, Bits& bits, std::uint32_t k,
                                  const CoefficientOrder& order, std::int16_t* out);
  // The attribute is repeated on this declaration, because uses before the definition need it.
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
  Run *decode_ = nullptr, *parse_ = nullptr;  // the versions of run() for this processor
  std::size_t filled_ = 0;                    // bytes in the window; zeros follow at a marker
  const std::uint8_t* safe_ = nullptr;        // see note_safe()
  bool at_marker_ = false;  // the window holds all bytes up to the next marker, or the end
  bool filler_ = false;     // fill bytes were dropped, so that positions are not known any more
  bool insufficient_ = false;
  unsigned next_restart_ = 0;             // the number of the marker that is due, 0 to 7
  const std::uint8_t* source_ = nullptr;  // the next byte of the file to go into the window
  const std::uint8_t* begin_ = nullptr;
  const std::uint8_t* end_ = nullptr;
  // A byte of the window at or before the read position, and the same byte in the file. tell()
  // counts the stuffed zeros from there on to map the read position to the file.
  const std::uint8_t* known_ = nullptr;
  const std::uint8_t* known_place_ = nullptr;
  std::int32_t last_dc_[kMaxComponents] = {};
  std::uint8_t window_[kWindow + kBlockBytes];
};

}  // namespace fastio
