// Session: reads values of parameters, pipeline and class names from the recipe's weights.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/session.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/recipe/differences.h"
#include "libcore/recipe/recipe.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/weight_registry.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"

namespace galley {

std::optional<std::vector<Component>> Session::weights_pipeline() const {
  for (size_t i = recipe_.weights.load.size(); i-- > 0;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const Metadata metadata = read_weights_metadata(source.path());
    const auto found = metadata.find("galley.pipeline");
    if (found != metadata.end()) return parse_pipeline(found->second, cat("galley.pipeline of ", source.from), *recipe_.registry);
    if (source.published && !source.published->pipeline().empty())
      return parse_pipeline(source.published->pipeline(), cat("the pipeline of ", source.published->id()), *recipe_.registry);
  }
  if (const std::string file = model_file(model_); !file.empty()) {
    const Metadata metadata = read_weights_metadata(file);
    if (const auto found = metadata.find("galley.pipeline"); found != metadata.end())
      return parse_pipeline(found->second, cat("galley.pipeline of ", file), *recipe_.registry);
  }
  const PublishedWeights* model_default = recipe_.weights.model_default.get();
  if (recipe_.weights.load.empty() || model_default == nullptr || model_default->pipeline().empty()) return std::nullopt;
  log(LogLevel::kWarning, cat("the weights contain no pipeline; images are preprocessed as for ", model_default->id()));
  return parse_pipeline(model_default->pipeline(), cat("the pipeline of ", model_default->id()), *recipe_.registry);
}

std::vector<std::string> Session::prediction_categories() const {
  int64_t classes = target_classes();
  if (classes == 0 && task_ != nullptr) {  // of the task multi_label: a number for each label
    for (const FieldType& field : task_->targets()) classes = field.sample.size() == 1 ? field.sample.front() : 0;
  }
  const auto carried = [classes](const Metadata& metadata) -> std::optional<std::vector<std::string>> {
    const auto found = metadata.find("galley.categories");
    if (found == metadata.end()) return std::nullopt;
    const auto names = nlohmann::json::parse(found->second, nullptr, /*allow_exceptions=*/false);
    const bool fits = names.is_array() && static_cast<int64_t>(names.size()) == classes &&
                      std::all_of(names.begin(), names.end(), [](const auto& name) { return name.is_string(); });
    return fits ? names.get<std::vector<std::string>>() : std::vector<std::string>();
  };
  for (size_t i = recipe_.weights.load.size(); i-- > 0;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const auto names = carried(read_weights_metadata(source.path()));
    if (names && !names->empty()) return *names;
    if (names) continue;
    std::vector<std::string> published = source.published ? source.published->category_names() : std::vector<std::string>();
    if (!published.empty() && static_cast<int64_t>(published.size()) == classes) return published;
  }
  const std::string file = model_file(model_);
  return file.empty() ? std::vector<std::string>() : carried(read_weights_metadata(file)).value_or(std::vector<std::string>());
}

void Session::initialize(const std::vector<ParameterSpec>& parameters, ParameterStore& store, const Shape& sample) const {
  initialize_each(
      parameters, [&](const std::string& name) { return store.has(name); },
      [&](const ParameterSpec& spec, const Tensor& values) { store.set(spec.name, values); }, sample);
}

void Session::initialize_each(const std::vector<ParameterSpec>& parameters, const std::function<bool(const std::string& name)>& wants,
                              const TakeValues& take, const Shape& sample) const {
  load_each(parameters, wants, take, sample);
  if (recipe_.lora && recipe_.lora->load) load_adapter(parameters, wants, take);
}

/// The adapters of the folder lora.load, and the parameters that it stores in full.
void Session::load_adapter(const std::vector<ParameterSpec>& parameters, const std::function<bool(const std::string& name)>& wants,
                           const TakeValues& take) const {
  const AdapterFolder folder(*recipe_.lora->load);
  std::vector<std::string> names;
  std::set<size_t> used;
  for (const ParameterSpec& spec : parameters) {
    names.push_back(spec.name);
    const std::optional<size_t> index = folder.find(spec.name);
    if (!index) {
      if (spec.module_type != kAdapterType) continue;
      throw Error(ErrorCode::kInput, cat("the adapter ", folder.path(), " has no tensor '", spec.name, "', which lora.match selects"))
          .key("lora.load")
          .suggest("remove lora.match; the folder determines the layers");
    }
    const OfferedTensor& stored = folder.tensors()[*index];
    GALLEY_CHECK_INPUT(stored.shape == spec.type.shape, "the adapter ", folder.path(), ": tensor '", spec.name, "' has the shape ",
                       stored.shape, ", but the model needs ", spec.type.shape, "; the adapter belongs to another model");
    const Tensor values = folder.read(*index).to(spec.type.dtype);
    GALLEY_CHECK_INPUT(count_non_finite(values).count == 0, "the adapter ", folder.path(), ": tensor '", spec.name,
                       "' contains values that are NaN or infinite");
    used.insert(*index);
    if (wants(spec.name)) take(spec, values);
  }
  for (size_t i = 0; i < folder.tensors().size(); ++i) {
    if (used.contains(i)) continue;
    const std::string& name = folder.tensors()[i].name;
    const std::string near = nearest(name, names);
    throw Error(ErrorCode::kInput, cat("the adapter ", folder.path(), " has a tensor '", name, "', which the model does not have"))
        .key("lora.load")
        .suggest(near.empty() ? "lora.match must select all layers of the adapter" : cat("the model's nearest name is '", near, "'"));
  }
}

/// Whether the weights hold adapters, as those of a run with `lora` do.
bool Session::weights_hold_adapters() const {
  for (size_t i = 0; i < recipe_.weights.load.size(); ++i) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    for (const std::string& path : weights_files(source.path())) {
      const WeightsFile file(path);
      const std::vector<OfferedTensor>& tensors = file.tensors();
      if (std::none_of(tensors.begin(), tensors.end(), [](const OfferedTensor& t) { return is_adapter_tensor(t.name); })) continue;
      if (!recipe_.lora->load) return true;
      throw Error(ErrorCode::kRecipe, cat("both the weights ", source.from, " and lora.load hold adapters"))
          .key("lora.load")
          .suggest("lora.load=null uses those of the weights; with lora.load, give the base that the adapters were trained on as weights");
    }
  }
  return false;
}

