#pragma once
// YAML as a tree with the place of every key and value. parse_yaml is a pure function over text and safe on hostile text: bounds
// on size, depth, nodes after alias expansion, and keys; cycles, duplicate keys, tags, tabs and second documents are errors with
// their place. Scalars stay text: the schema decides what they mean.

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
  int64_t nodes = 50'000;   ///< After expansion of aliases; an anchored node counts once more, for the copy that is kept.
  int64_t keys = 2'000;     ///< A map.
  int64_t key_bytes = 160;  ///< One key: YAML allows 1024 characters (1.2, section 7.4.2), and an escape takes up to six.
};

/// A text that places point into: a file, standard input, or the command line.
struct TextSource {
  std::string name;
  std::string text;
};

/// Where a key or value stands. Line and column from 1 (column in bytes); no source: a default.
struct TextPlace {
  std::shared_ptr<const TextSource> source;
  int line = 0;
  int column = 0;
  int width = 1;

  /// Puts file, line, column (in characters), the line's text and the caret's width into an error.
  Error& mark(Error& error) const;
  /// "file:line", or "" without a source.
  std::string str() const;
};

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
  /// The value of a key of a map; null pointer where this is no map or has no such key.
  const YamlNode* find(std::string_view key) const;
  YamlNode* find(std::string_view key);
  const Entry* entry(std::string_view key) const;
  /// The value of a key, added as null where absent; this becomes a map.
  YamlNode& at(std::string_view key);
  void erase(std::string_view key);
  /// Same kinds, texts and orders of lists; the order of keys, places and quotes do not count.
  bool operator==(const YamlNode& other) const;

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;
  bool comma_list = false;  ///< From the command line: "1,16" is a list where a list is wanted.
  std::vector<YamlNode> items;
  std::vector<Entry> entries;
  TextPlace place;
};

struct YamlNode::Entry {
  std::string key;
  TextPlace place;
  YamlNode value;
};

/// Refuses text from outside a recipe file (command line, environment, a path) that emit_yaml could not write: throws Error (exit 3) at
/// the place, in which `what` names the text.
void check_utf8(std::string_view text, const TextPlace& place, const std::string& what);

/// Parses one document. An empty text is null. Scalars are UTF-8 without zero bytes. Throws Error (exit 3).
YamlNode parse_yaml(std::shared_ptr<const TextSource> source, const YamlLimits& limits = {});

struct EmitOptions {
  bool origins = false;        ///< "# file:line" behind every value that has a place.
  bool escape_dollars = true;  ///< `$` as `$$`, so that the text reads back without references.
};
/// The tree as YAML text that parse_yaml reads back to the same tree. Characters that YAML 1.2 does not count as printable, spaces that
/// look like others and line breaks of YAML 1.1 are written as escapes. Scalars must be UTF-8.
std::string emit_yaml(const YamlNode& tree, const EmitOptions& options = {});

}  // namespace galley
