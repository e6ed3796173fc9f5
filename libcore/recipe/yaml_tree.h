#pragma once
// YAML as a tree with the place of every key and value. parse_yaml is a pure function and safe on hostile text: it limits size, depth,
// keys, and nodes after expansion of aliases. Cycles, duplicate keys, tags, tabs and second documents are errors with their place. Scalars
// remain text: the schema decides their types.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/error.h"

namespace galley {

/// Bounds of parse_yaml.
struct YamlLimits {
  int64_t bytes = int64_t{1} << 20;
  int64_t depth = 64;
  int64_t nodes = 50'000;   ///< After expansion of aliases. An anchored node counts twice, since a copy is kept.
  int64_t keys = 2'000;     ///< Per map.
  int64_t key_bytes = 160;  ///< Per key.
};

/// A text that places refer to: a file, standard input, or the command line.
struct TextSource {
  std::string name;
  std::string text;
};

/// The position of a key or value. Line and column (in bytes) count from 1. Default values have no source.
struct TextPlace {
  std::shared_ptr<const TextSource> source;
  int line = 0;
  int column = 0;
  int width = 1;

  /// Adds file, line, column (in characters), the text of the line and the width of the caret to an error.
  Error& mark(Error& error) const;
  /// "file:line", or "" without a source.
  std::string str() const;
};

/// A value: null, a scalar as text, a list, or a map in the order of its keys.
class YamlNode {
 public:
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  YamlNode() = default;
  static YamlNode scalar_of(std::string text, bool quoted = false);
  static YamlNode list_of();
  static YamlNode map_of();

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }
  /// The value of a key; null pointer if this is not a map or has no such key.
  const YamlNode* find(std::string_view key) const;
  YamlNode* find(std::string_view key);
  const Entry* entry(std::string_view key) const;
  /// The value of a key, added as null if absent. Makes this node a map.
  YamlNode& at(std::string_view key);
  void erase(std::string_view key);
  /// Compares kinds, texts and lists. Ignores places, quotes and the order of keys.
  bool operator==(const YamlNode& other) const;

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;
  bool comma_list = false;  ///< From the command line: "1,16" becomes a list if the key takes one.
  std::vector<YamlNode> items;
  std::vector<Entry> entries;
  TextPlace place;
};

struct YamlNode::Entry {
  std::string key;
  TextPlace place;
  YamlNode value;
};

/// Throws an Error (exit 3) with the place if the text is not UTF-8, for text that does not come from a recipe file (command line,
/// environment, paths). `what` names the text in the message.
void check_utf8(std::string_view text, const TextPlace& place, const std::string& what);

/// Parses one document. An empty text gives null. Scalars are UTF-8 without zero bytes. Throws Error (exit 3).
YamlNode parse_yaml(std::shared_ptr<const TextSource> source, const YamlLimits& limits = {});

/// Options of emit_yaml.
struct EmitOptions {
  bool origins = false;        ///< Write "# file:line" after every value that has a place.
  bool escape_dollars = true;  ///< Write `$` as `$$`, so that the text reads back without references.
};
/// The tree as YAML text that parse_yaml reads back to the same tree. Escapes characters that are not printable in YAML 1.2, no-break
/// spaces and line breaks of YAML 1.1. Scalars must be UTF-8.
std::string emit_yaml(const YamlNode& tree, const EmitOptions& options = {});

}  // namespace galley
