// Expansion with look-up tables: for processors without pdep, or where it is slow.
#include <bit>
#include <cstring>

#include "expand_kernels.h"

namespace fastio {
namespace {

// Returns at least 57 bits from `position` on, the first one lowest.
std::uint64_t bits_at(const std::uint8_t* bits, std::uint64_t position) {
  const std::uint8_t* p = bits + (position >> 3);
  std::uint64_t word = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&word, p, 8);
  } else {
    for (int i = 7; i >= 0; --i) word = word << 8 | p[i];
  }
  return word >> (position & 7);
}

// Returns 64 bits from `position` on.
std::uint64_t mask_at(const std::uint8_t* bits, std::uint64_t position) {
  const std::uint64_t low = bits_at(bits, position);
  const unsigned shift = position & 7;
  const std::uint64_t high = bits[(position >> 3) + 8];
  return shift ? low | high << (64 - shift) : low;
}

// Returns the ranks at which class `cls` has values of more than j bits.
std::uint64_t plane_of(const Codebook& book, int cls, int j) {
  return j < 8 ? book.has[cls][j] : book.has_wide[cls][j - 8];
}

// Like std::popcount, which becomes a function call if the compiler may not use the instruction.
unsigned count(std::uint64_t bits) {
  bits -= bits >> 1 & 0x5555555555555555u;
  bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
  return static_cast<unsigned>(((bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0Fu) * 0x0101010101010101u >>
                               56);
}

// Look-up tables to expand eight positions at a time.
struct Tables {
  std::uint8_t deposit[256][256];  // [places][bits]: pdep of `bits` to the ones of `places`
  std::uint64_t spread[256];       // bit i moved to byte i
  std::uint8_t ones[256];          // popcount

  Tables() {
    for (unsigned places = 0; places < 256; ++places) {
      ones[places] = static_cast<std::uint8_t>(count(places));
      spread[places] = 0;
      for (unsigned i = 0; i < 8; ++i)
        spread[places] |= static_cast<std::uint64_t>(places >> i & 1) << (8 * i);
      for (unsigned bits = 0; bits < 256; ++bits) {
        unsigned result = 0, next = 0;
        for (unsigned i = 0; i < 8; ++i)
          if (places >> i & 1) result |= (bits >> next++ & 1) << i;
        deposit[places][bits] = static_cast<std::uint8_t>(result);
      }
    }
  }

  // Removes the bits for these places from `word`, and returns them as bytes at their places.
  std::uint64_t take(std::uint64_t& word, unsigned places) const {
    const unsigned bits = static_cast<unsigned>(word) & 255;
    word >>= ones[places];
    return spread[deposit[places][bits]];
  }
};
// Built at first use, because only this level needs them.
const Tables& tables() {
  static const Tables made;
  return made;
}

// Dequantises and stores a value at a place.
void store_value(std::int32_t value, int place, const std::int16_t* quant, std::int16_t* out) {
  out[place] = static_cast<std::int16_t>(static_cast<std::uint32_t>(value) *
                                         static_cast<std::uint32_t>(std::int32_t{quant[place]}));
}

// Dequantises and stores eight values, one per byte, at these places.
void store_eight(std::uint64_t bytes, const std::uint8_t* places, const std::int16_t* quant,
                 std::int16_t* out) {
  for (int i = 0; i < 8; ++i)
    store_value(static_cast<std::int8_t>(bytes >> (8 * i)), places[i], quant, out);
}

// The bits of each plane of a block, the first one lowest.
struct Planes {
  std::uint64_t word[kPlanes];
  int filled = 0;  // planes from here on have no bits

  std::uint64_t read(const Codebook& book, int cls, const std::uint8_t* bits,
                     std::uint64_t position, std::uint64_t mask) {
    while (filled < book.planes[cls]) {
      const std::uint64_t plane = mask & plane_of(book, cls, filled);
      if (!plane) break;
      const unsigned n = count(plane);
      word[filled++] = n > 57 ? mask_at(bits, position) : bits_at(bits, position);
      position += n;
    }
    return position;
  }
};

// Stores a block of a class with values wider than 8 bits, which do not fit bytes: bit by bit.
void store_wide(const Codebook& book, int cls, std::uint64_t mask, const Planes& planes,
                const std::int16_t* quant, std::int16_t* out) {
  std::int32_t magnitude[64];
  for (std::uint64_t left = mask; left; left &= left - 1) magnitude[std::countr_zero(left)] = 1;
  for (int j = 1; j < planes.filled; ++j) {
    std::uint64_t word = planes.word[j];
    for (std::uint64_t left = mask & plane_of(book, cls, j); left; left &= left - 1, word >>= 1)
      magnitude[std::countr_zero(left)] += static_cast<std::int32_t>(word & 1) << (j - 1);
  }
  std::uint64_t signs = planes.word[0];
  for (std::uint64_t left = mask; left; left &= left - 1, signs >>= 1) {
    const int r = std::countr_zero(left);
    store_value(signs & 1 ? -magnitude[r] : magnitude[r], book.place[cls][r], quant, out);
  }
}

// Decodes the values of a block, eight ranks at a time, with tables in place of pdep. Returns
// the position after them.
std::uint64_t read_block(const Tables& tables, const Codebook& book, int cls,
                         const std::uint8_t* bits, std::uint64_t position, std::uint64_t mask,
                         const std::int16_t* quant, std::int16_t* out) {
  Planes planes;
  position = planes.read(book, cls, bits, position, mask);
  if (book.planes[cls] > 8 && planes.filled > 7) {
    store_wide(book, cls, mask, planes, quant, out);
    return position;
  }
  // Branches that depend on the bits are mispredicted half of the time, so the first three planes
  // and all eight places are processed whether they have bits or not.
  for (int j = planes.filled; j < 4; ++j) planes.word[j] = 0;
  const std::uint64_t* has = book.has[cls];
  for (int first = 0; first < 64 && mask >> first; first += 8) {
    const auto places = static_cast<unsigned>(mask >> first) & 255;
    const std::uint64_t negative = tables.take(planes.word[0], places);
    std::uint64_t values = tables.spread[places];
    const auto some = [&](int j) { return places & static_cast<unsigned>(has[j] >> first); };
    values += tables.take(planes.word[1], some(1));
    values += tables.take(planes.word[2], some(2)) << 1;
    values += tables.take(planes.word[3], some(3)) << 2;
    for (int j = 4; j < planes.filled && some(j); ++j)
      values += tables.take(planes.word[j], some(j)) << (j - 1);
    // Two's complement of each negative byte. No byte carries, because its magnitude is not 0.
    values = (values ^ negative * 255) + negative;
    store_eight(values, book.place[cls] + first, quant, out);
  }
  return position;
}

// Returns the number of bits of a block's values.
unsigned value_bits(const Codebook& book, int cls, std::uint64_t mask) {
  unsigned bits = 0;
  for (int j = 0; j < book.planes[cls]; ++j) {
    const std::uint64_t plane = mask & plane_of(book, cls, j);
    if (!plane) break;
    bits += count(plane);
  }
  return bits;
}

}  // namespace

