// Session: makes loaders from the recipe's section `data`.
#include <algorithm>

#include "libcore/base/under_key.h"
#include "libcore/data/loader.h"
#include "libcore/data/pack.h"
#include "libcore/data/sources.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/session.h"
#include "libcore/nn/language_model.h"
#include "libcore/nn/loss.h"
#include "libcore/tensor/field_names.h"
#include "libcore/weights/load.h"

namespace galley {
namespace {

/// Opens a loader. If an item of a pipeline or a batch transform does not fit, the error has the key of that item in `split`.
std::unique_ptr<DataLoader> open_loader(const std::string& split, std::shared_ptr<const Source> source,
                                        const std::vector<Component>& pipeline, const std::vector<Component>& batch_transforms,
                                        const LoaderOptions& options) {
  try {
    return std::make_unique<DataLoader>(std::move(source), Pipeline(pipeline), batch_transforms, options);
  } catch (Error& error) {
    const bool item = error.key().starts_with("pipeline.") || error.key().starts_with("batch_transforms.");
    if (item) error.key(cat("data.", split, ".", error.key()));
    if (error.code() == ErrorCode::kRecipe && error.key().empty()) error.key("data." + split);
    throw;
  }
}

/// Throws if the numbers of a target, e.g. of the task regression, are not as many as the model's outputs.
void check_numbers(const Component& model, const FieldType& target, const FieldType& given, const Source& source) {
  const auto is_vector = [](const FieldType& type) {
    return type.kind == FieldKind::kValues && type.layout == FieldLayout::kDense && type.sample.size() == 1 && type.sample.front() > 0;
  };
  if (!is_vector(target) || !is_vector(given) || target.sample == given.sample) return;
  const int64_t have = given.sample.front(), want = target.sample.front();
  const bool is_text = dynamic_cast<const LanguageModelParams*>(model.params.get()) != nullptr;
  throw Error(ErrorCode::kRecipe,
              cat("the field `", target.name, "` of the data has ", have, have == 1 ? " number" : " numbers",
                  " for each sample, but the model has ", want, want == 1 ? " output" : " outputs", " (", source.describe(), ")"))
      .key("model")
      .suggest(cat("set ", is_text ? "model.num_labels=" : "the model's number of outputs (usually model.num_classes) to ", have,
                   ", or let the source give ", want, want == 1 ? " number" : " numbers",
                   is_text ? " (columns.values, or columns.labels with `classes`)" : ""));
}

}  // namespace

const Split& split_of(const Recipe& recipe, const std::string& name) {
  std::string at = name;
  for (int hops = 0; hops < 4; ++hops) {
    const Split* split = recipe.data.find(at);
    if (split == nullptr) {
      throw Error(ErrorCode::kRecipe, cat("the recipe has no data.", at)).key("data." + at).suggest("add it, or write another split");
    }
    if (split->source) return *split;
    if (split->from.empty())
      throw Error(ErrorCode::kRecipe, cat("data.", at, " has no source"))
          .key(cat("data.", at, ".source"))
          .suggest("set data." + at + ".source");
    at = split->from;
  }
  throw Error(ErrorCode::kRecipe, cat("data.", name, ".from forms a cycle")).key(cat("data.", name, ".from"));
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
    std::string key = "data.train.source";
    for (const char* name : {"val", "test"})
      if (recipe_.data.find(name) == &described) key = cat("data.", name, ".source");
    try {
      opened = under_key(key, [&] { return open_source(described.source, context); });
    } catch (Error& error) {  // sources do not know their split
      if (constexpr std::string_view kOption = "source."; error.key().starts_with(kOption))
        error.key(cat(key, ".", error.key().substr(kOption.size())));
      throw;
    }
  }
  const std::string items = cat("data.", split, ".pipeline");
  const std::vector<Component> pipeline = pipeline_of(split);
  const Pack* pack = find_pack(pipeline, items);
  if (pack == nullptr) return opened;
  std::shared_ptr<const Source>& blocks = sources_[cat("packed ", split)];
  if (blocks == nullptr) {
    const int64_t length = info_.input_shape.size() == 1 ? info_.input_shape[0] : 0;
    blocks = under_key(cat(items, ".0"), [&] { return pack->blocks(opened, length); });
  }
  return blocks;
}

int64_t Session::loader_workers(const std::string& split) const {
  const int64_t beside = split == "train" ? 1 : std::min<int64_t>(threads(), 2);
  return recipe_.data.find(split)->workers.value_or(computes_on_host() ? beside : std::max<int64_t>(1, threads() - 1));
}

