#include "libcore/infer/session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/under_key.h"
#include "libcore/data/box_transforms.h"
#include "libcore/data/source.h"
#include "libcore/data/sources.h"
#include "libcore/data/tokenizers.h"
#include "libcore/infer/stored_weights.h"
#include "libcore/infer/watched_metric.h"
#include "libcore/nn/attention.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/zoo_transformer.h"
#include "libcore/recipe/selector.h"
#include "libcore/tensor/field_names.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/hub.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"

namespace galley {
namespace {

constexpr std::array kCacheDTypes{DType::kF32, DType::kBF16, DType::kI8};  // by CacheStorage
constexpr int64_t kLargestSide = 1 << 20;                                  // largest side of a sample that galley.input may give

/// Throws for values of keys that this version does not support, so that none is ignored.
void refuse_unavailable(const Recipe& recipe) {
  const PrecisionSection& precision = recipe.precision;
  if (precision.compute == PrecisionName::kF64) {
    throw Error(ErrorCode::kRecipe, "this version computes only in f32, bf16 and f16").key("precision.compute").suggest("precision: f32");
  }
  if (precision.master != PrecisionName::kF32)
    throw Error(ErrorCode::kRecipe, "this version keeps parameters and state only in f32")
        .key("precision.master")
        .suggest("remove the key");
  if (precision.reduce == PrecisionName::kF64)
    throw Error(ErrorCode::kRecipe, "this version sums over ranks only in f32, bf16 and f16")
        .key("precision.reduce")
        .suggest("remove the key");
  if (precision.buffers == PrecisionName::kF64)
    throw Error(ErrorCode::kRecipe, "this version keeps running statistics only in f32, bf16 and f16")
        .key("precision.buffers")
        .suggest("remove the key");
  if (precision.buffers != PrecisionName::kF32 && recipe.quantize.method == QuantMethod::kQat)
    throw Error(ErrorCode::kRecipe, "quantization-aware training needs running statistics in f32")
        .key("precision.buffers")
        .suggest("remove the key");
  if (precision.buffers != PrecisionName::kF32 && recipe.train.ema && recipe.train.ema->buffers)
    throw Error(ErrorCode::kRecipe, "averages of running statistics change by less than low precision can hold")
        .key("precision.buffers")
        .suggest("write train.ema.buffers: false, which copies them, or precision.buffers: f32");
  if (precision.compute != PrecisionName::kF32 && recipe.quantize.method == QuantMethod::kQat) {
    throw Error(ErrorCode::kRecipe, "quantization-aware training needs f32").key("precision.compute").suggest("precision: f32");
  }
}

/// Checks that the evaluations compute a metric that the run depends on.
void check_watched(const Recipe& recipe, std::vector<std::string> given, const std::string& metric, const std::string& key) {
  if (!recipe.data.val || !recipe.train.validate) {
    throw Error(ErrorCode::kRecipe, cat(key, " needs evaluations, but the recipe has no ", recipe.data.val ? "train.validate" : "data.val"))
        .key(key)
        .suggest(cat("write ", key.substr(0, key.rfind('.')), ": null, or let it evaluate"));
  }
  if (recipe.train.ema) {  // the evaluations of the averaged weights
    for (size_t i = 0, count = given.size(); i < count; ++i) given.push_back("ema/" + given[i]);
  } else if (metric.starts_with("ema/")) {
    throw Error(ErrorCode::kRecipe, cat("'", metric, "' is a metric of averaged weights, but the recipe has no train.ema"))
        .key(key)
        .suggest("set train.ema, or watch " + metric.substr(4));
  }
  require_metric(given, metric, key);
}

/// Throws if an evaluation cannot read keys and values from a cache.
void check_evaluation_cache(const ModelInfo& info, const BatchTypes& types) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kRecipe, message).key("evaluate.cache").suggest("leave the key out");
  };
  if (!info.cache) refuse(cat("the model ", info.family, " keeps no keys and values of past tokens"));
  if (reads_source(info)) refuse("evaluate.cache is for models that read one text; this one has an encoder");
  if (types.fields.contains(kPositionIds)) refuse("the blocks of the data hold several documents, which a cache does not keep apart");
}

void mark_trainable(std::vector<ParameterSpec>& parameters) {
  for (ParameterSpec& spec : parameters) spec.trainable = spec.role == ValueRole::kParameter;
}

