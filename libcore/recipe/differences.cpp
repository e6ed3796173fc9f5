#include "libcore/recipe/differences.h"

#include <algorithm>

namespace galley {
namespace {

/// The address of an item of a list of maps, as in overrides: its name, its type if that is unique, else its number.
std::string item_name(const YamlNode& list, size_t index) {
  for (const char* key : {"name", "type"}) {
    const YamlNode* own = list.items[index].find(key);
    if (own == nullptr || !own->is_scalar() || own->scalar.empty()) continue;
    const auto same = [&](const YamlNode& item) {
      const YamlNode* other = item.find(key);
      return other != nullptr && other->scalar == own->scalar;
    };
    if (std::count_if(list.items.begin(), list.items.end(), same) == 1) return own->scalar;
  }
  return std::to_string(index);
}

std::string text_of(const YamlNode& value) {
  if (value.is_null()) return "null";
  if (value.is_scalar()) return value.scalar;
  if (!value.is_list()) return "";
  std::string text;
  for (const YamlNode& item : value.items) {
    if (!item.is_scalar()) return "";
    text += (text.empty() ? "" : ", ") + item.scalar;
  }
  return "[" + text + "]";
}

void add_differences(const YamlNode& before, const YamlNode& after, const std::string& path, std::vector<KeyDifference>& found) {
  if (before == after) return;
  const auto below = [&](const std::string& part) { return path.empty() ? part : path + "." + part; };
  if (before.is_map() && after.is_map()) {
    const YamlNode *was = before.find("type"), *is = after.find("type");
    if (was != nullptr && is != nullptr && !(*was == *is)) return found.push_back({below("type"), text_of(*was), text_of(*is)});
    for (const YamlNode::Entry& entry : before.entries) {
      const YamlNode* other = after.find(entry.key);
      add_differences(entry.value, other != nullptr ? *other : YamlNode(), below(entry.key), found);
    }
    for (const YamlNode::Entry& entry : after.entries) {
      if (before.find(entry.key) == nullptr) found.push_back({below(entry.key), "null", text_of(entry.value)});
    }
    return;
  }
  const bool maps = before.is_list() && after.is_list() && before.items.size() == after.items.size() && before.items.front().is_map() &&
                    after.items.front().is_map();
  if (!maps) return found.push_back({path, text_of(before), text_of(after)});
  for (size_t i = 0; i < before.items.size(); ++i) {
    const std::string name = item_name(after, i);
    add_differences(before.items[i], after.items[i], below(name == item_name(before, i) ? name : std::to_string(i)), found);
  }
}

}  // namespace

std::vector<KeyDifference> differences(const YamlNode& before, const YamlNode& after, const std::string& path) {
  std::vector<KeyDifference> found;
  add_differences(before, after, path, found);
  return found;
}

}  // namespace galley
