#pragma once
// The recipe as typed structs. Name, type, default, range and documentation of each key are declared once, in options() of its struct
// (sections.cpp); schema.h derives parser, dump, help, documentation and completion from them. Documentation of all keys:
// docs/recipe.md.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"
#include "libcore/ops/attention.h"
#include "libcore/recipe/quantize_section.h"
#include "libcore/recipe/sharding_section.h"

namespace galley {

struct PublishedWeights;

/// The components that a recipe may name. The other rooms supply the tables; the spans must outlive every Recipe.
struct ComponentRegistry {
  ComponentKinds models, sources, transforms, batch_transforms, optimizers, schedules, losses, tokenizers, tasks;
};

/// deterministic: false | true | a number of logical replicas.
struct Deterministic : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return replicas == 0 ? "false" : replicas == 8 ? "true" : std::to_string(replicas); }
  std::string_view grammar() const override { return "false, true, or a number of logical replicas (true = 8)"; }
  int64_t replicas = 0;  ///< 0: false.
};

/// device: cpu | ref | sim | cuda | cuda:N.
struct DeviceName : TextValue {
  void parse(std::string_view text) override;
  std::string str() const override { return text_; }
  std::string_view grammar() const override { return "cpu, ref (slow, for comparisons), sim (a test device), cuda or cuda:1"; }
  bool is_gpu() const { return text_ == "cuda" || text_.starts_with("cuda:"); }

 private:
  std::string text_ = "cpu";
};

enum class MemoryFormatChoice { kAuto, kContiguous, kChannelsLast, kChannelsLast3d };
enum class PrecisionName { kF32, kBf16, kF16, kF64 };

/// Activations that are multiplied by weights of 4 bits.
/// Activations of products with stored integer weights.
enum class StoredProducts : uint8_t { kInt8, kF32 };
inline constexpr std::array<std::string_view, 2> kStoredProductsNames{"int8", "f32"};

/// precision.
struct PrecisionSection : OptionsOf<PrecisionSection> {
  void options(OptionVisitor& v) override;
  PrecisionName compute = PrecisionName::kF32, master = PrecisionName::kF32, reduce = PrecisionName::kF32, buffers = PrecisionName::kF32;
  std::optional<double> loss_scale;  ///< Empty: auto.
  bool tf32 = false;
  bool winograd = true;
  bool chains = true;
  StoredProducts int4_activations = StoredProducts::kInt8, int8_activations = StoredProducts::kF32;
  std::vector<std::string> keep_f32{"type:norm"};
};

/// An item of weights.load.
struct WeightSource : OptionsOf<WeightSource> {
  void options(OptionVisitor& v) override;
  std::string from;
  std::vector<std::string> ignore;
  std::vector<std::pair<std::string, std::string>> rename;
  std::string into;
  bool strict = true;
  bool cast = false;
  bool check_finite = true;

  /// The registry's entry, if `from` names published weights. Set by resolve_weights; not part of the recipe's text.
  std::shared_ptr<const PublishedWeights> published;
  /// The file, checkpoint or RUN folder to read.
  const std::string& path() const;
};

/// Whether programs of inference keep weights in the form of their kernels in a file.
enum class PackedFile : uint8_t { kAuto, kWrite, kNone };

/// weights.
struct WeightsSection : OptionsOf<WeightsSection> {
  void options(OptionVisitor& v) override;
  OptionList load;  ///< WeightSource
  PackedFile packed = PackedFile::kAuto;
  /// The registry's entry of the model's default weights. Its pipeline is used if no other is known. Set by resolve_weights; not part of
  /// the recipe's text.
  std::shared_ptr<const PublishedWeights> model_default;
};

/// lora: low-rank adapters of linear layers (LoraOptions in nn/builder.h). Values that are not given are those of the folder `load`, else
/// defaults (lora.h).
struct LoraSection : OptionsOf<LoraSection> {
  void options(OptionVisitor& v) override;
  std::optional<int64_t> rank;
  std::optional<double> alpha, dropout;
  std::vector<std::string> match, train;
  std::optional<std::string> load;
};

