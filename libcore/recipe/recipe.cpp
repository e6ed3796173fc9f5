#include "libcore/recipe/recipe.h"

#include <filesystem>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/recipe/overrides.h"

namespace galley {
namespace {

/// The place of the first value of a section that the command line gave; null: none.
const TextPlace* overridden(const YamlNode& node) {
  if (node.place.source && node.place.source->name == "command line") return &node.place;
  for (const YamlNode& item : node.items)
    if (const TextPlace* place = overridden(item)) return place;
  for (const YamlNode::Entry& entry : node.entries)
    if (const TextPlace* place = overridden(entry.value)) return place;
  return nullptr;
}

// Errors of check_recipe carry their key; the tree has the key's place. If the key is a section in which the command line changed a value,
// that value is the likely cause.
Error with_place(Error error, const YamlNode& tree) {
  std::vector<std::string> path = split_key(error.key());
  const YamlNode* named = value_at(tree, path);
  if (const TextPlace* place = named == nullptr ? nullptr : overridden(*named)) {
    place->mark(error);
    return error;
  }
  while (!path.empty()) {
    if (const YamlNode* node = value_at(tree, path); node && node->place.source) {
      node->place.mark(error);
      break;
    }
    path.pop_back();
  }
  return error;
}

/// The tree of a dump. `include` and `vars` are empty, since loading has resolved them.
YamlNode dumped_tree(const Recipe& recipe, DumpForm form) {
  YamlNode tree = write_options(recipe, Recipe(*recipe.registry), form);
  tree.erase("vars");
  return tree;
}

struct PipelineOption : OptionsOf<PipelineOption> {
  explicit PipelineOption(const ComponentRegistry& components) : registry(&components) {}
  void options(OptionVisitor& v) override { v.components({.name = "pipeline", .doc = "items"}, pipeline, registry->transforms); }
  const ComponentRegistry* registry;
  std::vector<Component> pipeline;
};

}  // namespace

std::string pipeline_text(const std::vector<Component>& pipeline, const ComponentRegistry& registry) {
  PipelineOption option(registry);
  option.pipeline = pipeline;
  const YamlNode tree = write_options(option, PipelineOption(registry), DumpForm::kFull);
  return emit_yaml(*tree.find("pipeline"), {.escape_dollars = false});
}

std::vector<Component> parse_pipeline(const std::string& text, const std::string& name, const ComponentRegistry& registry) {
  PipelineOption option(registry);
  try {
    YamlNode tree = YamlNode::map_of();
    tree.at("pipeline") = parse_yaml(std::make_shared<TextSource>(TextSource{name, text}));
    read_options(tree, option);
  } catch (const Error& error) {
    throw Error(ErrorCode::kInput, cat(name, " is not a pipeline that this version supports: ", error.message()))
        .suggest("write the pipeline in data.val.pipeline");
  }
  return option.pipeline;
}

Schema recipe_schema(const ComponentRegistry& registry) {
  return Schema([&registry]() -> std::unique_ptr<Options> { return std::make_unique<Recipe>(registry); });
}

LoadedRecipe load_recipe(const std::string& recipe, const ComponentRegistry& registry, const LoadOptions& options) {
  LoadedRecipe loaded{Recipe(registry), load_tree(recipe, recipe_schema(registry), options)};
  read_options(loaded.source.tree, loaded.recipe);
  try {
    check_recipe(loaded.recipe);
  } catch (const Error& error) {
    Error placed = with_place(Error(error.code(), error.message()).key(error.key()).suggest(error.suggestion()), loaded.source.tree);
    for (const Error& other : error.others()) placed.also(with_place(other, loaded.source.tree));
    throw placed;
  }
  return loaded;
}

Error with_place(const Error& error, const LoadedRecipe& loaded) {
  return error.key().empty() || error.place().line > 0 ? error : with_place(error, loaded.source.tree);
}

bool use_run_weights(LoadedRecipe& loaded) {
  if (loaded.source.run_folder.empty() || loaded.source.changed("weights")) return false;
  const std::string file = loaded.source.run_folder + "/weights.safetensors";
  auto source = std::make_unique<WeightSource>();
  source->from = file_exists(file) ? file : loaded.source.run_folder;
  loaded.recipe.weights.load.items.clear();
  loaded.recipe.weights.load.items.push_back(std::move(source));
  // The weights of the run hold its adapters.
  if (loaded.recipe.lora && !loaded.source.changed("lora")) loaded.recipe.lora->load.reset();
  return true;
}

std::string dump_recipe(const Recipe& recipe, DumpKind kind) {
  return emit_yaml(dumped_tree(recipe, kind == DumpKind::kMin ? DumpForm::kMin : DumpForm::kFull));
}

std::string dump_recipe(const LoadedRecipe& loaded, DumpKind kind) {
  if (kind != DumpKind::kOrigin) return dump_recipe(loaded.recipe, kind);
  YamlNode tree = dumped_tree(loaded.recipe, DumpForm::kFull);
  copy_places(tree, loaded.source.tree);
  return emit_yaml(tree, {.origins = true});
}

namespace {

void make_absolute(std::string& path) {
  path = std::filesystem::absolute(path).lexically_normal().string();
  check_utf8(path, {}, cat("the path ", path));
}

/// Makes the option `path` of a model absolute: the file that defines the model.
class ModelPath : public OptionVisitor {
 public:
  void option(const OptionInfo& info, std::string& value) override {
    if (info.name == "path" && !value.empty()) make_absolute(value);
  }
  void option(const OptionInfo&, bool&) override {}
  void option(const OptionInfo&, int64_t&) override {}
  void option(const OptionInfo&, double&) override {}
  void option(const OptionInfo&, std::vector<int64_t>&) override {}
  void option(const OptionInfo&, std::vector<double>&) override {}
  void option(const OptionInfo&, std::vector<std::string>&) override {}
  void choice(const OptionInfo&, int&, std::span<const std::string_view>) override {}
  void section(const OptionInfo&, Options&) override {}
  void list(const OptionInfo&, std::vector<std::unique_ptr<Options>>&, std::unique_ptr<Options> (*)()) override {}
  bool present(const OptionInfo&, bool has_value) override { return has_value; }
};

}  // namespace

void make_paths_absolute(Recipe& recipe) {
  if (recipe.model.params) {
    ModelPath model;
    recipe.model.params->options(model);
  }
  make_absolute(recipe.data.root);
  for (std::unique_ptr<Options>& item : recipe.weights.load.items) {
    std::string& from = static_cast<WeightSource&>(*item).from;
    // MODEL/NAME of a published set is not a path, unless a file of that name exists.
    if (file_exists(from) || from.starts_with("./") || from.starts_with("../")) make_absolute(from);
  }
  if (recipe.quantize.calibration) make_absolute(*recipe.quantize.calibration);
  if (!recipe.predict.chat_template.empty()) make_absolute(recipe.predict.chat_template);
  if (recipe.lora && recipe.lora->load) make_absolute(*recipe.lora->load);
}

}  // namespace galley
