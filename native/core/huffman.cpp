#include "huffman.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu.h"
#include "idct.h"

namespace fastio {
namespace {

// Returns the order that maps zigzag indices (T.81, figure A.6) to natural order, or to
// idct_place(). An index plus kEnd maps like the index. All others are past the block and map to
// coefficient 63, so that stores need no branch: indices of runs that are too long, and those of
// kEndAlone, which store a 0 where there is one already.
constexpr CoefficientOrder make_order(bool natural) {
  CoefficientOrder order{};
  int y = 0, x = 0;
  for (int k = 0; k < 64; ++k) {
    order.at[k] = static_cast<std::uint8_t>(natural ? 8 * y + x : idct_place(8 * y + x));
    const bool up = (y + x) % 2 == 0;
    int &along = up ? x : y, &against = up ? y : x;
    if (along == 7) {
      ++against;
    } else {
      ++along;
      if (against > 0) --against;
    }
  }
  for (int k = 64; k < 256 + 64; ++k)
    order.at[k] = k >= 128 && k < 128 + 64 ? order.at[k - 128] : 63;
  return order;
}

// Returns the signed value of the `size` bits at the top of `bits` (EXTEND in T.81); 0 for size 0.
inline std::int32_t extended(std::uint64_t bits, std::uint32_t size) {
  const auto magnitude = static_cast<std::int32_t>(bits >> 1 >> (63 - size));
  // A leading 0 bit stands for a negative value.
  const auto negative = static_cast<std::int32_t>(~(static_cast<std::int64_t>(bits) >> 63));
  return magnitude + (negative & (1 - (1 << size)));
}

// Returns the lowest `size` bits, 0 to 63.
inline std::uint64_t lowest(std::uint64_t bits, std::uint64_t size) {
  return bits & ~(~std::uint64_t{0} << (size & 63));
}

// Returns the number of stuffed zeros that these bytes have in the file: one after each 0xFF. Not
// std::count, whose 64-bit counter takes five times as long.
std::ptrdiff_t stuffed(const std::uint8_t* begin, const std::uint8_t* end) {
  std::uint32_t count = 0;
  for (; begin < end; ++begin) count += *begin == 0xFF;
  return count;
}

}  // namespace

constinit const CoefficientOrder kNaturalOrder = make_order(true), kIdctOrder = make_order(false);

bool HuffmanTable::build(const std::uint8_t* counts, const std::uint8_t* symbols, bool dc) {
  dc_ = dc;
  std::memset(look_, 0, sizeof look_);
  std::uint32_t code = 0;
  int index = 0;
  for (int length = 1; length <= 16; ++length) {
    offset_[length] = index - static_cast<std::int32_t>(code);
    for (int i = 0; i < counts[length]; ++i, ++code, ++index) {
      if (index >= 256 || code >= 1u << length) return false;
      const std::uint8_t symbol = symbols[index];
      const int size = dc ? symbol : symbol & 15;
      if (size > kMaxSize) return false;
      symbols_[index] = symbol;
      if (length > kLookBits) continue;
      const std::uint32_t first = code << (kLookBits - length);
      for (std::uint32_t j = 0; j < 1u << (kLookBits - length); ++j)
        look_[first + j] = pack(length, dc ? 0 : symbol >> 4, size);
    }
    limit_[length] = code << (16 - length);
    code <<= 1;
  }
  for (std::uint32_t bits = 0; !dc && bits < 1u << kLookBits; ++bits) pairs_[bits] = pair_of(bits);
  return true;
}

HuffmanTable::Pair HuffmanTable::pair_of(std::uint32_t bits) const {
  constexpr std::uint32_t kMask = (1u << kLookBits) - 1;
  constexpr std::uint32_t kMostSize = 7;  // the most bits of a value that fits into Pair's `value`
  const auto total = [](Symbol s) { return s & 255; };
  const auto length = [](Symbol s) { return s >> 8 & 255; };
  const auto ahead = [](Symbol s) { return (s >> 16 & 255) + 1; };
  const auto size = [](Symbol s) { return s >> 24; };
  const auto ends = [&](Symbol s) { return size(s) == 0 && ahead(s) != 16; };
  // Returns the symbol at bit `used`, or 0 if the bits that are left do not contain its code and
  // its sign.
  const auto symbol = [&](std::uint32_t used) -> Symbol {
    const Symbol s = used < kLookBits ? look_[bits << used & kMask] : 0;
    return used + length(s) + (size(s) > 0) <= kLookBits ? s : 0;
  };
  // Returns the value of the symbol at bit `used`, or, if not all of its bits are there, what is to
  // be added to them.
  const auto value = [&](Symbol s, std::uint32_t used) {
    const std::uint64_t from = std::uint64_t{bits} << kShift << (used + length(s));
    if (used + total(s) <= kLookBits) return extended(from, size(s));
    return from >> 63 ? 0 : 1 - (1 << size(s));
  };

  Symbol last = symbol(0);
  if (last == 0) return Pair{kNone} << 16;
  if (ends(last)) return Pair{total(last)} | Pair{kEndAlone} << 16 | Pair{kNone} << 48;
  const std::uint32_t first = ahead(last);
  std::uint32_t used = 0, all = 0;
  std::int32_t first_value = 0;
  const Symbol second = symbol(total(last));
  if (second != 0 && !ends(second) && size(last) <= kMostSize) {
    first_value = value(last, 0);
    used = total(last);
    all = first;
    last = second;
  }
  const auto rest = static_cast<std::uint16_t>(value(last, used));
  used += total(last);
  all += ahead(last);
  const std::uint32_t size_of_rest = used > kLookBits ? size(last) : 0;
  const Symbol end = symbol(used);
  if (end != 0 && ends(end)) {
    used += total(end);
    all += kEnd;
  }
  return Pair{used} | Pair{size_of_rest} << 8 | Pair{all} << 16 | Pair{rest} << 32 |
         Pair{first} << 48 | Pair{static_cast<std::uint8_t>(first_value)} << 56;
}

HuffmanTable::Symbol HuffmanTable::find_long(std::uint64_t bits) const {
  const auto top = static_cast<std::uint32_t>(bits >> 48);
  for (int length = kLookBits + 1; length <= 16; ++length) {
    if (top >= limit_[length]) continue;
    const std::int32_t index = static_cast<std::int32_t>(top >> (16 - length)) + offset_[length];
    const std::uint8_t symbol = symbols_[index & 255];
    return dc_ ? pack(length, 0, symbol) : pack(length, symbol >> 4, symbol & 15);
  }
  return pack(17, 0, 0);
}

// Refills the bit buffer to at least 56 valid bits: enough for two symbols.
inline void ScanDecoder::Bits::refill() {
  std::uint64_t word;
  std::memcpy(&word, next, sizeof word);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  bits |= word >> count;
  next += static_cast<std::uint32_t>(63 - count) >> 3;
  count |= 56;
}

void ScanDecoder::start(const std::uint8_t* begin, const std::uint8_t* end) {
  decode_ = run<true>;
  parse_ = run<false>;
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) {
    decode_ = decode_bmi2;
    parse_ = parse_bmi2;
  }
#endif
  bits_ = {0, 0, window_};
  filled_ = 0;
  at_marker_ = filler_ = insufficient_ = false;
  next_restart_ = 0;
  source_ = begin_ = known_place_ = begin;
  known_ = window_;
  end_ = end;
  for (std::int32_t& last : last_dc_) last = 0;
  note_safe();
}