/// The last step of each capture: which parameters may be trained, the precision, and stored weights under adapters.
void finish_capture(const Recipe& recipe, CapturedModel& model) {
  mark_trainable(model.parameters);
  model.precision = precision_of(recipe, model.parameters);
  if (const auto plan = stored_plan(recipe)) store_weights(model, *plan);
}

/// Throws Error (kInput) if the adapter changes a layer that is not one of `items`, those of the model.
void check_layers_of_adapter(const std::string& folder, const std::vector<std::string>& layers, const std::vector<Selectable>& items) {
  for (const std::string& layer : layers) {
    if (std::any_of(items.begin(), items.end(), [&](const Selectable& item) { return item.path == layer; })) continue;
    throw Error(ErrorCode::kInput, cat("the adapter ", folder, " changes the layer '", layer, "', which the model does not have"))
        .key("lora.load")
        .suggest(items.empty()
                     ? "the adapter belongs to another model"
                     : cat("the adapter belongs to another model; linear layers of this one are called '", items.front().path, "'"));
  }
}

}  // namespace

Session::Session(const Recipe& recipe) : Session(recipe, false) {}

std::unique_ptr<Session> Session::without_data(const Recipe& recipe) { return std::unique_ptr<Session>(new Session(recipe, true)); }

Session::Session(const Recipe& recipe, bool without_data)
    : recipe_(recipe), model_(recipe.model), info_(under_key("model", [&] { return model_info(recipe.model); })) {
  refuse_unavailable(recipe);
  find_vocabulary(without_data);
  if (!without_data) find_input_shape();
  find_adapted_layers();
  const TaskModel taken = task_model(input_types(std::max<int64_t>(1, info_.fixed_batch)));
  task_ = under_key(recipe.task ? "task" : recipe.loss ? "loss" : "model", [&] { return make_task(recipe.task, taken); });
  if (task_ == nullptr) return;
  // Throws before the first step.
  std::vector<std::string> given = metric_names(*task_, recipe.metrics);
  if (recipe.train.early_stop) check_watched(recipe, given, recipe.train.early_stop->metric, "train.early_stop.metric");
  if (recipe.checkpoint && recipe.checkpoint->keep.best)
    check_watched(recipe, given, recipe.checkpoint->keep.best->metric, "checkpoint.keep.best.metric");
}

const Task& Session::task() const {
  if (task_ != nullptr) return *task_;
  if (recipe_.task.type.empty())
    throw Error(ErrorCode::kRecipe, "`task` is null, so there is no objective to train or evaluate")
        .key("task")
        .suggest("write task: auto, or the name of a task");
  throw Error(ErrorCode::kRecipe, cat("a model of the family '", info_.family, "' has no default loss, and the recipe has no key `loss`"))
      .key("model")  // the place to show: there is no `loss`
      .suggest("add the key `loss` next to `model`, e.g. loss: cross_entropy");
}

/// Selects the linear layers of the model that get adapters.
void Session::find_adapted_layers() {
  if (!recipe_.lora) return;
  lora_ = lora_choice(*recipe_.lora);
  Graph graph;
  TaskCapture capture(graph, model_, info_, input_types(std::max<int64_t>(1, info_.fixed_batch)).fields, {.mode = Mode::kEvaluation});
  capture.model();
  std::vector<Selectable> items;
  for (const std::string& path : capture.builder().linear_layers()) items.push_back({path, "linear", 2});
  if (recipe_.lora->load && lora_->match == AdapterFolder(*recipe_.lora->load).layers())
    check_layers_of_adapter(*recipe_.lora->load, lora_->match, items);
  auto selected = std::make_shared<std::set<std::string, std::less<>>>();
  for (const int64_t index : Selector{.match = lora_->match, .except = {}}.select(items, "lora.match", /*is_list=*/true))
    selected->insert(items[static_cast<size_t>(index)].path);
  adapters_ = {.rank = lora_->rank, .alpha = lora_->alpha, .dropout = lora_->dropout, .selects = [selected](std::string_view path) {
                 return selected->contains(path);
               }};
}

BuilderOptions Session::builder_options(Mode mode, int64_t cache) const {
  BuilderOptions options{.mode = mode};
  options.cache = cache;
  options.cache_dtype = kCacheDTypes[static_cast<size_t>(recipe_.predict.generate.cache)];
  options.lora = adapters_;
  return options;
}

