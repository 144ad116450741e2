// Expansion with AVX2 and BMI2, in two passes over the blocks of a tile. The first finds where the
// values of each block are, and moves the bits of its planes to their ranks by pdep. The second
// makes bytes of planes by transposing matrices of 8 x 8 bits. Neither has a branch that depends on
// the bits of a block: what is done follows from its class. (In one pass, the wide loads of planes
// would stall on their stores.)
#include "expand_bits.h"
#include "expand_kernels.h"
#include "intrinsics.h"

namespace fastio {
namespace {

// Everything here is in an unnamed namespace or an intrinsic: see CMakeLists.txt.

// A wanted block, between the passes.
struct alignas(32) Block {
  // The low 8 planes by rank: planes 1 to 7, then plane 0. Of a large block, planes[4] has words of
  // planes 5 to 7 instead; of a small one, planes[0] and planes[1] have words of planes 0 to 7.
  u64 planes[8];
  u64 positive;  // the ranks of positive values
  u64 unused;    // second bytes of a load from `positive` on
  // The planes above, of a block of a class with values wider than 8 bits; the others are empty.
  u64 wide_planes;
  u64 wide[kPlanes - 8];
};
constexpr int kSign = 7;  // where plane 0 is
constexpr int slot(int plane) { return (plane + 7) % 8; }

// What the first pass finds: sets of blocks, as bits.
struct Tile {
  Block block[kTileBlocks];
  u64 small = 0;  // of classes for which Codebook::is_small()
  u64 large = 0;  // of other classes, with values of more than 5 bits at ranks below 16 only
  u64 wide = 0;   // the others
};

[[gnu::always_inline]] inline __m256i load(const void* from) {
  return _mm256_load_si256(static_cast<const __m256i*>(from));
}

[[gnu::always_inline]] inline __m256i load_halves(const u64* low, const u64* high) {
  const auto half = [](const u64* from) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(from));
  };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(half(low)), half(high), 1);
}

[[gnu::always_inline]] inline __m256i qwords(u64 value) {
  return _mm256_set1_epi64x(static_cast<long long>(value));
}

// Returns all ones in the bytes where `bits` has all bits of `each`.
[[gnu::always_inline]] inline __m256i lanes_of(__m256i bits, __m256i each) {
  return _mm256_cmpeq_epi8(_mm256_and_si256(bits, each), each);
}

// Exchanges the bits of `mask` with those `kShift` above, in each qword.
template <int kShift>
[[gnu::always_inline]] inline __m256i exchange(__m256i x, long long mask) {
  const __m256i differ =
      _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi64(x, kShift)), _mm256_set1_epi64x(mask));
  return _mm256_xor_si256(x, _mm256_xor_si256(differ, _mm256_slli_epi64(differ, kShift)));
}

// Exchanges the bits of `mask` in `high` with those kShift above in `low`.
template <int kShift>
[[gnu::always_inline]] inline void exchange(__m256i& low, __m256i& high, int mask) {
  const __m256i differ = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi64(low, kShift), high),
                                          _mm256_set1_epi8(static_cast<char>(mask)));
  high = _mm256_xor_si256(high, differ);
  low = _mm256_xor_si256(low, _mm256_slli_epi64(differ, kShift));
}

// The bytes of a block, in the order of Codebook::avx2_byte(): magnitudes less 1 in bits 0 to 6,
// the sign in bit 7.
struct Bytes {
  __m256i even, odd;
};

// Transposes eight matrices of 8 x 8 bits: from eight planes of 64 bits, each in a qword, to bytes.
[[gnu::always_inline]] inline Bytes transposed(__m256i low, __m256i high) {
  exchange<4>(low, high, 0x0f);
  __m256i first = _mm256_permute2x128_si256(low, high, 0x20);   // qwords 0, 1, 4 and 5
  __m256i second = _mm256_permute2x128_si256(low, high, 0x31);  // qwords 2, 3, 6 and 7
  exchange<2>(first, second, 0x33);
  Bytes bytes{_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second)};
  exchange<1>(bytes.even, bytes.odd, 0x55);
  return bytes;
}

