#include "libcore/recipe/sections.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"
#include "libcore/recipe/weight_registry.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 4> kMemoryFormats{"auto", "contiguous", "channels_last", "channels_last_3d"};
constexpr std::array<std::string_view, 4> kPrecisions{"f32", "bf16", "f16", "f64"};
constexpr std::array<std::string_view, 3> kLastBatch{"wrap", "drop", "keep"};
constexpr std::array<std::string_view, 2> kOnError{"fail", "skip"};
constexpr std::array<std::string_view, 2> kFrozenBatchNorm{"frozen", "update"};
constexpr std::array<std::string_view, 2> kClipTypes{"norm", "value"};
constexpr std::array<std::string_view, 2> kNanGuards{"stop", "ignore"};
constexpr std::array<std::string_view, 3> kRecomputeModes{"full", "selective", "match"};
constexpr std::array<std::string_view, 2> kCacheStates{"hot", "cold"};
constexpr std::array<std::string_view, 3> kProfileKinds{"auto", "train_step", "forward"};
constexpr double kMaxBatch = 1 << 24;

// loss_scale: auto or a number.
struct AutoNumber : TextValue {
  explicit AutoNumber(std::optional<double>& v) : value(v) {}
  void parse(std::string_view text) override {
    if (text == "auto") {
      value.reset();
      return;
    }
    const double number = parse_number(text);
    GALLEY_CHECK(number > 0, "'", text, "' is not positive");
    value = number;
  }
  std::string str() const override { return value ? number_text(*value) : "auto"; }
  std::string_view grammar() const override { return "auto, or a positive number"; }
  std::optional<double>& value;
};

}  // namespace

void Deterministic::parse(std::string_view text) {
  if (text == "false" || text == "true") {
    threads = text == "true" ? 8 : 0;
    return;
  }
  threads = parse_count(text);
  GALLEY_CHECK(threads >= 1 && threads <= 1024, "'", text, "' is no logical thread count: 1 to 1024");
}

void DeviceName::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon), number = colon == std::string_view::npos ? "0" : text.substr(colon + 1);
  const auto all = [](std::string_view word, char first, char last) {
    return !word.empty() && std::all_of(word.begin(), word.end(), [=](char c) { return first <= c && c <= last; });
  };
  GALLEY_CHECK(all(name, 'a', 'z') && all(number, '0', '9') && number.size() <= 3, "'", text,
               "' is not a device: write cpu, ref, or a name and a number such as cuda:1");
  const std::vector<std::string> names{"cpu", "ref", "sim",
                                       "cuda"};  // also those that this build does not have: a recipe may be for another machine
  const std::string near = nearest(name, names);
  GALLEY_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "'", text,
               "' is not a device: ", near.empty() ? "there are cpu, ref, sim and cuda" : cat("did you mean '", near, "'?"));
  text_ = text;
}

void PrecisionSection::options(OptionVisitor& v) {
  v.choice({.name = "compute", .doc = "type of activations and of the parameters they meet", .main = true}, compute, kPrecisions);
  v.choice({.name = "master", .doc = "type in which the optimizer keeps parameters and state"}, master, kPrecisions);
  v.choice({.name = "reduce", .doc = "type of sums over ranks"}, reduce, kPrecisions);
  AutoNumber scale(loss_scale);
  v.text({.name = "loss_scale", .doc = "factor on the loss against underflow of f16 gradients"}, scale);
  v.option({.name = "tf32", .doc = "allow TF32 in matrix products and convolutions on GPUs"}, tf32);
  v.option({.name = "winograd",
            .doc = "3 x 3 convolutions may take fewer products by Winograd's minimal filtering; rounding errors of f32 are about twice "
                   "those of plain sums, integers are the same"},
           winograd);
  v.option(
      {.name = "chains", .doc = "element-wise functions that follow one another run in one pass over memory; results have the same bits"},
      chains);
  v.option(
      {.name = "keep_f32", .doc = "selectors of modules that compute in f32; parameters and statistics of norms are in f32 in any case"},
      keep_f32);
}

