#pragma once
// The state of a Trainer, for trainer.cpp (the loop), trainer_plan.cpp (what it compiles), trainer_ranks.cpp (what ranks tell each other)
// and trainer_files.cpp (what it writes and reads again).

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/comm/communicator.h"
#include "libcore/comm/group.h"
#include "libcore/data/loader.h"
#include "libcore/device/disk_device.h"
#include "libcore/infer/evaluate.h"
#include "libcore/infer/session.h"
#include "libcore/runtime/execution.h"
#include "libcore/train/divided_state.h"
#include "libcore/train/stage_state.h"
#include "libcore/train/step.h"
#include "libcore/train/tensorboard.h"
#include "libcore/train/trainer.h"
#include "libcore/weights/checkpoint.h"

namespace galley {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The best value of a metric so far.
struct Best {
  std::string metric;
  double value = 0;
  int64_t step = 0;
  bool known = false;
  bool better(double candidate) const {
    if (std::isnan(candidate)) return false;
    return !known || (larger_is_better(metric) ? candidate > value : candidate < value);
  }
};

class Trainer::State {
 public:
  State(const LoadedRecipe& loaded, std::string recipe_text, TrainerOptions options)
      : recipe(loaded.recipe), recipe_text(std::move(recipe_text)), options(std::move(options)), session(recipe) {
    if (!recipe.train.duration || !recipe.train.batch) {
      const char* key = recipe.train.duration ? "train.batch" : "train.duration";
      throw Error(ErrorCode::kRecipe, cat("the key ", key, " is missing"))
          .key(key)
          .suggest(recipe.train.duration ? "write e.g. batch: 128" : "write e.g. duration: 10 epochs");
    }
    if (!recipe.train.optimizer.algorithm)
      throw Error(ErrorCode::kRecipe, "the key train.optimizer is missing")
          .key("train.optimizer")
          .suggest("e.g. {type: sgd, lr: 0.1, momentum: 0.9}");
  }

  /// Ranks: one without a communicator. Rank 0 writes RUN, evaluates, and decides what depends on time and signals.
  int rank_count() const { return options.ranks != nullptr ? options.ranks->size() : 1; }
  int own_rank() const { return options.ranks != nullptr ? options.ranks->rank() : 0; }
  bool writes() const { return own_rank() == 0; }
  /// The largest of the ranks' values.
  int64_t agreed(const char* name, int64_t value) const;
  double of_rank_0(const char* name, double value) const;
  int asked_to_stop(TrainEvents& events);
  void check_equal_digests(const std::string& digest) const;
  /// With deterministic: of one replica; by default of the first one of this rank.
  std::unique_ptr<DataLoader> open_loader(int64_t start, int64_t replica = -1);
  /// `loader` and `replica_loaders`.
  void open_loaders(int64_t start);
  /// Whether the ranks are stages of a pipeline.
  bool pipelines() const;
  /// Ranks that read different samples, and the place of this one: all; the copies of a pipeline's stage; one of each group that divides
  /// matrices.
  int reading_ranks() const;
  /// Replicas that the rank computes at a time: one on the stream of a GPU, else one on each thread.
  int replica_threads() const { return engine->backend().device().is_host() ? static_cast<int>(session.threads()) : 1; }
  int reading_rank() const;
  /// The ranks that divide matrices, and those that read different samples; null: this rank alone.
  Communicator* tensor_ranks() const;
  Communicator* sample_ranks() const;
  /// Makes the groups of a mesh with both.
  void make_groups();
  /// Whether programs gather parameters, of which each rank has a range.
  bool gathers_parameters() const;
  /// Whether this rank has a part of the parameters only, of each.
  bool divides_weights() const;
  /// The replicas of this rank.
  LeafRange own_replicas() const;
  /// The shapes of a replica's batches, those of the largest replica first: all ranks compile them in the same order.
  std::vector<BatchTypes> replica_types();
  void check_facts();
  void check_data();
  /// The metrics of all ranks; nullopt: stopped.
  std::optional<MetricValues> evaluate(Evaluator& evaluates, TrainEvents& events);
  /// Learns how many samples of the other ranks are damaged or irregular.
  void count_samples();
  /// Gives all ranks the buffers of rank 0 (running statistics), and their averages.
  void share_buffers();

  const Recipe& recipe;
  std::string recipe_text;
  bool facts_checked = false;
  TrainerOptions options;
  std::unique_ptr<GroupCommunicator> tensor_members, sample_members;  // of a mesh with both; must outlive the programs below
  Session session;
  TrainPlan plan;
  bool planned = false;
  BatchPlan batch;
  int64_t replicas = 0;  // deterministic: logical replicas; pipelines: micro-batches
  RunLength length;
  double time_limit_s = 0;
  std::unique_ptr<DataLoader> loader;
  std::vector<std::unique_ptr<DataLoader>> replica_loaders;  // of the replicas after the first one
  const DataLoader* delivered_by = nullptr;                  // the last batch
  /// The loader's counts when it had delivered all batches of the step, but not yet one of the next step.
  struct Delivered {
    int64_t position = 0, skipped = 0, irregular = 0;
  };
  std::optional<Delivered> before_next;                     // only if it delivers that before the step ends
  std::unique_ptr<DataLoader> reloader;                     // reloads batches whose loss is not finite
  std::map<int64_t, int64_t> positions;                     // of the step's batches: the loader's position, by the first sample
  std::unique_ptr<DiskDevice> disk;                         // of sharding.offload, null: none; must outlive the engine's arrays
  std::unique_ptr<DeviceRanks> devices;                     // of ranks with GPUs; must outlive the programs below
  std::vector<std::unique_ptr<DeviceRanks>> group_devices;  // the same of the groups of a mesh
  std::unique_ptr<Engine> engine;                           // must outlive the programs below
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<Evaluator> float_evaluator;  // for quantization-aware training, before it starts rounding
  std::unique_ptr<TrainStep> update;
  std::unique_ptr<DividedState> sharded;  // null: each rank holds parameters and state, or its stage's
  std::unique_ptr<StageState> stages;     // null: the ranks are not a pipeline
  NodeTimer timer;

