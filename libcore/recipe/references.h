#pragma once
// References in the values of a merged tree: ${vars.x}, ${a.b}, ${env:NAME:-default}, and $$ for a dollar sign. Internal to this room.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// Replaces every reference by its value. A value that consists of one reference may become a list or a map. Keys absent from the tree
/// have the schema's defaults. `used` receives the environment variables read. Throws an Error (kRecipe) with the place for cycles,
/// unknown names and results that are too large.
void resolve_references(YamlNode& tree, const Schema& schema, const Environment& environment, std::map<std::string, std::string>& used);

}  // namespace galley
