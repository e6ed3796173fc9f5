#pragma once
// Which keys of two recipes differ.

#include <string>
#include <vector>

#include "libcore/recipe/yaml_tree.h"

namespace galley {

/// A key, and its values as text; "" for a value that is neither a scalar nor a list of scalars, "null" if the key is absent.
struct KeyDifference {
  std::string key, before, after;
};

/// The keys whose values differ, as deep as both trees have the same structure. `path` is the key of the trees, "" for whole recipes.
std::vector<KeyDifference> differences(const YamlNode& before, const YamlNode& after, const std::string& path = "");

}  // namespace galley