void WeightSource::options(OptionVisitor& v) {
  v.option({.name = "from",
            .doc = "a file (.safetensors, .pth, .onnx), a checkpoint, the folder of a run, MODEL/NAME of a published set, or default: the "
                   "published set of the model",
            .required = true,
            .main = true},
           from);
  v.option({.name = "ignore", .doc = "selectors of tensors that keep their initial values"}, ignore);
  v.pairs({.name = "rename", .doc = "prefixes of names in the file, and what they become, before matching"}, rename);
  v.option({.name = "into", .doc = "module that takes the weights; default: the whole model"}, into);
  v.option({.name = "strict", .doc = "missing and surplus names are errors"}, strict);
  v.option({.name = "cast", .doc = "convert the file's dtypes, each value rounded: files in f16, bf16 or f64"}, cast);
  v.option({.name = "check_finite", .doc = "values that are NaN or infinite are errors"}, check_finite);
}

const std::string& WeightSource::path() const { return published ? published->file : from; }

void WeightsSection::options(OptionVisitor& v) {
  v.list({.name = "load", .doc = "where initial weights come from; later ones win; null: none", .main = true}, load.items,
         make_options<WeightSource>);
}

void Shuffle::options(OptionVisitor& v) {
  v.option({.name = "enabled", .doc = "whether the order of samples is drawn anew each epoch", .main = true}, enabled);
  v.option({.name = "buffer", .doc = "samples held for shuffling a stream", .unit = "samples", .min = 1}, buffer);
}

void Split::options(OptionVisitor& v) {
  const ComponentRegistry none{};
  const ComponentRegistry& kinds = registry ? *registry : none;
  v.component({.name = "source", .doc = "where samples come from"}, source, kinds.sources);
  v.option({.name = "from", .doc = "another split whose source this one shares"}, from);
  v.components({.name = "pipeline",
                .doc = "what happens to each sample, in order; empty: only decoded; from_weights: what the weights were trained with",
                .word = "from_weights"},
               pipeline, kinds.transforms);
  v.option({.name = "slice", .doc = "part of the source, in counts or percent"}, slice);
  v.option({.name = "slice_seed", .doc = "takes the slice after a permutation with this seed", .min = 0}, slice_seed);
  v.section({.name = "shuffle", .doc = "order of the samples; default: true for train, false elsewhere"}, shuffle);
  v.choice(
      {.name = "last_batch", .doc = "wrap: batches run on into the next epoch; drop: an incomplete one is left out; keep: it is shorter"},
      last_batch, kLastBatch);
  v.text({.name = "batch", .doc = "samples a batch; auto: train.batch.micro. train itself takes train.batch"}, batch);
  v.components({.name = "batch_transforms", .doc = "what happens to whole batches (mixup, cutmix)"}, batch_transforms,
               kinds.batch_transforms);
  v.text({.name = "workers", .doc = "threads that load samples; the result does not depend on it"}, workers);
  v.option({.name = "prefetch", .doc = "how far loading runs ahead", .unit = "batches", .min = 1, .max = 1024}, prefetch);
  v.choice({.name = "on_error", .doc = "a sample that cannot be read: fail, or skip (counted and reported)"}, on_error, kOnError);
}

void DataSection::options(OptionVisitor& v) {
  for (std::optional<Split>* split : {&val, &test}) {
    if (*split) (*split)->registry = registry;
  }
  train.registry = registry;
  v.option({.name = "root", .doc = "folder where relative paths of sources start"}, root);
  v.section({.name = "train", .doc = "samples for training"}, train);
  // The optional splits need the registry before their options are walked.
  const auto optional_split = [&](const OptionInfo& info, std::optional<Split>& split) {
    if (!v.present(info, split.has_value())) {
      split.reset();
      return;
    }
    if (!split) {
      split.emplace();
      split->registry = registry;
    }
    v.section(info, *split);
  };
  optional_split({.name = "val", .doc = "samples for validation and galley-evaluate"}, val);
  optional_split({.name = "test", .doc = "samples kept for a last evaluation"}, test);
  v.section({.name = "calibration", .doc = "samples for galley-calibrate"}, calibration);
  const OptionInfo how{.name = "tokenizer", .doc = "how text becomes the integers that a language model reads; default: bytes"};
  if (v.present(how, static_cast<bool>(tokenizer))) {
    v.component(how, tokenizer, registry ? registry->tokenizers : ComponentKinds());
  } else {
    tokenizer = Component();
  }
}

