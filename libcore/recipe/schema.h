#pragma once
// The schema of a recipe, obtained by visiting the options of a default-constructed struct (base/options.h). It serves to read a tree
// into the struct with all errors at once, to dump it, and to write documentation, JSON Schema and completions.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {

enum class ValueKind {
  kBool,
  kInteger,
  kNumber,
  kString,
  kIntegers,
  kNumbers,
  kStrings,
  kChoice,
  kText,
  kPairs,
  kSection,
  kList,
  kComponent,
  kComponents
};
/// Whether a value of this kind is written as a list.
bool takes_list(ValueKind kind);

/// One key: its OptionInfo, kind and default. Children are made on demand, since layers can nest without limit.
struct SchemaNode {
  std::string name, doc, unit, word;
  double min, max;
  bool required = false, main = false, optional = false, spliced = false;
  ValueKind kind = ValueKind::kSection;
  YamlNode default_value;            ///< As in a dump; null for an absent optional.
  std::vector<std::string> choices;  ///< For kChoice the words; for kComponent and kComponents the types.
  std::string grammar;               ///< For kText: the accepted forms.
  ComponentKinds kinds;
  std::unique_ptr<Options> (*make)() = nullptr;  ///< For kList, and for kSection if it maps free names to structs: makes an element.
  std::vector<SchemaNode> options;               ///< For kSection.
  std::vector<SchemaNode> children(
      const std::string& type = "") const;  ///< Keys of the section, of an element of the list, or of a component of that type.
  bool named() const { return kind == ValueKind::kSection && make != nullptr; }  ///< Whether this is a map from free names.
  SchemaNode element() const;             ///< The schema of a value of such a map, or of an item of a list.
  const SchemaNode* main_option() const;  ///< The option that a scalar sets (the shorthand), or null.
};

/// The keys of a struct of options.
class Schema {
 public:
  explicit Schema(std::function<std::unique_ptr<Options>()> make);
  const SchemaNode& root() const { return root_; }
  std::unique_ptr<Options> make() const { return make_(); }
  /// Replaces scalars that are shorthand for a map by that map. Reports no errors; read_options does.
  void normalize(YamlNode& tree) const;
  static void normalize(YamlNode& value, const SchemaNode& node);

 private:
  std::function<std::unique_ptr<Options>()> make_;
  SchemaNode root_;
};

/// Fills `out` (default-constructed) from a tree. Throws one Error that holds all errors of the tree, each with key and place.
void read_options(const YamlNode& tree, Options& out);

enum class DumpForm { kMin, kFull };
/// The values as a tree: all of them (kFull), or only those that differ from the defaults (kMin).
YamlNode write_options(const Options& value, const Options& defaults, DumpForm form);
/// Copies the places of the keys of `origin` to the same keys of `tree`.
void copy_places(YamlNode& tree, const YamlNode& origin);

/// Markdown tables of every key: type, default, range, unit, meaning.
std::string schema_markdown(const Schema& schema);
/// JSON Schema (draft 2020-12) of the recipe, for editors.
std::string schema_json(const Schema& schema);
/// Key paths that begin with `prefix` ("train.opt"), or, after a `=`, the values that may follow. `tree`: a recipe that gives the types of
/// the components.
std::vector<std::string> complete_key(const Schema& schema, const std::string& prefix, const std::string& tool_section,
                                      const YamlNode& tree = YamlNode());
/// Help on one key: type, default, range, choices, meaning. Throws an Error with the nearest key if there is no such key. `tree`: a recipe
/// that gives the types of the components, so that keys of their parameters are found.
std::string describe_key(const Schema& schema, const std::string& key, const std::string& tool_section, const YamlNode& tree = YamlNode());

/// The key of this language for a name that other tools use ("batch_size" -> "train.batch.global"), or "".
std::string_view foreign_key(std::string_view name);
/// Every foreign name, for near-name search.
std::vector<std::string> foreign_names();

}  // namespace galley
