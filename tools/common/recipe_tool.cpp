#include "tools/common/recipe_tool.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "libcore/backends/backend.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/base/processor.h"
#include "libcore/base/trimmed.h"
#include "libcore/data/source.h"
#include "libcore/infer/components.h"
#include "libcore/nn/zoo.h"
#include "libcore/recipe/overrides.h"
#include "libcore/recipe/unused_sharding.h"
#include "libcore/weights/hub.h"
#include "tools/common/ranks.h"
#include "tools/common/recipe_json.h"
#include "tools/common/version.h"
#include "tools/common/weight_folders.h"

namespace galley::tools {
namespace {

/// An error at a value that comes from the config.json of a hub folder: it is that file's (exit code 4). The lines of the recipe that it
/// became are not the user's. `only`: keys that begin so.
Error of_config(const Error& error, std::string_view only) {
  constexpr std::string_view kMade = " (as a recipe)";
  const std::string& file = error.place().file;
  if (error.code() != ErrorCode::kRecipe || !file.ends_with(kMade) || !error.key().starts_with(only)) return error;
  Error made(ErrorCode::kInput, error.message());
  made.at({.file = file.substr(0, file.size() - kMade.size())}).key(error.key()).suggest(error.suggestion());
  for (const Error& other : error.others()) made.also(of_config(other, only));
  return made;
}

/// load_recipe; an error about the device lists those of this build.
LoadedRecipe load_naming_devices(const std::string& recipe, const ComponentRegistry& components, const LoadOptions& options) {
  try {
    return load_recipe(recipe, components, options);
  } catch (Error& error) {
    if (error.key() != "device" || !error.suggestion().empty()) throw of_config(error, "model.");
    std::string list;
    for (const BackendRow& row : backend_rows()) list += cat(list.empty() ? "" : ", ", row.name);
    throw error.suggest("this build has " + list);
  }
}

/// The environment variables that the text of a key names, as the recipe and its fragments have it; the layer that counts is the last.
std::vector<std::string> variables_in(const LoadedRecipe& loaded, const std::vector<std::string>& path) {
  std::string text;
  for (const RecipeLayer& layer : loaded.source.layers) {
    const YamlNode* value = layer.path.empty() ? value_at(layer.tree, path) : layer.path == path ? &layer.tree : nullptr;
    if (value == nullptr) continue;
    text = value->is_scalar() ? value->scalar : "";
    for (const YamlNode& item : value->items) text += item.scalar;
  }
  std::vector<std::string> names;
  constexpr std::string_view kStart = "${env:";
  for (size_t at = text.find(kStart); at != std::string::npos; at = text.find(kStart, at + 1)) {
    const size_t begin = at + kStart.size();
    names.push_back(text.substr(begin, text.find_first_of(":}", begin) - begin));
  }
  return names;
}

/// An error about a file of a source that does not exist: with the key that names it, and with the variables that the recipe reads there.
Error with_source(const Error& error, const LoadedRecipe& loaded) {
  std::string key = "data.root";
  std::vector<std::string> variables = variables_in(loaded, {"data", "root"});
  const std::string& root = loaded.recipe.data.root;
  const bool has_root = root.empty() || file_exists(root);
  for (const char* split : {"train", "val", "test"}) {
    const YamlNode* source = value_at(loaded.source.tree, {"data", split, "source"});
    for (const YamlNode::Entry& option : source == nullptr ? std::vector<YamlNode::Entry>() : source->entries) {
      std::vector<YamlNode> items = option.value.items;
      if (option.value.is_scalar()) items = {option.value};
      for (const YamlNode& item : items) {
        const bool whole = item.scalar.starts_with('/');
        if (item.scalar.empty() || !(has_root || whole) || !error.message().starts_with(below_root(root, item.scalar))) continue;
        if (whole) variables.clear();
        for (const std::string& name : variables_in(loaded, {"data", split, "source", option.key}))
          variables.insert(variables.begin(), name);
        key = cat("data.", split, ".source.", option.key);
      }
    }
    if (key != "data.root") break;
  }
  std::string fix = error.suggestion();
  for (auto name = variables.rbegin(); name != variables.rend(); ++name) fix = cat("set the environment variable ", *name, ", or ", fix);
  return Error(error.code(), error.message()).at(error.place()).key(key).suggest(fix);
}

}  // namespace

std::string recipes_folder() {
  if (const char* folder = std::getenv("GALLEY_RECIPES"); folder != nullptr && *folder != '\0') return folder;
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto installed = program.parent_path().parent_path() / "share/galley/recipes";
  return std::filesystem::is_directory(installed, ignored) ? installed.string() : kSourceRecipes;
}

void split_arguments(const std::vector<std::string>& words, std::vector<std::string>& recipes, std::vector<std::string>& overrides) {
  for (const std::string& word : words) (is_override(word) ? overrides : recipes).push_back(word);
}

void RecipeTool::add_options(Command& command) {
  command
      .add_option("RECIPE", words_,
                  "a recipe file, a built-in name, a RUN folder, or - for standard input; then overrides: key=value, key+=value")
      .type_name("[key=value ...]");
  command.add_option("--with", with_, "merge this fragment over the recipe (repeatable)").group("Recipe").one_word_each();
  command.add_option("--unset", unset_, "reset this key to its default (repeatable)").group("Recipe").one_word_each();
  command
      .add_flag("--dump-recipe{min}", dump_,
                "print the recipe and stop: keys that differ from the defaults; =full: all keys; =origin: all keys with their sources")
      .group("Recipe");
  command.add_option("--explain", explain_, "print where the value of this key comes from, and stop").group("Recipe").take_last();
  command.add_flag("-n,--dry-run", dry_run_, "check the recipe, files, shapes and memory without running").group("Recipe");
  command.add_option("--threads", threads_, "number of compute threads (recipe key threads)").group("Machine").take_last();
  command.add_option("--device", device_, "cpu, cuda, cuda:1, ref or sim (recipe key device)").group("Machine").take_last();
  command.add_option("--seed", seed_, "random seed (recipe key seed)").group("Machine").take_last();
  if (!output_help().empty()) command.add_option("-o,--output", output_, output_help()).group("Output").take_last();
}

LoadOptions RecipeTool::load_options() const {
  LoadOptions options;
  options.recipes_folder = recipes_folder();
  options.tool_section = section();
  options.with = with_;
  options.unset = unset_;
  options.overrides = overrides_;
  return options;
}

int RecipeTool::run() {
  std::vector<std::string> recipes;
  split_arguments(words_, recipes, overrides_);
  if (threads_ != 0) overrides_.push_back(cat("threads=", threads_));
  if (!device_.empty()) overrides_.push_back("device=" + device_);
  if (!seed_.empty()) overrides_.push_back("seed=" + seed_);
  if (recipes.empty()) {
    throw Error(ErrorCode::kUsage, "no recipe was given")
        .suggest(cat("e.g. '", trimmed(examples().substr(0, examples().find('\n'))), "'; 'galley-recipes ls' lists the built-in recipes"));
  }
  if (takes_inputs()) {
    inputs_.assign(recipes.begin() + 1, recipes.end());
  } else if (recipes.size() > 1) {
    throw Error(ErrorCode::kUsage, cat("two recipes were given: ", recipes[0], " and ", recipes[1]))
        .suggest("overrides have the form key=value");
  }
  recipe_ = recipes[0];
  if (!dump_.empty() && dump_ != "min" && dump_ != "full" && dump_ != "origin") {
    fail(ErrorCode::kUsage, "--dump-recipe=", dump_, " is not supported; it must be min, full or origin");
  }
  LoadOptions options = load_options();
  if (recipe_ == "-") options.standard_input.assign(std::istreambuf_iterator<char>(std::cin), {});
  const ComponentRegistry& components = recipe_components();
  if (!explain_.empty()) {
    const Schema schema = recipe_schema(components);
    print(explain(load_tree(recipe_, schema, options), schema, explain_, options));
    return kExitDone;
  }
  LoadedRecipe loaded = load_naming_devices(recipe_, components, options);
  if (!dump_.empty()) {
    const std::string text = dump_recipe(loaded, dump_ == "full"     ? DumpKind::kFull
                                                 : dump_ == "origin" ? DumpKind::kOrigin
                                                                     : DumpKind::kMin);
    if (common.format == Format::kJson) {
      if (dump_ == "origin") fail(ErrorCode::kUsage, "--dump-recipe=origin prints YAML with comments and has no JSON form");
      print(nlohmann::ordered_json{{"recipe", recipe_json(text)}, {"provenance", provenance_json(provenance(loaded.recipe, text))}}.dump() +
            "\n");
    } else {
      print(text);
    }
    return kExitDone;
  }
  if (takes_run_weights(loaded)) use_run_weights(loaded);
  if (!takes_precision() && loaded.recipe.precision.compute != PrecisionName::kF32) {
    log(LogLevel::kInfo, name() + " computes in f32 and ignores the recipe's precision");
    loaded.recipe.precision.compute = PrecisionName::kF32;
  }
  resolve_weights(loaded.recipe, weight_registry());
  apply_machine_settings(loaded.recipe);
  try {
    return run_recipe(loaded);
  } catch (const Error& error) {
    // What does not fit is known only when models are built and sources are open.
    if (error.code() == ErrorCode::kInput && error.key() == "data.root") throw with_place(with_source(error, loaded), loaded);
    if (error.code() != ErrorCode::kRecipe && !error.key().starts_with("data.")) throw;
    throw of_config(with_place(error, loaded), "model.rope_parameters");
  }
}

Provenance RecipeTool::provenance(const Recipe& recipe, const std::string& recipe_text) const {
  Provenance provenance;
  provenance.tool = name();
  provenance.recipe_sha256 = recipe_text.empty() ? "" : sha256_hex(recipe_text);
  provenance.overrides = overrides_;
  for (const std::string& key : unset_) provenance.overrides.push_back("--unset " + key);
  for (const std::string& file : with_) provenance.overrides.push_back("--with " + file);
  provenance.seed = recipe.seed;
  return provenance;
}

bool RecipeTool::takes_run_weights(const LoadedRecipe& loaded) const {
  return !loaded.source.run_folder.empty() && file_exists(loaded.source.run_folder + "/weights.safetensors");
}

void warn_unused_sharding(const LoadedRecipe& loaded) {
  for (const Error& unused : unused_sharding_keys(loaded.recipe.sharding)) {
    const std::string place = with_place(unused, loaded).place().str();
    log(LogLevel::kWarning, cat(place, place.empty() ? "" : ": ", unused.message(), "; ", unused.suggestion()));
  }
}

void RecipeTool::require_weights(LoadedRecipe& loaded) {
  if (use_run_weights(loaded) || !loaded.recipe.weights.load.empty() || carries_weights(loaded.recipe.model)) return;
  if (const std::filesystem::path file(loaded.source.file);
      file.filename() == "config.json" && is_hub_folder(parent_folder(file.string()))) {
    if (!hub_weights_files(parent_folder(file.string())).empty())
      throw Error(ErrorCode::kRecipe, cat("the recipe leaves out the weights of the folder ", parent_folder(file.string())))
          .key("weights")
          .suggest("leave out weights=null, or set weights=FILE");
    throw Error(ErrorCode::kInput, cat("the folder ", parent_folder(file.string()),
                                       " has no weights: neither model.safetensors nor pytorch_model.bin, nor an index of their shards"))
        .suggest("copy the files there, or set weights=FILE");
  }
  throw Error(ErrorCode::kRecipe, "no weights were given").key("weights").suggest("set weights=FILE, or use a RUN folder as the recipe");
}

void RecipeTool::apply_machine_settings(const Recipe& recipe) const {
  open_backend(recipe.device.str());  // throws if the device is not available
  const Ranks* job = uses_ranks() ? Ranks::open() : nullptr;
  const int cores = job != nullptr ? job->cores() : available_cores();
  const int64_t threads = recipe.threads.value_or(cores);
  if (job != nullptr && threads > available_cores()) {
    log(LogLevel::kWarning, cat(threads, " threads share ", available_cores(), available_cores() == 1 ? " core" : " cores",
                                ", to which the launcher has bound this rank; mpirun --bind-to none lets it use all"));
  }
  static bool warned_threads = false;  // called for each cell of a sweep
  if (job == nullptr && threads > cores && threads <= 1024 && !warned_threads) {
    warned_threads = true;
    log(LogLevel::kWarning,
        cat(threads, " threads share ", cores, cores == 1 ? " core" : " cores", ", which takes more memory and time than threads=", cores));
  }
  if (threads < 1 || threads > 1024) fail(ErrorCode::kRecipe, "threads is ", threads, ", but must be between 1 and 1024");
  set_compute_threads(static_cast<int>(threads));
  static bool warned = false;  // called for each cell of a sweep
  const bool half = recipe.precision.compute == PrecisionName::kF16;
  if ((half || (recipe.precision.compute == PrecisionName::kBf16 && !has_fast_bf16())) && !warned && recipe.device.str() == "cpu" &&
      computes_here()) {
    warned = true;
    const std::string why =
        half ? "there are no f16 kernels for processors" : cat("this processor has no fast bf16 instructions (", instruction_set(), ")");
    log(LogLevel::kWarning, cat(why, ": with precision: ", half ? "f16" : "bf16",
                                ", operators compute in f32 between casts, which is slower than precision: f32"));
  }
}

std::vector<std::string> RecipeTool::complete(const std::vector<std::string>& words) const {
  const std::string word = words.empty() ? "" : words.back();
  std::vector<std::string> found;
  if (word.starts_with("-")) return found;
  if (words.size() <= 1) {
    for (const std::string& name : list_recipes(recipes_folder())) {
      const std::string bare = name.starts_with("train/") ? name.substr(6) : name;
      if (bare.starts_with(word)) found.push_back(bare);
    }
    return found;
  }
  const Schema schema = recipe_schema(recipe_components());
  YamlNode tree;
  try {
    LoadOptions options;
    options.recipes_folder = recipes_folder();
    options.tool_section = section();
    tree = load_tree(words[0], schema, options).tree;
  } catch (const Error&) {
    // Completion offers fewer words without the recipe and reports no errors.
  }
  return complete_key(schema, word, section(), tree);
}

}  // namespace galley::tools