const Split* DataSection::find(const std::string& name) const {
  if (name == "train") return &train;
  if (name == "val") return val ? &*val : nullptr;
  if (name == "test") return test ? &*test : nullptr;
  return nullptr;
}

void BatchSection::options(OptionVisitor& v) {
  v.option({.name = "global",
            .doc = "samples an update, over all ranks",
            .unit = "samples",
            .min = 1,
            .max = kMaxBatch,
            .required = true,
            .main = true},
           global);
  v.text({.name = "micro", .doc = "samples a pass of one rank; auto: global / ranks. Accumulation is global / (micro * ranks)"}, micro);
}

void FreezeItem::options(OptionVisitor& v) {
  v.option({.name = "match", .doc = "selectors of what is not trained", .required = true, .main = true}, match);
  v.option({.name = "except", .doc = "selectors of what is trained all the same"}, except);
  v.choice({.name = "batch_norm", .doc = "running statistics of frozen batch-norms: frozen (used, not updated) or update"}, batch_norm,
           kFrozenBatchNorm);
}

void OptimizerGroup::options(OptionVisitor& v) {
  v.option({.name = "match", .doc = "selectors of the parameters", .required = true, .main = true}, match);
  v.option({.name = "except", .doc = "selectors of parameters left out"}, except);
  v.option({.name = "lr", .doc = "learning rate of the group, or a multiple (10x) of the optimizer's"}, lr);
  v.option({.name = "weight_decay", .doc = "weight decay of the group, or a multiple"}, weight_decay);
  v.option({.name = "momentum", .doc = "momentum of the group, or a multiple"}, momentum);
}

void OptimizerSection::options(OptionVisitor& v) {
  const ComponentRegistry none{};
  v.component({.name = "", .doc = "the algorithm with its parameters"}, algorithm, (registry ? *registry : none).optimizers);
  v.list({.name = "groups", .doc = "parameters with settings of their own; each key comes from the first group that matches and sets it"},
         groups.items, make_options<OptimizerGroup>);
}

void ClipSection::options(OptionVisitor& v) {
  v.choice({.name = "type", .doc = "norm: all gradients together; value: each element"}, type, kClipTypes);
  v.option({.name = "max", .doc = "the bound", .min = 1e-30, .main = true}, max);
}

void EmaSection::options(OptionVisitor& v) {
  v.option({.name = "decay", .doc = "share of the old average that is kept", .min = 0, .max = 1, .main = true}, decay);
  v.text({.name = "every", .doc = "how often the average is updated"}, every);
  v.option({.name = "warmup", .doc = "start with a smaller decay: min(decay, (1 + n) / (10 + n)) at update n"}, warmup);
  v.option({.name = "buffers", .doc = "average buffers (running statistics) too, instead of copying them"}, buffers);
}

void ValidateSection::options(OptionVisitor& v) {
  v.text({.name = "every", .doc = "how often data.val is evaluated while training", .main = true}, every);
  v.option({.name = "samples", .doc = "at most so many samples; null: all", .min = 1}, samples);
}

void EarlyStopSection::options(OptionVisitor& v) {
  v.option({.name = "metric", .doc = "metric of the validation that must improve", .required = true, .main = true}, metric);
  v.text({.name = "patience", .doc = "how long without improvement"}, patience);
  v.option({.name = "min_delta", .doc = "smallest change that counts, in the metric's unit", .min = 0}, min_delta);
}

void GuardSection::options(OptionVisitor& v) {
  v.choice(
      {.name = "nan", .doc = "a loss that is not finite: stop (the step is replayed to name the tensor; exit 5) or ignore", .main = true},
      nan, kNanGuards);
}

void RecomputeSection::options(OptionVisitor& v) {
  v.choice(
      {.name = "mode",
       .doc = "full: each block keeps its input; selective: convolutions, matrix products and attention are kept; match: the modules named",
       .main = true},
      mode, kRecomputeModes);
  v.option({.name = "match", .doc = "selectors of modules whose inner values are recomputed"}, match);
}