/// data.SPLIT.shuffle.
struct Shuffle : OptionsOf<Shuffle> {
  Shuffle() = default;
  explicit Shuffle(bool on) : enabled(on) {}
  void options(OptionVisitor& v) override;
  bool enabled = true;
  std::optional<int64_t> buffer;  ///< Samples in the buffer that shuffles a stream.
};

enum class LastBatch { kWrap, kDrop, kKeep };
enum class OnError { kFail, kSkip };
/// What the padding around images of different size does in a network.
enum class PaddingRule {
  kImage,  ///< Nothing: each image is as if it were alone.
  kBatch,  ///< It counts as pixels of 0, as in torchvision.
};

/// One split of the data: train, val or test. The default constructor sets the defaults of val and test.
struct Split : OptionsOf<Split> {
  void options(OptionVisitor& v) override;
  /// Whether the pipeline comes from the weights (`pipeline: from_weights`).
  bool pipeline_from_weights() const { return pipeline.size() == 1 && pipeline[0].type == "from_weights" && !pipeline[0]; }

  const ComponentRegistry* registry = nullptr;
  Component source;  ///< Empty if `from` names another split.
  std::string from;
  std::vector<Component> pipeline;
  std::optional<Slice> slice;
  std::optional<int64_t> slice_seed;
  Shuffle shuffle{false};
  LastBatch last_batch = LastBatch::kKeep;
  AutoCount batch;  ///< Auto: train.batch.micro. Unused in train.
  std::vector<Component> batch_transforms;
  AutoCount workers;
  int64_t prefetch = 4;
  OnError on_error = OnError::kFail;
};

/// data.
struct DataSection : OptionsOf<DataSection> {
  void options(OptionVisitor& v) override;
  /// The split "train", "val" or "test"; null if the recipe does not have it.
  const Split* find(const std::string& name) const;

  const ComponentRegistry* registry = nullptr;
  std::string root = ".";
  Split train;
  std::optional<Split> val, test;
  PaddingRule padding = PaddingRule::kImage;
  Component tokenizer;  ///< Empty: text is read as bytes.
  CalibrationSection calibration;
};

/// train.batch.
struct BatchSection : OptionsOf<BatchSection> {
  void options(OptionVisitor& v) override;
  int64_t global = 1;  ///< Samples per update, over all ranks.
  AutoCount micro;     ///< Samples per pass of one rank; auto: global / ranks.
};

enum class FrozenBatchNorm { kFrozen, kUpdate };

/// An item of train.freeze.
struct FreezeItem : OptionsOf<FreezeItem> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> match, except;
  FrozenBatchNorm batch_norm = FrozenBatchNorm::kFrozen;
};

/// An item of train.optimizer.groups: optimizer parameters of some tensors. A multiple (`lr: 10x`) multiplies the optimizer's value.
struct OptimizerGroup : OptionsOf<OptimizerGroup> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> match, except;
  std::optional<Multiple> lr, weight_decay, momentum;
};

/// train.optimizer.
struct OptimizerSection : OptionsOf<OptimizerSection> {
  void options(OptionVisitor& v) override;
  const ComponentRegistry* registry = nullptr;
  Component algorithm;
  double layer_decay = 1;
  OptionList groups;  ///< OptimizerGroup
};

enum class ClipType { kNorm, kValue };
/// train.clip.
struct ClipSection : OptionsOf<ClipSection> {
  void options(OptionVisitor& v) override;
  ClipType type = ClipType::kNorm;
  double max = 1.0;
};

/// train.ema: exponential moving average of the weights.
struct EmaSection : OptionsOf<EmaSection> {
  void options(OptionVisitor& v) override;
  double decay = 0.9999;
  Duration every{1, DurationUnit::kSteps};
  bool warmup = false;
  bool buffers = true;
};

