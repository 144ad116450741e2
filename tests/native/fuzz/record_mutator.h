// Mutations of a block record that know its structure.
#pragma once

#include <random>

#include "core/expand.h"

#include "record_parts.h"

namespace fastio::fuzz {

// Changes one to four things about the parts: bits of tiles, classes, exceptions, lengths, whole
// tiles, the shape. In most cases each part is as long as its bits say afterwards.
void mutate(RecordParts& parts, const Codebook& book, std::mt19937& rng);

}  // namespace fastio::fuzz