/// The type of the model's main result for these inputs, and the other facts that determine the task.
TaskModel Session::task_model(const BatchTypes& types) const {
  Graph graph;
  TaskCapture capture(graph, model_, info_, types.fields, {.mode = Mode::kEvaluation}, types.pixels);
  TaskModel model{.info = info_, .output = capture.model().front().second.type(), .loss = {}};
  if (recipe_.loss) model.loss = recipe_.loss;
  return model;
}

Session::~Session() = default;

/// Reads the shape of samples from quantized weights, since the graphs of some models, and so the names of their tensors, depend on it.
void Session::find_input_shape() {
  if (recipe_.weights.load.size() != 1) return;
  const auto& source = recipe_.weights.load.at<WeightSource>(0);
  const Metadata metadata = read_weights_metadata(source.path());
  const auto found = metadata.find("galley.input");
  if (found == metadata.end() || !metadata.contains(std::string(kQuantizationKey))) return;
  const nlohmann::json shape = nlohmann::json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  const bool sizes = shape.is_array() && (info_.input_shape.empty() || shape.size() == info_.input_shape.size()) &&
                     std::all_of(shape.begin(), shape.end(),
                                 [](const auto& size) { return size.is_number_unsigned() && size > 0 && size <= kLargestSide; });
  GALLEY_CHECK_INPUT(sizes, source.from, ": galley.input is ", found->second, "; it must be the shape of a sample");
  set_input_shape(shape.get<std::vector<int64_t>>());
}

void Session::require_inputs(const std::vector<std::string>& names) {
  for (ModelInput& input : info_.inputs)
    input.optional = input.optional && std::find(names.begin(), names.end(), input.name) == names.end();
}

TokenizerContext Session::tokenizer_context() const {
  TokenizerContext context;
  context.root = recipe_.data.root;
  context.training_files = [&recipe = recipe_]() -> std::vector<std::string> {
    if (const auto* text = recipe.data.train.source.as<TextFiles>()) return expand_paths(recipe.data.root, text->path);
    if (const auto* rows = recipe.data.train.source.as<TextRowOptions>()) return expand_paths(recipe.data.root, rows->path);
    return {};
  };
  return context;
}

/// The tokenizer of trained weights takes precedence, since the weights depend on its ids. A file that the recipe names must not contradict
/// it.
void Session::take_tokenizer_of_weights(const TokenizerOptions& options) {
  const std::string& type = recipe_.data.tokenizer.type;
  for (size_t i = recipe_.weights.load.size(); i-- > 0 && tokenizer_ == nullptr;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const Metadata metadata = read_weights_metadata(source.path());
    const auto found = metadata.find("galley.tokenizer");
    if (found == metadata.end()) continue;
    const std::string_view carried = tokenizer_type(found->second);
    const bool named = type == "char" || type == "byte";
    if (named ? carried != type : carried != "hub") {
      throw Error(ErrorCode::kRecipe, cat("the weights ", source.from, " need the tokenizer ", carried, ", but the recipe has ", type))
          .key("data.tokenizer")
          .suggest(cat("data.tokenizer.type=", carried));
    }
    tokenizer_ = text::load_tokenizer(found->second, cat(source.from, ": galley.tokenizer"));
    if (options.from_weights()) return;
    std::shared_ptr<const text::Tokenizer> other;
    try {
      other = options.make({.root = recipe_.data.root});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInput) throw;
      return;  // The file may be elsewhere now.
    }
    if (other->saved() != tokenizer_->saved()) {
      throw Error(ErrorCode::kRecipe, cat("data.tokenizer (", other->str(), ") is not the tokenizer of the weights ", source.from, " (",
                                          tokenizer_->str(), ")"))
          .key("data.tokenizer")
          .suggest("--unset data.tokenizer.path takes the one of the weights");
    }
  }
}

