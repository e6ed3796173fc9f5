// galley-weights export: exports a recipe's model and weights as ONNX.

#include <charconv>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/infer/components.h"
#include "libcore/infer/export_onnx.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/load.h"
#include "tools/common/output_file.h"
#include "tools/common/provenance.h"
#include "tools/common/recipe_tool.h"
#include "tools/weights/weights.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

int64_t positive(std::string_view text, std::string_view what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > (1 << 20))
    fail(ErrorCode::kUsage, what, " must be a whole number of at least 1, got '", text, "'");
  return value;
}

std::vector<int64_t> sizes(const std::string& text) {
  std::vector<int64_t> found;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    found.push_back(positive(std::string_view(text).substr(begin, end - begin), "--shape"));
    begin = end + 1;
  }
  return found;
}

/// Copies the metadata of the weights that also applies to the exported model.
std::map<std::string, std::string> metadata_of(const Recipe& recipe, const Session& session) {
  std::map<std::string, std::string> metadata;
  Json parents = Json::array();
  for (size_t i = 0; i < recipe.weights.load.size(); ++i) {
    const auto& source = recipe.weights.load.at<WeightSource>(i);
    const Metadata carried = read_weights_metadata(source.path());
    for (const char* key : {"galley.categories", "galley.pipeline", "galley.tokenizer"}) {
      if (const auto found = carried.find(key); found != carried.end()) metadata.insert_or_assign(key, found->second);
    }
    if (source.published) {
      if (const std::string pipeline = source.published->pipeline(); !pipeline.empty())
        metadata.insert_or_assign("galley.pipeline", pipeline);
    }
    for (const WeightsParent& parent : weights_parents(source.path()))
      parents.push_back({{"file", parent.file}, {"digest", parent.digest}});
  }
  const std::vector<std::string> categories = session.prediction_categories();
  if (!categories.empty()) metadata["galley.categories"] = Json(categories).dump();
  metadata["galley.parents"] = parents.dump();
  metadata["galley.recipe"] = dump_recipe(recipe, DumpKind::kFull);
  metadata["galley.input"] = Json(session.info().input_shape).dump();
  if (recipe.data.val && !recipe.data.val->pipeline_from_weights())
    metadata["galley.pipeline"] = pipeline_text(session.pipeline_of("val"), *recipe.registry);
  return metadata;
}

}  // namespace

int WeightsTool::export_model() const {
  std::vector<std::string> recipes;
  LoadOptions options;
  split_arguments(words_, recipes, options.overrides);
  if (recipes.size() != 1)
    throw Error(ErrorCode::kUsage, cat("export takes one recipe, got ", recipes.size()))
        .suggest("galley-weights export RECIPE weights=FILE -o model.onnx");
  check_output_file(output_, "export writes a file", "model.onnx");
  ExportOptions export_options;
  if (batch_ != "any") export_options.batch = positive(batch_, "--batch");
  export_options.shape = sizes(shape_);
  export_options.cache = !no_cache_;
  export_options.fold = fold_;

  options.recipes_folder = recipes_folder();
  options.with = with_;
  LoadedRecipe loaded = load_recipe(recipes[0], recipe_components(), options);
  Recipe& recipe = loaded.recipe;
  use_run_weights(loaded);
  resolve_weights(recipe, weight_registry());
  make_paths_absolute(recipe);
  set_compute_threads(static_cast<int>(recipe.threads.value_or(available_cores())));
  if (recipe.weights.load.empty() && recipe.model.type != "onnx")
    log(LogLevel::kWarning, "no weights were given: the model is exported with its initial values");

  recipe.precision.compute = PrecisionName::kF32;  // the exported file is in f32
  const Session session(recipe);
  export_options.metadata = metadata_of(recipe, session);
  const ExportReport report = export_onnx(session, output_, export_options);
  if (common.format == Format::kJson) {
    Provenance provenance;
    provenance.tool = "galley-weights";
    provenance.overrides = words_;
    provenance.seed = recipe.seed;
    print(Json{{"file", output_},
               {"data_file", report.data_file.empty() ? Json(nullptr) : Json(report.data_file)},
               {"scheme", report.scheme},
               {"nodes", report.nodes},
               {"initializers", report.initializers},
               {"bytes", report.bytes},
               {"provenance", provenance_json(provenance)}}
              .dump() +
          "\n");
  } else {
    print(
        Table{{"file", "scheme", "nodes", "initializers", "bytes"},
              {{output_, report.scheme, std::to_string(report.nodes), std::to_string(report.initializers), std::to_string(report.bytes)}}});
    if (!report.data_file.empty()) print(cat("large values are in ", report.data_file, "; keep both files in one folder\n"));
  }
  return kExitDone;
}

}  // namespace galley::tools
