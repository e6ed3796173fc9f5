#pragma once
// Trainer: the training loop. Plans steps and memory before it runs; trains with validation, checkpoints, early stopping and a guard
// against non-finite losses; continues an unfinished RUN with bit-identical results; writes the RUN folder.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/recipe/recipe.h"
#include "libcore/runtime/machine.h"
#include "libcore/train/run_folder.h"

namespace galley {

class Communicator;
class NodeObserver;

/// Facts known before step 1.
struct TrainPlan {
  int64_t global = 0, micro = 0, accumulation = 1;
  int64_t replicas = 0;        ///< deterministic: logical replicas of all ranks, with up to `micro` samples; 0: none.
  bool micro_batches = false;  ///< The replicas are micro-batches of a pipeline, each with `micro` samples.
  int64_t total_steps = 0;     ///< 0: the run ends by time.
  double steps_per_epoch = 0;
  int64_t parameters = 0, trainable = 0;  ///< Numbers of elements.
  int64_t adapters = 0;                   ///< Number of linear layers with an adapter.
  int64_t state_bytes = 0;                ///< Of the optimizer's state and averages, for trained parameters only.
  double flops_per_step = 0;              ///< Two per multiply-add.
  Arithmetic executed_per_step;           ///< As executed: fewer for Winograd convolutions.
  bool on_host = true;                    ///< The processor computes.
  int64_t persistent_bytes = 0;           ///< Parameters, buffers, optimizer state.
  int64_t disk_bytes = 0;                 ///< Of these arrays, in memory-mapped files (sharding.offload).
  int64_t scratch_bytes = 0;              ///< The arena of the largest program; with replicas, theirs too, and sums.
  int64_t base_bytes = 0;  ///< Of the process without these two: code, data buffers, copies for evaluation and files. Of a GPU: batches.
  int64_t planned_peak_bytes = 0;        ///< Of the phase that takes most: training, evaluation, writing or loading.
  int reorders = 0;                      ///< Activation reorders inside a step.
  int widened = 0;                       ///< Operators on bf16 values that compute in f32 between casts.
  std::map<std::string, int> attention;  ///< "flash, REASON": by how many operators of attention.
  std::string images;  ///< Of a device that takes images in bytes: "in bytes", or "in f32: REASON"; empty: there are none.
  int compilations = 0;
  double compile_s = 0;
  int64_t start_step = 0;          ///< Of a resumed run.
  std::string rate = "samples/s";  ///< Unit of the displayed rate: img/s, tok/s.
  int64_t rate_per_sample = 1;     ///< Units per sample.
  std::vector<std::string> warnings;
};

/// Callbacks of a running trainer.
class TrainEvents {
 public:
  virtual ~TrainEvents() = default;
  /// Called with the plan, before step 1.
  virtual void planned(const TrainPlan&) {}
  /// Called if the run continues after `step`.
  virtual void resumed(int64_t step) { static_cast<void>(step); }
  /// Called after every step. `logged`: the row was written to metrics.jsonl. `fraction`: finished part of the run, 0..1.
  virtual void stepped(const TrainRow& row, double fraction, double eta_s, bool logged) = 0;
  /// Called after every evaluation.
  virtual void evaluated(const EvalRow& row) = 0;
  /// Called after every checkpoint, with its folder.
  virtual void checkpointed(const std::string& folder) { static_cast<void>(folder); }
  /// The signal that requests a stop at the end of the step, or 0.
  virtual int stop_signal() { return 0; }
  /// An observer of the next step, in addition to time_operators; null: none.
  virtual NodeObserver* watch(int64_t step) { return static_cast<void>(step), nullptr; }
  /// Returns true once for each request of a checkpoint.
  virtual bool take_checkpoint_request() { return false; }
};

/// Options of Trainer.
struct TrainerOptions {
  std::string run;              ///< The RUN folder.
  bool force = false;           ///< Start again and replace the contents of RUN.
  bool dry_run = false;         ///< Nothing will be trained; ranks must agree about it.
  std::string provenance;       ///< A JSON object for result.json.
  bool time_operators = false;  ///< Collect operator_table.
  /// The ranks that train together, each with a trainer and a thread or process of its own; nullptr: one rank. Rank 0 writes RUN.
  Communicator* ranks = nullptr;
};

/// Trains one recipe into a RUN folder.
class Trainer {
 public:
  /// The recipe must outlive the trainer. `recipe_text` is written to RUN/recipe.yaml.
  Trainer(const LoadedRecipe& loaded, std::string recipe_text, TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// The result of a RUN that has already finished with the same recipe. Throws if ranks differ: all ranks call it, or none.
  std::optional<TrainResult> finished() const;
  /// Opens the data, captures and compiles. Writes nothing and allocates no memory for parameters.
  const TrainPlan& plan();
  /// Reads the weights that the recipe names and throws the errors that run() would throw. For a dry run.
  void check_weights();
  /// Trains to the end. The result is also written to RUN/result.json. Throws Error (kNumeric) if the loss is not finite.
  TrainResult run(TrainEvents& events);
  /// The times collected with time_operators: rows {op, phase, calls, total ms, share}, slowest first.
  std::vector<std::vector<std::string>> operator_table() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
