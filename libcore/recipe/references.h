#pragma once
// ${vars.x}, ${a.b}, ${env:NAME:-default} and $$ in the values of a merged tree. Internal to this room.

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

/// Replaces every reference. A value that is one reference alone becomes what it names, lists and maps too. Keys that the tree
/// does not hold have the schema's defaults. What is read from the environment goes into `used`. Cycles, unknown names and
/// expansion without bound are errors with their place.
void resolve_references(YamlNode& tree, const Schema& schema, const Environment& environment, std::map<std::string, std::string>& used);

}  // namespace galley