/// train.validate.
struct ValidateSection : OptionsOf<ValidateSection> {
  void options(OptionVisitor& v) override;
  Duration every{1, DurationUnit::kEpochs};
  std::optional<int64_t> samples;
  std::vector<std::string> prompts;
};

/// train.early_stop.
struct EarlyStopSection : OptionsOf<EarlyStopSection> {
  void options(OptionVisitor& v) override;
  std::string metric;
  Duration patience{10, DurationUnit::kEpochs};
  double min_delta = 0;
};

enum class NanGuard { kStop, kIgnore };
/// train.guard.
struct GuardSection : OptionsOf<GuardSection> {
  void options(OptionVisitor& v) override;
  NanGuard nan = NanGuard::kStop;
};

enum class RecomputeMode { kFull, kSelective, kMatch };
/// train.recompute.
struct RecomputeSection : OptionsOf<RecomputeSection> {
  void options(OptionVisitor& v) override;
  RecomputeMode mode = RecomputeMode::kMatch;
  std::vector<std::string> match;  ///< Selectors of modules, for kMatch.
};

/// train.
struct TrainSection : OptionsOf<TrainSection> {
  void options(OptionVisitor& v) override;
  const ComponentRegistry* registry = nullptr;
  std::optional<Duration> duration;
  std::optional<BatchSection> batch;
  OptionList freeze;  ///< FreezeItem
  OptimizerSection optimizer;
  std::vector<Component> schedule;  ///< Empty: constant.
  std::optional<ClipSection> clip;
  bool sync_batch_norm = false;
  std::optional<EmaSection> ema;
  std::optional<ValidateSection> validate = ValidateSection();
  std::optional<EarlyStopSection> early_stop;
  GuardSection guard;
  std::optional<RecomputeSection> recompute;
};

/// How the key-value cache of a language model stores numbers.
enum class CacheStorage : uint8_t { kF32, kBF16, kInt8 };
inline constexpr std::array<std::string_view, 3> kCacheStorageNames{"f32", "bf16", "int8"};

/// evaluate.
struct EvaluateSection : OptionsOf<EvaluateSection> {
  void options(OptionVisitor& v) override;
  std::string data = "val";
  std::optional<CacheStorage> cache;
};

/// predict.generate: how a language model continues a prompt.
struct GenerateSection : OptionsOf<GenerateSection> {
  void options(OptionVisitor& v) override;
  int64_t max_new_tokens = 128;
  std::optional<double> temperature;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t beams = 1;
  std::vector<std::string> stop;
  std::vector<int64_t> end_tokens;
  CacheStorage cache = CacheStorage::kF32;
};

/// predict.
struct PredictSection : OptionsOf<PredictSection> {
  void options(OptionVisitor& v) override;
  int64_t top = 5;
  double min_score = 0;
  double threshold = 0.5;
  std::string chat_template;
  GenerateSection generate;
};

/// benchmark.sweep: values that galley-benchmark combines, one cell per combination. Each key is a list; an item may be a range: 1..4,
/// 1..8x2 (steps times 2), 2..10+4 (steps of 4).
struct SweepSection : OptionsOf<SweepSection> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> batch, threads, precision, memory_format, weights;
};

/// An item of benchmark.exclude: removes the cells that match all of its keys.
struct ExcludeItem : OptionsOf<ExcludeItem> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> what, batch, threads, precision, memory_format;
};

/// benchmark.stop.
struct StopSection : OptionsOf<StopSection> {
  void options(OptionVisitor& v) override;
  Percentage ci{1};
  int64_t min_runs = 10;
  Duration max_time{30, DurationUnit::kSeconds};
};

enum class CacheState { kHot, kCold };

