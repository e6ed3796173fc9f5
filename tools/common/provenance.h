#pragma once
// The `provenance` object of every JSON output: which program, version and machine produced the result.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace galley::tools {

struct Provenance {
  std::string tool;
  std::string recipe_sha256;  // SHA-256 of the text of RUN/recipe.yaml; "" without a recipe
  std::vector<std::string> overrides;
  int64_t seed = 0;
  int threads = 0;
};

/// The widest vector instruction set of this processor that Galley's kernels use: "avx2", "avx512+vnni+bf16".
std::string instruction_set();

/// {tool, version, commit, time, host, isa, threads, recipe_sha256, overrides, seed}
nlohmann::ordered_json provenance_json(const Provenance& provenance);

/// SHA-256 of a text in lower-case hexadecimal (FIPS 180-4), used for recipe_sha256.
std::string sha256_hex(const std::string& text);

}  // namespace galley::tools
