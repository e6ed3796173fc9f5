#include "libcore/recipe/loader.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/recipe/overrides.h"
#include "libcore/recipe/references.h"
#include "libcore/weights/hub.h"

namespace galley {
namespace {

constexpr size_t kMaxFiles = 64;  // includes of one recipe, repeated ones counted each time
constexpr size_t kMaxIncludeDepth = 16;
constexpr int64_t kMaxRead = int64_t{2} << 20;  // above the 1 MiB limit of parse_yaml, so that parse_yaml reports the size

bool has_suffix(const std::string& name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }
bool is_path(const std::string& name) {
  return has_suffix(name) || name.starts_with("./") || name.starts_with("../") || name.starts_with("/");
}

void list_below(const std::string& folder, const std::string& prefix, int depth, std::vector<std::string>& out) {
  if (!is_folder(folder) || depth > 4) return;
  for (const FolderEntry& entry : list_folder(folder)) {
    if (entry.is_folder) {
      if (depth == 0 && entry.name == "weights") continue;  // registry files of published weights, not recipes
      list_below(folder + "/" + entry.name, prefix + entry.name + "/", depth + 1, out);
    } else if (entry.name.ends_with(".yaml")) {
      out.push_back(prefix + entry.name.substr(0, entry.name.size() - 5));
    }
  }
}

// The file of a built-in name, or "" if there is none.
std::string find_built_in(const std::string& name, const std::string& folder) {
  if (folder.empty()) return "";
  for (const std::string& file : {folder + "/" + name + ".yaml", folder + "/train/" + name + ".yaml"}) {
    if (file_exists(file)) return file;
  }
  if (name.find('/') != std::string::npos) return "";
  std::vector<std::string> found;
  for (const std::string& candidate : list_recipes(folder)) {
    if (candidate.ends_with("/" + name)) found.push_back(candidate);
  }
  GALLEY_CHECK(found.size() < 2, "the name '", name, "' is ambiguous: write ", found[0], " or ", found[1]);
  return found.empty() ? "" : folder + "/" + found[0] + ".yaml";
}

std::string near_built_in(const std::string& name, const std::string& folder) {
  std::vector<std::string> names = list_recipes(folder);
  const size_t count = names.size();
  for (size_t i = 0; i < count; ++i) {
    if (const size_t slash = names[i].rfind('/'); slash != std::string::npos) names.push_back(names[i].substr(slash + 1));
  }
  const std::string near = nearest(name, names);
  if (!near.empty()) return cat("did you mean '", near, "'?");
  return has_suffix(name) ? "check the path, which starts at the current folder; 'galley-recipes ls' lists built-in recipes"
                          : "'galley-recipes ls' lists built-in recipes; write a file with its suffix, e.g. ./my.yaml";
}

/// For a word that names neither a file nor a built-in recipe: what was meant.
std::string near_recipe(const std::string& name, const std::string& folder) {
  if (name.find('/') == std::string::npos || has_suffix(name)) return near_built_in(name, folder);
  const std::string near = nearest(name, list_recipes(folder));
  if (!near.empty()) return cat("did you mean '", near, "'?");
  return "check the path, which starts at the current folder; 'galley-recipes ls' lists built-in recipes";
}

[[noreturn]] void refuse_folder(const std::string& folder) {
  throw Error(ErrorCode::kRecipe, cat("the folder '", folder, "' contains neither a recipe.yaml nor a config.json"))
      .suggest("give a recipe, the folder of a run, or the folder of a model from a hub");
}

/// What a file of weights is called if the file is one, or "".
std::string kind_of_weights(const std::string& file) {
  constexpr int64_t kStart = 16;
  std::string start(kStart, '\0');
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return "";  // a pipe must be opened once only
  int64_t size = 0;
  try {
    const InputFile input(file);
    size = input.size();
    if (size < kStart) return "";
    input.read(0, std::as_writable_bytes(std::span(start)));
  } catch (const Error&) {
    return "";  // reading it as a recipe reports the reason
  }
  if (file.ends_with(".onnx")) return "an ONNX model";
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02\x8a\x0a")) return "a file of weights (.pth)";
  // safetensors: the size of the header in 8 bytes, then the header.
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(start[static_cast<size_t>(i)]);
  const bool fits = length >= 2 && length <= static_cast<uint64_t>(size - 8);
  return fits && start[8] == '{' ? file.ends_with(".calib") ? "a calibration" : "a file of weights (safetensors)" : "";
}

/// Refuses files that are given as a recipe, but are what a recipe loads.
void check_is_text(const std::string& file, const std::string& tool_section) {
  const std::string kind = kind_of_weights(file);
  if (kind.empty()) return;
  const std::string tool = cat("galley-", tool_section.empty() ? "evaluate" : tool_section);
  const std::string key = kind == "a calibration" ? " quantize.calibration=" : " weights=";
  throw Error(ErrorCode::kRecipe, cat(file, " is ", kind, ", not a recipe"))
      .suggest(kind == "an ONNX model" ? cat("write a recipe with model: {type: onnx, path: ", file, "}")
                                       : cat("give the recipe or the RUN folder first: ", tool, " RUN", key, file));
}

std::shared_ptr<const TextSource> read_source(const std::string& file) {
  try {
    return std::make_shared<TextSource>(TextSource{file, read_file(file, kMaxRead)});
  } catch (const Error& error) {
    throw Error(ErrorCode::kRecipe, cat("cannot read the recipe: ", error.message())).at({file, 0, 0}).suggest(error.suggestion());
  }
}

class Loader {
 public:
  Loader(const Schema& schema, const LoadOptions& options, std::vector<RecipeLayer>& layers)
      : schema_(schema), options_(options), layers_(layers) {}

