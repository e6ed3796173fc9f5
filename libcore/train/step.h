#pragma once
// TrainStep: one update of a recipe, compiled: forward, backward and optimizer in one program, and a second program that adds gradients
// where a batch is cut into micro-batches; for each stage of a quantization-aware training its own. Knows what to feed at step k. Used by
// the trainer, galley-benchmark and galley-profile.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/optim/schedule.h"
#include "libcore/optim/updates.h"
#include "libcore/quantize/qat.h"
#include "libcore/recipe/selector.h"
#include "libcore/runtime/execution.h"
#include "libcore/runtime/machine.h"
#include "libcore/tasks/metrics.h"

namespace galley {

struct Batch;

/// The selector of train.recompute.match. Throws (kRecipe) for a pattern that matches no module of the graph's forward pass.
Selector recomputed_modules(const Graph& graph, const RecomputeSection& section);

class TrainStep {
 public:
  /// Captures, differentiates, adds the updates and compiles, for batches of those types. Session and engine must outlive it; its first
  /// program leads the engine's formats. Throws Error (kRecipe) where the recipe's selectors or durations do not fit the model.
  TrainStep(const Session& session, Engine& engine, const BatchTypes& types, const BatchPlan& batch, const RunLength& length);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<StateSpec>& states() const { return states_; }
  /// The program that updates, and the one that only adds gradients, null without accumulation: those of the first stage.
  const Program& program() const { return *stages_.front().update_program; }
  std::shared_ptr<const Program> shared_program() const { return stages_.front().update_program; }
  const Program* accumulate_program() const { return stages_.front().accumulate_program.get(); }
  /// Null for a training in float.
  const QuantizationAware* quantization() const { return quantization_.get(); }
  /// Does the update of that number run with rounded weights and activations?
  bool quantized_at(int64_t step) const { return stage_at(step).what.quantized; }
  /// Before an evaluation behind that update: scales that do not learn yet are those of the ranges.
  void prepare_evaluation(int64_t step);
  int64_t scratch_bytes() const;
  /// Neighbours that training's fusion left apart, and why: "layer1.0.bn1: batch_norm + relu: the value between has 2 readers".
  const std::vector<std::string>& fusions_declined() const { return fusions_declined_; }
  /// Of one update, all its micro-batches: as the operators are defined, and as they are executed (fewer where convolutions take Winograd's
  /// way).
  std::pair<double, Arithmetic> flops() const;

  /// Parameters, buffers and optimizer state: zeros until initialize or a checkpoint has filled them.
  ParameterStore& store() { return engine_.store(); }
  /// Initial values: the model's, the weights that the recipe names, averages as copies.
  void initialize();
  /// Takes memory: the engine's parameters and scratch.
  void bind();

  struct Outcome {
    double loss = 0;       // mean over the micro-batches
    MetricValues losses;   // parts of it, each without its weight; empty where there is one
    double grad_norm = 0;  // before clipping
    double data_s = 0;     // waiting for batches
  };
  /// How a batch is loaded again by its position (Batch::first). Without it the error of a bad loss names no tensor where the batch is not
  /// the step's last.
  void reload_with(std::function<const Batch&(int64_t first)> reload) { reload_ = std::move(reload); }
  /// How the sample of that index in the source is called, for the error of a bad loss; without it: "sample 17".
  void name_samples_with(std::function<std::string(int64_t index)> name) { sample_name_ = std::move(name); }
  /// Update number `step` (from 1) on the batches that `next` gives. The host reads nothing before all of the step is enqueued. Throws
  /// Error (kNumeric) where the loss is not finite: the gate of updates was closed, so that nothing of the step is kept, and its batch is
  /// loaded again and replayed with a check after each node, to name the first bad tensor; where the data are bad themselves, the first bad
  /// sample.
  Outcome run(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer = nullptr);
  /// For a run that ends by time: the share of it (0..1) that has passed before the next update, which its schedule follows.
  void set_time_passed(double share) { time_passed_ = share; }
  /// The learning rate of the first group at an update.
  double learning_rate(int64_t step) const { return learning_rate(step, stages_.front().groups.groups.front().optimizer->lr); }

 private:
  /// A learning rate that the update program is fed.
  struct Rate {
    std::string input;
    double lr = 0;  // of the group, before the schedule
  };
  /// Steps that run one graph.
  struct Stage {
    TrainStage what;
    ParameterGroups groups;
    std::vector<StateSpec> states;
    std::shared_ptr<const Program> update_program, accumulate_program;
    std::unique_ptr<Execution> update, accumulate;
    std::vector<Rate> rates;
  };
  void add_stage(const TrainStage& what, const BatchTypes& types);
  Graph capture(Stage& stage, const BatchTypes& types, bool update);
  UpdateOptions update_options(const Stage& stage) const;
  void add_states(const std::vector<StateSpec>& states);
  const Stage& stage_at(int64_t step) const;
  /// The first update that trains scales; 0: none does.
  int64_t learns_from() const;
  double learning_rate(int64_t step, double lr) const { return schedule_.value(schedule_position(schedule_run_, step, time_passed_), lr); }
  void feed_batch(Execution& execution, const Batch& data, int64_t step) const;
  void feed_update(const Stage& stage, int64_t step) const;
  /// Does a loss that is not finite end the run?
  bool guards() const { return recipe_.train.guard.nan == NanGuard::kStop; }
  /// The means over the micro-batches, whose losses the host reads together.
  void read_losses(const Stage& stage, int64_t step, const Batch& last_batch, Outcome& outcome) const;
  [[noreturn]] void stop(const Stage& stage, int64_t step, int64_t micro_batch, double loss, const Batch& last_batch) const;
  std::string fault_of_data(const Execution& execution, const Batch& batch) const;

  const Session& session_;
  Engine& engine_;
  const Recipe& recipe_;
  BatchPlan batch_;
  RunLength length_;
  RunLength schedule_run_;
  Schedule schedule_;
  double time_passed_ = 0;
  std::unique_ptr<QuantizationAware> quantization_;
  std::vector<std::string> losses_;  // parts of the objective by name, where it has several
  std::vector<ParameterSpec> parameters_;
  std::vector<std::string> fusions_declined_;
  std::vector<StateSpec> states_;
  std::vector<Stage> stages_;
  std::function<const Batch&(int64_t first)> reload_;
  std::function<std::string(int64_t index)> sample_name_;
  std::vector<int64_t> firsts_;  // positions of the step's batches
};

/// Has a multiple of `every` (steps, may be a fraction) been reached between the step before and this one?
bool step_due(int64_t step, double every);

}  // namespace galley