[[gnu::always_inline]] inline Bytes large_bytes(const Block& block) {
  const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.planes + 4));
  return transposed(load(block.planes), _mm256_blend_epi32(_mm256_cvtepu16_epi64(words),
                                                           qwords(block.planes[kSign]), 0xc0));
}

// Returns the bytes of two small blocks: matrices of 8 x 8 bits, transposed.
[[gnu::always_inline]] inline __m256i small_bytes(const Block& low, const Block& high) {
  __m256i x = _mm256_shuffle_epi8(load_halves(low.planes, high.planes),
                                  _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                      2, 4, 6, 8, 10, 12, 14, 0, 3, 5, 7, 9, 11, 13, 15, 1)));
  x = exchange<7>(x, 0x00aa00aa00aa00aa);
  x = exchange<14>(x, 0x0000cccc0000cccc);
  return exchange<28>(x, 0x00000000f0f0f0f0);
}

// Returns values of 8 bits, from such bytes and the lanes of positive values.
[[gnu::always_inline]] inline __m256i values_of(__m256i bytes, __m256i positive) {
  const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes);
  // -m is ~(m - 1); +m is (m - 1) + 1, i.e. minus -1.
  const __m256i less = _mm256_xor_si256(bytes, _mm256_and_si256(negative, _mm256_set1_epi8(0x7f)));
  return _mm256_sub_epi8(less, positive);
}

// Returns the bytes that come from 16 ranks: the low (which = 0) or high half of `lanes`. from: a
// part of Codebook::shuffle.
[[gnu::always_inline]] inline __m256i quarter(__m256i lanes, int which, const std::uint8_t* from) {
  const __m256i both = which ? _mm256_permute2x128_si256(lanes, lanes, 0x11)
                             : _mm256_permute2x128_si256(lanes, lanes, 0);
  return _mm256_shuffle_epi8(both, load(from));
}

// The quantisation table of a component: the factors of the even and odd bytes of words if no value
// exceeds 255, else words.
struct Quant {
  __m256i even[2], odd[2];
  [[gnu::always_inline]] void set(const std::int16_t* values, bool bytes) {
    for (int h = 0; h < 2; ++h) {
      even[h] = load(values + 16 * h);
      odd[h] = load(values + 16 * h + 32);
      if (bytes) odd[h] = _mm256_slli_epi16(odd[h], 8);
    }
  }
};

// Stores 16 coefficients at `out`, and 16 more 32 places later. pairs: values of the two groups in
// turns, as bytes.
template <bool kByteQuant>
[[gnu::always_inline]] inline void store_pairs(__m256i pairs, __m256i even, __m256i odd,
                                               std::int16_t* out) {
  __m256i first, second;
  if constexpr (kByteQuant) {  // sums of two products of bytes, one of which is 0
    first = _mm256_maddubs_epi16(even, pairs);
    second = _mm256_maddubs_epi16(odd, pairs);
  } else {
    first = _mm256_mullo_epi16(_mm256_srai_epi16(_mm256_slli_epi16(pairs, 8), 8), even);
    second = _mm256_mullo_epi16(_mm256_srai_epi16(pairs, 8), odd);
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), first);
  _mm256_store_si256(reinterpret_cast<__m256i*>(out + 32), second);
}

// Returns the values of a block from its bytes.
[[gnu::always_inline]] inline Bytes values_of(const Bytes& bytes, u64 positive) {
  const __m256i even = _mm256_setr_epi64x(0x0101010101010101, 0x0404040404040404,
                                          0x1010101010101010, 0x4040404040404040);
  const __m256i odd = _mm256_add_epi8(even, even);
  const __m256i bits = qwords(positive);
  return {values_of(bytes.even, lanes_of(bits, even)), values_of(bytes.odd, lanes_of(bits, odd))};
}

