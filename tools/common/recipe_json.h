#pragma once
// A recipe's text as JSON, for --format json.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace galley::tools {

/// The tree of a YAML text: plain null, true, false and numbers (YAML 1.2 core schema) as such, all else as strings. Throws Error where
/// the text is no recipe.
nlohmann::ordered_json recipe_json(const std::string& yaml);

}  // namespace galley::tools
