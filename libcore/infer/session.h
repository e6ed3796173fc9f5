#pragma once
// Session: what a recipe's model and data become before anything runs. Opens the data, captures the model for evaluation and prediction
// (for training: train/capture_training.h), fills its parameters. Every tool that takes a recipe starts with one.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/infer/batch_types.h"
#include "libcore/infer/captured_model.h"
#include "libcore/nn/zoo.h"
#include "libcore/recipe/sections.h"
#include "libcore/runtime/engine.h"
#include "libcore/tasks/task.h"

namespace galley {

class DataLoader;
class Tokenizer;
struct LoaderOptions;
class ParameterStore;
class Source;

class Session {
 public:
  /// Opens nothing yet but the text that a language model's vocabulary comes from. The recipe must outlive the session.
  explicit Session(const Recipe& recipe);
  /// For checks without data: where the vocabulary's text is missing, that of bytes stands for it.
  static std::unique_ptr<Session> without_data(const Recipe& recipe);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Recipe& recipe() const { return recipe_; }
  const ModelInfo& info() const { return info_; }
  /// The recipe's model, with the vocabulary of its data.
  const Component& model() const { return model_; }
  /// Samples have that shape, not the model's usual one: for tools that work without data on a model whose data is known.
  void set_input_shape(std::vector<int64_t> shape) { info_.input_shape = std::move(shape); }
  /// The recipe's task. Throws (kRecipe) where neither the recipe nor the model says one: there is nothing to train or to evaluate.
  const Task& task() const;
  /// The task, or null: results are tensors only.
  const Task* task_or_null() const { return task_.get(); }
  /// The class index that the loss leaves out.
  int64_t ignored_class() const;
  /// Classes of the task's targets, 0 where it has none.
  int64_t target_classes() const { return task_ == nullptr ? 0 : task_->classes(); }
  /// Tokens of a sample in batches of these types, 0 where it is no text.
  int64_t tokens_of(const BatchTypes& types) const { return task_ == nullptr ? 0 : task_->tokens(types.input()); }
  /// How text is read; null where the recipe names no tokenizer.
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  int64_t threads() const;
  LayoutMode layout() const;
  /// The back end of the recipe's device, threads and memory format. `threads`: instead of the recipe's; 0: those. Throws Error (kResource)
  /// where there is no such device.
  std::shared_ptr<const Backend> backend(int threads = 0) const;
  /// For programs whose values are watched by name: each element-wise function runs as a node of its own, whatever precision.chains says.
  std::shared_ptr<const Backend> backend_without_chains() const;

  /// The source of a split ("train", "val", "test"), opened once; follows `from`.
  std::shared_ptr<const Source> source(const std::string& split);
  /// A loader over a split from a position in samples; `passes` 0: endless. `samples` 0: all.
  std::unique_ptr<DataLoader> loader(const std::string& split, int64_t batch, int64_t start = 0, int64_t passes = 1, int64_t samples = 0);
  /// A loader over the samples that data.calibration draws, from position `start` up to `samples`.
  std::unique_ptr<DataLoader> calibration_loader(int64_t batch, int64_t start, int64_t samples);
  /// What happens to them.
  std::vector<Component> calibration_pipeline() const;
  /// Types of a loader's batches. Throws (kRecipe) where the model's inputs are missing, or a target holds more classes than the model has.
  BatchTypes batch_types(const DataLoader& loader) const;
  /// Types of a batch of the model's usual inputs; with `targets`, and of the task's targets that belong to them.
  BatchTypes usual_types(int64_t batch, bool targets) const;
  /// Names of the classes, empty where the data do not know them.
  std::vector<std::string> categories();
  /// The items of a split's pipeline; `from_weights` is what the weights carry as galley.pipeline. Throws (kRecipe) where they carry none.
  std::vector<Component> pipeline_of(const std::string& split) const;
  /// What prediction does to an image: data.val's pipeline, as for evaluation; without data.val, the one that the weights carry.
  std::vector<Component> prediction_pipeline() const;
  /// Names of the classes as the weights carry them (galley.categories), else empty.
  std::vector<std::string> prediction_categories() const;

  CapturedModel capture_evaluation(const BatchTypes& types) const;
  /// For prediction: the model's results, the main one named "output" unless the model names it, the others as the model names them; then,
  /// under their paths, the results of the modules that a glob of `capture` matches ("layer1.*"; `*` crosses dots). Throws (kUsage) where
  /// one matches none.
  CapturedModel capture_inference(const BatchTypes& types, const std::vector<std::string>& capture = {}) const;

  /// Puts initial values into the store: the initialisers' by the recipe's seed, then what `weights` names. The store must hold the names.
  /// Throws (kRecipe) where the weights are quantized and the parameters are those of the float model (infer/inference.h).
  void initialize(const std::vector<ParameterSpec>& parameters, ParameterStore& store) const;

 private:
  std::shared_ptr<const Backend> backend(int threads, bool chains) const;

  Session(const Recipe& recipe, bool without_data);
  void find_vocabulary(bool without_data);
  void find_input_shape();
  std::optional<std::vector<Component>> weights_pipeline() const;
  LoaderOptions loader_options(const std::string& split, int64_t batch) const;
  BatchTypes input_types(int64_t batch) const;
  TaskModel task_model(const BatchTypes& types) const;

  const Recipe& recipe_;
  Component model_;  // with its vocabulary
  ModelInfo info_;
  std::unique_ptr<Task> task_;  // null: none
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::map<std::string, std::shared_ptr<const Source>> sources_;
};

/// The split that `from` leads to: the one with a source. Throws (kRecipe) where the recipe has no such split.
const Split& split_of(const Recipe& recipe, const std::string& name);

}  // namespace galley
