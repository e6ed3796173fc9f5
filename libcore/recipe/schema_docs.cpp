// Help, Markdown documentation, JSON Schema and completion from the schema.

#include <algorithm>
#include <cmath>

#include "libcore/base/error.h"
#include "libcore/base/units.h"
#include "libcore/recipe/overrides.h"
#include "libcore/recipe/schema.h"

namespace galley {
namespace {

constexpr int kMaxNesting = 6;  // of lists and components; layers can nest without limit

std::string kind_name(const SchemaNode& node) {
  switch (node.kind) {
    case ValueKind::kBool: return "true or false";
    case ValueKind::kInteger: return "whole number";
    case ValueKind::kNumber: return "number";
    case ValueKind::kString: return "text";
    case ValueKind::kIntegers: return "list of whole numbers";
    case ValueKind::kNumbers: return "list of numbers";
    case ValueKind::kStrings: return "list of texts";
    case ValueKind::kChoice: return "choice";
    case ValueKind::kText: return node.grammar;
    case ValueKind::kPairs: return "map of texts";
    case ValueKind::kSection: return node.named() ? "map of maps" : "map";
    case ValueKind::kList: return "list of maps";
    case ValueKind::kComponent: return "map with a type";
    case ValueKind::kComponents: return "list of maps with a type";
  }
  return "";
}

std::string choices_text(const SchemaNode& node) {
  std::string text;
  for (const std::string& choice : node.choices) text += (text.empty() ? "" : ", ") + choice;
  return text;
}

std::string range_text(const SchemaNode& node) {
  const bool low = std::isfinite(node.min), high = std::isfinite(node.max);
  if (low && high) return cat(number_text(node.min), " to ", number_text(node.max));
  if (low) return cat("at least ", number_text(node.min));
  if (high) return cat("at most ", number_text(node.max));
  return "";
}

bool is_nested(const SchemaNode& node) {
  return node.kind == ValueKind::kSection || node.kind == ValueKind::kList || node.kind == ValueKind::kComponent ||
         node.kind == ValueKind::kComponents;
}

std::string default_text(const SchemaNode& node) {
  if (node.required) return "(required)";
  if (node.kind == ValueKind::kSection && !node.default_value.is_null()) return "";
  std::string text = emit_yaml(node.default_value, {.escape_dollars = false});
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.find('\n') == std::string::npos ? text : "...";
}

std::string cell(std::string text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void markdown_rows(const std::vector<SchemaNode>& options, const std::string& prefix, int depth, std::string& out) {
  for (const SchemaNode& node : options) {
    const std::string key = prefix + node.name;
    std::string type = kind_name(node);
    if (node.kind == ValueKind::kChoice) type = choices_text(node);
    if (!node.word.empty()) type += ", or " + node.word;
    if (!node.unit.empty()) type += ", in " + node.unit;
    if (const std::string range = range_text(node); !range.empty()) type += "; " + range;
    const std::string usual = default_text(node);
    out += cat("| `", key, "` | ", cell(type), " | ", usual.empty() ? "" : cat("`", cell(usual), "`"), " | ", cell(node.doc), " |\n");
    if (depth >= kMaxNesting) continue;
    if (node.named()) markdown_rows(node.element().children(), key + ".NAME.", depth + 1, out);
    if (node.kind == ValueKind::kSection) markdown_rows(node.children(), key + ".", depth + 1, out);
    if (node.kind == ValueKind::kList) markdown_rows(node.children(), key + ".N.", depth + 1, out);
  }
}

// The caller stops the recursion of lists within elements of lists.
void markdown_components(const std::vector<SchemaNode>& options, const std::string& prefix, int depth, std::string& out) {
  for (const SchemaNode& node : options) {
    const std::string key = prefix + node.name;
    if (node.kind == ValueKind::kSection && depth < kMaxNesting) markdown_components(node.children(), key + ".", depth + 1, out);
    if (node.kinds.empty() || node.name == "test" || prefix.starts_with("data.test.") || prefix.starts_with("data.val.")) continue;
    out += cat("\n## Types of `", key, "`\n\n");
    for (const ComponentKind& kind : node.kinds) {
      out += cat("### ", kind.type, "\n\n", kind.doc, "\n\n");
      std::vector<SchemaNode> params = node.children(std::string(kind.type));
      std::erase_if(params, [](const SchemaNode& param) { return param.name == "type"; });
      if (params.empty()) continue;
      out += "| key | value | default | meaning |\n|---|---|---|---|\n";
      markdown_rows(params, "", kMaxNesting - 1, out);
      out += '\n';
    }
  }
}

std::vector<SchemaNode> with_spliced(const SchemaNode& section) {
  // The types of a spliced component are documented under the key of the section.
  std::vector<SchemaNode> out;
  for (const SchemaNode& option : section.options) {
    SchemaNode copy = option;
    if (copy.kind == ValueKind::kSection) {
      for (const SchemaNode& inner : option.options) {
        if (inner.spliced) {
          copy.kinds = inner.kinds;
          copy.choices = inner.choices;
        }
      }
      copy.options = with_spliced(option);
    }
    out.push_back(std::move(copy));
  }
  return out;
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_of(const SchemaNode& node, int depth);

std::string json_properties(const std::vector<SchemaNode>& options, int depth) {
  std::string properties;
  for (const SchemaNode& option : options)
    properties += cat(properties.empty() ? "" : ",", json_text(option.name), ":", json_of(option, depth + 1));
  return cat("\"type\":\"object\",\"properties\":{", properties, "},\"patternProperties\":{\"^x-\":{}},\"additionalProperties\":false");
}

std::string json_component(const SchemaNode& node, int depth, bool in_list) {
  std::string types, options;
  for (const ComponentKind& kind : node.kinds) {
    types += cat(types.empty() ? "" : ",", json_text(kind.type));
    std::vector<SchemaNode> params = node.children(std::string(kind.type));
    std::string properties = cat("\"type\":{\"const\":", json_text(kind.type), "}");
    if (in_list) properties += ",\"name\":{\"type\":\"string\"}";
    for (const SchemaNode& param : params) {
      if (param.name != "type") properties += cat(",", json_text(param.name), ":", json_of(param, depth + 1));
    }
    options += cat(",{\"type\":\"object\",\"description\":", json_text(kind.doc), ",\"properties\":{", properties,
                   "},\"patternProperties\":{\"^x-\":{}},\"additionalProperties\":false,\"required\":[\"type\"]}");
  }
  if (types.empty()) return "{}";
  if (!node.word.empty() && !in_list) types += "," + json_text(node.word);
  return cat("{\"anyOf\":[{\"enum\":[", types, "]}", options, "]}");
}

// Any value may be a reference.
std::string json_or_reference(const std::string& schema) {
  return cat("{\"anyOf\":[", schema, ",{\"type\":\"string\",\"pattern\":\"\\\\$\\\\{\"}]}");
}

std::string json_plain(const SchemaNode& node, int depth) {
  std::string range;
  if (std::isfinite(node.min)) range += cat(",\"minimum\":", number_text(node.min));
  if (std::isfinite(node.max)) range += cat(",\"maximum\":", number_text(node.max));
  const auto list_of = [](const std::string& item) { return cat("{\"anyOf\":[", item, ",{\"type\":\"array\",\"items\":", item, "}]}"); };
  const std::string number = cat("{\"type\":\"number\"", range, "}");
  const std::string integer = cat("{\"type\":[\"integer\",\"string\"]", range, "}");
  const std::string text = "{\"type\":[\"string\",\"number\",\"boolean\"]}";
  switch (node.kind) {
    case ValueKind::kBool: return "{\"type\":\"boolean\"}";
    case ValueKind::kInteger: return integer;
    case ValueKind::kNumber: return number;
    case ValueKind::kString:
    case ValueKind::kText: return text;
    case ValueKind::kIntegers: return list_of(integer);
    case ValueKind::kNumbers: return list_of(number);
    case ValueKind::kStrings: return list_of(text);
    case ValueKind::kPairs: return "{\"type\":\"object\"}";
    case ValueKind::kChoice: {
      std::string words;
      for (const std::string& choice : node.choices) words += (words.empty() ? "" : ",") + json_text(choice);
      return cat("{\"enum\":[", words, "]}");
    }
    default: break;
  }
  if (depth > kMaxNesting) return "{}";
  switch (node.kind) {
    case ValueKind::kSection: {
      if (node.named()) return cat("{\"type\":\"object\",\"additionalProperties\":", json_of(node.element(), depth + 1), "}");
      std::string extra;
      for (const SchemaNode& option : node.options) {
        if (option.spliced) return "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\"}]}";
        if (option.main) extra = json_of(option, depth + 1);
      }
      const std::string map = cat("{", json_properties(node.children(), depth), "}");
      return extra.empty() ? map : cat("{\"anyOf\":[", extra, ",", map, "]}");
    }
    case ValueKind::kList: {
      std::string item = cat("{", json_properties(node.children(), depth + 1), "}");
      return cat("{\"anyOf\":[{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\"},", item, "]}},{\"type\":\"string\"},", item,
                 "]}");
    }
    case ValueKind::kComponent: return json_component(node, depth, false);
    case ValueKind::kComponents: {
      const std::string item = json_component(node, depth, true);
      return cat("{\"anyOf\":[", node.word.empty() ? "" : cat("{\"const\":", json_text(node.word), "},"), item,
                 ",{\"type\":\"array\",\"items\":", item, "}]}");
    }
    default: return "{}";
  }
}

std::string json_of(const SchemaNode& node, int depth) {
  std::string schema = json_or_reference(json_plain(node, depth));
  if (node.optional || is_nested(node)) schema = cat("{\"anyOf\":[{\"type\":\"null\"},", schema, "]}");
  std::string text = node.doc.empty() ? "" : cat("\"description\":", json_text(node.doc), ",");
  return cat("{", text, schema.substr(1));
}

}  // namespace

std::string schema_markdown(const Schema& schema) {
  std::string out = "# Keys of a recipe\n\nGenerated by `galley-recipes schema --format md` from the program; do not edit.\n\n";
  out += "| key | value | default | meaning |\n|---|---|---|---|\n";
  markdown_rows(schema.root().children(), "", 0, out);
  markdown_components(with_spliced(schema.root()), "", 0, out);
  return out;
}

std::string schema_json(const Schema& schema) {
  return cat("{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"title\":\"Galley recipe\",",
             json_properties(schema.root().children(), 0), "}\n");
}

std::vector<std::string> complete_key(const Schema& schema, const std::string& prefix, const std::string& tool_section,
                                      const YamlNode& tree) {
  std::vector<std::string> out;
  const size_t equals = prefix.find('=');
  const std::vector<SchemaNode> top = schema.root().children();
  const auto is_top = [&](const std::string& name) {
    return std::any_of(top.begin(), top.end(), [&](const auto& node) { return node.name == name; });
  };
  const std::string key = prefix.substr(0, equals);
  std::vector<std::string> path = split_key(key);
  const bool in_section = !is_top(path[0]) && is_top(tool_section);
  if (equals != std::string::npos) {
    if (in_section) path.insert(path.begin(), tool_section);
    const std::optional<SchemaNode> node = schema_at(schema, tree, path);
    if (!node) return out;
    std::vector<std::string> values = node->choices;
    if (node->kind == ValueKind::kBool) values = {"false", "true"};
    if (!node->word.empty()) values.push_back(node->word);
    if (node->kind == ValueKind::kSection) {
      for (const SchemaNode& option : node->options) {
        if (option.main || option.spliced) values = option.choices;
      }
    }
    if (node->kind == ValueKind::kText && node->grammar.starts_with("auto")) values = {"auto"};
    if (node->optional) values.emplace_back("null");
    for (const std::string& value : values) {
      if ((key + "=" + value).starts_with(prefix)) out.push_back(key + "=" + value);
    }
    return out;
  }
  const std::string last = path.back();
  path.pop_back();
  const std::string shown = path.empty() ? "" : join_key(path) + ".";
  std::vector<std::vector<std::string>> parents{path};
  if (path.empty() && is_top(tool_section)) parents.push_back({tool_section});
  if (!path.empty() && in_section) {
    parents.clear();
    path.insert(path.begin(), tool_section);
    parents.push_back(path);
  }
  for (const std::vector<std::string>& parent : parents) {
    const std::optional<SchemaNode> node = schema_at(schema, tree, parent);
    if (!node) continue;
    const YamlNode* value = value_at(tree, parent);
    const YamlNode* type = value != nullptr ? value->find("type") : nullptr;
    const bool list = node->kind == ValueKind::kList || node->kind == ValueKind::kComponents;
    for (const SchemaNode& option :
         list ? std::vector<SchemaNode>() : node->children(type != nullptr && type->is_scalar() ? type->scalar : "")) {
      if (!option.name.starts_with(last)) continue;
      // A section continues with ".", a value with "=".
      out.push_back(shown + option.name + (option.kind == ValueKind::kSection ? "." : "="));
      if (option.kind == ValueKind::kComponent) out.push_back(shown + option.name + ".");
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string describe_key(const Schema& schema, const std::string& key, const std::string& tool_section, const YamlNode& tree) {
  const std::vector<std::string> path = full_path(schema, key, tool_section, {});
  const std::optional<SchemaNode> node = schema_at(schema, tree, path);
  if (!node) throw Error(ErrorCode::kRecipe, cat("unknown key '", join_key(path), "'")).key(join_key(path));
  std::string out =
      cat(join_key(path), ": ", node->doc, "\n  value:   ", kind_name(*node), node->unit.empty() ? "" : ", in " + node->unit, "\n");
  if (!node->choices.empty()) out += cat("  one of:  ", choices_text(*node), node->word.empty() ? "" : ", or " + node->word, "\n");
  if (const std::string range = range_text(*node); !range.empty()) out += cat("  allowed: ", range, "\n");
  if (const std::string usual = default_text(*node); !usual.empty()) out += cat("  default: ", usual, "\n");
  if (is_nested(*node)) {
    std::string names;
    for (const SchemaNode& option : node->children()) names += (names.empty() ? "" : ", ") + option.name;
    if (!names.empty()) out += cat("  keys:    ", names, "\n");
  }
  return out;
}

}  // namespace galley
