#include "libcore/recipe/write.h"

#include "libcore/base/units.h"
#include "libcore/recipe/schema.h"

namespace galley {
namespace {

const YamlNode* map_or_null(const YamlNode* node) { return node && node->is_map() ? node : nullptr; }

class Writer : public OptionVisitor {
 public:
  // Without `defaults`, writes all keys; with them, keys that differ. `shape`: defaults of sections that are absent by default.
  Writer(YamlNode& out, const YamlNode* defaults, const YamlNode* shape, bool make_absent = false)
      : out_(out), defaults_(defaults), shape_(shape), make_absent_(make_absent) {}

  void option(const OptionInfo& info, bool& value) override { leaf(info, YamlNode::scalar_of(value ? "true" : "false")); }
  void option(const OptionInfo& info, int64_t& value) override { leaf(info, YamlNode::scalar_of(std::to_string(value))); }
  void option(const OptionInfo& info, double& value) override { leaf(info, YamlNode::scalar_of(number_text(value))); }
  void option(const OptionInfo& info, std::string& value) override { leaf(info, YamlNode::scalar_of(value)); }
  void option(const OptionInfo& info, std::vector<int64_t>& value) override {
    YamlNode list = YamlNode::list_of();
    for (const int64_t item : value) list.items.push_back(YamlNode::scalar_of(std::to_string(item)));
    leaf(info, std::move(list));
  }
  void option(const OptionInfo& info, std::vector<double>& value) override {
    YamlNode list = YamlNode::list_of();
    for (const double item : value) list.items.push_back(YamlNode::scalar_of(number_text(item)));
    leaf(info, std::move(list));
  }
  void option(const OptionInfo& info, std::vector<std::string>& value) override {
    YamlNode list = YamlNode::list_of();
    for (const std::string& item : value) list.items.push_back(YamlNode::scalar_of(item));
    leaf(info, std::move(list));
  }
  void pairs(const OptionInfo& info, std::vector<std::pair<std::string, std::string>>& value) override {
    YamlNode map = YamlNode::map_of();
    for (const auto& [key, text] : value) map.at(key) = YamlNode::scalar_of(text);
    leaf(info, std::move(map));
  }
  void choice(const OptionInfo& info, int& value, std::span<const std::string_view> names) override {
    leaf(info, YamlNode::scalar_of(std::string(names[static_cast<size_t>(value)])));
  }
  void text(const OptionInfo& info, TextValue& value) override { leaf(info, YamlNode::scalar_of(value.str())); }

  void section(const OptionInfo& info, Options& value) override {
    absent_ = false;
    const YamlNode* usual = defaults_ ? map_or_null(defaults_->find(info.name)) : nullptr;
    const YamlNode* shape = shape_ ? map_or_null(shape_->find(info.name)) : nullptr;
    YamlNode map = YamlNode::map_of();
    Writer writer(map, usual ? usual : shape, shape, make_absent_);
    value.options(writer);
    if (map.entries.empty() && usual && !info.required) return;
    out_.at(info.name) = std::move(map);
  }

  void list(const OptionInfo& info, std::vector<std::unique_ptr<Options>>& value, std::unique_ptr<Options> (*make)()) override {
    YamlNode full = YamlNode::list_of(), brief = YamlNode::list_of();
    for (const std::unique_ptr<Options>& item : value) {
      full.items.push_back(write_tree(*item, WriteMode::kFull));
      if (defaults_) brief.items.push_back(differences(*item, *make()));
    }
    if (same_as_default(info, full)) return;
    leaf(info, defaults_ ? std::move(brief) : std::move(full));
  }

