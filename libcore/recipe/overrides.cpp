#include "libcore/recipe/overrides.h"

#include <algorithm>
#include <charconv>

#include "libcore/base/error.h"
#include "libcore/recipe/loader.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/write.h"

namespace galley {
namespace {

[[noreturn]] void fail_key(const TextPlace& place, const std::string& key, const std::string& message, const std::string& remedy) {
  Error error(ErrorCode::kRecipe, message);
  error.key(key);
  if (!remedy.empty()) error.suggest(remedy);
  throw place.mark(error);
}

bool is_key_path(std::string_view text) {
  bool start = true;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (c == '.') {
      if (start) return false;
      start = true;
      continue;
    }
    if (!letter && !digit && !(c == '-' && !start)) return false;
    start = false;
  }
  return !start && !text.empty() && !(text[0] >= '0' && text[0] <= '9');
}

const SchemaNode* find_option(const std::vector<SchemaNode>& options, const std::string& name) {
  for (const SchemaNode& option : options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string type_of(const YamlNode* node) {
  const YamlNode* type = node ? node->find("type") : nullptr;
  return type && type->is_scalar() ? type->scalar : "";
}

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The element of a list as a section or a component.
SchemaNode element_of(const SchemaNode& list) {
  SchemaNode element = list;
  if (list.kind == ValueKind::kComponents) {
    element.kind = ValueKind::kComponent;
    element.default_value = YamlNode();
    element.word.clear();
  }
  return element;
}

// The value of a key, added if absent. A key that is new or set gets the place of the override.
YamlNode& child_of(YamlNode& map, const std::string& key, const TextPlace& place, bool set) {
  if (map.is_null()) map.place = place;
  const bool fresh = !map.find(key);
  YamlNode& value = map.at(key);
  for (YamlNode::Entry& entry : map.entries) {
    if (entry.key == key && (fresh || set)) entry.place = place;
  }
  return value;
}

// A value of the command line: YAML if it begins like a list, a map or a quoted text; else plain text.
YamlNode parse_value(const std::shared_ptr<const TextSource>& source, size_t begin) {
  const std::string text = source->text.substr(begin);
  const auto shift = [&](auto&& self, YamlNode& node) -> void {
    if (node.place.line == 1) node.place.column += static_cast<int>(begin);
    node.place.source = source;
    for (YamlNode& item : node.items) self(self, item);
    for (YamlNode::Entry& entry : node.entries) {
      if (entry.place.line == 1) entry.place.column += static_cast<int>(begin);
      entry.place.source = source;
      self(self, entry.value);
    }
  };
  YamlNode node;
  if (!text.empty() && (text[0] == '[' || text[0] == '{' || text[0] == '"' || text[0] == '\'')) {
    try {
      node = parse_yaml(std::make_shared<TextSource>(TextSource{source->name, text}));
    } catch (Error& error) {
      Place place = error.place();
      place.column += static_cast<int>(begin);
      error.at(place).excerpt(source->text, 1);
      throw;
    }
    shift(shift, node);
    return node;
  }
  if (text != "null" && text != "~") {
    node = YamlNode::scalar_of(text);
    node.comma_list = text.find(',') != std::string::npos;
  }
  node.place = {source, 1, static_cast<int>(begin) + 1, std::max(1, static_cast<int>(text.size()))};
  return node;
}

}  // namespace

std::vector<std::string> split_key(const std::string& key) {
  std::vector<std::string> parts(1);
  for (const char c : key) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string join_key(const std::vector<std::string>& path) {
  std::string key;
  for (const std::string& part : path) key += (key.empty() ? "" : ".") + part;
  return key;
}

void merge_tree(YamlNode& base, const YamlNode& over) {
  if (!base.is_map() || !over.is_map()) {
    base = over;
    return;
  }
  const std::string below = type_of(&base), above = type_of(&over);
  if (!below.empty() && !above.empty() && below != above) {
    base = over;
    return;
  }
  base.place = over.place;
  for (const YamlNode::Entry& entry : over.entries) {
    YamlNode::Entry* same = nullptr;
    for (YamlNode::Entry& candidate : base.entries) {
      if (candidate.key == entry.key) same = &candidate;
    }
    if (same) {
      same->place = entry.place;
      merge_tree(same->value, entry.value);
    } else {
      base.entries.push_back(entry);
    }
  }
}

std::vector<std::string> full_path(const Schema& schema, const std::string& key, const std::string& tool_section, const TextPlace& place) {
  std::vector<std::string> path = split_key(key);
  const std::vector<SchemaNode> top = schema.root().children();
  if (path[0].starts_with("x-") || find_option(top, path[0])) return path;
  std::vector<std::string> names;
  for (const SchemaNode& option : top) names.push_back(option.name);
  if (const SchemaNode* section = find_option(top, tool_section)) {
    const std::vector<SchemaNode> own = section->children();
    if (find_option(own, path[0])) {
      path.insert(path.begin(), tool_section);
      return path;
    }
    for (const SchemaNode& option : own) names.push_back(option.name);
  }
  const std::string_view foreign = foreign_key(path[0]);
  std::string near = foreign.empty() ? nearest(path[0], names) : std::string(foreign);
  // A key of another section, written without it: temperature for generate.temperature.
  if (foreign.empty()) {
    std::string owner;
    int owners = 0;
    const auto is_section = [](const SchemaNode& option) { return option.kind == ValueKind::kSection && !option.named(); };
    for (const SchemaNode& option : top) {
      if (!is_section(option)) continue;
      const std::vector<SchemaNode> inner = option.children();
      if (find_option(inner, path[0]) && owners++ == 0) owner = option.name;
      for (const SchemaNode& part : inner) {
        if (is_section(part) && find_option(part.children(), path[0]) && owners++ == 0) owner = part.name;
      }
    }
    if (owners == 1) near = cat(owner, ".", path[0]);
  }
  TextPlace first = place;
  first.width = static_cast<int>(path[0].size());
  fail_key(first, key, cat("unknown key '", key, "'"), near.empty() ? "" : cat("did you mean '", near, "'?"));
}

size_t item_index(const YamlNode& list, const std::string& part, const std::string& list_key, const TextPlace& place) {
  const std::string where = cat(list_key, ".", part);
  if (is_number(part)) {
    size_t index = 0;
    std::from_chars(part.data(), part.data() + part.size(), index);
    if (part.size() < 10 && index < list.items.size()) return index;
    fail_key(place, where, cat("'", list_key, "' has ", list.items.size(), " items; there is no item ", part, " (items count from 0)"), "");
  }
  for (const char* key : {"name", "type"}) {
    std::vector<size_t> found;
    for (size_t i = 0; i < list.items.size(); ++i) {
      const YamlNode* value = list.items[i].find(key);
      if (value && value->is_scalar() && value->scalar == part) found.push_back(i);
    }
    if (found.size() == 1) return found[0];
    if (found.size() > 1) {
      fail_key(place, where, cat("'", list_key, "' has ", found.size(), " items with ", key, " '", part, "'"),
               cat("address one by number, e.g. ", list_key, ".", found[0], ", or name the items"));
    }
  }
  std::vector<std::string> names;
  for (const YamlNode& item : list.items) {
    for (const char* key : {"name", "type"}) {
      if (const YamlNode* value = item.find(key); value && value->is_scalar()) names.push_back(value->scalar);
    }
  }
  const std::string near = nearest(part, names);
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  fail_key(place, where, cat("'", list_key, "' has no item '", part, "'"),
           near.empty() ? (all.empty() ? "the list is empty" : "its items: " + all) : cat("did you mean '", near, "'?"));
}

const YamlNode* value_at(const YamlNode& tree, const std::vector<std::string>& path) {
  const YamlNode* node = &tree;
  for (size_t i = 0; i < path.size() && node; ++i) {
    if (node->is_list()) {
      try {
        node = &node->items[item_index(*node, path[i], "", {})];
      } catch (const Error&) {
        return nullptr;
      }
    } else {
      node = node->find(path[i]);
    }
  }
  return node;
}

std::optional<SchemaNode> schema_at(const Schema& schema, const YamlNode& tree, const std::vector<std::string>& path) {
  SchemaNode here = schema.root();
  const YamlNode* value = &tree;
  for (const std::string& part : path) {
    if (here.kind == ValueKind::kList || here.kind == ValueKind::kComponents) {
      // The part addresses an item by number, name or type.
      const YamlNode* item = value && value->is_list() ? value_at(*value, {part}) : nullptr;
      const bool a_type = std::find(here.choices.begin(), here.choices.end(), part) != here.choices.end();
      if (!item && !is_number(part) && !a_type) return std::nullopt;
      SchemaNode element = element_of(here);
      if (element.kind == ValueKind::kList) {
        element.options = here.children(type_of(item));
        element.kind = ValueKind::kSection;
        element.make = nullptr;
      } else if (!item && a_type) {
        element.default_value = YamlNode::map_of();
        element.default_value.at("type") = YamlNode::scalar_of(part);
      }
      here = std::move(element);
      value = item;
      continue;
    }
    if (here.named()) {
      here = here.element();
      value = value ? value->find(part) : nullptr;
      continue;
    }
    std::string type = type_of(value);
    if (type.empty()) type = type_of(&here.default_value);
    const std::vector<SchemaNode> children = here.children(type);
    const SchemaNode* option = find_option(children, part);
    if (!option) return std::nullopt;
    value = value ? value->find(part) : nullptr;
    here = SchemaNode(*option);
  }
  return here;
}

bool is_override(const std::string& argument) {
  const size_t at = argument.find('=');
  if (at == std::string::npos) return false;
  std::string_view key = std::string_view(argument).substr(0, at);
  if (key.ends_with('+')) key.remove_suffix(1);
  return is_key_path(key);
}

Override parse_override(const std::string& argument, const Schema& schema, const std::string& tool_section) {
  const size_t at = argument.find('=');
  if (!is_override(argument)) {
    throw Error(ErrorCode::kUsage, cat("'", argument, "' is not an override"))
        .suggest("write key.path=value, or key.path+=value to append");
  }
  if (argument.size() > 65536) throw Error(ErrorCode::kUsage, "an override has more than 65536 characters");
  Override change;
  const auto source = std::make_shared<TextSource>(TextSource{"command line", argument});
  change.action = argument[at - 1] == '+' ? Override::Action::kAppend : Override::Action::kSet;
  const std::string key = argument.substr(0, change.action == Override::Action::kAppend ? at - 1 : at);
  change.key_place = {source, 1, 1, static_cast<int>(key.size())};
  change.path = full_path(schema, key, tool_section, change.key_place);
  if (change.path[0] == "include") fail_key(change.key_place, key, "'include' cannot be overridden", "add a fragment with --with FILE");
  change.text = YamlNode::scalar_of(argument.substr(at + 1));
  change.text.place = {source, 1, static_cast<int>(at) + 2, std::max(1, static_cast<int>(argument.size() - at - 1))};
  check_utf8(argument, change.text.place, cat("the value of '", key, "'"));
  try {
    change.value = parse_value(source, at + 1);
  } catch (const Error& error) {
    change.value = change.text;
    change.invalid = error;
  }
  return change;
}

Override parse_unset(const std::string& key, const Schema& schema, const std::string& tool_section) {
  if (!is_key_path(key))
    throw Error(ErrorCode::kUsage, cat("--unset: '", key, "' is not a key path")).suggest("write e.g. --unset train.clip");
  Override change;
  change.action = Override::Action::kUnset;
  const auto source = std::make_shared<TextSource>(TextSource{"command line", "--unset " + key});
  change.key_place = {source, 1, 9, static_cast<int>(key.size())};
  change.path = full_path(schema, key, tool_section, change.key_place);
  return change;
}

void apply_override(YamlNode& tree, const Schema& schema, const Override& change) {
  const bool is_free = change.path[0].starts_with("x-") || change.path[0] == "vars";
  if (change.action == Override::Action::kUnset && !is_free && !value_at(tree, change.path) && !schema_at(schema, tree, change.path)) {
    fail_key(change.key_place, join_key(change.path), cat("unknown key '", join_key(change.path), "'"), "");
  }
  YamlNode* node = &tree;
  std::vector<std::string> here;
  for (size_t i = 0; i < change.path.size(); ++i) {
    const std::string& part = change.path[i];
    const bool last = i + 1 == change.path.size();
    if (node->is_list()) {
      if (change.action == Override::Action::kUnset && last) {
        node->items.erase(node->items.begin() + static_cast<int64_t>(item_index(*node, part, join_key(here), change.key_place)));
        return;
      }
      node = &node->items[item_index(*node, part, join_key(here), change.key_place)];
      here.push_back(part);
      continue;
    }
    if (change.action == Override::Action::kUnset) {
      if (last) return node->erase(part);
      node = node->find(part);
      if (!node) return;
      here.push_back(part);
      continue;
    }
    if (node->is_scalar()) {
      fail_key(change.key_place, join_key(change.path),
               cat("'", join_key(here), "' is '", node->scalar, "', which has no key '", part, "'"), "");
    }
    if (node->is_map() || node->is_null()) {
      node = &child_of(*node, part, change.key_place, last);
      here.push_back(part);
      // If the list has its default value, write that value out before addressing an item.
      if (!last && node->is_null()) {
        const std::optional<SchemaNode> known = schema_at(schema, tree, here);
        if (known && takes_list(known->kind) && known->default_value.is_list()) *node = known->default_value;
      }
    }
  }
  if (change.action == Override::Action::kUnset) return;

  const std::optional<SchemaNode> known = schema_at(schema, tree, change.path);
  const bool holds_text = known && (known->kind == ValueKind::kString || known->kind == ValueKind::kText);
  if (change.invalid && !holds_text) throw *change.invalid;
  YamlNode value = holds_text && (change.invalid || change.value.is_list() || change.value.is_map()) ? change.text : change.value;
  const auto as_list = [&](YamlNode& item) {
    if (item.is_list()) return;
    YamlNode list = YamlNode::list_of();
    list.place = item.place;
    if (item.is_scalar() && item.comma_list) {
      list.items = split_commas(item);
    } else if (!item.is_null()) {
      list.items.push_back(std::move(item));
    }
    item = std::move(list);
  };
  if (change.action == Override::Action::kAppend) {
    if (known && !takes_list(known->kind))
      fail_key(change.key_place, join_key(change.path), cat("'", join_key(change.path), "' is not a list; += appends to lists only"),
               "use = to set it");
    if (node->is_null() && known && known->default_value.is_list()) *node = known->default_value;
    as_list(*node);
    if (known) Schema::normalize(value, *known);
    as_list(value);
    node->items.insert(node->items.end(), value.items.begin(), value.items.end());
    return;
  }
  // An item of a list of components has the schema of a component, not of the list.
  if (known) Schema::normalize(value, *known);
  merge_tree(*node, value);
}

}  // namespace galley
