// x86 intrinsics, without the warnings that GCC 12 gives for its own headers: it takes the
// deliberately undefined registers of AVX-512 intrinsics for mistakes (its bug 105593).
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