bool Session::computes_on_host() const {
  const std::string device = recipe_.device.str();
  return device == "cpu" || device == "ref";
}

bool Session::takes_bytes() const {
  // Quantization observes and rounds the model's input, and stages of a pipeline are cut by modules.
  return !computes_on_host() && recipe_.quantize.method != QuantMethod::kQat && loaded_plan(recipe_) == nullptr &&
         recipe_.sharding.strategy != ShardingStrategy::kPipeline;
}

int64_t Session::ignored_class() const {
  const auto* params = recipe_.loss.as<CrossEntropyParams>();
  return (params == nullptr ? CrossEntropyParams() : *params).ignore_index;
}

LoaderOptions Session::loader_options(const std::string& name, int64_t batch) const {
  const Split* split = recipe_.data.find(name);
  GALLEY_ASSERT(split != nullptr);
  LoaderOptions options;
  if (split->slice) options.order.slice = *split->slice;
  if (split->slice_seed) options.order.slice_seed = static_cast<uint64_t>(*split->slice_seed);
  if (split->shuffle.buffer)
    throw Error(ErrorCode::kRecipe,
                cat("data.", name, ".shuffle.buffer is for streams, but all sources of this version have random access"))
        .key(cat("data.", name, ".shuffle"))
        .suggest("write shuffle: true");
  options.order.shuffle = split->shuffle.enabled;
  options.order.last_batch = static_cast<LastBatchRule>(split->last_batch);
  options.order.batch = batch;
  options.order.seed = static_cast<uint64_t>(recipe_.seed);
  options.workers = loader_workers(name);
  options.prefetch = split->prefetch;
  options.on_error = split->on_error == OnError::kSkip ? OnErrorRule::kSkip : OnErrorRule::kFail;
  options.format = layout() == LayoutMode::kContiguous ? MemoryFormat::contiguous() : MemoryFormat::channels_last();
  options.classes = target_classes();
  options.pad_label = ignored_class();
  return options;
}

std::unique_ptr<DataLoader> Session::loader(const std::string& name, int64_t batch, int64_t start, int64_t passes, int64_t samples,
                                            LoaderPart part) {
  const std::shared_ptr<const Source> opened = source(name);
  LoaderOptions options = loader_options(name, part.of_all ? batch : batch * part.ranks);
  options.rank = part.rank;
  options.ranks = part.ranks;
  options.start = start;
  options.passes = passes;
  options.max_samples = samples;
  options.fit = part.fit;
  options.bytes = part.bytes && takes_bytes();
  options.held = part.held;
  return open_loader(name, opened, pipeline_of(name), recipe_.data.find(name)->batch_transforms, options);
}

std::unique_ptr<DataLoader> Session::loader(const std::string& name, int64_t batch, int64_t start, int64_t passes, int64_t samples) {
  return loader(name, batch, start, passes, samples, LoaderPart());
}

std::unique_ptr<DataLoader> Session::training_loader(int64_t batch, int64_t start) { return training_loader(batch, start, LoaderPart()); }

std::unique_ptr<DataLoader> Session::training_loader(int64_t batch, int64_t start, LoaderPart part) {
  const std::shared_ptr<const Source> opened = source("train");
  LoaderOptions options = loader_options("train", part.of_all ? batch : batch * part.ranks);
  options.start = start;
  options.cut = options.fit = true;
  options.bytes = takes_bytes();
  options.zero_rows = true;
  options.held = computes_on_host() ? 1 : 2;
  options.rank = part.rank;
  options.ranks = part.ranks;
  return open_loader("train", opened, pipeline_of("train"), recipe_.data.train.batch_transforms, options);
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
  if (name == "val") {
    if (recipe_.data.val || weights_pipeline()) return prediction_pipeline();
    throw Error(ErrorCode::kRecipe,
                "calibration uses the pipeline of data.val, but the recipe has none and its weights contain no pipeline")
        .key("data.calibration.pipeline")
        .suggest("data.calibration.pipeline=train uses that of data.train");
  }
  if (name == "from_weights") {
    if (auto carried = weights_pipeline()) return *carried;
    throw Error(ErrorCode::kRecipe, "data.calibration.pipeline is from_weights, but the weights contain no pipeline")
        .key("data.calibration.pipeline")
        .suggest("write the name of a split");
  }
  if (recipe_.data.find(name) == nullptr)
    throw Error(ErrorCode::kRecipe, cat("the recipe has no data.", name)).key("data.calibration.pipeline").suggest("write another split");
  return pipeline_of(name);
}

