#include "libcore/recipe/selector.h"

#include <algorithm>
#include <regex>
#include <string>

#include "libcore/base/error.h"
#include "libcore/base/glob.h"
#include "libcore/base/units.h"

namespace galley {
namespace {

bool type_matches(std::string_view wanted, std::string_view type) {
  return glob_matches(wanted, type) || (wanted == "norm" && type.ends_with("_norm"));
}

std::vector<std::string> names_near(std::string_view pattern, std::span<const Selectable> items) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  // For a pattern "*q_prj" or "*.q_prj": "*q_proj", the star before each last name.
  const std::string_view star = pattern.starts_with("*.") ? "*." : pattern.starts_with("*") ? "*" : "";
  const auto add_path = [&](const std::string& path) {
    add(path);
    if (!star.empty()) add(cat(star, path.substr(path.rfind('.') + 1)));
  };
  for (const Selectable& item : items) {
    if (names.size() > 5000) break;
    if (pattern.starts_with("type:")) {
      add("type:" + item.type);
      continue;
    }
    // The path of the item and of each module around it.
    add_path(item.path);
    for (size_t dot = item.path.rfind('.'); dot != std::string::npos && dot > 0; dot = item.path.rfind('.', dot - 1))
      add_path(item.path.substr(0, dot));
  }
  return names;
}

}  // namespace

bool pattern_matches(std::string_view pattern, const Selectable& item) {
  if (pattern.starts_with("type:")) return type_matches(pattern.substr(5), item.type);
  if (pattern.starts_with("ndim:")) return parse_count(pattern.substr(5)) == item.ndim;
  if (pattern.starts_with("re:")) {
    try {
      return std::regex_search(item.path, std::regex(std::string(pattern.substr(3))));
    } catch (const std::regex_error& error) {
      fail(ErrorCode::kRecipe, "the expression '", pattern.substr(3), "' is not valid: ", error.what());
    }
  }
  if (glob_matches(pattern, item.path)) return true;
  // A pattern that matches a module selects everything in it.
  for (size_t dot = item.path.find('.'); dot != std::string::npos; dot = item.path.find('.', dot + 1)) {
    if (glob_matches(pattern, std::string_view(item.path).substr(0, dot))) return true;
  }
  return false;
}

bool Selector::selects(const Selectable& item) const {
  const auto matches = [&](const std::string& pattern) { return pattern_matches(pattern, item); };
  return std::any_of(match.begin(), match.end(), matches) && std::none_of(except.begin(), except.end(), matches);
}

std::vector<int64_t> Selector::select(std::span<const Selectable> items, std::string_view key, bool is_list) const {
  std::vector<bool> selected(items.size(), false);
  const auto mark = [&](const std::vector<std::string>& patterns, std::string_view name, bool value) {
    for (const std::string& pattern : patterns) {
      bool any = false;
      for (size_t i = 0; i < items.size(); ++i) {
        if (!pattern_matches(pattern, items[i])) continue;
        any = true;
        selected[i] = value;
      }
      if (any) continue;
      const std::string near = nearest(pattern, names_near(pattern, items));
      const std::string at = is_list ? std::string(key) : cat(key, ".", name);
      throw Error(ErrorCode::kRecipe, cat("'", at, "': the pattern '", pattern, "' matches none of the ", items.size(), " names"))
          .key(at)
          .suggest(near.empty() ? (items.empty() ? "" : cat("names have the form '", items.front().path, "'"))
                                : cat("did you mean '", near, "'?"));
    }
  };
  mark(match, "match", true);
  mark(except, "except", false);
  std::vector<int64_t> indices;
  for (size_t i = 0; i < items.size(); ++i) {
    if (selected[i]) indices.push_back(static_cast<int64_t>(i));
  }
  return indices;
}

}  // namespace galley
