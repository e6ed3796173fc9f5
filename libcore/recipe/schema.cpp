#include "libcore/recipe/schema.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/base/named_options.h"
#include "libcore/recipe/time_values.h"
#include "libcore/recipe/write.h"

namespace galley {
namespace {

// Visits a default-constructed struct and collects its keys. Creates absent optionals, so that their keys are included.
class Collector : public OptionVisitor {
 public:
  Collector(std::vector<SchemaNode>& out, const YamlNode& defaults) : out_(out), defaults_(defaults) {}

  void option(const OptionInfo& info, bool&) override { add(info, ValueKind::kBool); }
  void option(const OptionInfo& info, int64_t&) override { add(info, ValueKind::kInteger); }
  void option(const OptionInfo& info, double&) override { add(info, ValueKind::kNumber); }
  void option(const OptionInfo& info, std::string&) override { add(info, ValueKind::kString); }
  void option(const OptionInfo& info, std::vector<int64_t>&) override { add(info, ValueKind::kIntegers); }
  void option(const OptionInfo& info, std::vector<double>&) override { add(info, ValueKind::kNumbers); }
  void option(const OptionInfo& info, std::vector<std::string>&) override { add(info, ValueKind::kStrings); }
  void pairs(const OptionInfo& info, std::vector<std::pair<std::string, std::string>>&) override { add(info, ValueKind::kPairs); }
  void choice(const OptionInfo& info, int&, std::span<const std::string_view> names) override {
    add(info, ValueKind::kChoice).choices.assign(names.begin(), names.end());
  }
  void text(const OptionInfo& info, TextValue& value) override {
    add(info, ValueKind::kText).grammar = takes_time(value) ? kTimeGrammar : value.grammar();
  }
  void section(const OptionInfo& info, Options& value) override {
    const bool absent = optional_;
    SchemaNode& node = add(info, ValueKind::kSection);
    // Write a copy: kShape creates absent optionals, which would then count as present in the sections below.
    const YamlNode below = absent ? write_tree(*value.clone(), WriteMode::kShape) : node.default_value;
    std::vector<SchemaNode> options;
    Collector collector(options, below);
    value.options(collector);
    node.options = std::move(options);
    if (const auto* named = dynamic_cast<const NamedOptions*>(&value)) node.make = named->maker();
  }
  void list(const OptionInfo& info, std::vector<std::unique_ptr<Options>>&, std::unique_ptr<Options> (*make)()) override {
    add(info, ValueKind::kList).make = make;
  }
  void component(const OptionInfo& info, Component&, ComponentKinds kinds) override { add_kinds(add(info, ValueKind::kComponent), kinds); }
  void components(const OptionInfo& info, std::vector<Component>&, ComponentKinds kinds) override {
    add_kinds(add(info, ValueKind::kComponents), kinds);
  }
  bool present(const OptionInfo&, bool) override {
    optional_ = true;
    return true;
  }
  using OptionVisitor::choice;
  using OptionVisitor::option;

 private:
  SchemaNode& add(const OptionInfo& info, ValueKind kind) {
    SchemaNode node;
    node.name = info.name;
    node.doc = info.doc;
    node.unit = info.unit;
    node.word = info.word;
    node.min = info.min;
    node.max = info.max;
    node.required = info.required;
    node.main = info.main;
    node.optional = optional_;
    node.spliced = info.name.empty();
    node.kind = kind;
    if (const YamlNode* value = defaults_.find(info.name)) node.default_value = *value;
    optional_ = false;
    out_.push_back(std::move(node));
    return out_.back();
  }
  static void add_kinds(SchemaNode& node, ComponentKinds kinds) {
    node.kinds = kinds;
    for (const ComponentKind& kind : kinds) node.choices.emplace_back(kind.type);
  }