std::vector<Component> Session::prediction_pipeline() const {
  if (recipe_.data.val) return pipeline_of("val");
  if (auto carried = weights_pipeline()) return *carried;
  throw Error(ErrorCode::kRecipe, "the recipe has no data.val and its weights contain no pipeline, so the preprocessing is unknown")
      .key("data.val.pipeline")
      .suggest(info_.input_shape.size() == 3
                   ? cat("for images: 'data.val={from: train, pipeline: [{type: resize, size: [", info_.input_shape[1], ", ",
                         info_.input_shape[2], "]}]}', then what training applies, e.g. normalize")
                   : std::string("'data.val={from: train}' prepares samples as they come; or write data.val.pipeline"));
}

std::vector<Component> Session::pipeline_of(const std::string& name) const {
  std::vector<Component> items = given_pipeline_of(name);
  with_tokenizer(items, tokenizer_);
  return items;
}

std::vector<Component> Session::given_pipeline_of(const std::string& name) const {
  const Split* split = recipe_.data.find(name);
  GALLEY_ASSERT(split != nullptr);
  if (!split->pipeline_from_weights()) return split->pipeline;
  if (auto carried = weights_pipeline()) return *carried;
  const std::string key = cat("data.", name, ".pipeline");
  const bool weights = !recipe_.weights.load.empty();
  throw Error(ErrorCode::kRecipe,
              cat(key, " is from_weights, but ",
                  weights ? "the weights contain no pipeline, since Galley did not write them" : "the recipe has no weights"))
      .key(key)
      .suggest(weights ? "write the pipeline in the recipe" : "set weights=FILE, or write the pipeline in the recipe");
}

std::vector<std::string> Session::categories() {
  return sources_.empty() ? std::vector<std::string>() : sources_.begin()->second->categories();
}

std::vector<BatchTypes> Session::all_batch_types(const DataLoader& loader) const {
  std::vector<BatchTypes> all{batch_types(loader)};
  for (size_t i = 0; i + 1 < loader.lengths().size(); ++i) {
    all.push_back(all.front());
    for (const FieldType& type : loader.types())
      if (type.layout == FieldLayout::kPadded) all.back().fields.at(type.name).shape[1] = loader.lengths()[i];
  }
  for (size_t i = 0; i + 1 < loader.sizes().size(); ++i) {
    all.push_back(all.front());
    for (const FieldType& type : loader.types()) {
      if (!DataLoader::is_sized(type)) continue;
      Shape& shape = all.back().fields.at(type.layout == FieldLayout::kJagged ? type.name + ".values" : type.name).shape;
      shape[-2] = loader.sizes()[i][0];
      shape[-1] = loader.sizes()[i][1];
    }
  }
  return all;
}

BatchTypes Session::batch_types(const DataLoader& loader) const {
  BatchTypes types;
  types.pixels = loader.pixels();
  for (const auto& [name, tensor] : loader.layout()) {
    if (name == kImageExtents && recipe_.data.padding == PaddingRule::kBatch) continue;  // padding counts as pixels
    TensorType& type = types.fields[name];
    type.dtype = tensor.dtype();
    type.shape = tensor.shape();
  }
  for (const ModelInput& input : info_.all_inputs()) {
    const auto found = types.fields.find(input.name);
    if (input.optional && found == types.fields.end()) continue;
    types.inputs.push_back(input.name);
    if (found == types.fields.end()) {
      throw Error(ErrorCode::kRecipe, cat("the model needs the input `", input.name, "`, which this source does not have; it has ",
                                          field_names(loader.types()), " (", loader.source().describe(), ")"))
          .key("model")
          .suggest("add a pipeline item {type: rename, from: NAME, to: " + input.name + "}");
    }
    TensorType& type = found->second;
    if (!input.names.empty() && type.shape.rank() == static_cast<int>(input.names.size()) + 1) type.names = input_type(input, 1).names;
  }
  if (task_ == nullptr) return types;
  for (const FieldType& target : task_->targets()) {
    const FieldType* given = find_field(std::span<const FieldType>(loader.types()), target.name);
    if (given != nullptr) check_numbers(model_, target, *given, loader.source());
    // A single label per sample is checked when the loader opens (check_labels).
    if (given == nullptr || (given->sample.empty() && given->layout == FieldLayout::kDense) || given->classes <= target.classes ||
        target.classes == 0)
      continue;
    throw Error(ErrorCode::kRecipe, cat("the field `", target.name, "` of the data has ", given->classes, " classes, but the model has ",
                                        target.classes, " (", loader.source().describe(), ")"))
        .key("model")
        .suggest("set the number of classes of the model accordingly");
  }
  return types;
}

}  // namespace galley