void Session::find_vocabulary(bool without_data) {
  if (!recipe_.data.tokenizer) return;
  const auto* options = dynamic_cast<const TokenizerOptions*>(recipe_.data.tokenizer.params.get());
  GALLEY_ASSERT(options != nullptr, "not a tokenizer: ", recipe_.data.tokenizer.type);
  take_tokenizer_of_weights(*options);
  if (tokenizer_ == nullptr) {
    try {
      tokenizer_ = under_key("data.tokenizer", [&] { return options->make(tokenizer_context()); });
    } catch (const Error& error) {
      if (!without_data || error.code() != ErrorCode::kInput) throw;
      return;
    }
  }
  const LanguageModelParams* params = language_model_params(model_);
  if (params != nullptr && params->vocabulary() && *params->vocabulary() < tokenizer_->size()) {
    const std::string key = cat("model.", params->vocabulary_key());
    const auto* files = dynamic_cast<const FileTokenizer*>(options);
    const std::string& named = files != nullptr && !files->path.empty() ? files->path : recipe_.data.tokenizer.type;
    throw Error(ErrorCode::kRecipe,
                cat(key, " is ", *params->vocabulary(), ", but the tokenizer ", named, " has ", tokenizer_->size(), " tokens"))
        .key(key)
        .suggest(recipe_.weights.load.empty()
                     ? cat("remove ", key, "; the tokenizer determines it")
                     : cat("the tokenizer belongs to another model: set data.tokenizer; for weights of another size, remove ", key));
  }
  model_ = with_vocabulary(std::move(model_), tokenizer_->size());
}

const text::Tokenizer& Session::need_tokenizer() const {
  if (tokenizer_ != nullptr) return *tokenizer_;
  for (size_t i = 0; i < recipe_.weights.load.size() && !recipe_.data.tokenizer; ++i) {
    const std::string& folder = recipe_.weights.load.at<WeightSource>(i).from;
    if (!is_hub_folder(folder)) continue;
    throw Error(ErrorCode::kRecipe,
                cat("the folder ", folder, " has no tokenizer (", hub_tokenizer_files(), "), so its model cannot read text"))
        .key("data.tokenizer")
        .suggest("copy the files of the tokenizer there, or set data.tokenizer='{type: hub, path: FOLDER}'");
  }
  throw Error(ErrorCode::kRecipe, "the recipe has no tokenizer, so its model cannot read text").key("data.tokenizer");
}

int64_t Session::threads() const { return recipe_.threads.value_or(compute_threads()); }

LayoutMode Session::layout() const {
  switch (recipe_.memory_format) {
    case MemoryFormatChoice::kContiguous: return LayoutMode::kContiguous;
    case MemoryFormatChoice::kChannelsLast:
    case MemoryFormatChoice::kChannelsLast3d: return LayoutMode::kChannelsLast;
    case MemoryFormatChoice::kAuto: break;
  }
  return LayoutMode::kAuto;
}

std::shared_ptr<const Backend> Session::backend(int threads) const { return backend(threads, recipe_.precision.chains); }

std::shared_ptr<const Backend> Session::backend_without_chains() const { return backend(0, false); }

std::shared_ptr<const Backend> Session::backend(int threads, bool chains) const {
  return open_backend(recipe_.device.str(), {.threads = threads > 0 ? threads : static_cast<int>(this->threads()),
                                             .memory_format = layout(),
                                             .winograd = recipe_.precision.winograd,
                                             .chains = chains,
                                             .int4_products = recipe_.precision.int4_activations == StoredProducts::kInt8,
                                             .int8_products = recipe_.precision.int8_activations == StoredProducts::kInt8,
                                             .tf32 = recipe_.precision.tf32,
                                             .deterministic = recipe_.deterministic.replicas > 0,
                                             .attention = recipe_.attention});
}

BatchTypes Session::input_types(int64_t batch) const {
  BatchTypes types;
  for (const ModelInput& input : info_.required_inputs()) {
    types.inputs.push_back(input.name);
    types.fields.emplace(input.name, input_type(input, batch));
  }
  return types;
}

std::vector<int64_t> Session::canvas(std::string_view name) const {
  const Split* split = recipe_.data.find(std::string(name));
  if (split == nullptr) return {};
  const std::vector<Component> items =
      split->pipeline_from_weights() ? weights_pipeline().value_or(std::vector<Component>()) : split->pipeline;
  for (const Component& item : items)
    if (const auto* pad = item.as<PadTo>()) return {pad->size[0], pad->size.back()};
  return {};
}

