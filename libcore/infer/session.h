#pragma once
// Session: a recipe's model and data before anything runs. Opens data, captures the model for evaluation and prediction (for training:
// train/capture_training.h) and initializes its parameters. Every tool that reads a recipe starts with a session.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/infer/batch_types.h"
#include "libcore/infer/captured_model.h"
#include "libcore/nn/zoo.h"
#include "libcore/recipe/lora.h"
#include "libcore/recipe/sections.h"
#include "libcore/runtime/engine.h"
#include "libcore/tasks/task.h"

namespace galley {

class DataLoader;
struct LoaderOptions;
class ParameterStore;
class TokenizerOptions;
struct TokenizerContext;
class Source;
namespace text {
class Tokenizer;
}

/// The model, task and data of one recipe.
class Session {
 public:
  /// Opens no data, except the text that determines the vocabulary of a language model. The recipe must outlive the session.
  explicit Session(const Recipe& recipe);
  /// For checks without data: if the text of the vocabulary is missing, uses the byte vocabulary instead.
  static std::unique_ptr<Session> without_data(const Recipe& recipe);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Recipe& recipe() const { return recipe_; }
  const ModelInfo& info() const { return info_; }
  /// The recipe's model, with the vocabulary of its data.
  const Component& model() const { return model_; }
  /// Replaces the model's default shape of a sample, for tools that know the shape but do not open the data.
  void set_input_shape(std::vector<int64_t> shape) { info_.input_shape = std::move(shape); }
  /// Makes these optional inputs ones that every sample has, for tools that know the data's inputs but do not open the data.
  void require_inputs(const std::vector<std::string>& names);
  /// The recipe's task. Throws (kRecipe) if neither the recipe nor the model determines one; training and evaluation need a task.
  const Task& task() const;
  /// The task, or null: results are tensors only.
  const Task* task_or_null() const { return task_.get(); }
  /// The class index that the loss ignores.
  int64_t ignored_class() const;
  /// Number of classes of the task's targets; 0 if they have none.
  int64_t target_classes() const { return task_ == nullptr ? 0 : task_->classes(); }
  /// Tokens per sample in batches of these types; 0 if samples are not text.
  int64_t tokens_of(const BatchTypes& types) const { return task_ == nullptr ? 0 : task_->tokens(types.input()); }
  /// The tokenizer; null if the recipe has none.
  const std::shared_ptr<const text::Tokenizer>& tokenizer() const { return tokenizer_; }
  /// The same for a model that must read text. Throws Error if there is none.
  const text::Tokenizer& need_tokenizer() const;
  int64_t threads() const;
  LayoutMode layout() const;
  /// The back end for the recipe's device, threads and memory format. `threads` overrides the recipe's unless it is 0. Throws Error
  /// (kResource) if the device is not available.
  std::shared_ptr<const Backend> backend(int threads = 0) const;
  /// A back end without chains of element-wise functions, regardless of precision.chains, for programs whose values are observed by name.
  std::shared_ptr<const Backend> backend_without_chains() const;

  /// The samples of a split ("train", "val", "test"): its source, or blocks of its texts (Pack). Opened on first use. Follows `from`.
  std::shared_ptr<const Source> source(const std::string& split);
  /// The part of a rank in each batch (LoaderOptions::ranks).
  struct LoaderPart {
    int64_t rank = 0, ranks = 1;
    bool bytes = false;   ///< Images are bytes where the device takes them (takes_bytes).
    int64_t held = 1;     ///< LoaderOptions::held.
    bool fit = false;     ///< Images of different size are on the smallest canvas that holds those of a batch (LoaderOptions::fit).
    bool of_all = false;  ///< `batch` counts the samples of all ranks, whose parts may differ by one sample.
  };
  /// A loader over a split that starts at a position in samples. `passes` 0: repeat without end. `samples` 0: all. Batches have `batch`
  /// samples for each rank.
  std::unique_ptr<DataLoader> loader(const std::string& split, int64_t batch, int64_t start, int64_t passes, int64_t samples,
                                     LoaderPart part);
  std::unique_ptr<DataLoader> loader(const std::string& split, int64_t batch, int64_t start = 0, int64_t passes = 1, int64_t samples = 0);
  /// Threads that load a split's samples: those of the recipe; `auto`: few beside the threads that compute, all but one where a device with
  /// memory of its own computes.
  int64_t loader_workers(const std::string& split) const;
  /// Whether the device of the recipe has the host's memory.
  bool computes_on_host() const;
  /// Whether batches for the recipe's device hold images in bytes, which its programs normalize: a device with memory of its own, and no
  /// quantization.
  bool takes_bytes() const;
  /// A loader of data.train without end, from a position: its batches have one of the lengths of an item `bucket`, or of the sizes of
  /// `pad_to`. For a device with memory of its own the last two batches stay valid.
  std::unique_ptr<DataLoader> training_loader(int64_t batch, int64_t start, LoaderPart part);
  std::unique_ptr<DataLoader> training_loader(int64_t batch, int64_t start);
  /// A loader over the samples that data.calibration draws, from position `start` up to `samples`.
  std::unique_ptr<DataLoader> calibration_loader(int64_t batch, int64_t start, int64_t samples);
  /// The pipeline of calibration samples.
  std::vector<Component> calibration_pipeline() const;
  /// Types of a loader's batches. Throws (kRecipe) if an input of the model is missing, or a target has more classes than the model.
  BatchTypes batch_types(const DataLoader& loader) const;
  /// The same, and then those of the batches of each other length and size of the loader (DataLoader::lengths, sizes).
  std::vector<BatchTypes> all_batch_types(const DataLoader& loader) const;
  /// Types of a batch of the model's default inputs and, with `targets`, of the task's targets for them. Images have the size of
  /// benchmark.size, else of the canvas of data.val or data.train, else the model's usual size.
  BatchTypes usual_types(int64_t batch, bool targets) const;
  /// Names of the classes; empty if the data do not name them.
  std::vector<std::string> categories();
  /// The items of a split's pipeline. `from_weights` stands for galley.pipeline in the metadata of the weights. Throws (kRecipe) if they
  /// have none.
  std::vector<Component> pipeline_of(const std::string& split) const;
  /// The pipeline for prediction: that of data.val, or without data.val that in the metadata of the weights.
  std::vector<Component> prediction_pipeline() const;
  /// Names of the classes in the metadata of the weights (galley.categories); empty if there are none.
  std::vector<std::string> prediction_categories() const;

