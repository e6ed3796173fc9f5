// Writes a tree as text. Quotes strings that YAML or the schema could read as another type.

#include <algorithm>
#include <cstdio>

#include "libcore/base/error.h"
#include "libcore/base/utf8.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {
namespace {

constexpr size_t kFlowWidth = 110;  // longest map or list of maps written on one line

bool is_plain(std::string_view text) {
  if (text.empty() || text == "null" || text == "Null" || text == "NULL") return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  const auto inner = [&](char c) { return letter(c) || std::string_view("./%+-^=@").find(c) != std::string_view::npos; };
  const bool number = (text[0] == '-' || text[0] == '+') && text.size() > 1 && text[1] >= '0' && text[1] <= '9';
  if (!letter(text[0]) && text[0] != '.' && text[0] != '/' && !number) return false;
  if (text.starts_with("...") || text.back() == ' ') return false;
  return std::all_of(text.begin(), text.end(), [&](char c) { return inner(c) || c == ' '; });
}

/// Whether check_text of the parser, which counts brackets and commas without regard to quotes, would reject this string as too deeply
/// nested.
bool looks_nested(std::string_view text) {
  int64_t depth = 0, deepest = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{' ? 1 : (c == ']' || c == '}') && depth > 0 ? -1 : 0;
    deepest = std::max(deepest, depth);
  }
  return depth > 0 || deepest > 32 || std::count(text.begin(), text.end(), ',') > 1000;
}

// The escape of a character that must be escaped in quotes; empty for others. Not printable in YAML 1.2 (section 5.1): the control
// characters of ASCII and Latin-1, U+FEFF within a document, U+FFFE and U+FFFF. U+0085, U+2028 and U+2029 are line breaks in
// YAML 1.1; U+00A0 looks like a space.
std::string escape_of(uint32_t code) {
  switch (code) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\t': return "\\t";
    case '\n': return "\\n";
    case 0x85: return "\\N";
    case 0xA0: return "\\_";
    case 0x2028: return "\\L";
    case 0x2029: return "\\P";
    default: break;
  }
  char buffer[8] = "";
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) std::snprintf(buffer, sizeof buffer, "\\x%02x", static_cast<unsigned>(code));
  if (code == 0xFEFF || code == 0xFFFE || code == 0xFFFF) std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(code));
  return buffer;
}

std::string yaml_text(std::string_view text) {
  const bool hide = looks_nested(text);
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    GALLEY_ASSERT(length > 0, "a text of a recipe is not UTF-8");
    const uint32_t code = utf8_code_point(text, i, length);
    std::string escape = escape_of(code);
    if (hide && (code == '[' || code == '{' || code == ',')) escape = code == '[' ? "\\x5b" : code == '{' ? "\\x7b" : "\\x2c";
    if (escape.empty()) {
      out.append(text, i, length);
    } else {
      out += escape;
    }
    i += length;
  }
  return out + "\"";
}

class Emitter {
 public:
  explicit Emitter(const EmitOptions& options) : options_(options) {}

  std::string document(const YamlNode& tree) {
    if (tree.is_map() && !tree.entries.empty()) {
      block(tree, 0);
    } else {
      out_ = flow(tree) + "\n";
    }
    return std::move(out_);
  }

 private:
  std::string key(const std::string& text) const { return is_plain(text) ? text : yaml_text(text); }

  std::string scalar(const YamlNode& node) const {
    std::string text;
    for (const char c : node.scalar) text += c == '$' && options_.escape_dollars ? "$$" : std::string(1, c);
    return is_plain(text) ? text : yaml_text(text);
  }

  std::string flow(const YamlNode& node) const {
    std::string text;
    switch (node.kind) {
      case YamlNode::Kind::kNull: return "null";
      case YamlNode::Kind::kScalar: return scalar(node);
      case YamlNode::Kind::kList:
        for (const YamlNode& item : node.items) text += (text.empty() ? "" : ", ") + flow(item);
        return "[" + text + "]";
      case YamlNode::Kind::kMap:
        for (const YamlNode::Entry& entry : node.entries) text += (text.empty() ? "" : ", ") + key(entry.key) + ": " + flow(entry.value);
        return "{" + text + "}";
    }
    return text;
  }

  static bool has_maps(const YamlNode& list) {
    return std::any_of(list.items.begin(), list.items.end(), [](const YamlNode& item) { return item.is_map() || item.is_list(); });
  }

  // Components are written on one line, sections as blocks. With origins, each key has its own line for the comment.
  bool on_one_line(const YamlNode& node, bool in_list) const {
    if (node.is_map()) {
      if (node.entries.empty()) return true;
      return !options_.origins && (in_list || node.find("type")) && flow(node).size() <= kFlowWidth;
    }
    if (node.is_list()) return !has_maps(node);
    return true;
  }

  void line(const std::string& text, const TextPlace& place) {
    out_ += text;
    const std::string origin = options_.origins ? place.str() : "";
    if (!origin.empty()) {
      const size_t begin = out_.rfind('\n') == std::string::npos ? 0 : out_.rfind('\n') + 1;
      const size_t width = out_.size() - begin;
      out_ += std::string(width < 48 ? 50 - width : 2, ' ') + "# " + origin;
    }
    out_ += '\n';
  }

  void value(const YamlNode& node, size_t indent) {
    if (on_one_line(node, false)) {
      line(" " + flow(node), node.place);
    } else {
      out_ += '\n';
      block(node, indent + 2);
    }
  }

  void block(const YamlNode& node, size_t indent) {
    const std::string margin(indent, ' ');
    if (node.is_map()) {
      for (const YamlNode::Entry& entry : node.entries) {
        out_ += margin + key(entry.key) + ":";
        value(entry.value, indent);
      }
      return;
    }
    for (const YamlNode& item : node.items) {
      if (on_one_line(item, true)) {
        line(margin + "- " + flow(item), item.place);
      } else if (item.is_map()) {
        // The first key is on the line of the dash.
        const size_t begin = out_.size();
        block(item, indent + 2);
        out_[begin + indent] = '-';
      } else {
        out_ += margin + "-\n";
        block(item, indent + 2);
      }
    }
  }

  EmitOptions options_;
  std::string out_;
};

}  // namespace

std::string emit_yaml(const YamlNode& tree, const EmitOptions& options) { return Emitter(options).document(tree); }

}  // namespace galley