/// How the model and the samples that weights were saved with differ from this session's, in lines; "" if the file does not say.
std::string Session::difference_from(const std::string& weights, const Shape& sample) const {
  constexpr size_t kKeysListed = 8;
  const Metadata metadata = read_weights_metadata(weights);
  std::string text;
  const auto add = [&](const std::string& line) { text += (text.empty() ? "" : "\n") + line; };
  if (const auto found = metadata.find("galley.recipe"); found != metadata.end()) {
    try {
      const YamlNode before = parse_yaml(std::make_shared<TextSource>(TextSource{"galley.recipe of " + weights, found->second}));
      const YamlNode now = write_options(recipe_, Recipe(*recipe_.registry), DumpForm::kFull);
      const YamlNode *was = before.find("model"), *is = now.find("model");
      const std::vector<KeyDifference> keys =
          was != nullptr && is != nullptr ? differences(*was, *is, "model") : std::vector<KeyDifference>();
      for (size_t i = 0; i < std::min(keys.size(), kKeysListed); ++i) {
        const auto& [key, theirs, ours] = keys[i];
        add(theirs.empty() || ours.empty() ? cat("the weights were trained with another ", key)
                                           : cat("the weights were trained with ", key, ": ", theirs, "; here it is ", ours));
      }
      if (keys.size() > kKeysListed) add(cat("and ", keys.size() - kKeysListed, " more keys of the model differ"));
    } catch (const Error&) {
      text.clear();  // a recipe of a version whose text this one does not read
    }
  }
  if (const auto found = metadata.find("galley.input"); found != metadata.end() && sample.rank() > 0) {
    const std::string here = nlohmann::json(std::vector<int64_t>(sample.begin(), sample.end())).dump();
    if (found->second != here)
      add(cat("the weights were trained on samples of shape ", found->second, "; here samples have the shape ", here));
  }
  return text;
}