  void add_file(const std::string& role, const std::string& file) { add(role, read_source(file), file); }
  void add_text(const std::string& role, const std::string& name, const std::string& text) {
    add(role, std::make_shared<TextSource>(TextSource{name, text}), "./" + name);
  }
  void add_source(const std::string& role, const std::shared_ptr<const TextSource>& source) { add(role, source, source->name); }

 private:
  void add(const std::string& role, std::shared_ptr<const TextSource> source, const std::string& file) {
    YamlNode tree = parse_yaml(source);
    if (tree.is_null()) {
      tree = YamlNode::map_of();
      tree.place = {source, 1, 1, 1};
    }
    if (!tree.is_map()) {
      Error error(ErrorCode::kRecipe, "a recipe must be a map of keys");
      throw tree.place.mark(error);
    }
    open_.push_back(file);
    if (const YamlNode* include = tree.find("include")) {
      if (include->is_scalar()) {
        add_include(*include, file);
      } else if (!include->is_null()) {
        if (!include->is_list()) fail_at(*include, "'include' must be a list of names", "");
        for (const YamlNode& item : include->items) add_include(item, file);
      }
    }
    open_.pop_back();
    tree.erase("include");
    schema_.normalize(tree);
    layers_.push_back({role, source->name, std::move(tree), {}});
  }

  [[noreturn]] static void fail_at(const YamlNode& node, const std::string& message, const std::string& remedy) {
    Error error(ErrorCode::kRecipe, message);
    error.key("include");
    if (!remedy.empty()) error.suggest(remedy);
    throw node.place.mark(error);
  }

  void add_include(const YamlNode& item, const std::string& from) {
    if (!item.is_scalar() || item.scalar.empty()) fail_at(item, "each item of 'include' must be the name of a recipe", "");
    const std::string& name = item.scalar;
    std::string file;
    if (is_path(name)) {
      file = name.starts_with("/") ? name : parent_folder(from) + "/" + (name.starts_with("./") ? name.substr(2) : name);
      if (!file_exists(file) || is_folder(file))
        fail_at(item, cat("the included file '", file, "' does not exist"), "paths are relative to the including file");
    } else {
      file = find_built_in(name, options_.recipes_folder);
      if (file.empty()) fail_at(item, cat("there is no built-in recipe '", name, "'"), near_built_in(name, options_.recipes_folder));
    }
    if (std::find(open_.begin(), open_.end(), file) != open_.end()) {
      std::string cycle;
      for (auto at = std::find(open_.begin(), open_.end(), file); at != open_.end(); ++at) cycle += *at + " -> ";
      fail_at(item, cat("includes form a cycle: ", cycle, file), "remove one of them");
    }
    if (open_.size() >= kMaxIncludeDepth) fail_at(item, cat("includes are nested more than ", kMaxIncludeDepth, " deep"), "");
    if (++files_ > kMaxFiles) fail_at(item, cat("more than ", kMaxFiles, " included files"), "");
    add("include", read_source(file), file);
  }