// Stores a block, dequantised. shuffle: Codebook::shuffle.
template <bool kByteQuant>
[[gnu::always_inline]] inline void store_block(const Bytes& values,
                                               const std::uint8_t (*shuffle)[64],
                                               const Quant& quant, std::int16_t* out) {
  for (int h = 0; h < 2; ++h) {
    const __m256i even = _mm256_or_si256(quarter(values.even, 0, shuffle[0] + 32 * h),
                                         quarter(values.even, 1, shuffle[1] + 32 * h));
    const __m256i odd = _mm256_or_si256(quarter(values.odd, 0, shuffle[2] + 32 * h),
                                        quarter(values.odd, 1, shuffle[3] + 32 * h));
    store_pairs<kByteQuant>(_mm256_or_si256(even, odd), quant.even[h], quant.odd[h], out + 16 * h);
  }
}

// Stores a small block, whose bytes are the low or the high half of `lanes`.
template <bool kByteQuant, int kHalf>
[[gnu::always_inline]] inline void store_small(__m256i lanes, const std::uint8_t (*shuffle)[64],
                                               const Quant& quant, std::int16_t* out) {
  for (int h = 0; h < 2; ++h)
    store_pairs<kByteQuant>(quarter(lanes, kHalf, shuffle[0] + 32 * h), quant.even[h], quant.odd[h],
                            out + 16 * h);
}

// A mask of 16 bits, once for each of four planes.
[[gnu::always_inline]] inline u64 four_times(u64 mask) { return mask * 0x0001000100010001; }

// Takes the bits of a plane from `word`, moves them to their ranks, and adds their number.
[[gnu::always_inline]] inline u64 take_plane(u64& word, u64 plane, unsigned& bits) {
  const u64 moved = _pdep_u64(word, plane);
  word >>= count(plane) & 63;
  bits += count(plane);
  return moved;
}

// Reads the planes of a block of any class, in which some may have more bits than bits57() returns.
// Returns the position after them.
[[gnu::noinline]] u64 read_dense(const std::uint8_t* bits, u64 position, u64 mask, const u64* has,
                                 u64* planes) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    planes[slot(j)] = _pdep_u64(bits64(bits, position), mask & has[j]);
    position += count(mask & has[j]);
  }
  return position;
}

// Reads the planes of a block that is not small. Returns the position after them.
template <bool kLarge>
[[gnu::always_inline]] inline u64 read_planes(const std::uint8_t* bits, const u64 position,
                                              u64 mask, const u64* has, const u64* has_words,
                                              Block& block) {
  u64* const planes = block.planes;
  unsigned first = 0, second = 0, third = 0, last = 0;
  u64 word = bits57(bits, position);
  planes[slot(0)] = take_plane(word, mask, first);
  u64 at = position + first;
  word = bits57(bits, at);
  planes[slot(1)] = take_plane(word, mask & has[1], second);
  at += second;
  word = bits57(bits, at);
  planes[slot(2)] = take_plane(word, mask & has[2], third);
  if constexpr (!kLarge) {  // planes 2 and 3 often have more than 57 bits together
    at += third;
    third = 0;
    word = bits57(bits, at);
  }
  planes[slot(3)] = take_plane(word, mask & has[3], third);
  at += third;
  word = bits57(bits, at);
  planes[slot(4)] = take_plane(word, mask & has[4], last);
  if constexpr (kLarge) {
    planes[4] = take_plane(word, four_times(mask & 0xffff) & has_words[1] >> 16, last);
  } else {
    for (int j = 5; j < 8; ++j) planes[slot(j)] = take_plane(word, mask & has[j], last);
  }
  at += last;
  if (__builtin_expect((first > 57) | (third > 57) | (last > 57), 0)) {
    at = read_dense(bits, position, mask, has, planes);
    if constexpr (kLarge)
      planes[4] = (planes[4] & 0xffff) | (planes[5] & 0xffff) << 16 | (planes[6] & 0xffff) << 32;
  }
  block.positive = mask & ~planes[kSign];
  return at;
}

[[gnu::always_inline]] inline u64 read_wide(const std::uint8_t* bits, u64 position, u64 mask,
                                            const u64* has_wide, Block& block) {
  block.wide_planes = mask & has_wide[2] ? kPlanes - 8 : 2;  // hardly any has more than 10 bits
  for (unsigned j = 0; j < block.wide_planes; ++j) {
    const u64 plane = mask & has_wide[j];
    block.wide[j] = _pdep_u64(bits64(bits, position), plane);
    position += count(plane);
  }
  return position;
}