void TrainSection::options(OptionVisitor& v) {
  const ComponentRegistry none{};
  optimizer.registry = registry;
  v.option({.name = "duration", .doc = "how long to train"}, duration);
  v.option({.name = "batch", .doc = "samples an update"}, batch);
  v.list({.name = "freeze", .doc = "parameters that are not trained"}, freeze.items, make_options<FreezeItem>);
  v.section({.name = "optimizer", .doc = "how parameters are updated"}, optimizer);
  v.components({.name = "schedule", .doc = "phases of the learning rate, in sequence; empty: constant"}, schedule,
               (registry ? *registry : none).schedules);
  v.option({.name = "clip", .doc = "bound on gradients; null: none"}, clip);
  v.option({.name = "ema", .doc = "running average of the weights; null: none"}, ema);
  v.option({.name = "validate", .doc = "evaluation while training; null: only at the end"}, validate);
  v.option({.name = "early_stop", .doc = "end when a metric stops improving; null: never"}, early_stop);
  v.section({.name = "guard", .doc = "what to do when numbers go wrong"}, guard);
  v.option({.name = "recompute", .doc = "trade time for memory by recomputing activations in the backward pass; null: off"}, recompute);
}

void EvaluateSection::options(OptionVisitor& v) {
  v.option({.name = "data", .doc = "split to evaluate: train, val or test", .main = true}, data);
}

void GenerateSection::options(OptionVisitor& v) {
  v.option({.name = "max_new_tokens", .doc = "tokens after the prompt", .min = 1}, max_new_tokens);
  v.option({.name = "temperature",
            .doc = "divides the logits before a token is drawn; 0: the most probable token; null: 1 with top_k, top_p or min_p, else 0",
            .min = 0},
           temperature);
  v.option({.name = "top_k", .doc = "draw from the k most probable tokens; 0: all", .min = 0}, top_k);
  v.option({.name = "top_p", .doc = "draw from the fewest tokens whose probabilities add up to this", .min = 0, .max = 1}, top_p);
  v.option({.name = "min_p", .doc = "draw from tokens of at least this share of the largest probability", .min = 0, .max = 1}, min_p);
  v.option({.name = "repetition_penalty", .doc = "above 1: tokens of the text so far become less probable", .min = 0.01},
           repetition_penalty);
  v.option({.name = "beams", .doc = "sequences that beam search keeps; 1: no beam search", .min = 1, .max = 64}, beams);
  v.option({.name = "stop", .doc = "texts before which generation ends"}, stop);
}

void PredictSection::options(OptionVisitor& v) {
  v.option({.name = "top", .doc = "classes shown for a sample, best first", .min = 1, .max = 100000, .main = true}, top);
  v.option({.name = "min_score", .doc = "classes below this score are left out", .min = 0, .max = 1}, min_score);
  v.option({.name = "threshold", .doc = "multi_label: a sample has the labels of at least this probability", .min = 0, .max = 1},
           threshold);
  v.section({.name = "generate", .doc = "how a language model continues a prompt"}, generate);
}

void SweepSection::options(OptionVisitor& v) {
  v.option({.name = "batch", .doc = "batch sizes; lists and ranges: 1,2,4 or 1..4 or 1..64x2"}, batch);
  v.option({.name = "threads", .doc = "thread counts"}, threads);
  v.option({.name = "precision", .doc = "values of precision.compute"}, precision);
  v.option({.name = "memory_format", .doc = "values of memory_format"}, memory_format);
  v.option({.name = "weights", .doc = "values of weights"}, weights);
}

void ExcludeItem::options(OptionVisitor& v) {
  v.option({.name = "what", .doc = "kinds of work"}, what);
  v.option({.name = "batch", .doc = "batch sizes"}, batch);
  v.option({.name = "threads", .doc = "thread counts"}, threads);
  v.option({.name = "precision", .doc = "number types"}, precision);
  v.option({.name = "memory_format", .doc = "memory formats"}, memory_format);
}

void StopSection::options(OptionVisitor& v) {
  v.text({.name = "ci", .doc = "a cell ends when the 95 % interval of its median is that narrow (half width over median)", .main = true},
         ci);
  v.option({.name = "min_runs", .doc = "runs at least", .min = 1, .max = 1e6}, min_runs);
  v.text({.name = "max_time", .doc = "time of a cell at most, warm-up included"}, max_time);
}