  const Schema& schema_;
  const LoadOptions& options_;
  std::vector<RecipeLayer>& layers_;
  std::vector<std::string> open_;
  size_t files_ = 0;
};

std::string value_text(const YamlNode& value) {
  YamlNode list = YamlNode::list_of();
  list.items.push_back(value);
  // A flow list of this one item gives one line for any value; the brackets are removed.
  std::string text = emit_yaml(value.is_map() || value.is_list() ? value : list, {.escape_dollars = false});
  if (!value.is_map() && !value.is_list()) text = text.substr(1, text.size() - 3);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  if (text.size() > 100) text = text.substr(0, 97) + "...";
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

/// The default as galley-recipes shows it: a required key has none, whatever its variable holds.
std::string default_of(const SchemaNode& node) { return node.required ? "(required)" : value_text(node.default_value); }

std::string config_of(const std::string& folder) { return folder + (folder.ends_with("/") ? "" : "/") + "config.json"; }

/// The folder that a model of the type hub stands for: model.path, else that of the first weights; "" if there is none.
std::string folder_of_model(const YamlNode& tree) {
  for (const std::vector<std::string>& key : {std::vector<std::string>{"model", "path"}, {"weights", "load", "0", "from"}}) {
    const YamlNode* value = value_at(tree, key);
    if (value != nullptr && value->is_scalar() && !value->scalar.empty()) return value->scalar;
  }
  return "";
}

/// The recipe of a hub folder, as a layer.
std::shared_ptr<const TextSource> hub_source(const std::string& folder) {
  return std::make_shared<TextSource>(TextSource{cat(config_of(folder), " (as a recipe)"), HubFolder(folder).recipe()});
}

/// Replaces a model of the type hub: keys that the tree does not have come from its folder.
void expand_hub_model(LoadedTree& loaded, const Schema& schema, const Environment& environment) {
  YamlNode* model = loaded.tree.find("model");
  const YamlNode* type = model == nullptr ? nullptr : model->find("type");
  if (type == nullptr || !type->is_scalar() || type->scalar != "hub") return;
  const std::string folder = folder_of_model(loaded.tree);
  if (folder.empty()) return;
  const std::shared_ptr<const TextSource> source = hub_source(folder);
  YamlNode base = parse_yaml(source);
  schema.normalize(base);
  RecipeLayer layer{"hub", source->name, base, {}};
  resolve_references(base, schema, environment, loaded.environment);
  model->erase("type");
  model->erase("path");
  // The folder's task is that of its own head.
  if (model->find("head") != nullptr || model->find("num_labels") != nullptr || loaded.tree.find("loss") != nullptr) base.erase("task");
  merge_tree(base, loaded.tree);
  loaded.tree = std::move(base);
  loaded.layers.insert(loaded.layers.begin(), std::move(layer));
}

}  // namespace

std::vector<std::string> list_recipes(const std::string& recipes_folder) {
  std::vector<std::string> names;
  list_below(recipes_folder, "", 0, names);
  std::sort(names.begin(), names.end());
  return names;
}

std::string find_recipe(const std::string& recipe, const std::string& recipes_folder) {
  GALLEY_CHECK(!recipe.empty(), "the name of the recipe is empty");
  const std::string as_run = recipe + (recipe.ends_with("/") ? "" : "/") + "recipe.yaml";
  const bool plain_name = recipe.find('/') == std::string::npos && recipe.find('.') == std::string::npos;
  if (plain_name) {
    if (const std::string file = find_built_in(recipe, recipes_folder); !file.empty()) return file;
    if (file_exists(as_run)) return as_run;
    if (is_hub_folder(recipe)) return config_of(recipe);
  } else {
    if (is_folder(recipe)) {
      if (file_exists(as_run)) return as_run;
      if (is_hub_folder(recipe)) return config_of(recipe);
      refuse_folder(recipe);
    }
    if (file_exists(recipe)) return recipe;
    if (!is_path(recipe)) {
      if (const std::string file = find_built_in(recipe, recipes_folder); !file.empty()) return file;
    }
  }
  if (plain_name && is_folder(recipe)) refuse_folder(recipe);
  if (plain_name && file_exists(recipe)) {
    throw Error(ErrorCode::kRecipe, cat("there is no built-in recipe '", recipe, "'")).suggest(cat("to read the file, write ./", recipe));
  }
  // Folders of runs have names such as runs/first; the built-in recipes have at most data/NAME and the like.
  const bool path = recipe.find('/') != std::string::npos && !has_suffix(recipe);
  throw Error(ErrorCode::kRecipe, path              ? cat("the file or folder '", recipe, "' does not exist")
                                  : is_path(recipe) ? cat("the recipe '", recipe, "' does not exist")
                                                    : cat("there is no recipe '", recipe, "'"))
      .suggest(near_recipe(recipe, recipes_folder));
}

LoadedTree load_tree(const std::string& recipe, const Schema& schema, const LoadOptions& options) {
  LoadedTree loaded;
  Loader loader(schema, options, loaded.layers);
  if (recipe == "-") {
    loaded.file = "-";
    loader.add_text("recipe", "standard input", options.standard_input);
  } else {
    loaded.file = find_recipe(recipe, options.recipes_folder);
    if (const std::string folder = parent_folder(loaded.file); loaded.file == config_of(folder)) {
      loader.add_source("recipe", hub_source(folder));
    } else {
      if (loaded.file != recipe && is_folder(recipe)) loaded.run_folder = recipe;
      check_is_text(loaded.file, options.tool_section);
      loader.add_file("recipe", loaded.file);
    }
  }
  for (const std::string& fragment : options.with) loader.add_file("with", find_recipe(fragment, options.recipes_folder));

  loaded.tree = YamlNode::map_of();
  for (const RecipeLayer& layer : loaded.layers) merge_tree(loaded.tree, layer.tree);
  std::vector<Override> changes;
  for (const std::string& key : options.unset) changes.push_back(parse_unset(key, schema, options.tool_section));
  for (const std::string& text : options.overrides) changes.push_back(parse_override(text, schema, options.tool_section));
  for (const Override& change : changes) {
    apply_override(loaded.tree, schema, change);
    const bool unset = change.action == Override::Action::kUnset;
    loaded.layers.push_back({unset ? "unset" : "override", change.key_place.source->text, change.value, change.path});
  }
  const Environment from_process = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  const Environment& environment = options.environment ? options.environment : from_process;
  resolve_references(loaded.tree, schema, environment, loaded.environment);
  loaded.tree.erase("vars");
  expand_hub_model(loaded, schema, environment);
  schema.normalize(loaded.tree);  // the value of a reference may be a shorthand
  return loaded;
}

bool LoadedTree::changed(std::string_view key) const {
  return std::any_of(layers.begin(), layers.end(), [&](const RecipeLayer& layer) {
    return layer.path.empty() ? layer.role == "with" && layer.tree.find(key) != nullptr : layer.path.front() == key;
  });
}

std::string explain(const LoadedTree& loaded, const Schema& schema, const std::string& key, const LoadOptions& options) {
  const std::vector<std::string> path = full_path(schema, key, options.tool_section, {});
  const std::optional<SchemaNode> known = schema_at(schema, loaded.tree, path);
  const YamlNode* now = value_at(loaded.tree, path);
  if (!known && !now) {
    Error error(ErrorCode::kRecipe, cat("unknown key '", join_key(path), "'"));
    // Finds the first wrong part and the names allowed there.
    std::vector<std::string> parent(path.begin(), path.end() - 1), names;
    while (!parent.empty() && !schema_at(schema, loaded.tree, parent)) parent.pop_back();
    if (const std::optional<SchemaNode> above = schema_at(schema, loaded.tree, parent)) {
      const YamlNode* value = value_at(loaded.tree, parent);
      const YamlNode* type = value ? value->find("type") : nullptr;
      for (const SchemaNode& option : above->children(type && type->is_scalar() ? type->scalar : "")) names.push_back(option.name);
    }
    const std::string near = nearest(path[parent.size()], names);
    if (!near.empty()) error.suggest(cat("did you mean '", near, "'?"));
    throw error.key(join_key(path));
  }
  struct Row {
    std::string role, value, place;
  };
  std::vector<Row> rows;
  if (known) rows.push_back({"default", default_of(*known), ""});
  for (const RecipeLayer& layer : loaded.layers) {
    const YamlNode* value = nullptr;
    if (layer.path.empty()) {
      value = value_at(layer.tree, path);
    } else {
      const size_t common = std::min(path.size(), layer.path.size());
      if (!std::equal(path.begin(), path.begin() + static_cast<int64_t>(common), layer.path.begin())) continue;
      if (layer.role == "unset") {
        if (layer.path.size() <= path.size()) rows.push_back({"unset", known ? default_of(*known) : "", "--unset"});
        continue;
      }
      // An override of the key itself, of a map above it, or of a part of it.
      if (layer.path.size() > path.size()) {
        rows.push_back({layer.role, layer.name, "command line"});
        continue;
      }
      value = value_at(layer.tree, std::vector<std::string>(path.begin() + static_cast<int64_t>(common), path.end()));
    }
    if (value)
      rows.push_back(
          {layer.role, value_text(*value), value->place.str().starts_with("command line") ? "command line" : value->place.str()});
  }
  size_t wide_role = 0, wide_value = 0;
  for (const Row& row : rows) {
    wide_role = std::max(wide_role, row.role.size());
    wide_value = std::max(wide_value, row.value.size());
  }
  std::string text = cat(join_key(path), " = ", now ? value_text(*now) : default_of(*known), "\n");
  for (const Row& row : rows) {
    text += cat("  ", row.role, std::string(wide_role - row.role.size(), ' '), "  ", row.value);
    if (!row.place.empty()) text += cat(std::string(wide_value - row.value.size(), ' '), "  ", row.place);
    text += '\n';
  }
  if (known && !known->doc.empty()) text += cat("  ", known->doc, "\n");
  return text;
}

}  // namespace galley