  std::vector<SchemaNode>& out_;
  const YamlNode& defaults_;
  bool optional_ = false;
};

std::vector<SchemaNode> collect(Options& options) {
  const YamlNode defaults = write_tree(options, WriteMode::kFull);
  std::vector<SchemaNode> nodes;
  Collector collector(nodes, defaults);
  options.options(collector);
  return nodes;
}

bool is_reference(const YamlNode& node) { return node.is_scalar() && node.scalar.starts_with("${") && node.scalar.ends_with("}"); }

// `value` becomes {key: value}.
void wrap_in_map(YamlNode& value, const std::string& key) {
  YamlNode map = YamlNode::map_of();
  map.place = value.place;
  const TextPlace place = value.place;
  map.entries.push_back({key, place, std::move(value)});
  value = std::move(map);
}

void normalize_options(YamlNode& map, const std::vector<SchemaNode>& options) {
  for (YamlNode::Entry& entry : map.entries) {
    for (const SchemaNode& option : options) {
      if (option.name == entry.key) Schema::normalize(entry.value, option);
    }
  }
}

void normalize_component(YamlNode& value, const SchemaNode& node) {
  if (value.is_scalar() && !is_reference(value)) wrap_in_map(value, "type");
  if (!value.is_map()) return;
  const YamlNode* type = value.find("type");
  if (type && type->is_scalar()) normalize_options(value, node.children(type->scalar));
}

}  // namespace

bool takes_list(ValueKind kind) {
  return kind == ValueKind::kIntegers || kind == ValueKind::kNumbers || kind == ValueKind::kStrings || kind == ValueKind::kList ||
         kind == ValueKind::kComponents;
}

std::vector<YamlNode> split_commas(const YamlNode& scalar) {
  std::vector<YamlNode> items;
  size_t begin = 0;
  while (begin <= scalar.scalar.size()) {
    const size_t end = std::min(scalar.scalar.find(',', begin), scalar.scalar.size());
    YamlNode item = YamlNode::scalar_of(scalar.scalar.substr(begin, end - begin));
    item.place = scalar.place;
    item.place.column += static_cast<int>(begin);
    item.place.width = static_cast<int>(std::max<size_t>(1, end - begin));
    items.push_back(std::move(item));
    begin = end + 1;
  }
  return items;
}

std::vector<SchemaNode> SchemaNode::children(const std::string& type) const {
  if (kind == ValueKind::kSection) {
    // The keys of a spliced component are among those of the section.
    std::vector<SchemaNode> all = options;
    for (const SchemaNode& option : options) {
      if (!option.spliced) continue;
      const std::vector<SchemaNode> more = option.children(type);
      all.insert(all.end(), more.begin(), more.end());
    }
    std::erase_if(all, [](const SchemaNode& node) { return node.spliced; });
    return all;
  }
  if (kind == ValueKind::kList) {
    return element().children(type);
  }
  if (kind != ValueKind::kComponent && kind != ValueKind::kComponents) return {};
  std::vector<SchemaNode> all;
  SchemaNode type_node;
  type_node.name = "type";
  type_node.doc = "the type; its parameters are keys of the same map";
  type_node.kind = ValueKind::kChoice;
  type_node.choices = choices;
  type_node.required = !spliced;
  type_node.main = true;
  type_node.min = -std::numeric_limits<double>::infinity();
  type_node.max = std::numeric_limits<double>::infinity();
  if (const YamlNode* given = default_value.find("type")) type_node.default_value = *given;
  all.push_back(std::move(type_node));
  for (const ComponentKind& candidate : kinds) {
    if (candidate.type != type) continue;
    const std::unique_ptr<Options> params = candidate.make();
    SchemaNode section;
    section.kind = ValueKind::kSection;
    section.options = collect(*params);
    for (SchemaNode& option : section.children()) all.push_back(std::move(option));
  }
  return all;
}

SchemaNode SchemaNode::element() const {
  const std::unique_ptr<Options> made = make();
  SchemaNode section;
  section.kind = ValueKind::kSection;
  section.min = -std::numeric_limits<double>::infinity();
  section.max = std::numeric_limits<double>::infinity();
  section.options = collect(*made);
  return section;
}

const SchemaNode* SchemaNode::main_option() const {
  for (const SchemaNode& option : options) {
    if (option.main || option.spliced) return &option;
  }
  return nullptr;
}

Schema::Schema(std::function<std::unique_ptr<Options>()> make) : make_(std::move(make)) {
  const std::unique_ptr<Options> options = make_();
  root_.kind = ValueKind::kSection;
  root_.options = collect(*options);
}

void Schema::normalize(YamlNode& tree) const {
  if (tree.is_map()) normalize(tree, root_);
}

void Schema::normalize(YamlNode& value, const SchemaNode& node) {
  if (value.is_null()) {
    // `null` for a section that cannot be absent sets its main key to null: `weights: null`.
    const SchemaNode* main = node.kind == ValueKind::kSection && !node.optional ? node.main_option() : nullptr;
    if (main && !main->spliced && (main->kind == ValueKind::kList || main->optional)) wrap_in_map(value, main->name);
    return;
  }
  switch (node.kind) {
    case ValueKind::kSection: {
      if (node.named()) {
        const SchemaNode element = node.element();
        for (YamlNode::Entry& entry : value.entries) normalize(entry.value, element);
        return;
      }
      const SchemaNode* main = node.main_option();
      if (main && !is_reference(value) && (value.is_scalar() || (value.is_list() && takes_list(main->kind)))) {
        wrap_in_map(value, main->spliced ? "type" : main->name);
      }
      if (!value.is_map()) return;
      const YamlNode* type = value.find("type");
      return normalize_options(value, node.children(type && type->is_scalar() ? type->scalar : ""));
    }
    case ValueKind::kList: {
      if (is_reference(value)) return;
      if (value.is_scalar() && value.comma_list) {
        YamlNode list = YamlNode::list_of();
        list.place = value.place;
        list.items = split_commas(value);
        value = std::move(list);
      } else if (!value.is_list()) {
        YamlNode list = YamlNode::list_of();
        list.place = value.place;
        list.items.push_back(std::move(value));
        value = std::move(list);
      }
      const SchemaNode section = node.element();
      for (YamlNode& item : value.items) normalize(item, section);
      return;
    }
    case ValueKind::kComponent:
      if (value.is_scalar() && !node.word.empty() && value.scalar == node.word) return;
      return normalize_component(value, node);
    case ValueKind::kComponents: {
      if (is_reference(value) || (value.is_scalar() && !node.word.empty() && value.scalar == node.word)) return;
      if (!value.is_list()) {
        YamlNode list = YamlNode::list_of();
        list.place = value.place;
        if (value.is_scalar() && value.comma_list) {
          list.items = split_commas(value);
        } else {
          list.items.push_back(std::move(value));
        }
        value = std::move(list);
      }
      for (YamlNode& item : value.items) normalize_component(item, node);
      return;
    }
    default: return;
  }
}

}  // namespace galley
