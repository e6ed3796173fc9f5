// Reads a tree into a struct and collects all errors.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <tuple>

#include "libcore/base/error.h"
#include "libcore/base/named_options.h"
#include "libcore/base/units.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/time_values.h"
#include "libcore/recipe/write.h"

namespace galley {
namespace {

constexpr size_t kMaxErrors = 50;
constexpr size_t kMaxListed = 16;  // choices listed in a message
constexpr size_t kMaxOwners = 3;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string kind_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "null";
    case YamlNode::Kind::kScalar: return cat("'", node.scalar.substr(0, 60), node.scalar.size() > 60 ? "..." : "", "'");
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a map";
  }
  return "";
}

class Reader : public OptionVisitor {
 public:
  Reader(const YamlNode& map, std::string path, std::string what, std::vector<Error>& errors)
      : map_(map), path_(std::move(path)), what_(std::move(what)), errors_(errors) {}

  // Reads all options and reports keys that no option has read.
  void read(Options& out) {
    out.options(*this);
    finish();
  }

  void option(const OptionInfo& info, bool& value) override {
    const YamlNode* node = scalar(info, "true or false");
    if (!node) return;
    if (node->scalar == "true" || node->scalar == "True" || node->scalar == "TRUE") {
      value = true;
    } else if (node->scalar == "false" || node->scalar == "False" || node->scalar == "FALSE") {
      value = false;
    } else {
      wrong(info, *node, "true or false");
    }
  }
  void option(const OptionInfo& info, int64_t& value) override {
    if (const YamlNode* node = scalar(info, "a whole number")) integer(info, *node, value);
  }
  void option(const OptionInfo& info, double& value) override {
    if (const YamlNode* node = scalar(info, "a number")) number(info, *node, value);
  }
  void option(const OptionInfo& info, std::string& value) override {
    if (const YamlNode* node = scalar(info, "text")) value = node->scalar;
  }
  void option(const OptionInfo& info, std::vector<int64_t>& value) override {
    read_list(info, value, "a whole number or a list of them", [&](const YamlNode& item, int64_t& out) { integer(info, item, out); });
  }
  void option(const OptionInfo& info, std::vector<double>& value) override {
    read_list(info, value, "a number or a list of numbers", [&](const YamlNode& item, double& out) { number(info, item, out); });
  }
  void option(const OptionInfo& info, std::vector<std::string>& value) override {
    read_list(info, value, "text or a list of texts", [&](const YamlNode& item, std::string& out) { out = item.scalar; });
  }
  void pairs(const OptionInfo& info, std::vector<std::pair<std::string, std::string>>& value) override {
    const YamlNode* node = take(info);
    if (!node) return;
    value.clear();
    if (node->is_null()) return;
    if (!node->is_map()) return wrong(info, *node, "a map of texts");
    for (const YamlNode::Entry& entry : node->entries) {
      if (entry.value.is_scalar() || entry.value.is_null()) {
        value.emplace_back(entry.key, entry.value.scalar);
      } else {
        wrong(info, entry.value, "text for each key");
      }
    }
  }
  void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) override {
    const std::vector<std::string> words(names.begin(), names.end());
    const YamlNode* node = scalar(info, "one of: " + joined(words));
    if (!node) return;
    const auto found = std::find(words.begin(), words.end(), node->scalar);
    if (found == words.end()) {
      std::string given = node->scalar;
      std::transform(given.begin(), given.end(), given.begin(), [](unsigned char c) { return std::tolower(c); });
      // What other frameworks call it.
      for (const auto& [other, own] : {std::pair("nhwc", "channels_last"), std::pair("zero3", "fsdp")}) {
        if (given == other && std::find(words.begin(), words.end(), own) != words.end()) given = own;
      }
      const std::string near = nearest(given, words);
      return complain(node->place, path(info), cat("'", path(info), "' is ", kind_text(*node), "; it must be one of: ", joined(words)),
                      near.empty() ? "" : cat("did you mean '", near, "'?"));
    }
    value = static_cast<int>(found - words.begin());
  }
  void text(const OptionInfo& info, TextValue& value) override {
    const bool time = takes_time(value);
    const YamlNode* node = scalar(info, cat("text such as: ", time ? kTimeGrammar : value.grammar()));
    if (!node) return;
    try {
      if (time) parse_seconds(node->scalar);  // names times alone where the unit is missing or another one
      value.parse(node->scalar);
    } catch (const Error& error) {
      complain(node->place, path(info), cat("'", path(info), "': ", error.message()), error.suggestion());
    }
  }
  void section(const OptionInfo& info, Options& value) override {
    const YamlNode* node = take(info);
    if (!node) return;
    if (!node->is_map()) {
      return node->is_null() ? complain(node->place, path(info), cat("'", path(info), "' cannot be null"), "write its keys, or remove it")
                             : wrong(info, *node, "a map");
    }
    if (auto* named = dynamic_cast<NamedOptions*>(&value)) return read_named(info, *node, *named);
    Reader(*node, path(info), "", errors_).read(value);
  }
  void list(const OptionInfo& info, std::vector<std::unique_ptr<Options>>& value, std::unique_ptr<Options> (*make)()) override {
    const YamlNode* node = take(info);
    if (!node) return;
    value.clear();
    if (node->is_null()) return;
    if (!node->is_list()) return wrong(info, *node, "a list of maps");
    for (size_t i = 0; i < node->items.size(); ++i) {
      const YamlNode& item = node->items[i];
      const std::string item_path = cat(path(info), ".", i);
      value.push_back(make());
      if (item.is_map()) {
        Reader(item, item_path, "", errors_).read(*value.back());
      } else {
        complain(item.place, item_path, cat("'", item_path, "' must be a map, not ", kind_text(item)), "");
      }
    }
  }
  void component(const OptionInfo& info, Component& value, ComponentKinds kinds) override {
    if (info.name.empty()) {
      known_.emplace_back("type");
      value = Component();
      const YamlNode* type = map_.find("type");
      if (!type) {
        if (info.required)
          complain(map_.place, key_path("type"), cat("'", key_path("type"), "' is missing"), missing_type_remedy(map_, kinds));
        kinds_without_type_ = kinds;
        return;
      }
      if (!make_params(*type, key_path("type"), value, kinds)) {
        ignore_unknown_ = true;  // keys of an unknown type cannot be checked
        return;
      }
      what_ = cat(" (type ", value.type, ")");
      type_ = type;
      kinds_ = kinds;
      value.params->options(*this);
      return;
    }
    const YamlNode* node = take(info);
    if (!node) return;
    value = Component();
    if (node->is_null()) {
      if (info.required) wrong(info, *node, "a map with a `type`");
      return;
    }
    read_component(info, *node, path(info), value, kinds, false);
  }
  void components(const OptionInfo& info, std::vector<Component>& value, ComponentKinds kinds) override {
    const YamlNode* node = take(info);
    if (!node) return;
    value.clear();
    if (node->is_null()) return;
    if (node->is_scalar() && !info.word.empty() && node->scalar == info.word) {
      value.emplace_back();
      value.back().type = info.word;
      return;
    }
    if (!node->is_list()) return wrong(info, *node, info.word.empty() ? "a list" : cat("a list, or ", info.word));
    for (size_t i = 0; i < node->items.size(); ++i) {
      value.emplace_back();
      read_component(info, node->items[i], cat(path(info), ".", i), value.back(), kinds, true);
    }
  }

  bool present(const OptionInfo& info, bool has_value) override {
    const YamlNode* node = map_.find(info.name);
    if (!node) {
      if (!has_value) known_.emplace_back(info.name);  // else it is read next
      if (info.required) complain(map_.place, path(info), cat("'", path(info), "' is missing"), missing_remedy(info));
      return has_value;
    }
    if (node->is_null()) known_.emplace_back(info.name);
    return !node->is_null();
  }
  using OptionVisitor::choice;
  using OptionVisitor::option;

 private:
  void read_named(const OptionInfo& info, const YamlNode& map, NamedOptions& value) {
    value.clear();
    for (const YamlNode::Entry& entry : map.entries) {
      Options& item = value.add(entry.key);
      const std::string item_path = cat(path(info), ".", entry.key);
      if (entry.value.is_map()) {
        Reader(entry.value, item_path, "", errors_).read(item);
      } else {
        complain(entry.value.place, item_path, cat("'", item_path, "' must be a map, not ", kind_text(entry.value)), "");
      }
    }
  }
  std::string key_path(std::string_view key) const { return path_.empty() ? std::string(key) : cat(path_, ".", key); }
  std::string path(const OptionInfo& info) const { return key_path(info.name); }

  static std::string names_of(ComponentKinds kinds) {
    std::vector<std::string> names;
    for (const ComponentKind& kind : kinds) names.emplace_back(kind.type);
    if (names.size() > kMaxListed) {
      names.resize(kMaxListed);
      names.emplace_back("...");
    }
    return joined(names);
  }
  /// What to write where a map has no `type`: the only type that has all of its keys, else a choice.
  std::string missing_type_remedy(const YamlNode& map, ComponentKinds kinds) const {
    std::vector<std::string> fitting;
    for (const ComponentKind& kind : kinds) {
      const YamlNode tree = write_tree(*kind.make(), WriteMode::kFull);
      const auto has = [&](const YamlNode::Entry& entry) {
        return tree.find(entry.key) != nullptr || (&map == &map_ && std::find(known_.begin(), known_.end(), entry.key) != known_.end());
      };
      if (std::all_of(map.entries.begin(), map.entries.end(), has)) fitting.emplace_back(kind.type);
    }
    return !map.entries.empty() && fitting.size() == 1 ? cat("add type: ", fitting.front()) : cat("write one of: ", names_of(kinds));
  }
  static std::string missing_remedy(const OptionInfo& info) { return info.doc.empty() ? "" : cat("add it: ", info.doc); }

  void complain(const TextPlace& place, const std::string& key, const std::string& message, const std::string& remedy) {
    Error error(ErrorCode::kRecipe, message);
    error.key(key);
    if (!remedy.empty()) error.suggest(remedy);
    errors_.push_back(place.mark(error));
  }
  void wrong(const OptionInfo& info, const YamlNode& node, const std::string& expected) {
    complain(node.place, path(info), cat("'", path(info), "' must be ", expected, ", not ", kind_text(node)), "");
  }

  const YamlNode* take(const OptionInfo& info) {
    known_.emplace_back(info.name);
    const YamlNode* node = map_.find(info.name);
    if (!node && info.required) complain(map_.place, path(info), cat("'", path(info), "' is missing"), missing_remedy(info));
    return node;
  }
  const YamlNode* scalar(const OptionInfo& info, const std::string& expected) {
    const YamlNode* node = take(info);
    if (!node || node->is_scalar()) return node;
    wrong(info, *node, expected);
    return nullptr;
  }

  template <class T>
  void in_range(const OptionInfo& info, const YamlNode& node, T value) {
    const double number = static_cast<double>(value);
    if (number >= info.min && number <= info.max) return;
    const bool low = std::isinf(info.min), high = std::isinf(info.max);
    // Writes whole numbers without exponents: "1 to 100000".
    const auto text = [](double bound) {
      return std::floor(bound) == bound && std::fabs(bound) < 1e15 ? std::to_string(static_cast<int64_t>(bound)) : number_text(bound);
    };
    const std::string range = low    ? cat("at most ", text(info.max))
                              : high ? cat("at least ", text(info.min))
                                     : cat(text(info.min), " to ", text(info.max));
    complain(node.place, path(info),
             cat("'", path(info), "' is ", node.scalar, "; it must be ", range, info.unit.empty() ? "" : cat(" ", info.unit)), "");
  }
  void integer(const OptionInfo& info, const YamlNode& node, int64_t& value) {
    try {
      value = parse_count(node.scalar);
    } catch (const Error& error) {
      return complain(node.place, path(info), cat("'", path(info), "' must be a whole number: ", error.message()), "");
    }
    in_range(info, node, value);
  }
  void number(const OptionInfo& info, const YamlNode& node, double& value) {
    try {
      value = parse_number(node.scalar);
    } catch (const Error& error) {
      return complain(node.place, path(info), cat("'", path(info), "' must be a number: ", error.message()), "");
    }
    in_range(info, node, value);
  }

  template <class T, class ReadItem>
  void read_list(const OptionInfo& info, std::vector<T>& value, const std::string& expected, ReadItem read_item) {
    const YamlNode* node = take(info);
    if (!node) return;
    value.clear();
    if (node->is_null()) return;
    if (node->is_map()) return wrong(info, *node, expected);
    std::vector<YamlNode> parts;
    if (node->is_list()) {
      parts = node->items;
    } else if (node->comma_list) {
      parts = split_commas(*node);
    } else {
      parts.push_back(*node);
    }
    for (const YamlNode& item : parts) {
      T out{};
      if (item.is_scalar()) {
        read_item(item, out);
      } else {
        wrong(info, item, expected);
      }
      value.push_back(std::move(out));
    }
  }

  bool make_params(const YamlNode& type, const std::string& key, Component& value, ComponentKinds kinds) {
    std::vector<std::string> names;
    for (const ComponentKind& kind : kinds) {
      names.emplace_back(kind.type);
      if (!type.is_scalar() || kind.type != type.scalar) continue;
      value.type = type.scalar;
      value.params = kind.make();
      return true;
    }
    if (!type.is_scalar()) {
      complain(type.place, key, cat("'", key, "' must be a name, not ", kind_text(type)), "");
      return false;
    }
    const std::string near = nearest(type.scalar, names);
    complain(type.place, key, cat("'", key, "': there is no '", type.scalar, "'"),
             near.empty() ? cat("write one of: ", names_of(kinds)) : cat("did you mean '", near, "'?"));
    return false;
  }

  void read_component(const OptionInfo& info, const YamlNode& node, const std::string& where, Component& value, ComponentKinds kinds,
                      bool in_list) {
    if (node.is_scalar() && !info.word.empty() && node.scalar == info.word && !in_list) {
      value.type = info.word;
      return;
    }
    if (node.is_scalar()) {
      make_params(node, where, value, kinds);
      return;
    }
    if (!node.is_map()) return complain(node.place, where, cat("'", where, "' must be a map with a `type`, not ", kind_text(node)), "");
    const YamlNode* type = node.find("type");
    if (!type) {
      return complain(node.place, where + ".type", cat("'", where, ".type' is missing"), missing_type_remedy(node, kinds));
    }
    if (!make_params(*type, where + ".type", value, kinds)) return;
    Reader reader(node, where, cat(" (type ", value.type, ")"), errors_);
    reader.known_.emplace_back("type");
    reader.type_ = type;
    reader.kinds_ = kinds;
    if (in_list) {
      reader.known_.emplace_back("name");
      if (const YamlNode* name = node.find("name"); name && name->is_scalar()) value.name = name->scalar;
    }
    value.params->options(reader);
    reader.finish();
  }

  void finish() {
    if (ignore_unknown_) return;
    for (const YamlNode::Entry& entry : map_.entries) {
      if (entry.key.starts_with("x-") || std::find(known_.begin(), known_.end(), entry.key) != known_.end()) continue;
      const std::string key = key_path(entry.key);
      Error error(ErrorCode::kRecipe, cat("unknown key '", key, "'", what_));
      error.key(key);
      const std::string other = other_type_remedy(entry);
      const std::string remedy = other.empty() ? remedy_for(entry.key) : other;
      if (!remedy.empty()) error.suggest(remedy);
      errors_.push_back(entry.place.mark(error));
    }
  }

  /// The suggestion for a key that another type has; "" if no type has it.
  std::string other_type_remedy(const YamlNode::Entry& entry) const {
    if (type_ == nullptr) return "";
    std::vector<std::string> owners;
    for (const ComponentKind& kind : kinds_) {
      if (kind.type == type_->scalar) continue;
      const std::unique_ptr<Options> params = kind.make();
      if (write_tree(*params, WriteMode::kFull).find(entry.key) != nullptr) owners.emplace_back(kind.type);
    }
    if (owners.empty()) return "";
    if (owners.size() > kMaxOwners) {
      owners.resize(kMaxOwners);
      owners.emplace_back("others");
    }
    const std::string whose = cat("'", entry.key, "' is a key of ", joined(owners));
    const auto on_command_line = [](const TextPlace& place) { return place.source && place.source->name == "command line"; };
    if (!on_command_line(type_->place) || on_command_line(entry.place)) return cat(whose, ", not of ", type_->scalar);
    return cat(whose, "; the override changed only the type: add --unset ", key_path(entry.key));
  }

  std::string remedy_for(const std::string& key) const {
    std::string foreign(foreign_key(key));
    if (!foreign.empty()) {
      const std::string here = path_ + ".";
      if (!path_.empty() && foreign.starts_with(here)) foreign = foreign.substr(here.size());
      // Prefer a similar key of this map to a key elsewhere.
      if (foreign.find('.') == std::string::npos || nearest(key, known_).empty() || foreign_is_sure(key)) {
        return cat("did you mean '", foreign, "'?");
      }
    }
    const std::string near = nearest(key, known_);
    if (!near.empty()) return cat("did you mean '", near, "'?");
    if (!kinds_without_type_.empty()) return "the key `type` is missing";
    std::vector<std::string> names = known_;
    if (names.empty()) return "no keys are allowed here";
    if (names.size() > kMaxListed) return "";
    return cat("known keys: ", joined(names));
  }
  // A long foreign name is not a misspelling of a short key.
  static bool foreign_is_sure(const std::string& key) { return key.size() >= 6; }

  const YamlNode& map_;
  std::string path_;
  std::string what_;
  std::vector<Error>& errors_;
  std::vector<std::string> known_;
  ComponentKinds kinds_without_type_;
  bool ignore_unknown_ = false;
  const YamlNode* type_ = nullptr;  // type of the component that this map describes
  ComponentKinds kinds_;            // the types that it could have
};

}  // namespace

void read_options(const YamlNode& tree, Options& out) {
  std::vector<Error> errors;
  Reader(tree, "", "", errors).read(out);
  if (errors.empty()) return;
  std::stable_sort(errors.begin(), errors.end(), [](const Error& a, const Error& b) {
    const Place &p = a.place(), &q = b.place();
    return std::tie(p.file, p.line, p.column) < std::tie(q.file, q.line, q.column);
  });
  Error first = errors.front();
  for (size_t i = 1; i < errors.size() && i < kMaxErrors; ++i) first.also(errors[i]);
  if (errors.size() > kMaxErrors) first.also(Error(ErrorCode::kRecipe, cat("and ", errors.size() - kMaxErrors, " more")));
  throw first;
}

}  // namespace galley
