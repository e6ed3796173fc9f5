#include "libcore/train/session.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/glob.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/data/loader.h"
#include "libcore/data/sources.h"
#include "libcore/data/tokenizer.h"
#include "libcore/nn/loss.h"
#include "libcore/optim/schedule.h"
#include "libcore/recipe/recipe.h"
#include "libcore/recipe/selector.h"
#include "libcore/recipe/weight_registry.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/train/inference.h"
#include "libcore/train/metrics.h"
#include "libcore/train/qat.h"
#include "libcore/train/step.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"

namespace galley {
namespace {

constexpr int64_t kLargestSide = 1 << 20;  // of a sample that a file of weights may name

Component loss_of(const Recipe& recipe, const ModelInfo& info) { return recipe.loss ? loss_for(recipe.loss, info) : default_loss(info); }

std::vector<Selectable> selectables(const std::vector<ParameterSpec>& parameters) {
  std::vector<Selectable> items;
  for (const ParameterSpec& spec : parameters) items.push_back({spec.name, spec.module_type, spec.type.shape.rank()});
  return items;
}

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

struct Forward {
  std::vector<ParameterSpec> parameters;
  NamedValues results;
  Value output;  // the main one
};

Forward capture_forward(Graph& graph, const Component& model, const TensorType& input, Mode mode, const Frozen& frozen) {
  BuilderOptions options;
  options.mode = mode;
  if (!frozen.batch_norms.empty()) {
    options.frozen_batch_norm = [&frozen](std::string_view path) { return frozen.batch_norms.count(std::string(path)) != 0; };
  }
  Builder builder(graph, std::move(options));
  const Value x = builder.input("input", input);
  Forward forward;
  forward.results = build_model(builder, model, x);
  forward.output = forward.results.front().second;
  forward.parameters = builder.take_parameters();
  for (ParameterSpec& spec : forward.parameters) spec.trainable = spec.role == ValueRole::kParameter && frozen.parameters.count(spec.name) == 0;
  return forward;
}

TensorType sample_input(const ModelInfo& info, int64_t batch) {
  TensorType type;
  type.dtype = info.input_dtype;
  type.shape.push_back(batch);
  for (int64_t size : info.input_shape) type.shape.push_back(size);
  if (!info.input_names.empty()) {
    type.names.push_back("N");
    type.names.insert(type.names.end(), info.input_names.begin(), info.input_names.end());
  }
  return type;
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

/// A metric that the run waits for must be one that its evaluations give.
void check_watched(const Recipe& recipe, const std::string& metric, const std::string& key) {
  if (!recipe.data.val || !recipe.train.validate) {
    throw Error(ErrorCode::kRecipe, cat(key, " needs evaluations, and the recipe has no ", recipe.data.val ? "train.validate" : "data.val")).key(key);
  }
  const std::vector<std::string>& known = known_metrics();
  if (std::find(known.begin(), known.end(), metric) != known.end()) return;
  const std::string near = nearest(metric, known);
  throw Error(ErrorCode::kRecipe, cat("unknown metric '", metric, "'")).key(key).suggest(near.empty() ? "known: loss, top1, top5, perplexity, bits_per_char" : "did you mean '" + near + "'?");
}

}  // namespace

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
  if (recipe.train.early_stop) check_watched(recipe, recipe.train.early_stop->metric, "train.early_stop.metric");
  if (recipe.checkpoint && recipe.checkpoint->keep.best) check_watched(recipe, recipe.checkpoint->keep.best->metric, "checkpoint.keep.best.metric");
  find_vocabulary(without_data);
  if (!without_data) find_input_shape();
  Graph graph;
  const Forward forward = capture_forward(graph, model_, sample_input(info_, 1), Mode::kEvaluation, {});
  const int axis = class_axis(loss_of(recipe_, info_), forward.output.type());
  if (axis > 0) classes_ = forward.output.shape()[axis];
  by_tokens_ = axis == 2 && forward.output.shape().rank() == 3;
  Metrics(recipe.metrics == std::vector<std::string>{"auto"} ? std::vector<std::string>{} : recipe.metrics, classes_, by_tokens_);  // throws before the first step
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

CompileOptions Session::compile_options(int threads) const {
  CompileOptions how;
  how.backend = open_backend(recipe_.device.str(), {.threads = threads > 0 ? threads : static_cast<int>(this->threads()), .memory_format = layout(), .winograd = recipe_.precision.winograd});
  return how;
}

std::shared_ptr<const Source> Session::source(const std::string& split) {
  const Split& described = split_of(recipe_, split);
  std::shared_ptr<const Source>& opened = sources_[cat(&described)];
  if (opened == nullptr) {
    SourceContext context;
    context.root = recipe_.data.root;
    for (int64_t size : info_.input_shape) context.input_shape.push_back(size);
    context.classes = classes_;
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
  options.classes = classes_;
  return options;
}

std::unique_ptr<DataLoader> Session::loader(const std::string& name, int64_t batch, int64_t start, int64_t passes, int64_t samples) {
  const std::shared_ptr<const Source> opened = source(name);
  LoaderOptions options = loader_options(name, batch);
  options.start = start;
  options.passes = passes;
  options.max_samples = samples;
  return std::make_unique<DataLoader>(opened, Pipeline(pipeline_of(name)), recipe_.data.find(name)->batch_transforms, options);
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
  return std::make_unique<DataLoader>(opened, Pipeline(calibration_pipeline()), std::vector<Component>(), options);
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
  const auto type_of = [](const Tensor& tensor) {
    TensorType type;
    type.dtype = tensor.dtype();
    type.shape = tensor.shape();
    return type;
  };
  BatchTypes types;
  const auto& layout = loader.layout();
  types.input = input_type(layout.at("input").dtype(), layout.at("input").shape());
  const std::string wanted = classes_ > 0 ? "label" : "target";
  const auto target = layout.find(wanted);
  if (target == layout.end()) {
    fail(ErrorCode::kRecipe, "the loss ", loss_of(recipe_, info_).type, " compares with `", wanted, "`, which this source does not give: ", loader.source().describe());
  }
  types.target = type_of(target->second);
  return types;
}

TensorType Session::target_type(const TensorType& input) const {
  Graph graph;
  return loss_target(loss_of(recipe_, info_), capture_forward(graph, model_, input, Mode::kEvaluation, {}).output.type());
}

TensorType Session::input_type(DType dtype, Shape shape) const {
  TensorType type;
  type.dtype = dtype;
  type.shape = std::move(shape);
  if (!info_.input_names.empty() && type.shape.rank() == static_cast<int>(info_.input_names.size()) + 1) type.names = sample_input(info_, 1).names;
  return type;
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
    const bool fits = names.is_array() && static_cast<int64_t>(names.size()) == classes_ && std::all_of(names.begin(), names.end(), [](const auto& name) { return name.is_string(); });
    return fits ? names.get<std::vector<std::string>>() : std::vector<std::string>();
  };
  for (size_t i = recipe_.weights.load.size(); i-- > 0;) {
    const auto& source = recipe_.weights.load.at<WeightSource>(i);
    const auto names = carried(read_weights_metadata(source.path()));
    if (names && !names->empty()) return *names;
    if (names) continue;
    std::vector<std::string> published = source.published ? source.published->category_names() : std::vector<std::string>();
    if (!published.empty() && static_cast<int64_t>(published.size()) == classes_) return published;
  }
  const std::string file = model_file(model_);
  return file.empty() ? std::vector<std::string>() : carried(read_weights_metadata(file)).value_or(std::vector<std::string>());
}

CapturedModel Session::capture_training(const BatchTypes& types) const {
  CapturedModel model;
  Graph names;
  const Frozen frozen = recipe_.train.freeze.empty() ? Frozen{} : frozen_of(recipe_, capture_forward(names, model_, types.input, Mode::kEvaluation, {}).parameters);
  Forward forward = capture_forward(model.graph, model_, types.input, Mode::kTraining, frozen);
  const Component loss = loss_of(recipe_, info_);
  Builder builder(model.graph, {});
  const Value target = builder.input("target", types.target);
  const Value value = build_training_loss(builder, loss, info_, forward.results, target);
  model.graph.add_output("loss", value);
  model.loss = value.id();
  model.parameters = std::move(forward.parameters);
  model.precision = precision_of(recipe_, model.parameters);
  if (std::none_of(model.parameters.begin(), model.parameters.end(), [](const ParameterSpec& spec) { return spec.trainable; })) {
    throw Error(ErrorCode::kRecipe, "train.freeze leaves no parameter to be trained").key("train.freeze");
  }
  return model;
}

CapturedModel Session::capture_evaluation(const BatchTypes& types) const {
  CapturedModel model;
  Forward forward = capture_forward(model.graph, model_, types.input, Mode::kEvaluation, {});
  Builder builder(model.graph, {.mode = Mode::kEvaluation});
  const Value target = builder.input("target", types.target);
  model.graph.add_output("losses", build_sample_losses(builder, loss_of(recipe_, info_), forward.output, target));
  model.graph.add_output("scores", forward.output);
  model.parameters = std::move(forward.parameters);
  model.precision = precision_of(recipe_, model.parameters);
  return model;
}

CapturedModel Session::capture_inference(const TensorType& input, const std::vector<std::string>& capture) const {
  CapturedModel model;
  Forward forward = capture_forward(model.graph, model_, input, Mode::kEvaluation, {});
  for (size_t i = 0; i < forward.results.size(); ++i) model.graph.add_output(i == 0 ? "output" : forward.results[i].first, forward.results[i].second);
  add_captured_outputs(model.graph, capture);
  model.parameters = std::move(forward.parameters);
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

void check_durations(const Recipe& recipe, const RunLength& run) {
  const auto named = [](const char* key, const auto& check) {
    try {
      check();
    } catch (Error& error) {
      if (error.key().empty()) error.key(key);
      throw Error(error.code(), cat(error.key(), ": ", error.message())).key(error.key()).suggest(error.suggestion());
    }
  };
  const TrainSection& train = recipe.train;
  named("train.schedule", [&] { Schedule(train.schedule, schedule_length(train.schedule, run)); });
  named("log.every", [&] { steps_of(recipe.log.every, run); });
  if (train.validate) named("train.validate.every", [&] { steps_of(train.validate->every, run); });
  if (train.early_stop) named("train.early_stop.patience", [&] { steps_of(train.early_stop->patience, run); });
  if (train.ema) named("train.ema.every", [&] { steps_of(train.ema->every, run); });
  if (recipe.quantize.method == QuantMethod::kQat) {
    const QatSection& qat = recipe.quantize.qat;
    named("quantize.qat.start", [&] { steps_of(qat.start, run); });
    named("quantize.qat.observers_until", [&] { steps_of(qat.observers_until, run); });
    named("quantize.qat.batch_norm_until", [&] { steps_of(qat.batch_norm_until, run); });
  }
  if (recipe.checkpoint) named("checkpoint.every", [&] { steps_of(recipe.checkpoint->every, run); });
}

void check_model(const Recipe& recipe) {
  const std::unique_ptr<Session> opened = Session::without_data(recipe);
  const Session& session = *opened;
  if (recipe.train.duration) {
    // Without the data: any number of steps an epoch.
    const bool timed = recipe.train.duration->unit == DurationUnit::kSeconds;
    check_durations(recipe, {.total_steps = timed ? 0 : 1000, .steps_per_epoch = 10, .samples_per_step = 1, .tokens_per_step = session.by_tokens() ? 1.0 : 0.0});
  }
  BatchTypes types;
  types.input = sample_input(session.info(), 2);
  types.target = session.target_type(types.input);
  const CapturedModel training = session.capture_training(types);
  if (recipe.train.recompute && recipe.train.recompute->mode == RecomputeMode::kMatch) recomputed_modules(training.graph, *recipe.train.recompute);
  if (trains_quantized(recipe)) {
    Graph rounded = training.graph;
    QuantizationAware(session, types.input).rewrite(rounded, types, {});
  }
  const std::vector<Selectable> items = selectables(session.capture_evaluation(types).parameters);
  for (size_t i = 0; i < recipe.train.optimizer.groups.size(); ++i) {
    const auto& group = recipe.train.optimizer.groups.at<OptimizerGroup>(i);
    const Selector selector{group.match, group.except};
    selector.select(items, cat("train.optimizer.groups.", i));
  }
}

}  // namespace galley