/// benchmark.
struct BenchmarkSection : OptionsOf<BenchmarkSection> {
  void options(OptionVisitor& v) override;
  std::vector<std::string> what{"forward"};
  std::vector<std::string> batch{"1"};
  int64_t tokens = 128;
  std::vector<int64_t> size;
  SweepSection sweep;
  OptionList exclude;  ///< ExcludeItem
  AutoCount warmup;
  StopSection stop;
  CacheState cache = CacheState::kHot;
  Percentage equal_within{1};
};

/// profile.schedule.
struct ScheduleSection : OptionsOf<ScheduleSection> {
  void options(OptionVisitor& v) override;
  int64_t skip_first = 5, wait = 1, warmup = 2, active = 3, repeat = 1;
};

enum class ProfileKind { kAuto, kTrainStep, kForward };

/// profile.
struct ProfileSection : OptionsOf<ProfileSection> {
  void options(OptionVisitor& v) override;
  ProfileKind what = ProfileKind::kAuto;
  AutoCount batch;
  bool synthetic = false;
  ScheduleSection schedule;
};

/// checkpoint.keep.best.
struct BestSection : OptionsOf<BestSection> {
  void options(OptionVisitor& v) override;
  std::string metric;
  int64_t count = 1;
};
/// checkpoint.keep.
struct KeepSection : OptionsOf<KeepSection> {
  void options(OptionVisitor& v) override;
  int64_t last = 2;
  std::optional<BestSection> best;
};
/// checkpoint.
struct CheckpointSection : OptionsOf<CheckpointSection> {
  void options(OptionVisitor& v) override;
  Duration every{1, DurationUnit::kEpochs};
  KeepSection keep;
};

/// log.
struct LogSection : OptionsOf<LogSection> {
  void options(OptionVisitor& v) override;
  Duration every{50, DurationUnit::kSteps};
  bool tensorboard = true;
};

/// A complete recipe. `loss.type` "auto" (params null) is the loss of the model's task.
struct Recipe : OptionsOf<Recipe> {
  explicit Recipe(const ComponentRegistry& components);
  void options(OptionVisitor& v) override;

  const ComponentRegistry* registry;
  int64_t version = 1;  ///< Key `recipe`.
  std::string name;
  std::string about;
  std::vector<std::string> include;                       ///< Empty: the loader has merged them.
  std::vector<std::pair<std::string, std::string>> vars;  ///< Empty: the loader has substituted them.
  int64_t seed = 0;
  Deterministic deterministic;
  DeviceName device;
  AutoCount threads;
  MemoryFormatChoice memory_format = MemoryFormatChoice::kAuto;
  PrecisionSection precision;
  AttentionAlgorithm attention = AttentionAlgorithm::kAuto;
  Component model;
  WeightsSection weights;
  std::optional<LoraSection> lora;
  DataSection data;
  Component task;  ///< Type "auto" (params null): the model's task, else that of the loss. Empty: no task, tensors only.
  Component loss;
  std::vector<std::string> metrics{"auto"};
  EvaluateSection evaluate;
  PredictSection predict;
  QuantizeSection quantize;
  BenchmarkSection benchmark;
  ProfileSection profile;
  TrainSection train;
  ShardingSection sharding;
  std::optional<CheckpointSection> checkpoint = CheckpointSection();
  LogSection log;
};

/// How a global batch is divided: global = micro * accumulation * ranks.
struct BatchPlan {
  int64_t global = 0, micro = 0, accumulation = 1;
};
/// Throws an Error (kRecipe) that shows the calculation if global is not a multiple of micro * ranks.
BatchPlan plan_batch(const BatchSection& batch, int64_t ranks = 1);

/// The same for deterministic: each of the logical replicas computes its part of the global batch at once; micro is that of the largest.
/// Throws an Error (kRecipe) if there are more replicas than samples, or more ranks than replicas.
BatchPlan plan_replicas(const BatchSection& batch, int64_t replicas, int64_t ranks = 1);

/// Checks keys that depend on each other: names of splits, contradictory batch sizes, features that are not available. Throws one Error
/// that holds all errors.
void check_recipe(const Recipe& recipe);

}  // namespace galley