  /// The adapters of the recipe; none without the key `lora`.
  const std::optional<LoraChoice>& lora() const { return lora_; }
  /// Options of builders that capture the model: the mode, and the layers with adapters.
  BuilderOptions builder_options(Mode mode, int64_t cache = 0) const;

  /// The forward pass with the metrics and results of the task. `cache`: of a language model that reads keys and values as a key-value
  /// cache of this kind stores them; the graph then has its inputs (nn/attention.h). Throws (kRecipe) if the model has none.
  CapturedModel capture_evaluation(const BatchTypes& types, std::optional<CacheStorage> cache = {}) const;
  /// The forward pass for prediction. Outputs are the model's results under their names ("output" if the main one has no name), then, under
  /// their paths, the results of modules that a glob of `capture` matches ("layer1.*"; `*` matches dots). Throws (kUsage) for a glob that
  /// matches none.
  CapturedModel capture_inference(const BatchTypes& types, const std::vector<std::string>& capture = {}) const;
  /// The forward pass of a language model that continues sequences, with a key-value cache of `capacity` positions (nn/attention.h): logits
  /// [N,vocabulary] of one token of each sequence. The model must have ModelInfo::cache.
  CapturedModel capture_cached(const BatchTypes& types, int64_t capacity) const;

  /// Fills the store with initial values: those of the initializers, by the recipe's seed, then the weights that the recipe names. The
  /// parameters must be declared in the store. `sample`: the shape of a sample, without the batch, for the message where weights do not
  /// fit; {}: unknown. Throws (kRecipe) if the weights are quantized but the parameters are those of the float model (infer/inference.h).
  void initialize(const std::vector<ParameterSpec>& parameters, ParameterStore& store, const Shape& sample = {}) const;
  /// The same with one array at a time in memory: `take` gets the whole values, in the parameter's dtype, of each parameter that `wants`
  /// names. They are valid during the call; a parameter may come several times, and its last values count.
  using TakeValues = std::function<void(const ParameterSpec& parameter, const Tensor& values)>;
  void initialize_each(const std::vector<ParameterSpec>& parameters, const std::function<bool(const std::string& name)>& wants,
                       const TakeValues& take, const Shape& sample = {}) const;

 private:
  std::shared_ptr<const Backend> backend(int threads, bool chains) const;

  Session(const Recipe& recipe, bool without_data);
  void find_vocabulary(bool without_data);
  void find_adapted_layers();
  bool weights_hold_adapters() const;
  void load_each(const std::vector<ParameterSpec>& parameters, const std::function<bool(const std::string& name)>& wants,
                 const TakeValues& take, const Shape& sample) const;
  std::string difference_from(const std::string& weights, const Shape& sample) const;
  void load_adapter(const std::vector<ParameterSpec>& parameters, const std::function<bool(const std::string& name)>& wants,
                    const TakeValues& take) const;
  void take_tokenizer_of_weights(const TokenizerOptions& options);
  TokenizerContext tokenizer_context() const;
  void find_input_shape();
  std::optional<std::vector<Component>> weights_pipeline() const;
  std::vector<Component> given_pipeline_of(const std::string& name) const;
  LoaderOptions loader_options(const std::string& split, int64_t batch) const;
  BatchTypes input_types(int64_t batch) const;
  /// Rows and columns of the canvas of a split's images; empty: they have none.
  std::vector<int64_t> canvas(std::string_view split) const;
  TaskModel task_model(const BatchTypes& types) const;

  const Recipe& recipe_;
  Component model_;  // with the vocabulary of the data
  ModelInfo info_;
  std::unique_ptr<Task> task_;  // null without a task
  std::optional<LoraChoice> lora_;
  LoraOptions adapters_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::map<std::string, std::shared_ptr<const Source>> sources_;
};

/// Follows `from` to the split that has a source. Throws (kRecipe) if the recipe has no such split.
const Split& split_of(const Recipe& recipe, const std::string& name);

}  // namespace galley
