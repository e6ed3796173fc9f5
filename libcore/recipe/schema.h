#pragma once
// The schema of a recipe, obtained by walking a default-constructed struct with visitors (base/options.h), and what follows from
// it: reading a tree into the struct with all errors at once, dumping, documentation, JSON Schema, completion.

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

/// One key: what OptionInfo says, its kind, its default. Children are made when asked for, since layers nest without end.
struct SchemaNode {
  std::string name, doc, unit, word;
  double min, max;
  bool required = false, main = false, optional = false, spliced = false;
  ValueKind kind = ValueKind::kSection;
  YamlNode default_value;            ///< As a dump writes it; null for an absent optional.
  std::vector<std::string> choices;  ///< kChoice; the types for kComponent and kComponents.
  std::string grammar;               ///< kText
  ComponentKinds kinds;
  std::unique_ptr<Options> (*make)() = nullptr;  ///< kList; kSection: of a map from free names to such structs
  std::vector<SchemaNode> options;               ///< kSection
  std::vector<SchemaNode> children(
      const std::string& type = "") const;  ///< Keys of the section, of a list's element, or of a component of that type.
  bool named() const { return kind == ValueKind::kSection && make != nullptr; }  ///< A map from free names.
  SchemaNode element() const;                                                    ///< What such a name, or a list's number, stands for.
  const SchemaNode* main_option() const;                                         ///< The option that a scalar stands for, or null.
};

class Schema {
 public:
  explicit Schema(std::function<std::unique_ptr<Options>()> make);
  const SchemaNode& root() const { return root_; }
  std::unique_ptr<Options> make() const { return make_(); }
  /// Scalars that stand for maps become these maps; nothing else changes. Errors are left to read_options.
  void normalise(YamlNode& tree) const;
  static void normalise(YamlNode& value, const SchemaNode& node);

 private:
  std::function<std::unique_ptr<Options>()> make_;
  SchemaNode root_;
};

/// Fills `out` (default-constructed) from a tree. Throws one Error that holds all errors of the tree, each with key and place.
void read_options(const YamlNode& tree, Options& out);

enum class DumpForm { kMin, kFull };
/// The values as a tree: all of them, or only those that differ from the defaults.
YamlNode write_options(const Options& value, const Options& defaults, DumpForm form);
/// Gives the nodes of `tree` the places that the same keys have in `origin`.
void copy_places(YamlNode& tree, const YamlNode& origin);

/// Markdown tables of every key: type, default, range, unit, meaning.
std::string schema_markdown(const Schema& schema);
/// JSON Schema (draft 2020-12) of the recipe, for editors.
std::string schema_json(const Schema& schema);
/// Key paths that begin with `prefix` ("train.opt"), or, behind a `=`, the values that may follow. `tree`: a recipe that says of which
/// type the components are.
std::vector<std::string> complete_key(const Schema& schema, const std::string& prefix, const std::string& tool_section,
                                      const YamlNode& tree = YamlNode());
/// Help on one key: type, default, range, choices, meaning; an Error with the nearest key where there is none. `tree`: a recipe that says
/// of which type the components are, on whose parameters a key may be.
std::string describe_key(const Schema& schema, const std::string& key, const std::string& tool_section, const YamlNode& tree = YamlNode());

/// The key of this language for a name that other tools use ("batch_size" -> "train.batch.global"), or "".
std::string_view foreign_key(std::string_view name);
/// Every foreign name, for near-name search.
std::vector<std::string> foreign_names();

}  // namespace galley