/// The initial values, then the weights that the recipe names.
void Session::load_each(const std::vector<ParameterSpec>& parameters, const std::function<bool(const std::string& name)>& wants,
                        const TakeValues& take, const Shape& sample) const {
  const auto set_initial = [&](const ParameterSpec& spec) {
    if (wants(spec.name)) take(spec, galley::initialize(spec, static_cast<uint64_t>(recipe_.seed)));
  };
  std::vector<ExpectedTensor> expected;
  const bool with_adapters = recipe_.lora && weights_hold_adapters();
  for (const ParameterSpec& spec : parameters) {
    if (spec.module_type != kAdapterType || with_adapters) expected.push_back({spec.name, dtype_in_files(spec), spec.type.shape});
  }
  std::vector<LoadRule> rules;
  for (size_t i = 0; i < recipe_.weights.load.size(); ++i) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    LoadRule rule{.from = source.path(),
                  .ignore = source.ignore,
                  .rename = source.rename,
                  .into = source.into,
                  .strict = source.strict,
                  .cast = source.cast,
                  .check_finite = source.check_finite,
                  .difference = [this, sample, path = source.path()] { return difference_from(path, sample); }};
    if (source.published) {
      rule.rename.insert(rule.rename.end(), source.published->rename.begin(), source.published->rename.end());
      rule.ignore.insert(rule.ignore.end(), source.published->ignore.begin(), source.published->ignore.end());
    }
    rules.push_back(std::move(rule));
  }
  if (rules.empty()) {
    std::for_each(parameters.begin(), parameters.end(), set_initial);
    return;
  }
  const bool quantized = std::none_of(parameters.begin(), parameters.end(), [](const ParameterSpec& spec) { return spec.trainable; });
  if (const auto plan = quantized || stored_plan(recipe_) != nullptr ? nullptr : loaded_plan(recipe_)) {
    throw Error(ErrorCode::kRecipe, cat("the weights ", rules[0].from, " are quantized (", plan->str(),
                                        "); they can be evaluated, but not trained or quantized"))
        .key("weights")
        .suggest(cat("use the float weights that they were made from (galley-weights show lists them as galley.parents), or ",
                     plan->method == QuantMethod::kWeightOnly ? "train adapters over them (lora)"
                     : plan->has_f8()                         ? "quantize with quantize.method=weight_only and train adapters (lora)"
                                                              : "train with quantize.method=qat"));
  }
  std::map<std::string, const ParameterSpec*> unfilled;
  for (const ParameterSpec& spec : parameters) unfilled[spec.name] = &spec;
  const std::map<std::string, const ParameterSpec*> specs = unfilled;
  load_each_weight(expected, rules, [&](const ExpectedTensor& tensor, const Tensor& values) {
    const ParameterSpec& spec = *specs.at(tensor.name);
    unfilled.erase(tensor.name);
    if (wants(spec.name)) return take(spec, values.to(spec.type.dtype));
    if (!quantized) return;
    for (const double value : values.to_doubles()) {
      GALLEY_CHECK_INPUT(value == spec.init.spread, rules[0].from, ": tensor '", spec.name, "' is ", value,
                         ", but galley.quantization of the file says ", spec.init.spread);
    }
  });
  // Drawing random numbers takes longer than reading the file, so initialize only parameters that it does not contain.
  for (const auto& [name, spec] : unfilled) set_initial(*spec);
}

}  // namespace galley
