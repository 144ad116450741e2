// Trains a codebook (codebook.h) on sample blocks of the images that it will be used for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg_coefficients.h"
#include "status.h"

namespace fastio {

// Appends sample blocks of an image to `out`, in the form that train_codebook() takes (128 bytes
// each). Blocks are numbered from 0, component by component and row by row; samples are block
// `phase` and every `every`-th one after it. An odd `every` samples all columns of tiles alike.
void sample_blocks(const JpegCoefficients& in, std::size_t every, std::size_t phase,
                   std::vector<std::int16_t>& out);

// Trains classes that make `n` blocks small, and writes them as kCodebookBytes bytes, which
// Codebook::parse() accepts.
//
// blocks: n x 64 coefficients in zigzag order, not dequantised; element 0 is the DC difference as
//   the format defines it. Returns Code::corrupt if n is 0, or if no record can hold an AC
//   coefficient.
// iterations: passes over the blocks, at least 1. The first ten or so create the classes; 40 are a
//   good number, and more gain little.
// seed: another seed gives another codebook that is about as good. The same blocks, iterations and
//   seed give the same bytes on every machine.
// go_on: if not null, called before each pass; false ends the training with Code::cancelled.
//
// 200,000 blocks of a hundred photos or more are enough; with fewer than 20,000, the codebook can
// be worse for other blocks than the one that ships. A million blocks are 128 MB, take 110 MB of
// additional memory, and 0.7 s per pass on one core.
Status train_codebook(const std::int16_t* blocks, std::size_t n, int iterations, std::uint64_t seed,
                      std::vector<std::uint8_t>& codebook, bool (*go_on)() = nullptr);

}  // namespace fastio