[[gnu::always_inline]] inline u64 read_small(const std::uint8_t* bits, u64 position, u64 mask,
                                             const u64* has_words, Block& block) {
  const u64 low = four_times(mask) & has_words[0], high = four_times(mask) & has_words[1];
  const unsigned low_bits = count(low);
  u64 word = bits57(bits, position);
  if (__builtin_expect(low_bits > 57, 0)) word = bits64(bits, position);
  block.planes[0] = _pdep_u64(word, low);
  position += low_bits;
  const unsigned high_bits = count(high);
  word = bits57(bits, position);
  if (__builtin_expect(high_bits > 57, 0)) word = bits64(bits, position);
  block.planes[1] = _pdep_u64(word, high);
  block.positive = mask & ~block.planes[0];
  return position + high_bits;
}

// Returns the number of bits of a block's values.
[[gnu::always_inline]] inline u64 value_bits(const Codebook& book, std::size_t cls, u64 mask) {
  u64 bits = 0;
  for (int j = 0; j < 8; ++j) bits += count(mask & book.has[cls][j]);
  if (__builtin_expect(book.planes[cls] > 8, 0))
    for (int j = 0; j < kPlanes - 8; ++j) bits += count(mask & book.has_wide[cls][j]);
  return bits;
}

// The first pass. Returns the number of bits of all masks and values, or stops if it exceeds
// job.end.
[[gnu::always_inline]] inline u64 find_planes(const ExpandJob& job, Tile& tile) {
  const Codebook& book = *job.book;
  const std::uint8_t *const bits = job.bits, *const classes = job.classes;
  const u64 wanted = job.wanted, end = job.end;
  u64 masks = 0, values = job.mask_bits, small = 0, large = 0, wide = 0;
  const int blocks = job.last[2] ? job.last[2] : job.last[1] ? job.last[1] : job.last[0];
  for (int i = 0; i < blocks && values <= end; ++i) {
    const std::size_t cls = classes[i];
    const unsigned length = book.mask_bits[cls];
    const u64 mask = _bzhi_u64(bits64(bits, masks), length) << 1, bit = u64{1} << i;
    masks += length;
    Block& block = tile.block[i];
    if (!(wanted & bit)) {
      values += value_bits(book, cls, mask);
    } else if (length < 16 && book.planes[cls] <= 8) {
      small |= bit;
      values = read_small(bits, values, mask, book.has_words[cls], block);
    } else if (book.planes[cls] <= 8 && !(book.has[cls][5] >> 16)) {
      large |= bit;
      values = read_planes<true>(bits, values, mask, book.has[cls], book.has_words[cls], block);
    } else {
      wide |= bit;
      values = read_planes<false>(bits, values, mask, book.has[cls], book.has_words[cls], block);
      if (book.planes[cls] > 8) values = read_wide(bits, values, mask, book.has_wide[cls], block);
    }
  }
  tile.small = small;
  tile.large = large;
  tile.wide = wide;
  return values;
}

// Corrects the values of a block that do not fit a signed byte, one by one.
[[gnu::always_inline]] inline void correct_wide(const Block& block, const Bytes& of,
                                                const std::uint8_t* places,
                                                const std::int16_t* quant, std::int16_t* out) {
  alignas(32) std::uint8_t bytes[64];
  _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), of.even);
  _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + 32), of.odd);
  u64 left = block.positive;  // +128 has 8 bits too, but does not fit a signed byte
  for (int j = 1; j < 8; ++j) left &= block.planes[slot(j)];
  for (unsigned j = 0; j < block.wide_planes; ++j) left |= block.wide[j];
  for (; left; left &= left - 1) {
    const auto r = static_cast<unsigned>(__builtin_ctzll(left));
    const unsigned byte = bytes[Codebook::transposed_byte(static_cast<int>(r))];
    std::uint32_t magnitude = (byte & 0x7fu) + 1;
    for (unsigned j = 0; j < block.wide_planes; ++j)
      magnitude += static_cast<std::uint32_t>(block.wide[j] >> r & 1) << (j + 7);
    const std::uint32_t value = byte & 0x80 ? 0u - magnitude : magnitude;
    const int p = places[r];
    out[p] = static_cast<std::int16_t>(
        value * static_cast<std::uint32_t>(static_cast<std::int32_t>(quant[p])));
  }
}

