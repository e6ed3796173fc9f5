#pragma once
// The recipe as typed structs: what every key means to the program. Names, types, defaults, ranges and documentation of the keys
// stand once, in options() of these structs (sections.cpp); schema.h derives parser, dump, help, docs and completion from them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"
#include "libcore/recipe/quantize_section.h"

namespace galley {

struct PublishedWeights;

/// The components that may be named in a recipe. The other rooms bring their tables; the spans must outlive every Recipe.
struct ComponentRegistry {
  ComponentKinds models, sources, transforms, batch_transforms, optimizers, schedules, losses, tokenizers, tasks;
};

/// false | true | a logical thread count.
struct Deterministic : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return threads == 0 ? "false" : threads == 8 ? "true" : std::to_string(threads); }
  std::string_view grammar() const override { return "false, true, or a logical thread count (true = 8)"; }
  int64_t threads = 0;  ///< 0: off.
};

/// cpu | cuda | cuda:N
struct DeviceName : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return text_; }
  std::string_view grammar() const override { return "cpu, ref (slow, for comparisons), sim (a test device), cuda or cuda:1"; }

 private:
  std::string text_ = "cpu";
};

enum class MemoryFormatChoice { kAuto, kContiguous, kChannelsLast, kChannelsLast3d };
enum class PrecisionName { kF32, kBf16, kF16, kF64 };

struct PrecisionSection : OptionsOf<PrecisionSection> {
  void options(OptionVisitor& v) override;
  PrecisionName compute = PrecisionName::kF32, master = PrecisionName::kF32, reduce = PrecisionName::kF32;
  std::optional<double> loss_scale;  ///< Empty: auto.
  bool tf32 = false;
  bool winograd = true;
  bool chains = true;
  std::vector<std::string> keep_f32{"type:norm"};
};

struct WeightSource : OptionsOf<WeightSource> {
  void options(OptionVisitor& v) override;
  std::string from;
  std::vector<std::string> ignore;
  std::vector<std::pair<std::string, std::string>> rename;
  std::string into;
  bool strict = true;
  bool cast = false;
  bool check_finite = true;

  /// What the registry knows of `from`, where it names published weights (resolve_weights); not part of the recipe's text.
  std::shared_ptr<const PublishedWeights> published;
  /// The file, checkpoint or folder of a run to be read.
  const std::string& path() const;
};

struct WeightsSection : OptionsOf<WeightsSection> {
  void options(OptionVisitor& v) override;
  OptionList load;  ///< WeightSource
  /// What the registry says of the model's default weights (resolve_weights), whose pipeline serves where no other is known; not part
  /// of the recipe's text.
  std::shared_ptr<const PublishedWeights> model_default;
};

struct Shuffle : OptionsOf<Shuffle> {
  Shuffle() = default;
  explicit Shuffle(bool on) : enabled(on) {}
  void options(OptionVisitor& v) override;
  bool enabled = true;
  std::optional<int64_t> buffer;  ///< Samples held for shuffling a stream.
};

enum class LastBatch { kWrap, kDrop, kKeep };
enum class OnError { kFail, kSkip };

/// One split of the data: train, val or test. A default-constructed one has the defaults of evaluation.
struct Split : OptionsOf<Split> {
  void options(OptionVisitor& v) override;
  /// The pipeline is the one that belongs to the weights.
  bool pipeline_from_weights() const { return pipeline.size() == 1 && pipeline[0].type == "from_weights" && !pipeline[0]; }

  const ComponentRegistry* registry = nullptr;
  Component source;  ///< Empty where `from` names another split.
  std::string from;
  std::vector<Component> pipeline;
  std::optional<Slice> slice;
  std::optional<int64_t> slice_seed;
  Shuffle shuffle{false};
  LastBatch last_batch = LastBatch::kKeep;
  AutoCount batch;  ///< Auto: train.batch.micro. Not used for train.
  std::vector<Component> batch_transforms;
  AutoCount workers;
  int64_t prefetch = 4;
  OnError on_error = OnError::kFail;
};

