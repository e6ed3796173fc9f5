#pragma once
// TrainStep: one compiled update of a recipe. One program runs forward pass, backward pass and optimizer; a second one accumulates
// gradients if batches are divided into micro-batches. Each stage of quantization-aware training has its own programs. Used by the trainer,
// galley-benchmark and galley-profile.

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/optim/schedule.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/gate_updates.h"
#include "libcore/passes/replicate.h"
#include "libcore/passes/tensor_divisions.h"
#include "libcore/quantize/qat.h"
#include "libcore/recipe/selector.h"
#include "libcore/runtime/execution.h"
#include "libcore/runtime/machine.h"
#include "libcore/tasks/metrics.h"
#include "libcore/train/pipeline_runner.h"
#include "libcore/train/replica_runner.h"

namespace galley {

class Communicator;
class DiskDevice;
class Offload;
struct Batch;

/// The selector of train.recompute.match. Throws (kRecipe) for a pattern that matches no module of the graph's forward pass.
Selector recomputed_modules(const Graph& graph, const RecomputeSection& section);

/// Runs updates by their number.
class TrainStep {
 public:
  ~TrainStep();
  /// Captures, differentiates, adds the updates and compiles, for batches of these types. Session and engine must outlive it. Its first
  /// program determines the memory formats of the engine's parameters. `shorter`: types of batches that are cut (DataLoader::lengths), for
  /// which the update is compiled too. Throws Error (kRecipe) if selectors or durations of the recipe do not fit the model.
  /// `ranks`: the ranks whose gradients are summed; nullptr: one rank. `replicas`: of all ranks; types are those of one replica's batch,
  /// and the engine's back end has one thread. `disk`: holds the arrays that sharding.offload puts there. `tensor`: the ranks that divide
  /// matrices; nullptr: none.
  TrainStep(const Session& session, Engine& engine, const BatchTypes& types, const BatchPlan& batch, const RunLength& length,
            const std::vector<BatchTypes>& shorter = {}, Communicator* ranks = nullptr, const ReplicaChoice& replicas = {},
            DiskDevice* disk = nullptr, Communicator* tensor = nullptr);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<StateSpec>& states() const { return states_; }
  /// The programs of the first stage: the one that updates, and the one that accumulates gradients (null without accumulation). With
  /// replicas: that of a replica.
  const Program& program() const { return *shared_program(); }
  std::shared_ptr<const Program> shared_program() const {
    return replica_forms_.empty() ? stages_.front().update_program : replica_forms_.front().program;
  }
  const Program* accumulate_program() const { return stages_.front().accumulate_program.get(); }
  /// Memory of the replicas: their arenas, and sums of gradients; 0 without replicas.
  int64_t replica_bytes() const;
  /// The bytes of the largest array that ranks sum.
  int64_t largest_sum() const;
  /// For other programs of the run, after fusion: replaces parameters by gathers where ranks divide them; null: they do not.
  std::function<void(Graph&)> gather_pass() const;
  /// For other programs of the run, as captured: divides their matrices among ranks, and holds buffers as this step does
  /// (precision.buffers); null: neither.
  std::function<void(Graph&)> captured_pass() const;
  /// The parameters of which this rank has a part, as the ranks that divide matrices do.
  const TensorDivisions& divisions() const { return divisions_; }
  /// Whether this rank updates a parameter or buffer: that of its stage, if the ranks are a pipeline.
  bool updates(const std::string& name) const { return owns(name); }
  const PipelineRanks& pipeline_ranks() const { return place_; }
  /// The rank that gives the values of a parameter, buffer or their averages to others, if the ranks are a pipeline.
  int giver_of(const std::string& name) const { return stage_of_.at(name) * place_.copies; }
  /// The buckets of which each rank holds a range of the optimizer's state; null: the state is whole.
  const std::vector<GradientBucket>* shards() const;
  /// Null for training in float.
  const QuantizationAware* quantization() const { return quantization_.get(); }
  /// Whether this update runs with rounded weights and activations.
  bool quantized_at(int64_t step) const { return stage_at(step).what.quantized; }
  /// Must be called before an evaluation after this update: computes scales that are not learned yet from the observed ranges.
  void prepare_evaluation(int64_t step);
  /// Those that use the engine's arena.
  std::vector<const Program*> programs() const;
  int64_t scratch_bytes() const;
  /// Operators that were not fused, and why: "layer1.0.bn1: batch_norm + relu: the value between has 2 readers".
  const std::vector<std::string>& fusions_declined() const { return fusions_declined_; }
  /// How the first stage computes attention: PassReport::attention.
  const std::map<std::string, int>& attention() const { return attention_; }
  /// Floating-point operations of one update, over all micro-batches: by the definitions of the operators, and as executed (fewer for
  /// Winograd convolutions).
  std::pair<double, Arithmetic> flops() const;

