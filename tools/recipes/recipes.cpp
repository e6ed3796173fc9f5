#include "tools/recipes/recipes.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/infer/components.h"
#include "libcore/train/check_model.h"
#include "tools/common/provenance.h"
#include "tools/common/recipe_json.h"
#include "tools/common/recipe_tool.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The value of `about:` or the first comment line, without reading the whole recipe: a listing must not fail for one bad file.
std::string about_of(const std::string& text) {
  std::string comment;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.starts_with("about:")) {
      line = line.substr(line.find_first_not_of(" \"", 6) == std::string::npos ? line.size() : line.find_first_not_of(" \"", 6));
      while (line.ends_with('"') || line.ends_with(' ')) line.pop_back();
      return line;
    }
    if (comment.empty() && line.starts_with("# ")) comment = line.substr(2);
    begin = end + 1;
  }
  // A fragment has no `about`: the first sentence of its comment. A sentence ends before an upper-case letter, "et al. 2014" does not.
  size_t end = comment.find(". ");
  while (end != std::string::npos && std::isupper(static_cast<unsigned char>(comment[end + 2])) == 0) end = comment.find(". ", end + 1);
  return comment.substr(0, std::min({end, comment.find(": "), comment.find(", to ")}));
}

/// describe_key for a word that may be a recipe instead, whose key is missing.
std::string describe_alone(const Schema& schema, const std::string& word) {
  try {
    return describe_key(schema, word, "");
  } catch (const Error& unknown) {
    try {
      find_recipe(word, recipes_folder());
    } catch (const Error&) {
      throw unknown;
    }
    throw Error(ErrorCode::kUsage, cat(word, " is a recipe; name the key to explain too"))
        .suggest(cat("e.g. galley-recipes explain ", word, " train.optimizer.lr"));
  }
}

Json provenance_of(const std::vector<std::string>& overrides) {
  Provenance provenance;
  provenance.tool = "galley-recipes";
  provenance.overrides = overrides;
  return provenance_json(provenance);
}

}  // namespace

Command RecipesTool::verb(Command& command, const std::string& name, const std::string& about, int (RecipesTool::*action)() const) {
  Command sub = command.add_verb(name, about);
  sub.on_given([this, action] { action_ = action; });
  return sub;
}

void RecipesTool::add_options(Command& command) {
  command.allow_one_verb();
  verb(command, "ls", "list built-in recipes and fragments", &RecipesTool::list)
      .add_option("PATTERN", words_, "only names that contain this");
  verb(command, "show", "print a recipe's text", &RecipesTool::show).add_option("RECIPE", words_, "built-in name or path");
  Command cp = verb(command, "cp", "copy a recipe's text to a file or folder", &RecipesTool::copy);
  cp.add_option("RECIPE", words_, "built-in name or path; then where to").type_name("DESTINATION");
  cp.add_flag("-f,--force", force_, "overwrite the destination");
  Command check = verb(command, "validate", "check a recipe as deep as the tools do, without running it", &RecipesTool::validate);
  check.add_option("RECIPE", words_, "recipe, then overrides");
  Command why = verb(command, "explain", "where the value of a key comes from, and what the key means", &RecipesTool::explain_key);
  why.add_option("RECIPE", words_, "recipe, key, then overrides; KEY alone explains the key itself").type_name("KEY [key=value ...]");
  verb(command, "schema", "the recipe's JSON Schema, or docs/recipe.md with --format md", &RecipesTool::schema);
  for (Command sub : {check, why}) {
    sub.add_option("--with", with_, "merge this fragment over the recipe (repeatable)").one_word_each();
    sub.add_option("--unset", unset_, "reset this key to its default (repeatable)").one_word_each();
  }
}

int RecipesTool::run() {
  if (action_ == nullptr)
    throw Error(ErrorCode::kUsage, "no verb was given").suggest("ls, show, cp, validate, explain or schema; --help explains them");
  return (this->*action_)();
}

LoadOptions RecipesTool::load_options() const {
  LoadOptions options;
  options.recipes_folder = recipes_folder();
  options.with = with_;
  options.unset = unset_;
  return options;
}

int RecipesTool::list() const {
  Table table{{"recipe", "about"}, {}};
  Json rows = Json::array();
  const std::string pattern = words_.empty() ? "" : words_[0];
  for (const std::string& name : list_recipes(recipes_folder())) {
    const bool recipe = name.starts_with("train/");
    const std::string shown = recipe ? name.substr(6) : name;
    if (shown.find(pattern) == std::string::npos) continue;
    const std::string about = about_of(read_file(recipes_folder() + "/" + name + ".yaml"));
    table.rows.push_back({shown, about});
    rows.push_back({{"name", shown}, {"kind", recipe ? "recipe" : "fragment"}, {"about", about}});
  }
  if (common.format == Format::kJson) {
    print(Json{{"recipes", rows}, {"provenance", provenance_of({})}}.dump() + "\n");
  } else {
    print(table);
  }
  return kExitDone;
}