struct DataSection : OptionsOf<DataSection> {
  void options(OptionVisitor& v) override;
  /// "train", "val" or "test"; null where the recipe has none.
  const Split* find(const std::string& name) const;

  const ComponentRegistry* registry = nullptr;
  std::string root = ".";
  Split train;
  std::optional<Split> val, test;
  Component tokenizer;  ///< Empty: text is read as bytes.
  CalibrationSection calibration;
};

struct BatchSection : OptionsOf<BatchSection> {
  void options(OptionVisitor& v) override;
  int64_t global = 1;  ///< Samples an update, over all ranks.
  AutoCount micro;     ///< Samples a pass of one rank; auto: global / ranks.
};

enum class FrozenBatchNorm { kFrozen, kUpdate };

struct FreezeItem : OptionsOf<FreezeItem> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> match, except;
  FrozenBatchNorm batch_norm = FrozenBatchNorm::kFrozen;
};

/// Parameters of the optimizer that a group of tensors has for itself; `lr: 10x` multiplies the optimizer's.
struct OptimizerGroup : OptionsOf<OptimizerGroup> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> match, except;
  std::optional<Multiple> lr, weight_decay, momentum;
};

struct OptimizerSection : OptionsOf<OptimizerSection> {
  void options(OptionVisitor& v) override;
  const ComponentRegistry* registry = nullptr;
  Component algorithm;
  OptionList groups;  ///< OptimizerGroup
};

enum class ClipType { kNorm, kValue };
struct ClipSection : OptionsOf<ClipSection> {
  void options(OptionVisitor& v) override;
  ClipType type = ClipType::kNorm;
  double max = 1.0;
};

struct EmaSection : OptionsOf<EmaSection> {
  void options(OptionVisitor& v) override;
  double decay = 0.9999;
  Duration every{1, DurationUnit::kSteps};
  bool warmup = false;
  bool buffers = true;
};

struct ValidateSection : OptionsOf<ValidateSection> {
  void options(OptionVisitor& v) override;
  Duration every{1, DurationUnit::kEpochs};
  std::optional<int64_t> samples;
};

struct EarlyStopSection : OptionsOf<EarlyStopSection> {
  void options(OptionVisitor& v) override;
  std::string metric;
  Duration patience{10, DurationUnit::kEpochs};
  double min_delta = 0;
};

enum class NanGuard { kStop, kIgnore };
struct GuardSection : OptionsOf<GuardSection> {
  void options(OptionVisitor& v) override;
  NanGuard nan = NanGuard::kStop;
};

enum class RecomputeMode { kFull, kSelective, kMatch };
struct RecomputeSection : OptionsOf<RecomputeSection> {
  void options(OptionVisitor& v) override;
  RecomputeMode mode = RecomputeMode::kMatch;
  std::vector<std::string> match;  ///< Modules, for kMatch.
};

struct TrainSection : OptionsOf<TrainSection> {
  void options(OptionVisitor& v) override;
  const ComponentRegistry* registry = nullptr;
  std::optional<Duration> duration;
  std::optional<BatchSection> batch;
  OptionList freeze;  ///< FreezeItem
  OptimizerSection optimizer;
  std::vector<Component> schedule;  ///< Empty: constant.
  std::optional<ClipSection> clip;
  std::optional<EmaSection> ema;
  std::optional<ValidateSection> validate = ValidateSection();
  std::optional<EarlyStopSection> early_stop;
  GuardSection guard;
  std::optional<RecomputeSection> recompute;
};

struct EvaluateSection : OptionsOf<EvaluateSection> {
  void options(OptionVisitor& v) override;
  std::string data = "val";
};

/// How a language model continues a prompt.
struct GenerateSection : OptionsOf<GenerateSection> {
  void options(OptionVisitor& v) override;
  int64_t max_new_tokens = 128;
  std::optional<double> temperature;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t beams = 1;
  std::vector<std::string> stop;
};

struct PredictSection : OptionsOf<PredictSection> {
  void options(OptionVisitor& v) override;
  int64_t top = 5;
  double min_score = 0;
  double threshold = 0.5;
  GenerateSection generate;
};

