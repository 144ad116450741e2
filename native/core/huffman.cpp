#include "huffman.h"

#include <bit>
#include <cstring>

#include "cpu.h"

namespace fastio {
namespace {

// Zigzag position to natural order (T.81, figure A.6), and 16 more for runs that leave the block.
constexpr std::uint8_t kNatural[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

// The value that `size` bits at the top of `bits` stand for (T.81, EXTEND); 0 for size 0.
inline std::int32_t extended(std::uint64_t bits, std::uint32_t size) {
  const auto magnitude = static_cast<std::int32_t>(bits >> 1 >> (63 - size));
  // A leading 0 bit stands for a negative value.
  const auto negative = static_cast<std::int32_t>(~(static_cast<std::int64_t>(bits) >> 63));
  return magnitude + (negative & (1 - (1 << size)));
}

}  // namespace

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
  if (!dc) build_strides();
  return true;
}

void HuffmanTable::build_strides() {
  for (std::uint32_t bits = 0; bits < 1u << kLookBits; ++bits) {
    std::uint32_t used = 0, coefficients = 0, ends = 0;
    while (!ends) {
      const Symbol symbol = look_[(bits << used) & ((1u << kLookBits) - 1)];
      const std::uint32_t total = symbol & 255;
      // Bits beyond those looked at are unknown: a symbol counts only if it ends before them.
      if (symbol == 0 || used + total > kLookBits) break;
      used += total;
      coefficients += (symbol >> 16 & 255) + 1;
      ends = symbol >> 24 == 0 && (symbol >> 16 & 255) != 15;
    }
    stride_[bits] = used | coefficients << 8 | ends << 16;
  }
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

// Makes count at least 56: room for two symbols.
inline void ScanDecoder::Bits::refill() {
  std::uint64_t word;
  std::memcpy(&word, next, sizeof word);
  if constexpr (std::endian::native == std::endian::little) word = __builtin_bswap64(word);
  bits |= word >> count;
  next += static_cast<std::uint32_t>(63 - count) >> 3;
  count |= 56;
}

void ScanDecoder::start(const std::uint8_t* begin, const std::uint8_t* end) {
  decode_ = decode_ac;
  parse_ = parse_ac;
#ifdef FASTIO_X86
  if (simd_active().has(kAvx2)) {
    decode_ = decode_ac_bmi2;
    parse_ = parse_ac_bmi2;
  }
#endif
  bits_ = {0, 0, window_};
  filled_ = 0;
  at_marker_ = insufficient_ = false;
  next_restart_ = 0;
  source_ = begin;
  end_ = end;
  for (std::int32_t& last : last_dc_) last = 0;
}

// Moves what is left to the window's front and fills it up, less the stuffed zeros.
void ScanDecoder::fill_window() {
  filled_ -= static_cast<std::size_t>(bits_.next - window_);
  std::memmove(window_, bits_.next, filled_);
  bits_.next = window_;
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
    } else {
      at_marker_ = true;
      if (end_ - source_ < 2) source_ = end_;  // half a marker is none
    }
  }
  if (at_marker_) std::memset(window_ + filled_, 0, kBlockBytes);
}

inline std::int32_t ScanDecoder::decode_dc(const HuffmanTable& dc, Bits& bits) {
  bits.refill();
  HuffmanTable::Symbol symbol = dc.look_[bits.bits >> HuffmanTable::kShift];
  if (symbol == 0) [[unlikely]]
    symbol = dc.find_long(bits.bits);
  const std::int32_t difference = extended(bits.bits << (symbol >> 8 & 255), symbol >> 24);
  bits.bits <<= symbol & 63;
  bits.count -= static_cast<int>(symbol & 255);
  return difference;
}

// Coefficients 1 to 63 of a block.
[[gnu::always_inline]] inline void ScanDecoder::decode_ac(const HuffmanTable& ac, Bits& from,
                                                          std::int16_t* out) {
  Bits bits = from;  // what is written to `out` does not alias a local
  for (std::uint32_t k = 1; k < 64; ++k) {
    bits.refill();
    HuffmanTable::Symbol symbol = ac.look_[bits.bits >> HuffmanTable::kShift];
    if (symbol == 0) [[unlikely]]
      symbol = ac.find_long(bits.bits);
    const std::uint64_t value_bits = bits.bits << (symbol >> 8 & 255);
    bits.bits <<= symbol & 63;
    bits.count -= static_cast<int>(symbol & 255);
    const std::uint32_t run = symbol >> 16 & 255, size = symbol >> 24;
    k += run;
    if (size == 0) {
      if (run != 15) break;  // the rest of the block is zero
      continue;
    }
    out[kNatural[k]] = static_cast<std::int16_t>(extended(value_bits, size));
  }
  from = bits;
}

