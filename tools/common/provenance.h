#pragma once
// Who made a number: the `provenance` object of every JSON output.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace galley::tools {

struct Provenance {
  std::string tool;
  std::string recipe_sha256;  // of RUN/recipe.yaml's text; "" where there is no recipe
  std::vector<std::string> overrides;
  int64_t seed = 0;
  int threads = 0;
};

/// The widest vector instruction set of this processor that Galley's kernels know: "avx2", "avx512+vnni+bf16".
std::string instruction_set();

/// {tool, version, commit, time, host, isa, threads, recipe_sha256, overrides, seed}
nlohmann::ordered_json provenance_json(const Provenance& provenance);

/// SHA-256 of a text, lower-case hex (FIPS 180-4), as the contract wants for recipe_sha256.
std::string sha256_hex(const std::string& text);

}  // namespace galley::tools
