#pragma once
// Structs as trees: the writer behind dumps and defaults. Internal to this room.

#include <vector>

#include "libcore/base/options.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

enum class WriteMode {
  kFull,   ///< Every key; an absent optional is null.
  kShape,  ///< As kFull, but absent optional sections are written with their defaults.
};
/// All values of a struct. kShape changes `value`: it makes what is absent.
YamlNode write_tree(Options& value, WriteMode mode);

/// The parts of a command-line list "1,16", each with its place.
std::vector<YamlNode> split_commas(const YamlNode& scalar);

}  // namespace galley
