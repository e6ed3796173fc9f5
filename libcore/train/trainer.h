#pragma once
// Trainer: the loop. Plans before it runs (steps, memory), trains with validation, checkpoints, early stop and a guard against
// non-finite losses, continues an unfinished RUN bit for bit, and leaves the RUN folder of the contract.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/recipe/recipe.h"
#include "libcore/runtime/machine.h"
#include "libcore/train/run_folder.h"

namespace galley {

class NodeObserver;

/// What is known before step 1.
struct TrainPlan {
  int64_t global = 0, micro = 0, accumulation = 1;
  int64_t total_steps = 0;  // 0: the run ends by time
  double steps_per_epoch = 0;
  int64_t parameters = 0, trainable = 0;  // elements
  double flops_per_step = 0;              // two a multiply-add
  Arithmetic executed_per_step;           // fewer where convolutions take Winograd's way
  int64_t persistent_bytes = 0;           // parameters, buffers, optimizer state
  int64_t scratch_bytes = 0;              // the arena of the largest program
  int64_t base_bytes = 0;                 // the process before these two: code, data buffers, prepared kernels
  int64_t planned_peak_bytes = 0;         // the sum
  int reorders = 0;                       // activation reorders inside a step
  int widened = 0;                        // operators on bf16 values that compute in f32 between casts
  int compilations = 0;
  double compile_s = 0;
  int64_t start_step = 0;          // of a resumed run
  std::string rate = "samples/s";  // what people count: img/s, tok/s
  int64_t rate_per_sample = 1;     // of them in a sample
  std::vector<std::string> warnings;
};

/// What the trainer tells while it runs, and asks.
class TrainEvents {
 public:
  virtual ~TrainEvents() = default;
  virtual void planned(const TrainPlan&) {}
  virtual void resumed(int64_t step) { static_cast<void>(step); }
  /// After every step; `logged` where the row went to metrics.jsonl. `fraction` of the run done, in 0..1.
  virtual void stepped(const TrainRow& row, double fraction, double eta_s, bool logged) = 0;
  virtual void evaluated(const EvalRow& row) = 0;
  virtual void checkpointed(const std::string& folder) { static_cast<void>(folder); }
  /// The signal that asks for a stop at the end of the step, or 0.
  virtual int stop_signal() { return 0; }
  /// Who watches the coming step, besides time_operators; null: nobody.
  virtual NodeObserver* watch(int64_t step) { return static_cast<void>(step), nullptr; }
  /// True once for each request of a checkpoint.
  virtual bool take_checkpoint_request() { return false; }
};

struct TrainerOptions {
  std::string run;              // RUN folder
  bool force = false;           // start again, whatever is in RUN
  std::string provenance;       // a JSON object for result.json
  bool time_operators = false;  // collect operator_table
};

class Trainer {
 public:
  /// The recipe must outlive the trainer. `recipe_text` goes to RUN/recipe.yaml.
  Trainer(const LoadedRecipe& loaded, std::string recipe_text, TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// A RUN that is finished already, with the same recipe: its result.
  std::optional<TrainResult> finished() const;
  /// Opens data, captures, compiles. Nothing is written, no parameter memory is taken.
  const TrainPlan& plan();
  /// Reads the weights that the recipe names and throws what run() would; for a dry run.
  void check_weights();
  /// Trains to the end. The result is also in RUN/result.json. Throws Error (kNumeric) where the loss is not finite.
  TrainResult run(TrainEvents& events);
  /// Rows {op, phase, calls, total ms, share} of time_operators, slowest first.
  std::vector<std::vector<std::string>> operator_table() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace galley
