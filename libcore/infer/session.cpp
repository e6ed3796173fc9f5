#include "libcore/infer/session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/glob.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/data/tokenizer.h"
#include "libcore/infer/inference.h"
#include "libcore/nn/loss.h"
#include "libcore/recipe/recipe.h"
#include "libcore/recipe/weight_registry.h"
#include "libcore/runtime/execution.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"

namespace galley {
namespace {

constexpr int64_t kLargestSide = 1 << 20;  // of a sample that a file of weights may name

/// What train.freeze selects: parameters that are not trained, and batch norms that keep their statistics.
struct Frozen {
  std::set<std::string> parameters, batch_norms;
};

Frozen frozen_of(const Recipe& recipe, const std::vector<ParameterSpec>& all) {
  Frozen frozen;
  const std::vector<Selectable> items = selectables(all);
  for (size_t i = 0; i < recipe.train.freeze.size(); ++i) {
    const auto& item = recipe.train.freeze.at<FreezeItem>(i);
    const Selector selector{item.match, item.except};
    for (int64_t index : selector.select(items, cat("train.freeze.", i))) {
      const ParameterSpec& spec = all[static_cast<size_t>(index)];
      if (spec.role == ValueRole::kParameter) frozen.parameters.insert(spec.name);
      if (spec.module_type == "batch_norm" && item.batch_norm == FrozenBatchNorm::kFrozen) frozen.batch_norms.insert(spec.module);
    }
  }
  return frozen;
}

/// The type of a batch of that input.
TensorType input_type(const ModelInput& input, int64_t batch) {
  TensorType type{.dtype = input.dtype};
  type.shape.push_back(batch);
  for (int64_t size : input.shape) type.shape.push_back(size);
  if (!input.names.empty()) {
    type.names.push_back("N");
    type.names.insert(type.names.end(), input.names.begin(), input.names.end());
  }
  return type;
}

void mark_trainable(std::vector<ParameterSpec>& parameters, const Frozen& frozen) {
  for (ParameterSpec& spec : parameters) spec.trainable = spec.role == ValueRole::kParameter && frozen.parameters.count(spec.name) == 0;
}

/// Keys whose values this version does not compute with are refused, never ignored.
void refuse_unavailable(const Recipe& recipe) {
  const PrecisionSection& precision = recipe.precision;
  if (precision.compute != PrecisionName::kF32 && precision.compute != PrecisionName::kBf16) {
    throw Error(ErrorCode::kRecipe, "this version computes in f32 and bf16").key("precision.compute").suggest("precision: bf16");
  }
  if (precision.master != PrecisionName::kF32) throw Error(ErrorCode::kRecipe, "this version keeps parameters and state in f32").key("precision.master").suggest("leave it out");
  if (precision.reduce != PrecisionName::kF32) throw Error(ErrorCode::kRecipe, "this version sums in f32").key("precision.reduce").suggest("leave it out");
  if (precision.compute == PrecisionName::kBf16 && recipe.quantize.method == QuantMethod::kQat) {
    throw Error(ErrorCode::kRecipe, "quantization-aware training rounds values of f32").key("precision.compute").suggest("precision: f32");
  }
}

/// What precision.keep_f32 selects, by module. Patterns that match nothing are errors; the default, which models without norms lack too, is none.
PrecisionPolicy precision_of(const Recipe& recipe, const std::vector<ParameterSpec>& parameters) {
  PrecisionPolicy policy;
  if (recipe.precision.compute == PrecisionName::kF32) return policy;
  policy.compute = DType::kBF16;
  Selector selector{recipe.precision.keep_f32, {}};
  Selector given = selector;
  std::erase(given.match, "type:norm");
  if (!given.match.empty()) given.select(selectables(parameters), "precision.keep_f32", true);
  policy.keep_f32 = [selector](const Node& node) { return selector.selects({node.path, std::string(node.op->name), 0}); };
  return policy;
}

/// Opens a loader; where an item of the pipeline does not fit the source, the error's key is that of the item in `split`.
std::unique_ptr<DataLoader> open_loader(const std::string& split, std::shared_ptr<const Source> source,
                                        const std::vector<Component>& pipeline, const std::vector<Component>& batch_transforms,
                                        const LoaderOptions& options) {
  try {
    return std::make_unique<DataLoader>(std::move(source), Pipeline(pipeline), batch_transforms, options);
  } catch (Error& error) {
    if (error.key().starts_with("pipeline.")) error.key(cat("data.", split, ".", error.key()));
    throw;
  }
}

/// A metric that the run waits for must be one that its evaluations give.
void check_watched(const Recipe& recipe, const std::vector<std::string>& given, const std::string& metric, const std::string& key) {
  if (!recipe.data.val || !recipe.train.validate) {
    throw Error(ErrorCode::kRecipe, cat(key, " needs evaluations, and the recipe has no ", recipe.data.val ? "train.validate" : "data.val")).key(key);
  }
  if (std::find(given.begin(), given.end(), metric) != given.end()) return;
  const std::string near = nearest(metric, given);
  std::string list;
  for (const std::string& name : given) list += (list.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kRecipe, find_metric_info(metric) == nullptr ? cat("unknown metric '", metric, "'")
                                                                      : cat("the evaluations do not give the metric '", metric, "'"))
      .key(key)
      .suggest(near.empty() ? "known: " + list : "did you mean '" + near + "'?");
}

}  // namespace

std::vector<Selectable> selectables(const std::vector<ParameterSpec>& parameters) {
  std::vector<Selectable> items;
  for (const ParameterSpec& spec : parameters) items.push_back({spec.name, spec.module_type, spec.type.shape.rank()});
  return items;
}

const Split& split_of(const Recipe& recipe, const std::string& name) {
  std::string at = name;
  for (int hops = 0; hops < 4; ++hops) {
    const Split* split = recipe.data.find(at);
    if (split == nullptr) {
      throw Error(ErrorCode::kRecipe, cat("the recipe has no data.", at)).key("data." + at).suggest("add it, or name another split");
    }
    if (split->source) return *split;
    if (split->from.empty()) throw Error(ErrorCode::kRecipe, cat("data.", at, " has no source")).key(cat("data.", at, ".source")).suggest("set data." + at + ".source");
    at = split->from;
  }
  fail(ErrorCode::kRecipe, "data.", name, ".from leads in a circle");
}

std::map<std::string, ValueId> module_results(const Graph& graph) {
  std::map<std::string, ValueId> results;
  for (const Node& node : graph.nodes()) {
    if (node.phase != Phase::kForward || node.outputs.empty()) continue;
    for (size_t end = node.path.size(); end != std::string::npos && end > 0; end = node.path.rfind('.', end - 1)) results[node.path.substr(0, end)] = node.outputs[0];
  }
  return results;
}

void add_captured_outputs(Graph& graph, const std::vector<std::string>& capture) {
  const std::map<std::string, ValueId> results = module_results(graph);
  std::set<std::string> captured;
  for (const std::string& pattern : capture) {
    bool any = false;
    for (const auto& [path, value] : results) {
      if (!glob_matches(pattern, path)) continue;
      any = true;
      if (captured.insert(path).second) graph.add_output(path, value);
    }
    if (any) continue;
    std::vector<std::string> paths;
    for (const auto& [path, value] : results) paths.push_back(path);
    const std::string near = nearest(pattern, paths);
    throw Error(ErrorCode::kUsage, cat("--capture '", pattern, "' matches none of the ", paths.size(), " modules"))
        .suggest(near.empty() ? (paths.empty() ? "" : cat("paths look like '", paths.front(), "'")) : cat("did you mean '", near, "'?"));
  }
}

Session::Session(const Recipe& recipe) : Session(recipe, false) {}

std::unique_ptr<Session> Session::without_data(const Recipe& recipe) { return std::unique_ptr<Session>(new Session(recipe, true)); }

Session::Session(const Recipe& recipe, bool without_data) : recipe_(recipe), model_(recipe.model), info_(model_info(recipe.model)) {
  refuse_unavailable(recipe);
  find_vocabulary(without_data);
  if (!without_data) find_input_shape();
  task_ = make_task(recipe.task, task_model(input_types(1)));
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
    throw Error(ErrorCode::kRecipe, "task is null: the model has no objective to train or to evaluate")
        .key("task")
        .suggest("task: auto, or the name of a task");
  throw Error(ErrorCode::kRecipe,
              cat("a model of the family '", info_.family, "' has no loss of its own: set the key loss, e.g. cross_entropy"))
      .key("loss");
}

/// The model's main result on such inputs, and what else decides the task.
TaskModel Session::task_model(const BatchTypes& types) const {
  Graph graph;
  TaskCapture capture(graph, model_, info_, types.fields, {.mode = Mode::kEvaluation});
  TaskModel model{.info = info_, .output = capture.model().front().second.type(), .loss = {}};
  if (recipe_.loss) model.loss = recipe_.loss;
  return model;
}

/// The class index that the loss leaves out.
int64_t Session::ignored_class() const {
  const auto* params = recipe_.loss.as<CrossEntropyParams>();
  return (params == nullptr ? CrossEntropyParams() : *params).ignore_index;
}

Session::~Session() = default;

/// Quantized weights say for which images they are: some models' graphs, and so their names, depend on that.
void Session::find_input_shape() {
  if (recipe_.weights.load.size() != 1) return;
  const auto& source = recipe_.weights.load.at<WeightSource>(0);
  const Metadata metadata = read_weights_metadata(source.path());
  const auto found = metadata.find("galley.input");
  if (found == metadata.end() || !metadata.contains(std::string(kQuantizationKey))) return;
  const nlohmann::json shape = nlohmann::json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  const bool sizes = shape.is_array() && (info_.input_shape.empty() || shape.size() == info_.input_shape.size()) && std::all_of(shape.begin(), shape.end(), [](const auto& size) { return size.is_number_unsigned() && size > 0 && size <= kLargestSide; });
  GALLEY_CHECK_INPUT(sizes, source.from, ": galley.input is ", found->second, ", not the shape of a sample");
  set_input_shape(shape.get<std::vector<int64_t>>());
}

void Session::find_vocabulary(bool without_data) {
  if (!recipe_.data.tokenizer) return;
  const auto* options = dynamic_cast<const TokenizerOptions*>(recipe_.data.tokenizer.params.get());
  GALLEY_ASSERT(options != nullptr, "not a tokenizer: ", recipe_.data.tokenizer.type);
  // What trained weights were trained with comes first: their ids mean nothing else.
  for (size_t i = recipe_.weights.load.size(); i-- > 0 && tokenizer_ == nullptr;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const Metadata metadata = read_weights_metadata(source.path());
    const auto found = metadata.find("galley.tokenizer");
    if (found == metadata.end()) continue;
    tokenizer_ = parse_tokenizer(found->second);
    const std::string type = found->second.substr(0, found->second.find(' '));
    if (type != recipe_.data.tokenizer.type) {
      throw Error(ErrorCode::kRecipe, cat("the weights ", source.from, " read text by the tokenizer ", type, ", the recipe says ", recipe_.data.tokenizer.type)).key("data.tokenizer").suggest("data.tokenizer.type=" + type);
    }
  }
  if (tokenizer_ == nullptr) {
    TokenizerContext context;
    context.root = recipe_.data.root;
    try {
      if (const auto* text = recipe_.data.train.source.as<TextFiles>()) context.training_files = expand_paths(context.root, text->path);
      tokenizer_ = options->make(context);
    } catch (const Error& error) {
      if (!without_data || error.code() != ErrorCode::kInput) throw;
      return;
    }
  }
  const std::optional<int64_t> given = vocabulary_of(model_);
  if (given && *given < tokenizer_->size()) {
    throw Error(ErrorCode::kRecipe, cat("model.vocab is ", *given, ", the tokenizer ", recipe_.data.tokenizer.type, " has ", tokenizer_->size(), " tokens")).key("model.vocab").suggest("leave it out: the tokenizer says it");
  }
  model_ = with_vocabulary(std::move(model_), tokenizer_->size());
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

std::shared_ptr<const Backend> Session::backend(int threads) const {
  return open_backend(recipe_.device.str(), {.threads = threads > 0 ? threads : static_cast<int>(this->threads()), .memory_format = layout(), .winograd = recipe_.precision.winograd});
}

std::shared_ptr<const Source> Session::source(const std::string& split) {
  const Split& described = split_of(recipe_, split);
  std::shared_ptr<const Source>& opened = sources_[cat(&described)];
  if (opened == nullptr) {
    SourceContext context;
    context.root = recipe_.data.root;
    for (int64_t size : info_.input_shape) context.input_shape.push_back(size);
    context.classes = target_classes();
    if (task_ != nullptr) context.targets = task_->targets();
    context.seed = static_cast<uint64_t>(recipe_.seed);
    context.tokenizer = tokenizer_;
    context.load_tensors = [](const std::string& path) {
      const SafetensorsFile file(path);
      std::map<std::string, Tensor> tensors;
      for (const SafetensorsEntry& entry : file.entries()) tensors.emplace(entry.name, file.read(entry));
      return tensors;
    };
    opened = open_source(described.source, context);
  }
  return opened;
}

LoaderOptions Session::loader_options(const std::string& name, int64_t batch) const {
  const Split* split = recipe_.data.find(name);
  GALLEY_ASSERT(split != nullptr);
  LoaderOptions options;
  if (split->slice) options.order.slice = *split->slice;
  if (split->slice_seed) options.order.slice_seed = static_cast<uint64_t>(*split->slice_seed);
  if (split->shuffle.buffer) fail(ErrorCode::kRecipe, "data.", name, ".shuffle.buffer is for streams; the sources of this version are read in any order: shuffle: true");
  options.order.shuffle = split->shuffle.enabled;
  options.order.last_batch = static_cast<LastBatchRule>(split->last_batch);
  options.order.batch = batch;
  options.order.seed = static_cast<uint64_t>(recipe_.seed);
  options.workers = split->workers.value_or(name == "train" ? 1 : std::min<int64_t>(threads(), 2));
  options.prefetch = split->prefetch;
  options.on_error = split->on_error == OnError::kSkip ? OnErrorRule::kSkip : OnErrorRule::kFail;
  options.format = layout() == LayoutMode::kContiguous ? MemoryFormat::contiguous() : MemoryFormat::channels_last();
  options.classes = target_classes();
  options.pad_label = ignored_class();
  return options;
}

std::unique_ptr<DataLoader> Session::loader(const std::string& name, int64_t batch, int64_t start, int64_t passes, int64_t samples) {
  const std::shared_ptr<const Source> opened = source(name);
  LoaderOptions options = loader_options(name, batch);
  options.start = start;
  options.passes = passes;
  options.max_samples = samples;
  return open_loader(name, opened, pipeline_of(name), recipe_.data.find(name)->batch_transforms, options);
}

std::unique_ptr<DataLoader> Session::calibration_loader(int64_t batch, int64_t start, int64_t samples) {
  const std::string& name = recipe_.data.calibration.from;
  const std::shared_ptr<const Source> opened = source(name);
  LoaderOptions options = loader_options(name, batch);
  options.order.shuffle = true;
  options.order.last_batch = LastBatchRule::kKeep;
  options.start = start;
  options.passes = 1;
  options.max_samples = samples;
  return open_loader(recipe_.data.calibration.pipeline, opened, calibration_pipeline(), {}, options);
}

std::vector<Component> Session::calibration_pipeline() const {
  const std::string& name = recipe_.data.calibration.pipeline;
  if (name == "val") return prediction_pipeline();
  if (name == "from_weights") {
    if (auto carried = weights_pipeline()) return *carried;
    throw Error(ErrorCode::kRecipe, "data.calibration.pipeline: from_weights, but the weights carry no pipeline").key("data.calibration.pipeline").suggest("name a split");
  }
  if (recipe_.data.find(name) == nullptr) throw Error(ErrorCode::kRecipe, cat("the recipe has no data.", name)).key("data.calibration.pipeline").suggest("name another split");
  return pipeline_of(name);
}

BatchTypes Session::batch_types(const DataLoader& loader) const {
  BatchTypes types;
  for (const auto& [name, tensor] : loader.layout()) {
    TensorType& type = types.fields[name];
    type.dtype = tensor.dtype();
    type.shape = tensor.shape();
  }
  for (const ModelInput& input : info_.all_inputs()) {
    types.inputs.push_back(input.name);
    const auto found = types.fields.find(input.name);
    if (found == types.fields.end()) {
      throw Error(ErrorCode::kRecipe, cat("the model takes the input `", input.name, "`, which this source does not give: it gives ",
                                          field_names(loader.types()), " (", loader.source().describe(), ")"))
          .key("model")
          .suggest("a pipeline item {type: rename, from: NAME, to: " + input.name + "}");
    }
    TensorType& type = found->second;
    if (!input.names.empty() && type.shape.rank() == static_cast<int>(input.names.size()) + 1) type.names = input_type(input, 1).names;
  }
  if (task_ == nullptr) return types;
  for (const FieldType& target : task_->targets()) {
    const FieldType* given = find_field(std::span<const FieldType>(loader.types()), target.name);
    // One label a sample is checked when the loader opens (check_labels).
    if (given == nullptr || given->sample.empty() || given->classes <= target.classes || target.classes == 0) continue;
    throw Error(ErrorCode::kRecipe, cat("the field `", target.name, "` of the data has ", given->classes, " classes, the model ",
                                        target.classes, " (", loader.source().describe(), ")"))
        .key("model")
        .suggest("give the model as many classes");
  }
  return types;
}

BatchTypes Session::input_types(int64_t batch) const {
  BatchTypes types;
  for (const ModelInput& input : info_.all_inputs()) {
    types.inputs.push_back(input.name);
    types.fields.emplace(input.name, input_type(input, batch));
  }
  return types;
}

BatchTypes Session::usual_types(int64_t batch, bool targets) const {
  BatchTypes types = input_types(batch);
  for (const auto& [name, type] : types.fields)
    GALLEY_CHECK(type.shape.rank() > 1, "the model does not say its input shape: give model.input.shape");
  if (!targets) return types;
  task();  // throws where there is none
  for (const FieldType& target : make_task(recipe_.task, task_model(types))->targets()) {
    for (const FieldTensor& tensor : tensors_of(target, batch))
      types.fields.emplace(tensor.name, TensorType{.dtype = tensor.dtype, .shape = tensor.shape});
  }
  return types;
}

void feed_fields(Execution& execution, const Batch& batch) {
  for (const auto& [name, tensor] : batch.fields) {
    if (execution.takes(name)) execution.feed(name, tensor);
  }
}

std::vector<std::string> Session::categories() { return sources_.empty() ? std::vector<std::string>() : sources_.begin()->second->categories(); }

std::vector<Component> Session::prediction_pipeline() const {
  if (recipe_.data.val) return pipeline_of("val");
  if (auto carried = weights_pipeline()) return *carried;
  throw Error(ErrorCode::kRecipe, "the recipe has no data.val, and its weights carry no pipeline that says how images are prepared").key("data.val.pipeline").suggest("write data.val.pipeline out");
}

std::optional<std::vector<Component>> Session::weights_pipeline() const {
  for (size_t i = recipe_.weights.load.size(); i-- > 0;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const Metadata metadata = read_weights_metadata(source.path());
    const auto found = metadata.find("galley.pipeline");
    if (found != metadata.end()) return parse_pipeline(found->second, cat("galley.pipeline of ", source.from), *recipe_.registry);
    if (source.published && !source.published->pipeline().empty()) return parse_pipeline(source.published->pipeline(), cat("the pipeline of ", source.published->id()), *recipe_.registry);
  }
  if (const std::string file = model_file(model_); !file.empty()) {
    const Metadata metadata = read_weights_metadata(file);
    if (const auto found = metadata.find("galley.pipeline"); found != metadata.end()) return parse_pipeline(found->second, cat("galley.pipeline of ", file), *recipe_.registry);
  }
  const PublishedWeights* model_default = recipe_.weights.model_default.get();
  if (recipe_.weights.load.empty() || model_default == nullptr || model_default->pipeline().empty()) return std::nullopt;
  log(LogLevel::kWarning, cat("the weights carry no pipeline; images are prepared as for ", model_default->id()));
  return parse_pipeline(model_default->pipeline(), cat("the pipeline of ", model_default->id()), *recipe_.registry);
}

std::vector<Component> Session::pipeline_of(const std::string& name) const {
  const Split* split = recipe_.data.find(name);
  GALLEY_ASSERT(split != nullptr);
  if (!split->pipeline_from_weights()) return split->pipeline;
  if (auto carried = weights_pipeline()) return *carried;
  const std::string key = cat("data.", name, ".pipeline");
  const bool weights = !recipe_.weights.load.empty();
  throw Error(ErrorCode::kRecipe, cat(key, ": from_weights, but ", weights ? "the weights carry no pipeline: Galley did not write them" : "the recipe names no weights"))
      .key(key)
      .suggest(weights ? "write the pipeline out" : "weights=FILE, or write the pipeline out");
}

std::vector<std::string> Session::prediction_categories() const {
  const auto carried = [this](const Metadata& metadata) -> std::optional<std::vector<std::string>> {
    const auto found = metadata.find("galley.categories");
    if (found == metadata.end()) return std::nullopt;
    const auto names = nlohmann::json::parse(found->second, nullptr, /*allow_exceptions=*/false);
    const bool fits = names.is_array() && static_cast<int64_t>(names.size()) == target_classes() &&
                      std::all_of(names.begin(), names.end(), [](const auto& name) { return name.is_string(); });
    return fits ? names.get<std::vector<std::string>>() : std::vector<std::string>();
  };
  for (size_t i = recipe_.weights.load.size(); i-- > 0;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const auto names = carried(read_weights_metadata(source.path()));
    if (names && !names->empty()) return *names;
    if (names) continue;
    std::vector<std::string> published = source.published ? source.published->category_names() : std::vector<std::string>();
    if (!published.empty() && static_cast<int64_t>(published.size()) == target_classes()) return published;
  }
  const std::string file = model_file(model_);
  return file.empty() ? std::vector<std::string>() : carried(read_weights_metadata(file)).value_or(std::vector<std::string>());
}

BuilderOptions Session::builder_options(Mode mode, const BatchTypes& types) const {
  BuilderOptions options{.mode = mode};
  if (mode != Mode::kTraining || recipe_.train.freeze.empty()) return options;
  Graph names;
  TaskCapture capture(names, model_, info_, types.fields, {.mode = Mode::kEvaluation});
  capture.model();
  Frozen frozen = frozen_of(recipe_, capture.take_parameters());
  if (!frozen.batch_norms.empty()) {
    options.frozen_batch_norm = [norms = std::move(frozen.batch_norms)](std::string_view path) {
      return norms.count(std::string(path)) != 0;
    };
  }
  return options;
}

CapturedModel Session::capture_training(const BatchTypes& types) const {
  CapturedModel model;
  TaskCapture capture(model.graph, model_, info_, types.fields, builder_options(Mode::kTraining, types));
  task().capture(TaskMode::kTrain, capture);
  model.results = capture.finish();
  model.loss = model.graph.find_output("loss");
  GALLEY_ASSERT(model.loss != kNoValue, "the task ", task().name(), " has no objective");
  model.parameters = capture.take_parameters();
  mark_trainable(model.parameters, recipe_.train.freeze.empty() ? Frozen{} : frozen_of(recipe_, model.parameters));
  model.precision = precision_of(recipe_, model.parameters);
  if (std::none_of(model.parameters.begin(), model.parameters.end(), [](const ParameterSpec& spec) { return spec.trainable; })) {
    throw Error(ErrorCode::kRecipe, "train.freeze leaves no parameter to be trained").key("train.freeze");
  }
  return model;
}

CapturedModel Session::capture_evaluation(const BatchTypes& types) const {
  CapturedModel model;
  TaskCapture capture(model.graph, model_, info_, types.fields, {.mode = Mode::kEvaluation});
  task().capture(TaskMode::kEvaluate, capture);
  model.results = capture.finish();
  model.parameters = capture.take_parameters();
  mark_trainable(model.parameters, {});
  model.precision = precision_of(recipe_, model.parameters);
  return model;
}

CapturedModel Session::capture_inference(const BatchTypes& types, const std::vector<std::string>& capture) const {
  CapturedModel model;
  TaskCapture task_capture(model.graph, model_, info_, types.fields, {.mode = Mode::kEvaluation});
  if (task_ != nullptr) {
    task_->capture(TaskMode::kPredict, task_capture);
  } else {
    capture_results(task_capture);
  }
  model.results = task_capture.finish();
  add_captured_outputs(model.graph, capture);
  model.parameters = task_capture.take_parameters();
  mark_trainable(model.parameters, {});
  model.precision = precision_of(recipe_, model.parameters);
  return model;
}

void Session::initialize(const std::vector<ParameterSpec>& parameters, ParameterStore& store) const {
  const auto set_initial = [&](const ParameterSpec& spec) {
    if (store.has(spec.name)) store.set(spec.name, galley::initialize(spec, static_cast<uint64_t>(recipe_.seed)));
  };
  std::vector<ExpectedTensor> expected;
  for (const ParameterSpec& spec : parameters) expected.push_back({spec.name, spec.type.dtype, spec.type.shape});
  std::vector<LoadRule> rules;
  for (size_t i = 0; i < recipe_.weights.load.size(); ++i) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    LoadRule rule{.from = source.path(), .ignore = source.ignore, .rename = source.rename, .into = source.into, .strict = source.strict, .cast = source.cast, .check_finite = source.check_finite};
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
  if (const auto plan = quantized ? nullptr : loaded_plan(recipe_)) {
    throw Error(ErrorCode::kRecipe, cat("the weights ", rules[0].from, " are quantized (", plan->str(), "): they can be evaluated, not trained or quantized"))
        .key("weights")
        .suggest("name the float weights that they were made from (galley-weights show lists them as galley.parents), or train with quantize.method=qat");
  }
  const LoadedWeights loaded = load_weights(expected, rules);
  // Random numbers take longer than the file: only what it leaves out gets them.
  for (const ParameterSpec& spec : parameters) {
    if (loaded.tensors.count(spec.name) == 0) set_initial(spec);
  }
  for (const auto& [name, tensor] : loaded.tensors) {
    if (store.has(name)) store.set(name, tensor);
  }
  if (!quantized) return;
  for (const ParameterSpec& spec : parameters) {
    const auto found = loaded.tensors.find(spec.name);
    if (store.has(spec.name) || found == loaded.tensors.end()) continue;
    for (const double value : found->second.to_doubles()) {
      GALLEY_CHECK_INPUT(value == spec.init.spread, rules[0].from, ": tensor '", spec.name, "' holds ", value, ", the file's galley.quantization says ", spec.init.spread);
    }
  }
}

}  // namespace galley
