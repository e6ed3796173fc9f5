#pragma once
// Writes structs as trees, for dumps and defaults. Internal to this room.

#include <vector>

#include "libcore/base/options.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

enum class WriteMode {
  kFull,   ///< Every key; an absent optional is null.
  kShape,  ///< As kFull, but absent optional sections are written with their defaults.
};
/// All values of a struct as a tree. kShape changes `value`: it creates absent optionals.
YamlNode write_tree(Options& value, WriteMode mode);

/// Splits a command-line list such as "1,16" into scalars with their places.
std::vector<YamlNode> split_commas(const YamlNode& scalar);

}  // namespace galley