// Moves the unread bytes to the front of the window and fills the rest from the source, without
// stuffed zeros. Whole bytes in the bit buffer are pushed back and read again. A byte that is
// partly consumed stays in the window, because tell() computes the position from it.
void ScanDecoder::fill_window() {
  const std::ptrdiff_t left = bits_.count % 8;
  bits_.next -= bits_.count / 8;
  bits_.count = static_cast<int>(left);
  bits_.bits &= ~(~std::uint64_t{0} >> left);
  const std::uint8_t* const from = bits_.next - (left > 0);
  filled_ -= static_cast<std::size_t>(from - window_);
  known_ = window_;
  known_place_ = source_ - (static_cast<std::ptrdiff_t>(filled_) + stuffed(from, from + filled_));
  std::memmove(window_, from, filled_);
  bits_.next = window_ + (left > 0);
  while (filled_ < kWindow && !at_marker_) {
    const auto there = static_cast<std::size_t>(end_ - source_);
    const std::size_t most = kWindow - filled_ < there ? kWindow - filled_ : there;
    const void* found = most ? std::memchr(source_, 0xFF, most) : nullptr;
    const std::size_t plain =
        found ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - source_) : most;
    std::memcpy(window_ + filled_, source_, plain);
    filled_ += plain;
    source_ += plain;
    if (!found) {
      at_marker_ = source_ >= end_;
    } else if (end_ - source_ >= 2 && source_[1] == 0) {
      window_[filled_++] = 0xFF;
      source_ += 2;
    } else if (end_ - source_ >= 2 && source_[1] == 0xFF) {
      ++source_;  // a fill byte before a marker
      filler_ = true;
    } else {
      at_marker_ = true;
      if (end_ - source_ < 2) {  // a 0xFF as the last byte is not a marker
        filler_ = source_ < end_;
        source_ = end_;
      }
    }
  }
  if (at_marker_) std::memset(window_ + filled_, 0, kBlockBytes);
  note_safe();
}