/// Values that galley-benchmark runs over, one cell for every combination. Each is a list; an item may be a range: 1..4, 1..8x2 (times
/// two), 2..10+4.
struct SweepSection : OptionsOf<SweepSection> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> batch, threads, precision, memory_format, weights;
};

/// Cells that agree with every key given here are left out.
struct ExcludeItem : OptionsOf<ExcludeItem> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> what, batch, threads, precision, memory_format;
};

struct StopSection : OptionsOf<StopSection> {
  void options(OptionVisitor& v) override;
  Percentage ci{1};
  int64_t min_runs = 10;
  Duration max_time{30, DurationUnit::kSeconds};
};

enum class CacheState { kHot, kCold };

struct BenchmarkSection : OptionsOf<BenchmarkSection> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> what{"forward"};
  std::vector<std::string> batch{"1"};
  SweepSection sweep;
  OptionList exclude;  ///< ExcludeItem
  AutoCount warmup;
  StopSection stop;
  CacheState cache = CacheState::kHot;
  Percentage equal_within{1};
};

struct ScheduleSection : OptionsOf<ScheduleSection> {
  void options(OptionVisitor& v) override;
  int64_t skip_first = 5, wait = 1, warmup = 2, active = 3, repeat = 1;
};

enum class ProfileKind { kAuto, kTrainStep, kForward };

struct ProfileSection : OptionsOf<ProfileSection> {
  void options(OptionVisitor& v) override;
  ProfileKind what = ProfileKind::kAuto;
  AutoCount batch;
  bool synthetic = false;
  ScheduleSection schedule;
};

struct BestSection : OptionsOf<BestSection> {
  void options(OptionVisitor& v) override;
  std::string metric;
  int64_t count = 1;
};
struct KeepSection : OptionsOf<KeepSection> {
  void options(OptionVisitor& v) override;
  int64_t last = 2;
  std::optional<BestSection> best;
};
struct CheckpointSection : OptionsOf<CheckpointSection> {
  void options(OptionVisitor& v) override;
  Duration every{1, DurationUnit::kEpochs};
  KeepSection keep;
};

struct LogSection : OptionsOf<LogSection> {
  void options(OptionVisitor& v) override;
  Duration every{50, DurationUnit::kSteps};
  bool tensorboard = true;
};

/// A recipe with all its values. `loss.type` is "auto" (params null) for the loss of the model's task.
struct Recipe : OptionsOf<Recipe> {
  explicit Recipe(const ComponentRegistry& components);
  void options(OptionVisitor& v) override;

  const ComponentRegistry* registry;
  int64_t version = 1;  // key `recipe`
  std::string name;
  std::string about;
  std::vector<std::string> include;                       ///< Followed by the loader: empty here.
  std::vector<std::pair<std::string, std::string>> vars;  ///< Put in place by the loader: empty here.
  int64_t seed = 0;
  Deterministic deterministic;
  DeviceName device;
  AutoCount threads;
  MemoryFormatChoice memory_format = MemoryFormatChoice::kAuto;
  PrecisionSection precision;
  Component model;
  WeightsSection weights;
  DataSection data;
  Component task;  ///< Type "auto" (params null): the model's, else what the loss says; empty: none, results are tensors only.
  Component loss;
  std::vector<std::string> metrics{"auto"};
  EvaluateSection evaluate;
  PredictSection predict;
  QuantizeSection quantize;
  BenchmarkSection benchmark;
  ProfileSection profile;
  TrainSection train;
  std::optional<CheckpointSection> checkpoint = CheckpointSection();
  LogSection log;
};

/// How a global batch is cut (recipe.md section 3): global = micro * accumulation * ranks.
struct BatchPlan {
  int64_t global = 0, micro = 0, accumulation = 1;
};
/// An Error that shows the sum where global is not a multiple of micro * ranks.
BatchPlan plan_batch(const BatchSection& batch, int64_t ranks = 1);

/// What the keys say together: split names exist, contradictory batch, things not available yet. Throws one Error with all.
void check_recipe(const Recipe& recipe);

}  // namespace galley
