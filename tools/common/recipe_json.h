#pragma once
// Converts a recipe's text to JSON, for --format json.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace galley::tools {

/// The tree of a YAML text: plain null, true, false and numbers (YAML 1.2 core schema) keep their types, everything else becomes a string.
/// Throws Error if the text is not valid.
nlohmann::ordered_json recipe_json(const std::string& yaml);

}  // namespace galley::tools