// Decodes one AC symbol after zigzag index `k`. Returns the index that it advances to, which is 64
// or more if the block has ended.
template <bool kStore>
[[gnu::always_inline]] inline std::uint32_t ScanDecoder::decode_one(const HuffmanTable& ac,
                                                                    Bits& bits, std::uint32_t k,
                                                                    const CoefficientOrder& order,
                                                                    std::int16_t* out) {
  bits.refill();
  HuffmanTable::Symbol symbol = ac.look_[bits.bits >> HuffmanTable::kShift];
  if (symbol == 0) [[unlikely]]
    symbol = ac.find_long(bits.bits);
  const std::uint64_t value_bits = bits.bits << (symbol >> 8 & 255);
  bits.bits <<= symbol & 63;
  bits.count -= static_cast<int>(symbol & 255);
  const std::uint32_t run = symbol >> 16 & 255, size = symbol >> 24;
  if (size == 0 && run != 15) return HuffmanTable::kEndAlone;  // the rest of the block is zero
  k += run + 1;
  if (kStore && size > 0) out[order.at[k]] = static_cast<std::int16_t>(extended(value_bits, size));
  return k;
}

// Decodes a block; if kStore, writes its DC and its nonzero AC coefficients to `out`.
template <bool kStore>
[[gnu::always_inline]] inline void ScanDecoder::decode_block(const HuffmanTable& dc,
                                                             const HuffmanTable& ac, Bits& bits,
                                                             std::int32_t& last_dc,
                                                             const CoefficientOrder& order,
                                                             std::int16_t* out) {
  HuffmanTable::Symbol symbol = dc.look_[bits.bits >> HuffmanTable::kShift];
  bits.refill();
  if (symbol == 0) [[unlikely]]
    symbol = dc.find_long(bits.bits);
  const std::int32_t difference = extended(bits.bits << (symbol >> 8 & 255), symbol >> 24);
  bits.bits <<= symbol & 63;
  bits.count -= static_cast<int>(symbol & 255);
  // Added as unsigned numbers, because the sum may overflow in a damaged stream.
  last_dc = static_cast<std::int32_t>(static_cast<std::uint32_t>(last_dc) +
                                      static_cast<std::uint32_t>(difference));
  if (kStore) out[0] = static_cast<std::int16_t>(last_dc);
  std::uint32_t k = 0;  // zigzag index of the last coefficient
  while (k < 63) {
    const HuffmanTable::Pair pair = ac.pairs_[bits.bits >> HuffmanTable::kShift];
    bits.refill();
    const std::uint32_t last = k + (pair >> 16 & 0xFFFF);
    // The pair is kNone, or it reaches coefficient 63 or passes it, so that its last symbol may
    // belong to the next block.
    if ((last + 1) & 64) [[unlikely]] {
      k = decode_one<kStore>(ac, bits, k, order, out);
      continue;
    }
    if (kStore) {
      const auto value = static_cast<std::int64_t>(pair) >> 56;
      out[order.at[k + (pair >> 48 & 255)]] = static_cast<std::int16_t>(value);
      const std::uint64_t low = lowest(bits.bits >> (-pair & 63), pair >> 8 & 255);
      out[order.at[last]] = static_cast<std::int16_t>(low + (pair >> 32));
    }
    k = last;
    bits.bits <<= pair & 63;
    bits.count -= static_cast<int>(pair & 255);
  }
}