  /// Parameters, buffers and optimizer state; zero until initialize() or a checkpoint fills them.
  ParameterStore& store() { return engine_.store(); }
  /// Sets initial values: those of the model, then the weights that the recipe names; averages are copies. At most one array of the model
  /// is whole at a time on a rank that has parts of them.
  void initialize();
  /// Sets the initial values of one state.
  void initialize_state(const StateSpec& state);
  /// Allocates memory for the parameters and the scratch space of the engine.
  void bind();

  /// The results of one update.
  struct Outcome {
    double loss = 0;                   ///< Mean over the micro-batches.
    MetricValues losses;               ///< Parts of the loss, each without its weight; empty if there is only one.
    double grad_norm = 0;              ///< Before clipping. Not finite: the update was skipped, which only a loss scale allows.
    std::optional<double> loss_scale;  ///< After the update; empty: the loss is not scaled.
    double data_s = 0;                 ///< Time spent waiting for batches.
  };
  /// Sets the function that reloads a batch by its position (Batch::first). Without it, the error of a non-finite loss names a tensor only
  /// if the batch is the last one of the step.
  void reload_with(std::function<const Batch&(int64_t first)> reload) { reload_ = std::move(reload); }
  /// With ranks or replicas: sets the function that returns the share of this rank, or of the replica, in the samples of the last batch
  /// (DataLoader::share). Without it: equal shares.
  void weigh_with(std::function<double()> share) { share_ = std::move(share); }
  /// Sets the function that names the sample of an index in the source, for the error of a non-finite loss. Without it: "sample 17".
  void name_samples_with(std::function<std::string(int64_t index)> name) { sample_name_ = std::move(name); }
  /// On a device with its own memory, run() feeds the first batch of the next update before it waits for the results of this one, so that
  /// the copy overlaps with the step. `more` is asked for the next step once all batches of a step are fetched; if it returns false,
  /// nothing is fed ahead. The last two batches that `next` of run() returns must stay valid.
  void feed_ahead(std::function<bool(int64_t step)> more) { more_ = std::move(more); }
  /// All later runs are on the batch of the next one, which is sent only once to a device with memory of its own.
  void repeat_batch() { repeats_ = true; }
  /// Runs update number `step` (from 1) on the batches that `next` returns; with replicas: one for each replica of this rank, valid until
  /// the end of the step. The host reads no values before the whole step is enqueued.
  /// Throws Error (kNumeric) if the loss is not finite. In that case parameters and state are unchanged; the step reloads the batch and
  /// repeats it with a check after each node, to name the first non-finite tensor, or the first sample with non-finite data.
  Outcome run(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer = nullptr);
  /// For a run with a time limit: the share of its time (0..1) that has passed before the next update. The schedule depends on it.
  void set_time_passed(double share) { time_passed_ = share; }
  /// The learning rate of the first group at an update.
  double learning_rate(int64_t step) const { return learning_rate(step, stages_.front().groups.groups.front().optimizer->lr); }