void BenchmarkSection::options(OptionVisitor& v) {
  v.option(
      {.name = "what",
       .doc =
           "kinds of work: forward (inference), train_step (an update), data (loading batches of data.train), load (reading the weights)",
       .main = true},
      what);
  v.option({.name = "batch", .doc = "samples a run"}, batch);
  v.section({.name = "sweep", .doc = "values to run over"}, sweep);
  v.list({.name = "exclude", .doc = "cells that are left out"}, exclude.items, make_options<ExcludeItem>);
  v.text({.name = "warmup", .doc = "runs before timing; auto: until two agree within 5 %"}, warmup);
  v.section({.name = "stop", .doc = "when a cell is measured well enough"}, stop);
  v.choice({.name = "cache", .doc = "hot: run after run; cold: caches are overwritten before each run"}, cache, kCacheStates);
  v.text({.name = "equal_within", .doc = "--compare: changes up to this share count as the same"}, equal_within);
}

void ScheduleSection::options(OptionVisitor& v) {
  v.option({.name = "skip_first", .doc = "steps before anything else, once", .min = 0, .max = 1e9}, skip_first);
  v.option({.name = "wait", .doc = "steps of a cycle that run unwatched", .min = 0, .max = 1e9}, wait);
  v.option({.name = "warmup", .doc = "steps that are watched and not counted", .min = 0, .max = 1e9}, warmup);
  v.option({.name = "active", .doc = "steps that are recorded", .min = 1, .max = 1e5, .main = true}, active);
  v.option({.name = "repeat", .doc = "cycles of wait, warmup and active", .min = 1, .max = 1e5}, repeat);
}

void ProfileSection::options(OptionVisitor& v) {
  v.choice({.name = "what",
            .doc = "train_step: updates; forward: inference; auto: updates where the recipe has train.batch and train.optimizer",
            .main = true},
           what, kProfileKinds);
  v.text({.name = "batch", .doc = "samples a step; auto: train.batch for updates, else data.val.batch or the micro batch"}, batch);
  v.option({.name = "synthetic", .doc = "random batches from memory instead of the recipe's data"}, synthetic);
  v.section({.name = "schedule", .doc = "which steps are recorded; at SIGUSR2 galley-train runs warmup and active"}, schedule);
}

void BestSection::options(OptionVisitor& v) {
  v.option({.name = "metric", .doc = "metric of the validation that ranks checkpoints", .required = true, .main = true}, metric);
  v.option({.name = "count", .doc = "how many of the best are kept", .min = 1, .max = 1000}, count);
}

void KeepSection::options(OptionVisitor& v) {
  v.option({.name = "last", .doc = "how many of the newest checkpoints are kept", .min = 1, .max = 100000, .main = true}, last);
  v.option({.name = "best", .doc = "also keep the best by a metric; null: none"}, best);
}

void CheckpointSection::options(OptionVisitor& v) {
  v.text({.name = "every", .doc = "how often the state for resuming is written", .main = true}, every);
  v.section({.name = "keep", .doc = "which checkpoints stay"}, keep);
}

void LogSection::options(OptionVisitor& v) {
  v.text({.name = "every", .doc = "how often metrics.jsonl gets a line; the first and the last step always", .main = true}, every);
  v.option({.name = "tensorboard", .doc = "write TensorBoard events too"}, tensorboard);
}

Recipe::Recipe(const ComponentRegistry& components) : registry(&components) {
  data.registry = train.registry = registry;
  data.train.registry = train.optimizer.registry = registry;
  data.train.shuffle = Shuffle(true);
  data.train.last_batch = LastBatch::kWrap;
  loss.type = "auto";
  task.type = "auto";
}