template <bool kStore>
[[gnu::always_inline]] inline void ScanDecoder::run(ScanDecoder& scan, const McuLayout& layout,
                                                    std::int32_t count, const McuOutput* out) {
  Bits bits = scan.bits_;  // a local, because stores to `out` might alias scan.bits_
  const CoefficientOrder& order = kStore ? *out->order : kNaturalOrder;
  for (std::int32_t i = 0; i < count; ++i) {
    if (scan.insufficient_) [[unlikely]] {
      if (kStore) clear(layout, i, count, *out);
      break;
    }
    for (int j = 0; j < layout.blocks; ++j) {
      const McuLayout::Block& block = layout.block[j];
      if (bits.next > scan.safe_) [[unlikely]] {
        scan.bits_ = bits;
        scan.provide();
        bits = scan.bits_;
      }
      std::int32_t& last_dc = scan.last_dc_[block.component];
      if constexpr (kStore) {
        if (out->first[j]) {
          std::int16_t* const to = out->first[j] + i * out->step[j];
          std::memset(to, 0, 64 * sizeof *to);
          decode_block<true>(*block.dc, *block.ac, bits, last_dc, order, to);
          continue;
        }
      }
      decode_block<false>(*block.dc, *block.ac, bits, last_dc, order, nullptr);
    }
    if (scan.at_marker_) [[unlikely]] {
      scan.bits_ = bits;
      scan.note_insufficient();
    }
  }
  scan.bits_ = bits;
}

#ifdef FASTIO_X86
// run(), compiled with BMI2's shifts, which can have their count in any register. Functions of
// their own, because the compiler ignores the attribute on a template.
[[gnu::target("bmi,bmi2")]] void ScanDecoder::decode_bmi2(ScanDecoder& scan,
                                                          const McuLayout& layout,
                                                          std::int32_t count,
                                                          const McuOutput* out) {
  run<true>(scan, layout, count, out);
}

[[gnu::target("bmi,bmi2")]] void ScanDecoder::parse_bmi2(ScanDecoder& scan, const McuLayout& layout,
                                                         std::int32_t count, const McuOutput* out) {
  run<false>(scan, layout, count, out);
}
#endif

// Writes zeros for MCUs [begin, end).
void ScanDecoder::clear(const McuLayout& layout, std::int32_t begin, std::int32_t end,
                        const McuOutput& out) {
  for (int j = 0; j < layout.blocks; ++j)
    for (std::int32_t i = begin; out.first[j] && i < end; ++i)
      std::memset(out.first[j] + i * out.step[j], 0, 64 * sizeof(std::int16_t));
}

void ScanDecoder::mcus(const McuLayout& layout, std::int32_t count, const McuOutput& out) {
  decode_(*this, layout, count, &out);
}

void ScanDecoder::skip(const McuLayout& layout, std::int32_t count) {
  parse_(*this, layout, count, nullptr);
}

void ScanDecoder::block(const HuffmanTable& dc, const HuffmanTable& ac, int index,
                        std::int16_t* out) {
  const bool lacked = insufficient_;
  if (lacked) take_zeros();
  insufficient_ = false;
  McuLayout layout;
  layout.blocks = 1;
  layout.block[0] = {&dc, &ac, index};
  const McuOutput to{{out}, {0}};
  (out ? decode_ : parse_)(*this, layout, 1, &to);
  insufficient_ = insufficient_ || lacked;
}

// Refills the window for the next block: with the scan's bytes, or with zeros if there are no more.
void ScanDecoder::provide() {
  if (!at_marker_) fill_window();
  note_insufficient();
  if (insufficient_) take_zeros();
  bits_.refill();
}