  // The state that a checkpoint holds besides tensors.
  int64_t step = 0;
  int64_t consumed = 0;  // position in data.train after the last finished step; less than step * batch.global with last_batch: keep
  double wall_s = 0;
  Best best, stopping;
  int64_t stopping_since = 0;
  MetricValues latest;
  int64_t latest_step = -1;
  int64_t skipped_before = 0, irregular_before = 0;        // damaged and irregular samples before this process continued the run
  int64_t skipped_elsewhere = 0, irregular_elsewhere = 0;  // of other ranks, when count_samples() was called
  std::vector<int64_t> sample_shape;                       // galley.input: the shape in validation, or in training without validation
  std::unique_ptr<FolderLock> run_lock;                    // no second process trains into RUN
  bool stop_file = false;                                  // RUN/stop was found
  std::string parents;                                     // JSON: the files of the initial weights

  /// The state of one call of run().
  struct Run {
    explicit Run(State& state);
    RunFolder folder;
    std::unique_ptr<TensorBoardWriter> board;  // null: none
    double wall_before;                        // time of the previous processes of this run
    Clock::time_point began = Clock::now();
    int64_t first;                                       // first step of this process
    double log_every, validate_every, checkpoint_every;  // validate_every 0: only after the last step
    int64_t saved_at;                                    // step of the last checkpoint, -1: none
    TrainResult result;
    std::optional<TrainRow> unlogged;  // the last finished step, if it is not in metrics.jsonl
  };

  /// Divides the global batch among ranks, replicas and micro-batches.
  void divide_batch();
  /// And connects the devices of ranks.
  void make_engine();
  void make_plan();
  TrainResult train(TrainEvents& events);
  TrainRow checked_step(Run& run, TrainEvents& events);
  void report_step(Run& run, TrainEvents& events, const TrainRow& row, bool log);
  void log_step(Run& run, const TrainRow& row);
  void end_early(Run& run);
  bool stops_early(bool final_step) const;
  void write_result(Run& run);
  void plan_facts();
  void make_divided_state();
  void make_stage_state();
  void plan_peak();
  bool load_state();
  std::pair<int64_t, int64_t> arena_bytes() const;
  bool shares_scratch() const;
  void share_scratch();
  void start(TrainEvents& events);
  void restore(const Checkpoint& checkpoint);
  std::string save(RunFolder& folder);
  std::string write_checkpoint(RunFolder& folder);
  CheckpointContent checkpoint_content();
  std::vector<CheckpointGroup> whole_tensors();
  void add_shared_pieces(std::vector<CheckpointPiece>& pieces);
  void add_own_pieces(std::vector<CheckpointPiece>& pieces);
  void restore_hook_state(const Checkpoint& checkpoint, const ManifestTensor& tensor, const StateSpec& spec);
  void save_weights(RunFolder& folder, const std::string& name, bool ema);
  void save_adapter(RunFolder& folder);
  TrainRow one_step(NodeObserver* watcher);
  /// The continuations of train.validate.prompts by the parameters of this step, without averages and rounding.
  std::vector<std::pair<std::string, std::string>> sample_texts();
  std::vector<std::vector<int64_t>> prompt_tokens() const;
  /// Evaluates, if that was not done after this step. A run with checkpoints stops the evaluation at a signal, and records nothing of it.
  /// Returns whether it was stopped.
  bool validate(RunFolder& folder, TrainEvents& events, TensorBoardWriter* board);
  void validate_or_keep(Run& run, TrainEvents& events);
  void keep_steps(Run& run, TrainEvents& events);
  Metadata metadata();
  int64_t own_irregular() const;
  int64_t own_skipped() const;
  int64_t irregular() const { return irregular_before + own_irregular() + irregular_elsewhere; }
  std::string digest();
  /// The array `name` of the store, written under the name of the parameter.
  TensorSource source_of(const std::string& name, const ParameterSpec& spec);
  /// Calls `write` on rank 0; the others send their ranges of arrays that it reads.
  void on_rank_0(const std::function<void()>& write);
  std::string tokenizer_digest() const;
  int64_t skipped() const { return skipped_before + own_skipped() + skipped_elsewhere; }
  double epoch_at(int64_t s) const { return length.steps_per_epoch > 0 ? static_cast<double>(s) / length.steps_per_epoch : 0; }
  KeepPolicy keep() const {
    KeepPolicy policy;
    policy.last = recipe.checkpoint->keep.last;
    policy.best = recipe.checkpoint->keep.best ? recipe.checkpoint->keep.best->count : 0;
    return policy;
  }
  std::string best_metric() const {
    if (recipe.checkpoint && recipe.checkpoint->keep.best) return recipe.checkpoint->keep.best->metric;
    if (recipe.train.early_stop) return recipe.train.early_stop->metric;
    for (const MetricInfo& metric : session.task().metrics())
      if (metric.ranks) return std::string(metric.name);
    return "loss";
  }
};

}  // namespace galley
