#pragma once
// The instruction sets that a file of Highway kernels is compiled for. Each one costs the build a copy of the file's functions, so a file
// names those from which it gains: it includes this header, sets HWY_DISABLED_TARGETS to one of the lists below, then includes
// hwy/foreach_target.h. The baseline (scalar code on x86-64 with GCC 12) is always compiled.

#include <hwy/detect_targets.h>

// Highway numbers its targets from the best one. Version 1.2 has several above AVX-512 (Ice Lake, Zen 4, Sapphire Rapids, AVX10). These
// kernels gain nothing from them: the AVX-512 copies name the instructions of VNNI and AMX themselves.
#define GALLEY_ABOVE_AVX512 (HWY_AVX3 - 1)

/// For kernels that run on every processor. SSE4 would only save a few shuffles; Highway's SSE4 also asks for AES, which more lack.
#define GALLEY_ONLY_SSSE3_AVX2_AVX512 (GALLEY_ABOVE_AVX512 | HWY_SSE4)
/// For kernels that decline vectors of less than 256 bits.
#define GALLEY_ONLY_AVX2_AVX512 (GALLEY_ONLY_SSSE3_AVX2_AVX512 | HWY_SSSE3)
/// For kernels of AMX, which no processor has without AVX-512.
#define GALLEY_ONLY_AVX512 (GALLEY_ONLY_AVX2_AVX512 | HWY_AVX2)

/// Is the target that is being compiled one of 256 bits or more?
#define GALLEY_WIDE_TARGET (HWY_TARGET <= HWY_AVX2)