std::uint64_t expand_portable(const ExpandJob& job) {
  const Codebook& book = *job.book;
  const Tables& eights = tables();
  std::uint64_t masks = 0, values = job.mask_bits;
  for (int c = 0; c < 3; ++c) {
    const std::int16_t* quant = job.quant->value[c];
    for (int i = job.first[c]; i < job.last[c]; ++i) {
      const int cls = job.classes[i];
      const int length = book.mask_bits[cls];
      const std::uint64_t all = (std::uint64_t{1} << length) - 1;
      const std::uint64_t mask = (mask_at(job.bits, masks) & all) << 1;
      masks += static_cast<unsigned>(length);
      if (job.wanted >> i & 1) {
        std::int16_t* out = job.out + 64 * i;
        std::memset(out, 0, 64 * sizeof(*out));
        values = read_block(eights, book, cls, job.bits, values, mask, quant, out);
        out[0] = job.dcs[i];
      } else {
        values += value_bits(book, cls, mask);
      }
      if (values > job.end) return values;
    }
  }
  return values;
}

std::uint64_t mask_bits_portable(const Codebook& book, const std::uint8_t* classes, int n) {
  std::uint64_t bits = 0;
  for (int i = 0; i < n; ++i) bits += book.mask_bits[classes[i]];
  return bits;
}

std::uint64_t dc_differences_portable(const Codebook& book, const std::uint8_t* classes, int n,
                                      const std::uint8_t* bits, std::uint64_t position,
                                      std::int16_t* diff, std::uint64_t& escapes) {
  std::uint64_t any = 0;
  for (int i = 0; i < n; ++i) {
    const unsigned width = book.dc_bits[classes[i]];
    // Two shifts, because a width of 0 would need a shift by 64, which is undefined.
    const std::uint64_t top = bits_at(bits, position) << (63 - width) << 1;
    const auto value = static_cast<std::int64_t>(top) >> (63 - width) >> 1;
    position += width;
    diff[i] = static_cast<std::int16_t>(value);
    any |= std::uint64_t{diff[i] == book.dc_escape[classes[i]]} << i;
  }
  escapes = any;
  return position;
}

void sum_portable(std::int16_t* dc, std::int32_t n, std::uint16_t start) {
  std::uint32_t sum = start;
  for (std::int32_t i = 0; i < n; ++i) {
    sum += static_cast<std::uint32_t>(dc[i]);
    dc[i] = static_cast<std::int16_t>(sum);
  }
}

}  // namespace fastio
