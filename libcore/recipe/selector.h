#pragma once
// Selectors: `match:` and `except:` of groups, freeze, keep_f32, recompute. A glob over the full path (`*` and `?` cross dots; the
// path of a module selects all below it), type:conv2d, type:norm (every normalisation), ndim:1, re:EXPRESSION (anywhere in the path).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// What a selector looks at: a parameter or module.
struct Selectable {
  std::string path;  ///< layer1.0.conv1.weight
  std::string type;  ///< of the layer that owns it: conv2d
  int64_t ndim = 0;
};

struct Selector {
  std::vector<std::string> match, except;
  /// Indices of the items selected, ascending. A pattern that matches nothing is an Error (exit 3) with near names; `key` names
  /// the recipe key in it, e.g. "train.freeze.0", whose keys are match and except; `is_list`: which is the list of patterns itself.
  std::vector<int64_t> select(std::span<const Selectable> items, std::string_view key, bool is_list = false) const;
  /// Whether one item is selected.
  bool selects(const Selectable& item) const;
};

/// Whether one pattern (any of the forms above) matches.
bool pattern_matches(std::string_view pattern, const Selectable& item);

}  // namespace galley
