#pragma once
// Key paths, and overrides of values in a tree. Internal to this room.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

/// Merges `over` into `base`: maps merge key by key, all other values are replaced. A map with another `type` replaces the whole map.
void merge_tree(YamlNode& base, const YamlNode& over);

/// "a.b.c" <-> {"a", "b", "c"}.
std::vector<std::string> split_key(const std::string& key);
std::string join_key(const std::vector<std::string>& path);

/// The full path of a key as the user writes it: a first part that is not top-level is looked up in the tool's section. Throws an Error
/// with the nearest key if neither has it.
std::vector<std::string> full_path(const Schema& schema, const std::string& key, const std::string& tool_section, const TextPlace& place);

/// The index of a list's item, given by number, name or unique type. Throws an Error if no item or several items match.
size_t item_index(const YamlNode& list, const std::string& part, const std::string& list_key, const TextPlace& place);

/// The value at a path, or a null pointer if there is none. Items of lists are addressed as in item_index.
const YamlNode* value_at(const YamlNode& tree, const std::vector<std::string>& path);

/// The schema of the key at a path, given the component types named in `tree`; empty if there is no such key.
std::optional<SchemaNode> schema_at(const Schema& schema, const YamlNode& tree, const std::vector<std::string>& path);

/// One override or --unset of the command line.
struct Override {
  enum class Action { kSet, kAppend, kUnset };
  Action action = Action::kSet;
  std::vector<std::string> path;  ///< The full path.
  YamlNode value;
  YamlNode text;                 ///< The value as plain text, for keys of type text: "[1] is text".
  std::optional<Error> invalid;  ///< Set if the value is not valid YAML.
  TextPlace key_place;
};
/// Parses "a.b=v" or "a.b+=v". Throws an Error: kUsage for wrong syntax, kRecipe for an unknown key.
Override parse_override(const std::string& argument, const Schema& schema, const std::string& tool_section);
/// Parses the key of --unset. Errors as parse_override.
Override parse_unset(const std::string& key, const Schema& schema, const std::string& tool_section);
/// Changes the tree. Throws an Error (kRecipe) if the key does not exist in it, or += is used on a value that is not a list.
void apply_override(YamlNode& tree, const Schema& schema, const Override& change);

}  // namespace galley