void Recipe::options(OptionVisitor& v) {
  data.registry = train.registry = registry;
  v.option({.name = "recipe", .doc = "version of the language: 1", .min = 1, .max = 1, .required = true}, version);
  v.option({.name = "name", .doc = "names the run: -o defaults to runs/NAME"}, name);
  v.option({.name = "about", .doc = "one line for galley-recipes ls"}, about);
  v.option({.name = "include", .doc = "recipes below this one, in order, later wins: a bare name is built-in, ./x.yaml is beside the file"},
           include);
  v.pairs({.name = "vars", .doc = "values of your own, for ${vars.NAME}"}, vars);
  v.option({.name = "seed", .doc = "of everything drawn: weights, order, augmentation, dropout", .min = 0}, seed);
  v.text({.name = "deterministic",
          .doc = "false: same machine and thread count repeat bit for bit; true: any number of threads gives the same bits"},
         deterministic);
  v.text({.name = "device", .doc = "where to compute"}, device);
  v.text({.name = "threads", .doc = "of one process; auto: the cores it may use"}, threads);
  v.choice({.name = "memory_format", .doc = "order of activations in memory; results agree within rounding"}, memory_format,
           kMemoryFormats);
  v.section({.name = "precision", .doc = "number types"}, precision);
  v.component({.name = "model", .doc = "a model by name with its parameters, or `layers`: written out layer by layer", .required = true},
              model, registry->models);
  v.section({.name = "weights", .doc = "initial weights"}, weights);
  v.section({.name = "data", .doc = "samples and what happens to them"}, data);
  const OptionInfo task_info{.name = "task",
                             .doc =
                                 "what the model is for: fields of targets, loss, metrics, predictions; auto: the model's, else what loss "
                                 "and output say; null: results are tensors only",
                             .word = "auto"};
  if (v.present(task_info, !task.type.empty())) {
    v.component(task_info, task, registry->tasks);
  } else {
    task = Component();
  }
  v.component({.name = "loss", .doc = "auto: the loss of the model's task", .word = "auto"}, loss, registry->losses);
  v.option({.name = "metrics", .doc = "names of metrics, or auto: those of the model's task"}, metrics);
  v.section({.name = "evaluate", .doc = "galley-evaluate"}, evaluate);
  v.section({.name = "predict", .doc = "galley-predict"}, predict);
  v.section({.name = "quantize", .doc = "galley-quantize and galley-calibrate; galley-train where the method is qat"}, quantize);
  v.section({.name = "benchmark", .doc = "galley-benchmark"}, benchmark);
  v.section({.name = "profile", .doc = "galley-profile"}, profile);
  v.section({.name = "train", .doc = "galley-train"}, train);
  v.option({.name = "checkpoint", .doc = "saving the state for resuming; null: only the final weights"}, checkpoint);
  v.section({.name = "log", .doc = "what is recorded while training"}, log);
}

BatchPlan plan_batch(const BatchSection& batch, int64_t ranks) {
  GALLEY_ASSERT(ranks >= 1);
  BatchPlan plan{.global = batch.global};
  if (!batch.micro.count) {
    if (batch.global % ranks != 0) {
      throw Error(ErrorCode::kRecipe, cat("train.batch: global ", batch.global, " is not a multiple of the ", ranks, " ranks"))
          .key("train.batch.global")
          .suggest(
              cat("the nearest are ", std::max<int64_t>(1, batch.global / ranks) * ranks, " and ", (batch.global / ranks + 1) * ranks));
    }
    plan.micro = batch.global / ranks;
    return plan;
  }
  plan.micro = *batch.micro.count;
  if (plan.micro < 1) throw Error(ErrorCode::kRecipe, "train.batch.micro is 0, allowed is auto or at least 1").key("train.batch.micro");
  const int64_t pass = plan.micro * ranks;
  if (batch.global % pass != 0) {
    const std::string product = ranks == 1 ? cat("micro ", plan.micro) : cat("micro ", plan.micro, " * ", ranks, " ranks = ", pass);
    const int64_t below = batch.global / pass * pass;
    throw Error(ErrorCode::kRecipe, cat("train.batch: global ", batch.global, " is not a multiple of ", product, " (", batch.global, " = ",
                                        batch.global / pass, " * ", pass, " + ", batch.global % pass, ")"))
        .key("train.batch")
        .suggest(below > 0 ? cat("global ", below, " or ", below + pass, " would do")
                           : cat("micro may be at most ", std::max<int64_t>(1, batch.global / ranks)));
  }
  plan.accumulation = batch.global / pass;
  return plan;
}

