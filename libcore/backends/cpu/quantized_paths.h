#pragma once
// The instructions that multiply quantized values. All four paths give the same 32-bit sums.

#include <string>

#include "libcore/ops/quantized.h"

namespace galley::quantized {

enum class Path { kExact, kReduced, kVnni, kAmx };

/// False where there are no vectors (neither SSSE3 nor an equivalent): the kernels decline.
bool available();
/// Can the path run here? vnni also runs without its instruction, slowly, except on AVX-512 machines that lack it.
bool offers(Path path);
/// The first row of the table in quantized_paths.cpp that the machine offers and the saturation permits; or the path that a test forces.
Path best_path(Saturation saturation);
/// The path for one product: `path`, but vnni instead of amx if most of each tile would be empty.
Path fitting(Path path, int64_t pixels, int64_t run_quads);
/// Forces a path, for tests; nullptr: none.
void force_path(const Path* path);
/// The path and the instruction set in verbose output: "vnni:avx3", "exact:avx2".
std::string path_name(Path path);

}  // namespace galley::quantized