  void component(const OptionInfo& info, Component& value, ComponentKinds kinds) override {
    if (info.name.empty()) {
      if (!value.type.empty()) write_component(out_, value, kinds, defaults_ != nullptr);
      return;
    }
    const YamlNode full = as_node(info, value, kinds, false);
    if (same_as_default(info, full)) return;
    leaf(info, as_node(info, value, kinds, defaults_ != nullptr));
  }
  void components(const OptionInfo& info, std::vector<Component>& value, ComponentKinds kinds) override {
    if (value.size() == 1 && !info.word.empty() && value[0].type == info.word && !value[0]) {
      return leaf(info, YamlNode::scalar_of(value[0].type));
    }
    YamlNode full = YamlNode::list_of(), brief = YamlNode::list_of();
    for (Component& item : value) {
      full.items.push_back(as_node(info, item, kinds, false));
      brief.items.push_back(as_node(info, item, kinds, true));
    }
    if (same_as_default(info, full)) return;
    leaf(info, defaults_ ? std::move(brief) : std::move(full));
  }

  bool present(const OptionInfo& info, bool has_value) override {
    if (has_value) return true;
    if (make_absent_) {
      absent_ = true;
      return true;
    }
    leaf(info, YamlNode());
    return false;
  }
  using OptionVisitor::choice;
  using OptionVisitor::option;

  static YamlNode differences(Options& value, Options& defaults) {
    const YamlNode usual = write_tree(defaults, WriteMode::kFull);
    const YamlNode shape = write_tree(defaults, WriteMode::kShape);
    YamlNode out = YamlNode::map_of();
    Writer writer(out, &usual, &shape);
    value.options(writer);
    return out;
  }

 private:
  bool same_as_default(const OptionInfo& info, const YamlNode& full) const {
    if (!defaults_ || info.required) return false;
    const YamlNode* usual = defaults_->find(info.name);
    return usual && *usual == full;
  }

  void leaf(const OptionInfo& info, YamlNode node) {
    if (absent_) node = YamlNode();  // an absent optional, created for its keys
    absent_ = false;
    if (!same_as_default(info, node)) out_.at(info.name) = std::move(node);
  }

  static void write_component(YamlNode& out, Component& value, ComponentKinds kinds, bool brief) {
    out.at("type") = YamlNode::scalar_of(value.type);
    if (!value.name.empty()) out.at("name") = YamlNode::scalar_of(value.name);
    if (!value.params) return;
    YamlNode params;
    for (const ComponentKind& kind : kinds) {
      if (brief && kind.type == value.type) params = differences(*value.params, *kind.make());
    }
    if (params.is_null()) params = write_tree(*value.params, WriteMode::kFull);
    for (YamlNode::Entry& entry : params.entries) out.at(entry.key) = std::move(entry.value);
  }
  static YamlNode as_node(const OptionInfo& info, Component& value, ComponentKinds kinds, bool brief) {
    if (value.type.empty()) return YamlNode();
    if (!value && value.type == info.word) return YamlNode::scalar_of(value.type);
    YamlNode map = YamlNode::map_of();
    write_component(map, value, kinds, brief);
    return map;
  }

  YamlNode& out_;
  const YamlNode* defaults_;
  const YamlNode* shape_;
  bool make_absent_;
  bool absent_ = false;
};

}  // namespace

YamlNode write_tree(Options& value, WriteMode mode) {
  YamlNode out = YamlNode::map_of();
  Writer writer(out, nullptr, nullptr, mode == WriteMode::kShape);
  value.options(writer);
  return out;
}

YamlNode write_options(const Options& value, const Options& defaults, DumpForm form) {
  const std::unique_ptr<Options> copy = value.clone(), usual = defaults.clone();
  return form == DumpForm::kFull ? write_tree(*copy, WriteMode::kFull) : Writer::differences(*copy, *usual);
}

void copy_places(YamlNode& tree, const YamlNode& origin) {
  if (tree.kind != origin.kind) {
    // A one-item list written without brackets has the place of the value.
    if (tree.is_list() && tree.items.size() == 1) copy_places(tree.items[0], origin);
    if (tree.is_list() || tree.is_scalar()) tree.place = origin.place;
    return;
  }
  tree.place = origin.place;
  for (size_t i = 0; i < tree.items.size() && i < origin.items.size(); ++i) copy_places(tree.items[i], origin.items[i]);
  for (YamlNode::Entry& entry : tree.entries) {
    const YamlNode::Entry* same = origin.entry(entry.key);
    if (!same) continue;
    entry.place = same->place;
    copy_places(entry.value, same->value);
  }
}

}  // namespace galley