 private:
  /// A learning rate that is an input of the update program.
  struct Rate {
    std::string input;
    double lr = 0;  // of the group, without the schedule's factor
  };
  /// The update for batches of other shapes.
  struct Shorter {
    BatchTypes types;
    std::shared_ptr<const Program> program;
    std::unique_ptr<Execution> execution;
  };
  /// A range of steps that run the same graph.
  struct Stage {
    TrainStage what;
    ParameterGroups groups;
    std::vector<StateSpec> states;
    std::shared_ptr<const Program> update_program, accumulate_program;
    std::unique_ptr<Execution> update, accumulate;
    std::vector<Shorter> shorter;
    std::vector<Rate> rates;
    std::vector<std::unique_ptr<RankUpdates>> divisions;  // of the graphs that update; empty: one rank without replicas
  };
  void add_stage(const TrainStage& what, const BatchTypes& types);
  void add_shorter(const std::vector<BatchTypes>& shorter);
  /// The update for the shapes of this batch.
  static Execution& update_for(const Stage& stage, const Batch& data);
  Graph capture(Stage& stage, const BatchTypes& types, bool update);
  UpdateOptions update_options(const Stage& stage) const;
  std::function<bool(const std::string&)> divided_parameters() const;
  std::vector<GradientBucket> own_units(const Stage& stage) const;
  ParameterGroups groups_of_parameters(const std::vector<ParameterSpec>& parameters) const;
  RecomputeChoice recompute_of(const Graph& graph) const;
  void bind_rates(Stage& stage) const;
  void make_division(Stage& stage) const;
  void divide_matrices(Graph& graph);
  void check_rank_graph(const Graph& graph, bool updates) const;
  bool gathers() const { return !units_.empty(); }
  void add_states(const std::vector<StateSpec>& states);
  const Stage& stage_at(int64_t step) const;
  /// The first update that trains scales; 0 if none does.
  int64_t learns_from() const;
  double learning_rate(int64_t step, double lr) const { return schedule_.value(schedule_position(schedule_run_, step, time_passed_), lr); }
  double weight_of(const Batch& data) const;
  int64_t labels_in(const Batch& data) const;
  /// A batch that was fed before its step.
  struct Ahead {
    const Batch* batch = nullptr;
    std::exception_ptr error;  // of its data, for the step
  };
  /// The next batch of a step, whose data may have been fed. Adds the time to the outcome.
  const Batch& fetch(const std::function<const Batch&()>& next, Outcome& outcome, NodeObserver* observer) const;
  void feed_next(int64_t step, const std::function<const Batch&()>& next, Outcome& outcome, NodeObserver* observer);
  /// The execution of micro-batch k.
  Execution& execution_of(const Stage& stage, int64_t k, const Batch& data) const {
    return k + 1 == batch_.accumulation ? update_for(stage, data) : *stage.accumulate;
  }
  void feed_batch(Execution& execution, const Batch& data, int64_t step, double weight, bool fed = false) const;
  void feed_update(const Stage& stage, Execution& execution, int64_t step) const;
  /// Whether a loss that is not finite ends the run.
  bool guards() const { return recipe_.train.guard.nan == NanGuard::kStop; }
  UpdateGates gates(const Graph& graph) const;
  /// Reads the norm of the gradients and the loss scale. Throws Error (kNumeric) where no scale gives finite gradients.
  void read_update(const Execution& update, int64_t step, Outcome& outcome);
  /// Reads the losses of all micro-batches and averages them.
  void read_losses(const Stage& stage, int64_t step, const Batch& last_batch, Outcome& outcome) const;
  [[noreturn]] void stop(const Stage& stage, int64_t step, int64_t micro_batch, double loss, const Batch& last_batch) const;
  [[noreturn]] void stop_with(int64_t step, double loss, Execution& execution, const Batch* batch) const;
  // With replicas (step_replicas.cpp).
  void check_replicas();
  void add_replicas(Stage& stage, const BatchTypes& types, const std::vector<BatchTypes>& shorter);
  Graph capture_replica(Stage& stage, const BatchTypes& types);
  Graph capture_replica_update(Stage& stage);
  ReplicaRunner::Options replica_options() const;
  void bind_replicas(Stage& stage);
  void add_update(Stage& stage);
  void add_pipeline(Stage& stage, const BatchTypes& types);
  void bind_pipeline(Stage& stage, std::vector<std::string> losses);
  void feed_stage_sums(const Stage& stage, int64_t most) const;
  void feed_sums(const Stage& stage, int64_t most) const;
  bool on_host() const { return engine_.backend().device().is_host(); }
  void place_offloaded(const Program& program) const;
  static constexpr int64_t kCopiedBytes = 64;  // Execution::feed copies arrays up to this size
  std::vector<ReplicaInput> replica_inputs(const std::function<const Batch&()>& next, Outcome& outcome, NodeObserver* observer);
  Outcome run_replicas(int64_t step, const std::function<const Batch&()>& next, NodeObserver* observer);
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
  std::vector<std::string> losses_;  // names of the parts of the objective, if it has several
  std::vector<ParameterSpec> parameters_;
  std::vector<GradientBucket> units_;  // whose parameters ranks divide; empty: each rank has all parameters
  std::vector<std::string> fusions_declined_;
  std::map<std::string, int> attention_;
  std::vector<StateSpec> states_;
  std::vector<Stage> stages_;
  std::function<const Batch&(int64_t first)> reload_;
  std::function<std::string(int64_t index)> sample_name_;
  std::function<double()> share_;
  std::function<bool(int64_t step)> more_;
  Ahead ahead_;
  Communicator* ranks_ = nullptr;
  ShardGroups groups_;
  Communicator* tensor_ = nullptr;  // null: no ranks divide matrices
  TensorDivisions divisions_;
  std::optional<LossScaling> scaling_;
  ReplicaChoice replicas_;
  bool replicas_sum_ = false;  // in their programs
  ReplicaStatistics statistics_;
  std::unique_ptr<RankUpdates> replica_division_;
  std::vector<GradientBucket> replica_buckets_;
  std::vector<ReplicaRunner::Form> replica_forms_;
  std::unique_ptr<ReplicaRunner> runner_;
  std::unique_ptr<Offload> offload_;  // null: all arrays are in memory
  bool pipelines() const { return ranks_ != nullptr && recipe_.sharding.strategy == ShardingStrategy::kPipeline; }
  std::vector<PipelineRunner::Part> parts_;  // of the model, on this rank
  PipelineRanks place_;
  std::vector<PipelineRunner::Sums> stage_sums_;     // by chunk
  std::vector<size_t> own_norms_;                    // batch norms of the stage
  std::map<std::string, int> stage_of_;              // of parameters and buffers: that which updates them
  std::map<std::string, std::vector<int>> readers_;  // stages that read a parameter of another one
  int loss_stage_ = 0;
  std::unique_ptr<PipelineRunner> pipeline_;
  bool owns(const std::string& name) const { return !pipelines() || stage_of_.at(name) == place_.stage; }
  void assign_stages(const std::vector<StageGraphs>& split);
  PipelineRunner::Sums sums_of_part(const StageGraphs& part) const;
  std::vector<std::string> own_gradients() const;
  void share_parameters();
  std::vector<int64_t> firsts_;             // positions of the step's batches
  bool repeats_ = false;                    // one batch
  mutable std::set<const Execution*> fed_;  // with it
  mutable std::vector<double> earlier_;     // losses of the micro-batches before the last
};

/// Whether a multiple of `every` (in steps, may be fractional) lies after the previous step and not after this one.
bool step_due(int64_t step, double every);

}  // namespace galley
