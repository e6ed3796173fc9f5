#pragma once
// Selectors: `match:` and `except:` of groups, freeze, keep_f32, recompute. A pattern is a glob over the full path (`*` and `?` match dots;
// the path of a module selects everything in it), type:conv2d, type:norm (all normalizations), ndim:1, or re:EXPRESSION (found anywhere in
// the path).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// A parameter or module that a selector may select.
struct Selectable {
  std::string path;  ///< E.g. layer1.0.conv1.weight.
  std::string type;  ///< Type of the layer that owns it, e.g. conv2d.
  int64_t ndim = 0;  ///< Rank of the parameter.
};

/// Patterns to select, and patterns to remove from the selection.
struct Selector {
  std::vector<std::string> match, except;
  /// Indices of the selected items, ascending. Throws an Error (exit 3) with near names for a pattern that matches nothing. `key` is the
  /// recipe key for the error: the map with the keys match and except ("train.freeze.0"), or, if `is_list`, the list of patterns itself.
  std::vector<int64_t> select(std::span<const Selectable> items, std::string_view key, bool is_list = false) const;
  /// Whether one item is selected.
  bool selects(const Selectable& item) const;
};

/// Whether one pattern (any of the forms above) matches.
bool pattern_matches(std::string_view pattern, const Selectable& item);

}  // namespace galley