BatchTypes Session::usual_types(int64_t batch, bool targets) const {
  BatchTypes types = input_types(batch);
  for (const auto& [name, type] : types.fields)
    if (type.shape.rank() <= 1 && !name.ends_with(".length"))
      throw Error(ErrorCode::kRecipe, "the model has no input shape").key("model").suggest("write model.input.shape");
  const std::vector<int64_t> given = recipe_.benchmark.size, first = canvas(targets ? "train" : "val");
  const std::vector<int64_t> padded = first.empty() ? canvas(targets ? "val" : "train") : first;
  const std::vector<int64_t> size = given.empty() ? padded : std::vector{given[0], given.back()};
  const std::vector<int64_t>& usual = info_.input_shape;
  const auto resize = [&](Shape& shape) {
    const int rank = shape.rank();
    if (size.empty() || usual.size() != 3 || rank < 3 || shape[rank - 2] != usual[1] || shape[rank - 1] != usual[2]) return;
    shape[rank - 2] = size[0];
    shape[rank - 1] = size[1];
  };
  for (auto& [name, type] : types.fields) resize(type.shape);
  if (!given.empty() && usual.size() != 3)
    throw Error(ErrorCode::kRecipe, "the model reads no images, whose size could be set").key("benchmark.size");
  if (!targets) {
    for (const ModelInput& input : info_.all_inputs()) {
      const bool extents = input.name == kImageExtents && recipe_.data.padding == PaddingRule::kImage;
      if ((input.name != kImageSize && !extents) || padded.empty()) continue;
      types.inputs.push_back(input.name);
      types.fields.emplace(input.name, input_type(input, batch));
    }
    return types;
  }
  task();  // throws if there is none
  for (const FieldType& target : make_task(recipe_.task, task_model(types))->targets()) {
    for (const FieldTensor& tensor : tensors_of(target, batch)) {
      TensorType type{.dtype = tensor.dtype, .shape = tensor.shape};
      if (target.kind == FieldKind::kMask || target.kind == FieldKind::kFlow) resize(type.shape);
      types.fields.emplace(tensor.name, type);
    }
  }
  return types;
}

CapturedModel Session::capture_evaluation(const BatchTypes& types, std::optional<CacheStorage> cache) const {
  CapturedModel model;
  BuilderOptions options = builder_options(Mode::kEvaluation);
  if (cache) {
    check_evaluation_cache(info_, types);
    options.cache = types.fields.at(types.inputs.front()).shape[1];
    options.cache_dtype = kCacheDTypes[static_cast<size_t>(*cache)];
    options.every_token = true;
  }
  TaskCapture capture(model.graph, model_, info_, types.fields, options, types.pixels);
  under_key("loss", [&] { task().capture(TaskMode::kEvaluate, capture); });
  model.results = capture.finish();
  model.parameters = capture.take_parameters();
  finish_capture(recipe_, model);
  return model;
}

CapturedModel Session::capture_cached(const BatchTypes& types, int64_t capacity) const {
  GALLEY_ASSERT(info_.cache && capacity > 0, "the model has no form with a cache");
  CapturedModel model;
  TaskCapture task_capture(model.graph, model_, info_, types.fields, builder_options(Mode::kEvaluation, capacity));
  capture_results(task_capture);
  model.results = task_capture.finish();
  model.parameters = task_capture.take_parameters();
  finish_capture(recipe_, model);
  return model;
}

CapturedModel Session::capture_inference(const BatchTypes& types, const std::vector<std::string>& capture) const {
  CapturedModel model;
  // A prediction has no targets. Detectors would compute losses of them.
  std::map<std::string, TensorType> fields = types.fields;
  for (const ModelInput& input : info_.all_inputs()) {
    const std::string field = input.name.substr(0, input.name.find('.'));
    if (input.optional && task_ != nullptr && find_field(task_->targets(), field) != nullptr) fields.erase(input.name);
  }
  TaskCapture task_capture(model.graph, model_, info_, fields, builder_options(Mode::kEvaluation), types.pixels);
  if (task_ != nullptr) {
    task_->capture(TaskMode::kPredict, task_capture);
  } else {
    capture_results(task_capture);
  }
  model.results = task_capture.finish();
  add_captured_outputs(model.graph, capture);
  model.parameters = task_capture.take_parameters();
  finish_capture(recipe_, model);
  return model;
}

}  // namespace galley