// Removes the lowest number from a set, and returns it.
[[gnu::always_inline]] inline std::size_t take(u64& set) {
  const auto lowest = static_cast<std::size_t>(__builtin_ctzll(set));
  set &= set - 1;
  return lowest;
}

// The second pass.
template <bool kByteQuant>
[[gnu::always_inline]] inline void write_blocks(const ExpandJob& job, const Tile& tile) {
  const Codebook& book = *job.book;
  const std::uint8_t* const classes = job.classes;
  const std::int16_t* const dcs = job.dcs;
  std::int16_t* const blocks = job.out;
  const auto second = static_cast<std::size_t>(job.first[1] ? job.first[1] : kTileBlocks);
  const auto third = static_cast<std::size_t>(job.first[2] ? job.first[2] : kTileBlocks);
  Quant quants[3];
  for (int c = 0; c < 3; ++c) quants[c].set(job.quant->value[c], kByteQuant);
  const auto component = [&](std::size_t i) { return (i >= second) + (i >= third); };
  for (u64 left = tile.small; left;) {
    const std::size_t i = take(left), next = left ? take(left) : i;
    const Block &low = tile.block[i], &high = tile.block[next];
    const __m256i positive =
        lanes_of(_mm256_shuffle_epi8(load_halves(&low.positive, &high.positive),
                                     _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                         0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1))),
                 qwords(0x8040201008040201));
    const __m256i both = values_of(small_bytes(low, high), positive);
    store_small<kByteQuant, 0>(both, book.shuffle[classes[i]], quants[component(i)],
                               blocks + 64 * i);
    store_small<kByteQuant, 1>(both, book.shuffle[classes[next]], quants[component(next)],
                               blocks + 64 * next);
    blocks[64 * i] = dcs[i];
    blocks[64 * next] = dcs[next];
  }
  for (u64 left = tile.large; left;) {
    const std::size_t i = take(left);
    const Block& block = tile.block[i];
    store_block<kByteQuant>(values_of(large_bytes(block), block.positive), book.shuffle[classes[i]],
                            quants[component(i)], blocks + 64 * i);
    blocks[64 * i] = dcs[i];
  }
  for (u64 left = tile.wide; left;) {
    const std::size_t i = take(left), cls = classes[i];
    const int c = component(i);
    const Block& block = tile.block[i];
    const Bytes bytes = transposed(load(block.planes), load(block.planes + 4));
    store_block<kByteQuant>(values_of(bytes, block.positive), book.shuffle[cls], quants[c],
                            blocks + 64 * i);
    blocks[64 * i] = dcs[i];
    if (book.planes[cls] > 8)
      correct_wide(block, bytes, book.place[cls], job.quant->value[c], blocks + 64 * i);
  }
}