// Replaces the window by zeros. As in libjpeg, the rest of an MCU that lacks bits is decoded from
// zeros.
void ScanDecoder::take_zeros() {
  bits_ = {0, 0, window_};
  filled_ = 0;
  std::memset(window_, 0, kBlockBytes);
  note_safe();
}

// Sets safe_: as long as bits_.next <= safe_, the window is known to hold all bits of the next
// block. At a marker, a block may also read the kBlockBytes zeros after the last byte.
void ScanDecoder::note_safe() {
  safe_ = at_marker_               ? window_ + filled_
          : filled_ >= kBlockBytes ? window_ + filled_ - kBlockBytes
                                   : nullptr;
}

// Sets insufficient_ if bits after the last byte were consumed.
void ScanDecoder::note_insufficient() {
  const auto taken = static_cast<std::size_t>(bits_.next - window_) * 8;
  if (at_marker_ && taken > filled_ * 8 + static_cast<std::size_t>(bits_.count))
    insufficient_ = true;
}

bool ScanDecoder::tell(std::uint64_t& bit, std::int16_t* dc) {
  const auto next = static_cast<std::size_t>(bits_.next - window_);
  const std::size_t taken = next * 8 - static_cast<std::size_t>(bits_.count);  // bits of the window
  const std::size_t at = taken / 8;
  if (insufficient_ || filler_ || at > filled_) return false;
  known_place_ += window_ + at - known_ + stuffed(known_, window_ + at);
  known_ = window_ + at;
  bit = static_cast<std::uint64_t>(known_place_ - begin_) * 8 + taken % 8;
  for (int i = 0; i < 3; ++i) {
    dc[i] = static_cast<std::int16_t>(last_dc_[i]);
    if (dc[i] != last_dc_[i]) return false;
  }
  return true;
}

void ScanDecoder::resume(std::uint64_t bit, const std::int16_t* dc, std::uint64_t restarts) {
  const std::uint8_t* const begin = begin_;
  start(begin + bit / 8, end_);
  begin_ = begin;
  for (int i = 0; i < 3; ++i) last_dc_[i] = dc[i];
  next_restart_ = static_cast<unsigned>(restarts % 8);
  provide();
  bits_.bits <<= bit % 8;
  bits_.count -= static_cast<int>(bit % 8);
}

void ScanDecoder::restart() {
  // Drop the rest of the interval that ends here: all bytes up to the marker.
  while (!at_marker_) {
    bits_ = {0, 0, window_ + filled_};
    fill_window();
  }
  bits_ = {0, 0, window_};
  filled_ = 0;
  for (std::int32_t& last : last_dc_) last = 0;
  at_marker_ = !pass_restart();
  known_ = window_;
  known_place_ = source_;
  if (at_marker_) {
    std::memset(window_, 0, kBlockBytes);  // as in libjpeg, one more block is decoded, from zeros
  } else {
    insufficient_ = false;
  }
  note_safe();
}

// Skips the restart marker that is due. If there is another marker instead, either intervals or
// markers are lost: decides between these as libjpeg's jpeg_resync_to_restart() does. Returns false
// if the interval has no bytes, because a later interval or the end of the scan comes first.
bool ScanDecoder::pass_restart() {
  const unsigned due = next_restart_;
  next_restart_ = (due + 1) % 8;
  for (; end_ - source_ >= 2; next_marker()) {
    const unsigned marker = source_[1];
    const bool restarts = marker >= 0xD0 && marker <= 0xD7;
    const unsigned ahead = (marker - 0xD0 - due) % 8;
    if (restarts && (ahead == 1 || ahead == 2)) return false;  // a later interval's marker
    if (!restarts && marker >= 0xC0) return false;             // the scan ends here
    source_ += 2;
    if (restarts && ahead < 6) return true;
    // The marker of an earlier interval, or not a marker of this kind: look for the next one.
  }
  return false;
}

const std::uint8_t* ScanDecoder::pass_scan() {
  if (!at_marker_) next_marker();
  return source_;
}

// Advances source_ to the next marker, or to the end.
void ScanDecoder::next_marker() {
  for (; end_ - source_ >= 2; ++source_)
    if (source_[0] == 0xFF && source_[1] != 0 && source_[1] != 0xFF) return;
  source_ = end_;
}

}  // namespace fastio
