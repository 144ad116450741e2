// Trains a codebook (codebook.h) on blocks of the images that it shall serve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg_coefficients.h"
#include "status.h"

namespace fastio {

// Appends blocks to `out` as train_codebook() takes them: of the image's blocks, numbered from 0
// component by component and row by row, number `phase` and every `every`-th from there on.
// An `every` that is odd draws from all columns of a tile alike; 64 coefficients take 128 bytes.
void sample_blocks(const JpegCoefficients& in, std::size_t every, std::size_t phase,
                   std::vector<std::int16_t>& out);

// Writes kCodebookBytes bytes that Codebook::parse() takes: classes that make the `n` blocks small.
//
// blocks: n x 64 coefficients in zigzag order, not dequantised; element 0 is the DC difference as
//   the format defines it. An AC coefficient that no record can hold is Code::corrupt; so is n = 0.
// iterations: passes over the blocks, at least 1. The first ten or so make the classes; 40 are a
//   good number, and more gain little.
// seed: another seed gives another codebook of about the same worth. The same blocks, iterations
//   and seed give the same bytes on every machine.
//
// 200,000 blocks of a hundred photos or more are enough; from fewer than 20,000 comes a codebook
// that can be worse for other blocks than the one that ships. A million blocks are 128 MB, take 110
// MB besides and 0.7 s a pass on one core.
// go_on: asked between passes, if given; false ends the training with Code::cancelled.
Status train_codebook(const std::int16_t* blocks, std::size_t n, int iterations, std::uint64_t seed,
                      std::vector<std::uint8_t>& codebook, bool (*go_on)() = nullptr);

}  // namespace fastio
