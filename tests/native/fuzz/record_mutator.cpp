#include "record_mutator.h"

#include <algorithm>

// libFuzzer's own mutations.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace fastio::fuzz {
namespace {

using Rng = std::mt19937;

std::size_t below(Rng& rng, std::size_t bound) { return bound ? rng() % bound : 0; }
std::uint8_t any_byte(Rng& rng) { return static_cast<std::uint8_t>(rng()); }

Bytes& any_of(std::vector<Bytes>& parts, Rng& rng) { return parts[below(rng, parts.size())]; }
Bytes& any_part(RecordParts& parts, Rng& rng) {
  return any_of(rng() % 3 == 0 ? parts.dc : parts.ac, rng);
}

// Where a number has a meaning of its own at its ends.
int extreme(Rng& rng, int low, int high) {
  const int near = static_cast<int>(below(rng, 3));
  switch (rng() % 3) {
    case 0:
      return std::min(low + near, high);
    case 1:
      return std::max(high - near, low);
    default:
      return low + static_cast<int>(below(rng, static_cast<std::size_t>(high - low + 1)));
  }
}

void flip_bits(RecordParts& parts, Rng& rng) {
  Bytes& part = any_part(parts, rng);
  for (std::size_t n = 1 + below(rng, 4); n > 0 && !part.empty(); --n)
    part[below(rng, part.size())] ^= static_cast<std::uint8_t>(1 << rng() % 8);
}

void fill_bytes(RecordParts& parts, Rng& rng) {
  Bytes& part = any_part(parts, rng);
  const std::size_t begin = below(rng, part.size());
  const std::size_t end = begin + below(rng, part.size() - begin + 1);
  const int kind = static_cast<int>(rng() % 3);
  for (std::size_t i = begin; i < end; ++i)
    part[i] = kind == 0 ? 0 : kind == 1 ? 0xFF : any_byte(rng);
}

// Bytes of a tile row's number of escapes and bases.
std::size_t bases_end(const RecordParts& parts) {
  return 2 + 2 * static_cast<std::size_t>(parts.shape.components);
}

void change_classes(RecordParts& parts, Rng& rng) {
  const std::size_t r = below(rng, parts.dc.size());
  Bytes& part = parts.dc[r];
  const std::size_t bases = bases_end(parts);
  const auto blocks =
      static_cast<std::size_t>(parts.shape.blocks_in_row(static_cast<std::int32_t>(r)));
  if (part.size() < bases + blocks) return;
  std::size_t at = below(rng, blocks);
  const std::uint8_t value = any_byte(rng);
  const bool repeat = rng() % 2;
  for (std::size_t n = 1 + below(rng, rng() % 2 ? 3 : blocks); n > 0 && at < blocks; --n, ++at)
    part[bases + at] = repeat ? value : any_byte(rng);
}

void change_bases(RecordParts& parts, Rng& rng) {
  Bytes& part = any_of(parts.dc, rng);
  const std::size_t bases = bases_end(parts);
  for (std::size_t i = 2; i < std::min(bases, part.size()); ++i)
    if (rng() % 2) part[i] = rng() % 2 ? any_byte(rng) : static_cast<std::uint8_t>(rng() % 2 * 255);
}

void change_exceptions(RecordParts& parts, Rng& rng) {
  const std::size_t k = below(rng, parts.ac.size());
  Bytes& part = parts.ac[k];
  std::vector<std::uint32_t> list = take_exceptions(part, parts.exceptions[k]);
  if (rng() % 2) list.clear();
  const std::size_t more =
      rng() % 4 == 0 ? static_cast<std::size_t>(extreme(rng, 0, 255)) : below(rng, 5);
  for (std::size_t n = 0; n < more; ++n) {
    const auto block = static_cast<unsigned>(extreme(rng, 0, 63));
    const auto position = static_cast<unsigned>(extreme(rng, rng() % 8 ? 1 : 0, 63));
    list.push_back(position | block << 6 | static_cast<unsigned>(rng() & 4095) << 12);
  }
  const auto before = [](std::uint32_t a, std::uint32_t b) { return (a & 4095) < (b & 4095); };
  if (rng() % 8) std::stable_sort(list.begin(), list.end(), before);
  put_exceptions(part, list, parts.exceptions[k]);
  if (rng() % 16 == 0) parts.exceptions[k] = any_byte(rng);
}

void change_length(RecordParts& parts, Rng& rng) {
  Bytes& part = any_part(parts, rng);
  const std::size_t n = 1 + below(rng, rng() % 2 ? 4 : 200);
  if (rng() % 2) {
    part.resize(part.size() - std::min(n, part.size()));
  } else {
    for (std::size_t i = 0; i < n; ++i) part.push_back(any_byte(rng));
  }
}

void swap_parts(RecordParts& parts, Rng& rng) {
  std::vector<Bytes>& of = rng() % 2 ? parts.dc : parts.ac;
  const std::size_t a = below(rng, of.size()), b = below(rng, of.size());
  const bool swap = rng() % 2, counts = &of == &parts.ac;
  if (swap) {
    std::swap(of[a], of[b]);
    if (counts) std::swap(parts.exceptions[a], parts.exceptions[b]);
  } else {
    of[a] = Bytes(of[b]);
    if (counts) parts.exceptions[a] = parts.exceptions[b];
  }
}

// As many parts as the shape has, those that there are in turn.
template <typename Parts>
void repeat_parts(Parts& parts, std::size_t count) {
  const std::size_t had = parts.size();
  parts.resize(count);
  for (std::size_t k = had; k < count; ++k) parts[k] = parts[k - had];
}

void change_size(RecordParts& parts, Rng& rng) {
  const BlockShape before = parts.shape;
  const auto size = [&](std::int32_t now) {
    return rng() % 3 == 0 ? extreme(rng, 1, 300)
                          : std::max(1, now + static_cast<int>(below(rng, 19)) - 9);
  };
  if (rng() % 2) parts.shape.width = size(parts.shape.width);
  if (rng() % 2) parts.shape.height = size(parts.shape.height);
  if (rng() % 40 == 0) (rng() % 2 ? parts.shape.width : parts.shape.height) = 65535;
  const bool small =
      static_cast<std::size_t>(parts.shape.width) * static_cast<std::size_t>(parts.shape.height) <=
      kMaxPixels / 4;
  if (!parts.shape.check().ok() || !small) parts.shape = before;
}

void change_colour(RecordParts& parts, Rng& rng) {
  BlockShape& shape = parts.shape;
  if (rng() % 4 == 0) {
    shape.components = 1;
    shape.colour = Colour::gray;
    shape.sub_x = shape.sub_y = 1;
    for (int c = 1; c < 3; ++c) shape.ids[c] = shape.table[c] = 0;
    return;
  }
  constexpr int kSamplings[] = {0x11, 0x21, 0x22, 0x12, 0x41};
  const int sampling = kSamplings[rng() % 5];
  shape.components = 3;
  shape.colour = rng() % 3 ? Colour::ycbcr : Colour::rgb;
  shape.sub_x = sampling >> 4;
  shape.sub_y = sampling & 15;
}

void change_tables(RecordParts& parts, Rng& rng) {
  BlockShape& shape = parts.shape;
  if (rng() % 3 == 0) {
    shape.tables = 1 + static_cast<int>(rng() % 3);
    for (int c = 0; c < shape.components; ++c)
      shape.table[c] = static_cast<std::uint8_t>(rng() % static_cast<unsigned>(shape.tables));
    for (int c = shape.components; c < 3; ++c) shape.table[c] = 0;
  }
  parts.wide = static_cast<std::uint8_t>(rng() & ((1u << shape.tables) - 1));
  const std::size_t had = parts.tables.size();
  std::size_t bytes = 0;
  for (int k = 0; k < shape.tables; ++k) bytes += parts.wide >> k & 1 ? 128 : 64;
  parts.tables.resize(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    if (i >= had || rng() % 16 == 0) parts.tables[i] = rng() % 2 ? 1 : any_byte(rng) | 1;
}

void change_metadata(RecordParts& parts, Rng&) {
  Bytes& bytes = parts.metadata;
  const std::size_t had = bytes.size();
  bytes.resize(had + 32);
  bytes.resize(LLVMFuzzerMutate(bytes.data(), had, bytes.size()));
}

void mutate_part(RecordParts& parts, Rng& rng) {
  Bytes& part = any_part(parts, rng);
  const std::size_t had = part.size();
  part.resize(had + 64);
  part.resize(LLVMFuzzerMutate(part.data(), had, part.size()));
}

// Makes every part as long as its bits say.
void fit_parts(RecordParts& parts, const Codebook& book, Rng& rng) {
  const BlockShape& shape = parts.shape;
  for (std::int32_t r = 0; r < shape.tile_rows(); ++r) {
    Bytes& dc = parts.dc[static_cast<std::size_t>(r)];
    const std::size_t classes_at = bases_end(parts);
    const auto fixed = classes_at + static_cast<std::size_t>(shape.blocks_in_row(r));
    while (dc.size() < fixed) dc.push_back(any_byte(rng));
    fit_dc(book, shape, r, dc);
    Bytes of_row(dc.begin() + static_cast<std::ptrdiff_t>(classes_at), dc.end());
    of_row.resize(of_row.size() + kTileColumns);
    BlockRuns row, tile;
    row.set_row(shape, r);
    for (std::int32_t t = 0; t < shape.tiles_x(); ++t) {
      const std::size_t k = shape.tile_number(r, t);
      tile.set_tile(shape, r, t);
      std::uint8_t classes[kTileBlocks + kTileColumns];
      take_tile(shape, row, of_row.data(), tile, t, classes);
      fit_ac(book, classes, tile.blocks, parts.ac[k], parts.exceptions[k]);
    }
  }
}

using Mutation = void (*)(RecordParts&, Rng&);
constexpr Mutation kMutations[] = {flip_bits,      flip_bits,         fill_bytes,    change_classes,
                                   change_classes, change_bases,      mutate_part,   mutate_part,
                                   change_length,  change_exceptions, swap_parts,    change_size,
                                   change_size,    change_metadata,   change_colour, change_tables};

}  // namespace

void mutate(RecordParts& parts, const Codebook& book, std::mt19937& rng) {
  for (std::size_t n = 1 + below(rng, 4); n > 0; --n) {
    kMutations[below(rng, std::size(kMutations))](parts, rng);
    repeat_parts(parts.dc, parts.rows());
    repeat_parts(parts.ac, parts.tiles());
    repeat_parts(parts.exceptions, parts.tiles());
  }
  if (rng() % 4) fit_parts(parts, book, rng);
}

}  // namespace fastio::fuzz