// Decodes 8 DC differences of these widths, which lie in 16 bytes, at `position`, which it
// advances. Returns, as bits, which of them are escapes.
[[gnu::always_inline]] inline u64 eight_differences(__m256i width, const std::uint8_t* bits,
                                                    u64& position, std::int16_t* diff) {
  __m256i ends = _mm256_add_epi32(width, _mm256_slli_si256(width, 4));
  ends = _mm256_add_epi32(ends, _mm256_slli_si256(ends, 8));
  const __m256i of_lower = _mm256_permute2x128_si256(ends, ends, 0x08);  // 0 in the lower lane
  ends = _mm256_add_epi32(ends, _mm256_shuffle_epi32(of_lower, 0xff));
  const __m256i at = _mm256_add_epi32(_mm256_sub_epi32(ends, width),
                                      _mm256_set1_epi32(static_cast<int>(position & 7)));
  const __m256i window = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits + (position >> 3))));
  const __m256i four_times = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  const __m256i bytes = _mm256_add_epi8(_mm256_shuffle_epi8(_mm256_srli_epi32(at, 3), four_times),
                                        _mm256_set1_epi32(0x03020100));
  const __m256i value = _mm256_srlv_epi32(_mm256_shuffle_epi8(window, bytes),
                                          _mm256_and_si256(at, _mm256_set1_epi32(7)));
  const __m256i empty = _mm256_sub_epi32(_mm256_set1_epi32(32), width);  // shifts by 32 give 0
  const __m256i number = _mm256_srav_epi32(_mm256_sllv_epi32(value, empty), empty);
  const __m256i lowest =
      _mm256_sllv_epi32(_mm256_set1_epi32(-1), _mm256_sub_epi32(width, _mm256_set1_epi32(1)));
  const __m256i escape = _mm256_andnot_si256(_mm256_cmpeq_epi32(width, _mm256_setzero_si256()),
                                             _mm256_cmpeq_epi32(number, lowest));
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(diff),
      _mm_packs_epi32(_mm256_castsi256_si128(number), _mm256_extracti128_si256(number, 1)));
  position += static_cast<unsigned>(_mm_extract_epi32(_mm256_extracti128_si256(ends, 1), 3));
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(escape)));
}

}  // namespace

std::uint64_t expand_avx2(const ExpandJob& job) {
  Tile tile;
  const u64 used = find_planes(job, tile);
  if (used > job.end) return used;
  const bool* bytes = job.quant->bytes;
  if (bytes[0] && bytes[1] && bytes[2])
    write_blocks<true>(job, tile);
  else
    write_blocks<false>(job, tile);
  return used;
}

std::uint64_t dc_differences_avx2(const Codebook& book, const std::uint8_t* classes, int n,
                                  const std::uint8_t* bits, std::uint64_t position,
                                  std::int16_t* diff, std::uint64_t& escapes) {
  std::uint8_t widths[kDcBlocks];
  for (int i = 0; i < n; ++i) widths[i] = book.dc_bits[classes[i]];
  u64 any = 0;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(widths + i));
    any |= eight_differences(_mm256_cvtepu8_epi32(eight), bits, position, diff + i) << i;
  }
  for (; i < n; ++i) {
    const unsigned width = widths[i];
    // Two shifts, because a width of 0 would need a shift by 64, which is undefined.
    const u64 top = bits57(bits, position) << (63 - width) << 1;
    diff[i] = static_cast<std::int16_t>(static_cast<std::int64_t>(top) >> (63 - width) >> 1);
    position += width;
    any |= u64{diff[i] == book.dc_escape[classes[i]]} << i;
  }
  escapes = any;
  return position;
}

void sum_avx2(std::int16_t* dc, std::int32_t n, std::uint16_t start) {
  // The last sum of the lower lane is added to the upper lane, and the last sum of all is carried
  // to the next 16.
  const __m256i last_of_lower =
      _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 14, 15, 14,
                       15, 14, 15, 14, 15, 14, 15, 14, 15, 14, 15, 14, 15);
  const __m256i last = _mm256_set1_epi16(15 << 8 | 14);
  __m256i carry = _mm256_set1_epi16(static_cast<short>(start));
  std::int32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    auto* p = reinterpret_cast<__m256i*>(dc + i);
    __m256i sums = _mm256_loadu_si256(p);
    sums = _mm256_add_epi16(sums, _mm256_slli_si256(sums, 2));
    sums = _mm256_add_epi16(sums, _mm256_slli_si256(sums, 4));
    sums = _mm256_add_epi16(sums, _mm256_slli_si256(sums, 8));
    const __m256i lower = _mm256_permute2x128_si256(sums, sums, 0x00);
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi8(lower, last_of_lower));
    sums = _mm256_add_epi16(sums, carry);
    _mm256_storeu_si256(p, sums);
    carry = _mm256_shuffle_epi8(_mm256_permute2x128_si256(sums, sums, 0x11), last);
  }
  std::uint32_t sum = static_cast<std::uint16_t>(_mm256_extract_epi16(carry, 0));
  for (; i < n; ++i) {
    sum += static_cast<std::uint32_t>(dc[i]);
    dc[i] = static_cast<std::int16_t>(sum);
  }
}

}  // namespace fastio