void check_recipe(const Recipe& recipe) {
  std::vector<Error> errors;
  const auto complain = [&](const std::string& key, const std::string& message, const std::string& cure) {
    Error error(ErrorCode::kRecipe, message);
    error.key(key);
    if (!cure.empty()) error.suggest(cure);
    errors.push_back(std::move(error));
  };
  if (recipe.deterministic.threads != 0) {
    complain("deterministic", cat("deterministic: ", recipe.deterministic.str(), " is not available yet"),
             "leave it out: the same machine and thread count repeat bit for bit without it");
  }
  const PrecisionSection& precision = recipe.precision;
  if (precision.master == PrecisionName::kBf16 || precision.master == PrecisionName::kF16) {
    complain("precision.master", "precision.master must be f32 or f64: updates are smaller than half precision resolves",
             "write master: f32");
  }
  for (const char* name : {"train", "val", "test"}) {
    const Split* split = recipe.data.find(name);
    if (!split) continue;
    const std::string key = cat("data.", name);
    if (split->source && !split->from.empty()) complain(key, cat("'", key, "' has both a source and `from`"), "remove one of them");
    if (!split->from.empty()) {
      const Split* other = split->from == name ? nullptr : recipe.data.find(split->from);
      if (!other || !other->source)
        complain(key + ".from", cat("'", key, ".from' is '", split->from, "': there is no other split of that name with a source"),
                 "name train, val or test");
    }
    if (split->batch.count && *split->batch.count == 0)
      complain(key + ".batch", cat("'", key, ".batch' is 0, allowed is auto or at least 1"), "");
  }
  if (recipe.evaluate.data != "train" && recipe.evaluate.data != "val" && recipe.evaluate.data != "test") {
    const std::string near = nearest(recipe.evaluate.data, {"train", "val", "test"});
    complain("evaluate.data", cat("'evaluate.data' is '", recipe.evaluate.data, "', allowed is one of: train, val, test"),
             near.empty() ? "" : cat("did you mean '", near, "'?"));
  }
  const CalibrationSection& calibration = recipe.data.calibration;
  const auto one_of = [&](const std::string& key, const std::string& value, const std::vector<std::string>& allowed) {
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    std::string all;
    for (const std::string& name : allowed) all += (all.empty() ? "" : ", ") + name;
    const std::string near = nearest(value, allowed);
    complain(key, cat("'", key, "' is '", value, "', allowed is one of: ", all), near.empty() ? "" : cat("did you mean '", near, "'?"));
  };
  one_of("data.calibration.from", calibration.from, {"train", "val", "test"});
  one_of("data.calibration.pipeline", calibration.pipeline, {"train", "val", "test", "from_weights"});
  if (calibration.batch.count && *calibration.batch.count == 0)
    complain("data.calibration.batch", "'data.calibration.batch' is 0, allowed is auto or at least 1", "");
  check_quantize(recipe.quantize, errors);
  const TrainSection& train = recipe.train;
  if (train.duration && train.duration->value == 0) complain("train.duration", "'train.duration' is 0", "give e.g. 1 epoch");
  if (train.duration && train.duration->unit == DurationUnit::kPercent) {
    complain("train.duration", "'train.duration' is in percent: of what?", "give epochs, steps, samples or a time");
  }
  if (train.batch) {
    try {
      plan_batch(*train.batch);
    } catch (const Error& error) {
      errors.push_back(error);
    }
  }
  if (train.early_stop && !train.validate) {
    complain("train.early_stop", "'train.early_stop' needs validations, and train.validate is null", "give train.validate.every");
  }
  if (train.recompute && train.recompute->mode == RecomputeMode::kMatch && train.recompute->match.empty()) {
    complain("train.recompute", "'train.recompute' names no modules", "write full, selective or {match: [...]}");
  }
  const auto positive = [&](const std::string& key, const Duration& every) {
    if (every.value <= 0) complain(key, cat("'", key, "' is ", every.str(), ": it must be more than nothing"), "");
  };
  if (train.validate) positive("train.validate.every", train.validate->every);
  if (train.ema) positive("train.ema.every", train.ema->every);
  if (recipe.checkpoint) positive("checkpoint.every", recipe.checkpoint->every);
  positive("log.every", recipe.log.every);
  if (errors.empty()) return;
  Error first = errors.front();
  for (size_t i = 1; i < errors.size(); ++i) first.also(errors[i]);
  throw first;
}

}  // namespace galley
