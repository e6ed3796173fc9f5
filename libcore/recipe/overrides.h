#pragma once
// Key paths and overrides on a tree. Internal to this room.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

/// `over` on top of `base`: maps merge, all else is replaced; a map that names another `type` than the one below replaces it whole.
void merge_tree(YamlNode& base, const YamlNode& over);

std::vector<std::string> split_key(const std::string& key);
std::string join_key(const std::vector<std::string>& path);

/// The full path of a key as the user writes it: a first part that is not top-level is looked up in the tool's section. An Error
/// with the nearest key where neither has it.
std::vector<std::string> full_path(const Schema& schema, const std::string& key, const std::string& tool_section, const TextPlace& place);

/// The index of a list's item by number, by name, or by type where that is unique; an Error where there is none, or several.
size_t item_index(const YamlNode& list, const std::string& part, const std::string& list_key, const TextPlace& place);

/// The value at a path; null pointer where there is none. Items of lists are addressed as in item_index.
const YamlNode* value_at(const YamlNode& tree, const std::vector<std::string>& path);

/// What the schema says of a path, given the types named in `tree`; nothing where there is no such key.
std::optional<SchemaNode> schema_at(const Schema& schema, const YamlNode& tree, const std::vector<std::string>& path);

struct Override {
  enum class Action { kSet, kAppend, kUnset };
  Action action = Action::kSet;
  std::vector<std::string> path;  ///< Full.
  YamlNode value;
  YamlNode text;                 ///< The value as text, for keys that hold text: "[1] no list".
  std::optional<Error> invalid;  ///< Why the value is no YAML.
  TextPlace key_place;
};
/// From "a.b=v" or "a.b+=v". Throws exit 2 where the syntax is wrong, exit 3 for an unknown key.
Override parse_override(const std::string& argument, const Schema& schema, const std::string& tool_section);
Override parse_unset(const std::string& key, const Schema& schema, const std::string& tool_section);
void apply_override(YamlNode& tree, const Schema& schema, const Override& change);

}  // namespace galley
