#include "tools/common/recipe_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "libcore/recipe/yaml_tree.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

Json scalar_json(const YamlNode& node) {
  if (!node.quoted) {
    if (node.scalar == "true") return true;
    if (node.scalar == "false") return false;
    // JSON numbers are YAML numbers except for a leading "+" or ".", octal, hexadecimal, infinity and NaN, which stay strings.
    const Json number = Json::parse(node.scalar, nullptr, /*allow_exceptions=*/false);
    if (number.is_number() && (!number.is_number_float() || std::isfinite(number.get<double>()))) return number;
  }
  std::string text;
  for (size_t i = 0; i < node.scalar.size(); ++i) {
    text += node.scalar[i];
    if (node.scalar.compare(i, 2, "$$") == 0) ++i;
  }
  return text;
}

Json tree_json(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return nullptr;
    case YamlNode::Kind::kScalar: return scalar_json(node);
    case YamlNode::Kind::kList: {
      Json list = Json::array();
      for (const YamlNode& item : node.items) list.push_back(tree_json(item));
      return list;
    }
    case YamlNode::Kind::kMap: break;
  }
  Json map = Json::object();
  for (const YamlNode::Entry& entry : node.entries) map[entry.key] = tree_json(entry.value);
  return map;
}

}  // namespace

Json recipe_json(const std::string& yaml) {
  const auto source = std::make_shared<TextSource>();
  source->name = "recipe";
  source->text = yaml;
  return tree_json(parse_yaml(source));
}

}  // namespace galley::tools
