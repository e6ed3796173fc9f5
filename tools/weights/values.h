#pragma once
// Values that several verbs of galley-weights report.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "libcore/base/units.h"
#include "tools/common/provenance.h"

namespace galley::tools {

/// `words`: the arguments after the verb.
inline nlohmann::ordered_json provenance_of(const std::vector<std::string>& words) {
  Provenance provenance;
  provenance.tool = "galley-weights";
  provenance.overrides = words;
  return provenance_json(provenance);
}

inline std::string megabytes(double bytes) { return fixed(bytes / (1024 * 1024), bytes < 1024 * 1024 ? 3 : 1); }

/// In lower case, as dtypes are printed.
inline std::string lower(std::string text) {
  for (char& letter : text) letter = static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter + ('a' - 'A') : letter);
  return text;
}

}  // namespace galley::tools