// The same without values.
[[gnu::always_inline]] inline void ScanDecoder::parse_ac(const HuffmanTable& ac, Bits& from,
                                                         std::int16_t*) {
  Bits bits = from;
  std::uint32_t k = 1;
  bool ended = false;
  while (k < 64 && !ended) {
    bits.refill();
    // A stride that would fill the block may hold the beginning of the next one.
    const std::uint32_t stride = ac.stride_[bits.bits >> HuffmanTable::kShift];
    if (stride != 0 && k + (stride >> 8 & 255) < 64) [[likely]] {
      bits.bits <<= stride & 63;
      bits.count -= static_cast<int>(stride & 255);
      k += stride >> 8 & 255;
      ended = stride >> 16;
      continue;
    }
    HuffmanTable::Symbol symbol = ac.look_[bits.bits >> HuffmanTable::kShift];
    if (symbol == 0) symbol = ac.find_long(bits.bits);
    bits.bits <<= symbol & 63;
    bits.count -= static_cast<int>(symbol & 255);
    const std::uint32_t run = symbol >> 16 & 255;
    ended = symbol >> 24 == 0 && run != 15;
    k += run + 1;
  }
  from = bits;
}

#ifdef FASTIO_X86
// The same once more with BMI2's shifts, which need no particular register.
[[gnu::target("bmi,bmi2")]] void ScanDecoder::decode_ac_bmi2(const HuffmanTable& ac, Bits& bits,
                                                             std::int16_t* out) {
  decode_ac(ac, bits, out);
}

[[gnu::target("bmi,bmi2")]] void ScanDecoder::parse_ac_bmi2(const HuffmanTable& ac, Bits& bits,
                                                            std::int16_t* out) {
  parse_ac(ac, bits, out);
}
#endif

void ScanDecoder::block(const HuffmanTable& dc, const HuffmanTable& ac, int index,
                        std::int16_t* out) {
  if (insufficient_) [[unlikely]] {  // zeros, as libjpeg takes for the rest of an MCU
    bits_ = {0, 0, window_};
    filled_ = 0;
    std::memset(window_, 0, kBlockBytes);
  }
  const auto used = static_cast<std::size_t>(bits_.next - window_);
  if (!at_marker_ && filled_ - used < kBlockBytes) fill_window();
  // Unsigned: a damaged stream may let the sum run over.
  last_dc_[index] = static_cast<std::int32_t>(static_cast<std::uint32_t>(last_dc_[index]) +
                                              static_cast<std::uint32_t>(decode_dc(dc, bits_)));
  if (out) {
    out[0] = static_cast<std::int16_t>(last_dc_[index]);
    decode_(ac, bits_, out);
  } else {
    parse_(ac, bits_, nullptr);
  }
  // Bits were taken from the zeros behind the last byte.
  const auto taken = static_cast<std::size_t>(bits_.next - window_) * 8;
  insufficient_ = at_marker_ && taken > filled_ * 8 + static_cast<std::size_t>(bits_.count);
}

void ScanDecoder::restart() {
  // What the window holds belongs to the interval that ends here, up to the marker at least.
  while (!at_marker_) {
    bits_.next = window_ + filled_;
    fill_window();
  }
  bits_ = {0, 0, window_};
  filled_ = 0;
  for (std::int32_t& last : last_dc_) last = 0;
  at_marker_ = !pass_restart();
  if (at_marker_) {
    std::memset(window_, 0, kBlockBytes);  // as libjpeg, one block more, of zeros
  } else {
    insufficient_ = false;
  }
}

// Passes the restart marker that is due. Where another marker stands there, an interval or two may
// be lost, or a marker: libjpeg's guess is taken (jpeg_resync_to_restart).
bool ScanDecoder::pass_restart() {
  const unsigned due = next_restart_;
  next_restart_ = (due + 1) % 8;
  for (; end_ - source_ >= 2; next_marker()) {
    const unsigned marker = source_[1];
    const bool restarts = marker >= 0xD0 && marker <= 0xD7;
    const unsigned ahead = (marker - 0xD0 - due) % 8;
    if (restarts && (ahead == 1 || ahead == 2)) return false;  // its turn comes
    if (!restarts && marker >= 0xC0) return false;             // the scan ends here
    source_ += 2;
    if (restarts && ahead < 6) return true;
    // One that is late, or none at all.
  }
  return false;
}

const std::uint8_t* ScanDecoder::pass_scan() {
  if (!at_marker_) next_marker();
  return source_;
}

// Goes on to the next marker, or to the end.
void ScanDecoder::next_marker() {
  for (; end_ - source_ >= 2; ++source_)
    if (source_[0] == 0xFF && source_[1] != 0 && source_[1] != 0xFF) return;
  source_ = end_;
}

}  // namespace fastio