int RecipesTool::show() const {
  if (words_.size() != 1) fail(ErrorCode::kUsage, "galley-recipes show needs one recipe");
  const std::string file = find_recipe(words_[0], recipes_folder()), text = read_file(file);
  print(common.format == Format::kJson
            ? Json{{"file", file}, {"recipe", recipe_json(text)}, {"provenance", provenance_of({})}}.dump() + "\n"
            : text);
  return kExitDone;
}

int RecipesTool::copy() const {
  if (words_.size() != 2) fail(ErrorCode::kUsage, "galley-recipes cp needs a recipe and a destination");
  const std::string from = find_recipe(words_[0], recipes_folder());
  std::string to = words_[1];
  if (is_folder(to)) to += "/" + from.substr(from.rfind('/') + 1);
  if (file_exists(to) && !force_) {
    throw Error(ErrorCode::kResource, to + " exists").suggest("--force overwrites it");
  }
  write_file(to, read_file(from));
  print(to + "\n");
  return kExitDone;
}

int RecipesTool::validate() const {
  std::vector<std::string> recipes;
  LoadOptions options = load_options();
  split_arguments(words_, recipes, options.overrides);
  if (recipes.size() != 1) fail(ErrorCode::kUsage, "galley-recipes validate needs one recipe");
  if (recipes[0] == "-") options.standard_input.assign(std::istreambuf_iterator<char>(std::cin), {});
  const bool json = common.format == Format::kJson;
  Json errors = Json::array();
  try {
    const LoadedRecipe loaded = load_recipe(recipes[0], recipe_components(), options);
    try {
      check_model(loaded.recipe);
      warn_unused_sharding(loaded);
    } catch (const Error& error) {
      throw with_place(error, loaded);
    }
  } catch (const Error& error) {
    if (!json) throw;
    const std::string lines = error_json(error);
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = std::min(lines.find('\n', begin), lines.size());
      errors.push_back(Json::parse(lines.substr(begin, end - begin))["error"]);
      begin = end + 1;
    }
    print(Json{{"valid", false}, {"errors", errors}, {"provenance", provenance_of(options.overrides)}}.dump() + "\n");
    return static_cast<int>(error.code());
  }
  if (json) {
    print(Json{{"valid", true}, {"errors", errors}, {"provenance", provenance_of(options.overrides)}}.dump() + "\n");
  } else {
    print(recipes[0] + ": valid\n");
  }
  return kExitDone;
}

int RecipesTool::explain_key() const {
  std::vector<std::string> words;
  LoadOptions options = load_options();
  split_arguments(words_, words, options.overrides);
  if (words.empty() || words.size() > 2) fail(ErrorCode::kUsage, "galley-recipes explain needs a recipe and a key, or a key");
  const Schema schema = recipe_schema(recipe_components());
  if (words.size() == 1) {
    print(describe_alone(schema, words[0]));
    return kExitDone;
  }
  const LoadedTree loaded = load_tree(words[0], schema, options);
  const std::string meaning = describe_key(schema, words[1], options.tool_section, loaded.tree);
  std::string origin = explain(loaded, schema, words[1], options);
  // Both end or begin with the key's description.
  const size_t last = origin.rfind('\n', origin.size() - 2) + 1;
  const std::string description = origin.substr(last + std::min<size_t>(2, origin.size() - last));
  if (meaning.find(": " + description) != std::string::npos) origin.resize(last);
  print(meaning + origin);
  return kExitDone;
}

int RecipesTool::schema() const {
  const Schema schema = recipe_schema(recipe_components());
  const std::string text = common.format == Format::kMarkdown ? schema_markdown(schema) : schema_json(schema);
  print(text.ends_with("\n") ? text : text + "\n");
  return kExitDone;
}

std::vector<std::string> RecipesTool::complete(const std::vector<std::string>& words) const {
  const std::string word = words.empty() ? "" : words.back();
  std::vector<std::string> found;
  if (words.size() <= 1) {
    for (const char* name : {"ls", "show", "cp", "validate", "explain", "schema"}) {
      if (std::string(name).starts_with(word)) found.push_back(name);
    }
    return found;
  }
  for (const std::string& name : list_recipes(recipes_folder())) {
    const std::string bare = name.starts_with("train/") ? name.substr(6) : name;
    if (bare.starts_with(word)) found.push_back(bare);
  }
  return found;
}

}  // namespace galley::tools
