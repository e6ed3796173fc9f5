#include "libcore/recipe/references.h"

#include <algorithm>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/recipe/overrides.h"

namespace galley {
namespace {

constexpr int kMaxReferences = 10'000;
constexpr size_t kMaxBytes = size_t{1} << 20;  // bytes of all texts with references, expanded
constexpr int64_t kMaxNodes = 50'000;          // nodes that references copy
constexpr size_t kMaxChain = 32;               // references that lead to references

class Resolver {
 public:
  Resolver(const YamlNode& tree, const Schema& schema, const Environment& environment, std::map<std::string, std::string>& used)
      : tree_(tree), schema_(schema), environment_(environment), used_(used) {}

  YamlNode resolve(const YamlNode& node) {
    YamlNode out = node;
    if (node.is_scalar()) return resolve_scalar(node);
    for (YamlNode& item : out.items) item = resolve(item);
    for (YamlNode::Entry& entry : out.entries) entry.value = resolve(entry.value);
    return out;
  }

 private:
  [[noreturn]] void fail(const YamlNode& at, const std::string& message, const std::string& remedy = "") const {
    Error error(ErrorCode::kRecipe, message);
    if (!remedy.empty()) error.suggest(remedy);
    throw at.place.mark(error);
  }

  // Position after the brace that closes the reference opening at `begin` ("${").
  static size_t end_of(const std::string& text, size_t begin) {
    int depth = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == '{') ++depth;
      if (text[i] == '}' && --depth == 0) return i + 1;
    }
    return std::string::npos;
  }

  YamlNode resolve_scalar(const YamlNode& node) {
    const std::string& text = node.scalar;
    if (text.find('$') == std::string::npos) return node;
    if (text.starts_with("${") && end_of(text, 0) == text.size()) {
      YamlNode value = lookup(node, text.substr(2, text.size() - 3));
      value.place = node.place;
      return value;
    }
    YamlNode out = node;
    out.scalar = expand(node, text);
    return out;
  }

  std::string expand(const YamlNode& at, const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text.compare(i, 2, "$$") == 0) {
        out += '$';
        i += 2;
      } else if (text.compare(i, 2, "${") == 0) {
        const size_t end = end_of(text, i);
        if (end == std::string::npos) fail(at, "a reference '${' is not closed", "add '}', or write $$ for a dollar sign");
        const std::string name = text.substr(i + 2, end - i - 3);
        const YamlNode value = lookup(at, name);
        if (!value.is_scalar())
          fail(at, cat("'${", name, "}' is ",
                       value.is_null()   ? "null"
                       : value.is_list() ? "a list"
                                         : "a map",
                       ": a reference within a text must be a text"));
        out += value.scalar;
        i = end;
      } else {
        out += text[i++];
      }
      if (out.size() > kMaxBytes) fail(at, "references expand to more than 1 MiB");
    }
    bytes_ += out.size();
    if (bytes_ > kMaxBytes) fail(at, "references expand to more than 1 MiB");
    return out;
  }

  YamlNode lookup(const YamlNode& at, const std::string& name) {
    if (++references_ > kMaxReferences) fail(at, cat("more than ", kMaxReferences, " references, counting those within references"));
    if (name.starts_with("env:")) return from_environment(at, name.substr(4));
    if (std::find(chain_.begin(), chain_.end(), name) != chain_.end()) {
      std::string cycle;
      for (const std::string& part : chain_) cycle += part + " -> ";
      fail(at, cat("references form a cycle: ", cycle, name));
    }
    if (chain_.size() >= kMaxChain) fail(at, cat("references lead to references more than ", kMaxChain, " times"));
    const std::vector<std::string> path = split_key(name);
    chain_.push_back(name);
    YamlNode value;
    if (const YamlNode* found = find(path)) {
      value = resolve(*found);
    } else if (const std::optional<SchemaNode> known = path[0] == "vars" ? std::nullopt : schema_at(schema_, tree_, path)) {
      value = known->default_value;
    } else {
      std::vector<std::string> names;
      const bool vars = path[0] == "vars";
      if (const YamlNode* map = vars ? tree_.find("vars") : &tree_) {
        for (const YamlNode::Entry& entry : map->entries) names.push_back((vars ? "vars." : "") + entry.key);
      }
      const std::string near = nearest(name, names);
      fail(at, cat("'${", name, "}': there is no '", name, "'"), near.empty() ? "" : cat("did you mean '${", near, "}'?"));
    }
    chain_.pop_back();
    nodes_ += size(value);
    if (nodes_ > kMaxNodes) fail(at, cat("references copy more than ", kMaxNodes, " values"));
    return value;
  }

  const YamlNode* find(const std::vector<std::string>& path) const { return value_at(tree_, path); }

  YamlNode from_environment(const YamlNode& at, const std::string& text) {
    const size_t colon = text.find(":-");
    const std::string name = text.substr(0, colon);
    const std::optional<std::string> value = environment_(name);
    YamlNode out = YamlNode::scalar_of("");
    if (value && !(value->empty() && colon != std::string::npos)) {
      out.scalar = *value;
    } else if (colon != std::string::npos) {
      out.scalar = expand(at, text.substr(colon + 2));
    } else {
      fail(at, cat("the environment variable ", name, " is not set"), cat("set it, or write a default: ${env:", name, ":-DEFAULT}"));
    }
    check_utf8(out.scalar, at.place, cat("the environment variable ", name));
    used_[name] = out.scalar;
    return out;
  }

  static int64_t size(const YamlNode& node) {
    int64_t count = 1;
    for (const YamlNode& item : node.items) count += size(item);
    for (const YamlNode::Entry& entry : node.entries) count += size(entry.value);
    return count;
  }

  const YamlNode& tree_;
  const Schema& schema_;
  const Environment& environment_;
  std::map<std::string, std::string>& used_;
  std::vector<std::string> chain_;
  int references_ = 0;
  size_t bytes_ = 0;
  int64_t nodes_ = 0;
};

}  // namespace

void resolve_references(YamlNode& tree, const Schema& schema, const Environment& environment, std::map<std::string, std::string>& used) {
  const YamlNode source = tree;
  tree = Resolver(source, schema, environment, used).resolve(source);
}

}  // namespace galley
