#include "libcore/recipe/sections.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"
#include "libcore/recipe/choice_names.h"
#include "libcore/recipe/optional_choice.h"
#include "libcore/recipe/weight_registry.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 3> kLastBatch{"wrap", "drop", "keep"};
constexpr std::array<std::string_view, 2> kPaddingRules{"image", "batch"};
constexpr std::array<std::string_view, 2> kOnError{"fail", "skip"};
constexpr std::array<std::string_view, 2> kFrozenBatchNorm{"frozen", "update"};
constexpr std::array<std::string_view, 2> kClipTypes{"norm", "value"};
constexpr std::array<std::string_view, 2> kNanGuards{"stop", "ignore"};
constexpr std::array<std::string_view, 3> kRecomputeModes{"full", "selective", "match"};
constexpr std::array<std::string_view, 2> kCacheStates{"hot", "cold"};
constexpr std::array<std::string_view, 3> kProfileKinds{"auto", "train_step", "forward"};
constexpr std::array<std::string_view, 3> kPackedFiles{"auto", "write", "none"};
constexpr double kMaxBatch = 1 << 24;

// precision.loss_scale: auto or a number.
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
    replicas = text == "true" ? 8 : 0;
    return;
  }
  replicas = parse_count(text);
  GALLEY_CHECK(replicas >= 1 && replicas <= 1024, "'", text, "' is not a number of logical replicas; write 1 to 1024");
}

void DeviceName::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon), number = colon == std::string_view::npos ? "0" : text.substr(colon + 1);
  const auto all = [](std::string_view word, char first, char last) {
    return !word.empty() && std::all_of(word.begin(), word.end(), [=](char c) { return first <= c && c <= last; });
  };
  GALLEY_CHECK(all(name, 'a', 'z') && all(number, '0', '9') && number.size() <= 3, "'", text,
               "' is not a device; write cpu, ref, or a name and a number such as cuda:1");
  const std::vector<std::string> names{"cpu", "ref", "sim",
                                       "cuda"};  // includes devices that this build lacks, since a recipe may be for another machine
  const std::string near = name == "gpu" ? "" : nearest(name, names);  // one letter from cpu, which is not what was meant
  GALLEY_CHECK(std::find(names.begin(), names.end(), name) != names.end(), "'", text,
               "' is not a device: ", near.empty() ? "write cpu, ref, sim or cuda" : cat("did you mean '", near, "'?"));
  text_ = text;
}

void PrecisionSection::options(OptionVisitor& v) {
  v.choice({.name = "compute", .doc = "dtype of activations, and of parameters in computations", .main = true}, compute, kPrecisionNames);
  v.choice({.name = "master", .doc = "dtype of the parameters and state that the optimizer keeps"}, master, kPrecisionNames);
  v.choice({.name = "reduce", .doc = "dtype of sums over ranks"}, reduce, kPrecisionNames);
  v.choice({.name = "buffers",
            .doc = "dtype in which a training run holds the running statistics of batch norms, also between steps; files have them in f32"},
           buffers, kPrecisionNames);
  AutoNumber scale(loss_scale);
  v.text(
      {.name = "loss_scale",
       .doc = "factor on the loss that prevents underflow of f16 gradients; auto: with compute: f16, 65536 at first, half of it after each "
              "update whose gradients are not finite, which is skipped, and twice after 2000 others; without f16, none"},
      scale);
  v.option({.name = "tf32", .doc = "allow TF32 in matrix products and convolutions on GPUs"}, tf32);
  v.option(
      {.name = "winograd",
       .doc =
           "allow Winograd's minimal filtering for 3 x 3 convolutions: fewer products; f32 rounding errors are about twice those of plain "
           "sums, integer results are the same"},
      winograd);
  v.option({.name = "chains", .doc = "run consecutive element-wise functions in one pass over memory; results are bit-identical"}, chains);
  v.choice({.name = "int4_activations",
            .doc = "activations of products with weights stored in 4 bits; int8: each 32 of a row are rounded to 8 bits with a scale of "
                   "their own and multiplied as integers, about twice as fast; f32: exact"},
           int4_activations, kStoredProductsNames);
  v.choice({.name = "int8_activations",
            .doc = "the same for weights stored in 8 bits, in products of more than 16 rows: prompts and evaluations"},
           int8_activations, kStoredProductsNames);
  v.option({.name = "keep_f32", .doc = "selectors of modules that compute in f32; parameters and statistics of norms are always f32"},
           keep_f32);
}

void WeightSource::options(OptionVisitor& v) {
  v.option({.name = "from",
            .doc = "a file (.safetensors, .pth, .onnx), a checkpoint, the folder of a run or of a model hub, MODEL/NAME of a published "
                   "set, or default (the "
                   "published set of the model)",
            .required = true,
            .main = true},
           from);
  v.option({.name = "ignore", .doc = "selectors of tensors that keep their initial values"}, ignore);
  v.pairs({.name = "rename", .doc = "prefixes of names in the file and their replacements, applied before matching"}, rename);
  v.option({.name = "into", .doc = "module to load the weights into; default: the whole model"}, into);
  v.option({.name = "strict", .doc = "report missing and unexpected names as errors"}, strict);
  v.option({.name = "cast", .doc = "convert other dtypes of the file (f16, bf16, f64), rounding each value"}, cast);
  v.option({.name = "check_finite", .doc = "report NaN and infinite values as errors"}, check_finite);
}

const std::string& WeightSource::path() const { return published ? published->file : from; }

void WeightsSection::options(OptionVisitor& v) {
  v.list({.name = "load", .doc = "sources of initial weights, in order; later ones take precedence; null: none", .main = true}, load.items,
         make_options<WeightSource>);
  v.choice(
      {.name = "packed",
       .doc = "inference: a second file beside the weights that holds them as kernels read them; write: create it where it is missing; "
              "auto: use it where it exists; none: neither"},
      packed, kPackedFiles);
}

void LoraSection::options(OptionVisitor& v) {
  v.option({.name = "rank", .doc = "rank of the adapters; null: that of `load`, or 8", .min = 1}, rank);
  v.option({.name = "alpha", .doc = "the adapter's product is multiplied by alpha / rank; null: that of `load`, or rank", .min = 0}, alpha);
  v.option({.name = "dropout", .doc = "dropout of the adapter's input; null: that of `load`, or 0", .min = 0, .max = 1}, dropout);
  v.option({.name = "match", .doc = "selectors of the linear layers that get an adapter; empty: those of `load`", .main = true}, match);
  v.option({.name = "train",
            .doc = "selectors of parameters that are trained in full besides the adapters, e.g. a new classifier; all others are frozen"},
           train);
  v.option({.name = "load",
            .doc = "folder with adapter_config.json and adapter_model.safetensors (PEFT's layout), whose values the adapters start from"},
           load);
}

void Shuffle::options(OptionVisitor& v) {
  v.option({.name = "enabled", .doc = "draw a new order of the samples for each epoch", .main = true}, enabled);
  v.option({.name = "buffer", .doc = "size of the buffer that shuffles a stream", .unit = "samples", .min = 1}, buffer);
}

void Split::options(OptionVisitor& v) {
  const ComponentRegistry none{};
  const ComponentRegistry& kinds = registry ? *registry : none;
  v.component({.name = "source", .doc = "where samples are read from"}, source, kinds.sources);
  v.option({.name = "from", .doc = "another split whose source this one shares"}, from);
  v.components({.name = "pipeline",
                .doc = "transforms of each sample, in order; empty: decode only; from_weights: the pipeline stored with the weights",
                .word = "from_weights"},
               pipeline, kinds.transforms);
  v.option({.name = "slice", .doc = "part of the source to use, in samples or percent"}, slice);
  v.option({.name = "slice_seed", .doc = "seed of a permutation of the source before the slice is taken", .min = 0}, slice_seed);
  v.section({.name = "shuffle", .doc = "order of the samples; default: true for train, false elsewhere"}, shuffle);
  v.choice({.name = "last_batch",
            .doc = "wrap: fill the last batch from the next epoch; drop: skip an incomplete batch; keep: use it as a shorter batch"},
           last_batch, kLastBatch);
  v.text({.name = "batch", .doc = "samples per batch; auto: train.batch.micro. Unused in data.train, which uses train.batch"}, batch);
  v.components({.name = "batch_transforms", .doc = "transforms of whole batches (mixup, cutmix)"}, batch_transforms,
               kinds.batch_transforms);
  v.text({.name = "workers", .doc = "number of threads that load samples; does not affect results"}, workers);
  v.option({.name = "prefetch", .doc = "number of batches to load in advance", .unit = "batches", .min = 1, .max = 1024}, prefetch);
  v.choice({.name = "on_error", .doc = "samples that cannot be read: fail, or skip (counted and reported)"}, on_error, kOnError);
}

void DataSection::options(OptionVisitor& v) {
  for (std::optional<Split>* split : {&val, &test}) {
    if (*split) (*split)->registry = registry;
  }
  train.registry = registry;
  v.option({.name = "root", .doc = "folder to which paths of sources are relative"}, root);
  v.section({.name = "train", .doc = "samples for training"}, train);
  // The optional splits need the registry before their options are visited.
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
  optional_split({.name = "test", .doc = "samples for a final test"}, test);
  v.choice(
      {.name = "padding",
       .doc = "images of different size in a batch (pad_to) - image: layers see zeros outside each image's own size, and averages leave "
              "them out, so that an image has the same result alone and in a batch; batch: padding counts as pixels, as in torchvision"},
      padding, kPaddingRules);
  v.section({.name = "calibration", .doc = "samples for galley-calibrate"}, calibration);
  const OptionInfo info{.name = "tokenizer", .doc = "converts text to the token ids that a language model reads; default: bytes"};
  if (v.present(info, static_cast<bool>(tokenizer))) {
    v.component(info, tokenizer, registry ? registry->tokenizers : ComponentKinds());
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
            .doc = "samples per update, over all ranks",
            .unit = "samples",
            .min = 1,
            .max = kMaxBatch,
            .required = true,
            .main = true},
           global);
  v.text({.name = "micro",
          .doc = "samples per pass of one rank; auto: global / ranks, with pipelines about four passes for each stage. Gradients of global "
                 "/ (micro * ranks) passes are accumulated"},
         micro);
}

void FreezeItem::options(OptionVisitor& v) {
  v.option({.name = "match", .doc = "selectors of parameters and modules that are not trained", .required = true, .main = true}, match);
  v.option({.name = "except", .doc = "selectors of exceptions, which are trained"}, except);
  v.choice({.name = "batch_norm", .doc = "running statistics of frozen batch norms: frozen (used, not updated) or update"}, batch_norm,
           kFrozenBatchNorm);
}

void OptimizerGroup::options(OptionVisitor& v) {
  v.option({.name = "match", .doc = "selectors of the parameters", .required = true, .main = true}, match);
  v.option({.name = "except", .doc = "selectors of parameters to exclude"}, except);
  v.option({.name = "lr", .doc = "learning rate of the group, or a multiple (10x) of the optimizer's"}, lr);
  v.option({.name = "weight_decay", .doc = "weight decay of the group, or a multiple of the optimizer's"}, weight_decay);
  v.option({.name = "momentum", .doc = "momentum of the group, or a multiple of the optimizer's"}, momentum);
}

void OptimizerSection::options(OptionVisitor& v) {
  const ComponentRegistry none{};
  v.component({.name = "", .doc = "the optimizer with its parameters"}, algorithm, (registry ? *registry : none).optimizers);
  v.option({.name = "layer_decay",
            .doc = "factor of the learning rate from each layer to the one below: embeddings have its power L + 1 for L blocks",
            .min = 0,
            .max = 1},
           layer_decay);
  v.list({.name = "groups", .doc = "settings of some parameters; each key comes from the first matching group that sets it"}, groups.items,
         make_options<OptimizerGroup>);
}

void ClipSection::options(OptionVisitor& v) {
  v.choice({.name = "type", .doc = "norm: scale all gradients by their global norm; value: clip each element"}, type, kClipTypes);
  v.option({.name = "max", .doc = "largest norm or absolute value", .min = 1e-30, .main = true}, max);
}

void EmaSection::options(OptionVisitor& v) {
  v.option({.name = "decay", .doc = "weight of the previous average", .min = 0, .max = 1, .main = true}, decay);
  v.text({.name = "every", .doc = "how often the average is updated"}, every);
  v.option({.name = "warmup", .doc = "increase the decay from a small value: min(decay, (1 + n) / (10 + n)) at update n"}, warmup);
  v.option({.name = "buffers", .doc = "average buffers (running statistics) as well; false: copy them"}, buffers);
}

void ValidateSection::options(OptionVisitor& v) {
  v.text({.name = "every", .doc = "interval of evaluations on data.val", .main = true}, every);
  v.option({.name = "samples", .doc = "largest number of samples per evaluation; null: all", .min = 1}, samples);
  v.option(
      {.name = "prompts", .doc = "language models: texts that are continued after each evaluation, with the options of predict.generate"},
      prompts);
}

void EarlyStopSection::options(OptionVisitor& v) {
  v.option({.name = "metric", .doc = "validation metric that must improve; ema/NAME: of averages", .required = true, .main = true}, metric);
  v.text({.name = "patience", .doc = "how long to wait for an improvement"}, patience);
  v.option({.name = "min_delta", .doc = "smallest change that counts as an improvement, in the metric's unit", .min = 0}, min_delta);
}

void GuardSection::options(OptionVisitor& v) {
  v.choice({.name = "nan",
            .doc = "reaction to a loss that is not finite: stop (the step is repeated to find the tensor; exit 5) or ignore",
            .main = true},
           nan, kNanGuards);
}

void RecomputeSection::options(OptionVisitor& v) {
  v.choice(
      {.name = "mode",
       .doc = "full: keep only the input of each block; selective: keep results of convolutions, matrix products and attention; match: "
              "recompute the modules in `match`",
       .main = true},
      mode, kRecomputeModes);
  v.option({.name = "match", .doc = "selectors of modules whose internal activations are recomputed"}, match);
}

void TrainSection::options(OptionVisitor& v) {
  const ComponentRegistry none{};
  optimizer.registry = registry;
  v.option({.name = "duration", .doc = "how long to train"}, duration);
  v.option({.name = "batch", .doc = "batch size"}, batch);
  v.list({.name = "freeze", .doc = "parameters that are not trained"}, freeze.items, make_options<FreezeItem>);
  v.section({.name = "optimizer", .doc = "the optimizer, which updates the parameters"}, optimizer);
  v.components({.name = "schedule", .doc = "phases of the learning-rate schedule, in order; empty: constant"}, schedule,
               (registry ? *registry : none).schedules);
  v.option({.name = "clip", .doc = "gradient clipping; null: off"}, clip);
  v.option({.name = "sync_batch_norm",
            .doc = "batch norms normalize by the statistics of all ranks (with deterministic: of all replicas), instead of those of their "
                   "own samples"},
           sync_batch_norm);
  v.option({.name = "ema", .doc = "exponential moving average of the weights; null: off"}, ema);
  v.option({.name = "validate", .doc = "validation during training; null: only after the last step, on all of data.val"}, validate);
  v.option({.name = "early_stop", .doc = "stop when a metric no longer improves; null: off"}, early_stop);
  v.section({.name = "guard", .doc = "reaction to values that are not finite"}, guard);
  v.option({.name = "recompute", .doc = "recompute activations in the backward pass to save memory; null: off"}, recompute);
}

void EvaluateSection::options(OptionVisitor& v) {
  v.option({.name = "data", .doc = "split to evaluate: train, val or test", .main = true}, data);
  optional_choice(v,
                  {.name = "cache",
                   .doc = "language models: read keys and values as a cache of this kind stores them, as generation does; null: without a "
                          "cache"},
                  cache, kCacheStorageNames);
}

void GenerateSection::options(OptionVisitor& v) {
  v.option({.name = "max_new_tokens", .doc = "largest number of tokens to generate", .min = 1}, max_new_tokens);
  v.option({.name = "temperature",
            .doc = "divisor of the logits before sampling; 0: take the most probable token; null: 1 with top_k, top_p or min_p, else 0",
            .min = 0},
           temperature);
  v.option({.name = "top_k", .doc = "sample from the k most probable tokens; 0: all", .min = 0}, top_k);
  v.option({.name = "top_p", .doc = "sample from the smallest set of tokens whose probabilities add up to this", .min = 0, .max = 1},
           top_p);
  v.option({.name = "min_p", .doc = "sample from tokens with at least this fraction of the largest probability", .min = 0, .max = 1},
           min_p);
  v.option({.name = "repetition_penalty", .doc = "above 1: makes tokens of the preceding text less probable", .min = 0.01},
           repetition_penalty);
  v.option({.name = "beams", .doc = "number of sequences in beam search; 1: no beam search", .min = 1, .max = 64}, beams);
  v.option({.name = "stop", .doc = "texts that end the generation; not part of the output"}, stop);
  v.option({.name = "end_tokens", .doc = "ids of tokens that end the generation, as eos_token_id of a hub folder", .min = 0}, end_tokens);
  v.choice(
      {.name = "cache",
       .doc = "how keys and values of past tokens are stored; bf16: half the memory of f32; int8: a quarter, with a scale for each token "
              "and head"},
      cache, kCacheStorageNames);
}

void PredictSection::options(OptionVisitor& v) {
  v.option({.name = "top",
            .doc = "number of classes to print per sample, best first; a detector prints all boxes of at least min_score",
            .min = 1,
            .max = 100000,
            .main = true},
           top);
  v.option({.name = "min_score", .doc = "smallest score of a class to print", .min = 0, .max = 1}, min_score);
  v.option({.name = "threshold",
            .doc = "multi_label: smallest probability of a predicted label; detection: smallest score of a box that --draw draws",
            .min = 0,
            .max = 1},
           threshold);
  v.option({.name = "chat_template",
            .doc = "chat_template.jinja, a tokenizer_config.json, or a folder with either; default: the folder of data.tokenizer"},
           chat_template);
  v.section({.name = "generate", .doc = "how a language model continues a prompt"}, generate);
}

void SweepSection::options(OptionVisitor& v) {
  v.option({.name = "batch", .doc = "batch sizes: a list or a range, 1,2,4 or 1..4 or 1..64x2"}, batch);
  v.option({.name = "threads", .doc = "thread counts"}, threads);
  v.option({.name = "precision", .doc = "values of precision.compute"}, precision);
  v.option({.name = "memory_format", .doc = "values of memory_format"}, memory_format);
  v.option({.name = "weights", .doc = "values of weights"}, weights);
}

void ExcludeItem::options(OptionVisitor& v) {
  v.option({.name = "what", .doc = "kinds of work"}, what);
  v.option({.name = "batch", .doc = "batch sizes"}, batch);
  v.option({.name = "threads", .doc = "thread counts"}, threads);
  v.option({.name = "precision", .doc = "values of precision.compute"}, precision);
  v.option({.name = "memory_format", .doc = "memory formats"}, memory_format);
}

void StopSection::options(OptionVisitor& v) {
  v.text({.name = "ci", .doc = "target for the 95 % confidence interval of the median: half width divided by the median", .main = true},
         ci);
  v.option({.name = "min_runs", .doc = "smallest number of runs per cell", .min = 1, .max = 1e6}, min_runs);
  v.text({.name = "max_time", .doc = "largest time per cell, including warm-up"}, max_time);
}

void BenchmarkSection::options(OptionVisitor& v) {
  v.option(
      {.name = "what",
       .doc =
           "kinds of work: forward (inference), train_step (an update), decode (the next token of each sequence), prefill (read prompts), "
           "data (load batches of data.train), load (read the weights)",
       .main = true},
      what);
  v.option({.name = "batch", .doc = "samples per run"}, batch);
  v.option({.name = "tokens", .doc = "decode: tokens in the cache; prefill: tokens of a prompt", .min = 1, .max = 1e6}, tokens);
  v.option({.name = "size",
            .doc = "[height, width] of random images, or one number for a square; missing: the canvas of an item pad_to of data.val or "
                   "data.train, or the model's usual size",
            .unit = "pixels",
            .min = 1,
            .max = 16384},
           size);
  v.section({.name = "sweep", .doc = "values to combine"}, sweep);
  v.list({.name = "exclude", .doc = "cells to skip"}, exclude.items, make_options<ExcludeItem>);
  v.text({.name = "warmup", .doc = "runs before the timing starts; auto: until two consecutive runs agree within 5 %"}, warmup);
  v.section({.name = "stop", .doc = "when the measurement of a cell ends"}, stop);
  v.choice({.name = "cache", .doc = "hot: runs directly follow each other; cold: overwrite the caches before each run"}, cache,
           kCacheStates);
  v.text({.name = "equal_within", .doc = "--compare: changes up to this count as equal"}, equal_within);
}

void ScheduleSection::options(OptionVisitor& v) {
  v.option({.name = "skip_first", .doc = "steps to skip at the start, once", .min = 0, .max = 1e9}, skip_first);
  v.option({.name = "wait", .doc = "steps of a cycle without profiling", .min = 0, .max = 1e9}, wait);
  v.option({.name = "warmup", .doc = "steps of a cycle with profiling, whose records are discarded", .min = 0, .max = 1e9}, warmup);
  v.option({.name = "active", .doc = "steps of a cycle that are recorded", .min = 1, .max = 1e5, .main = true}, active);
  v.option({.name = "repeat", .doc = "number of cycles of wait, warmup and active", .min = 1, .max = 1e5}, repeat);
}

void ProfileSection::options(OptionVisitor& v) {
  v.choice(
      {.name = "what",
       .doc = "train_step: updates; forward: inference; auto: train_step if the recipe has train.batch and train.optimizer, else forward",
       .main = true},
      what, kProfileKinds);
  v.text({.name = "batch", .doc = "samples per step; auto: train.batch for train_step, else data.val.batch or the micro batch"}, batch);
  v.option({.name = "synthetic", .doc = "use random batches in memory instead of the recipe's data"}, synthetic);
  v.section({.name = "schedule", .doc = "which steps are recorded; galley-train runs warmup and active on SIGUSR2"}, schedule);
}

void BestSection::options(OptionVisitor& v) {
  v.option({.name = "metric", .doc = "metric that ranks checkpoints; ema/NAME: of averages", .required = true, .main = true}, metric);
  v.option({.name = "count", .doc = "number of best checkpoints to keep", .min = 1, .max = 1000}, count);
}

void KeepSection::options(OptionVisitor& v) {
  v.option({.name = "last", .doc = "number of latest checkpoints to keep", .min = 1, .max = 100000, .main = true}, last);
  v.option({.name = "best", .doc = "also keep the best checkpoints by a metric; null: off"}, best);
}

void CheckpointSection::options(OptionVisitor& v) {
  v.text({.name = "every", .doc = "interval of checkpoints", .main = true}, every);
  v.section({.name = "keep", .doc = "which checkpoints to keep"}, keep);
}

void LogSection::options(OptionVisitor& v) {
  v.text({.name = "every", .doc = "interval of lines in metrics.jsonl; the first and the last step are always logged", .main = true},
         every);
  v.option({.name = "tensorboard", .doc = "also write TensorBoard events"}, tensorboard);
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
  v.option({.name = "recipe", .doc = "version of the recipe language", .min = 1, .max = 1, .required = true}, version);
  v.option({.name = "name", .doc = "name of the run; -o defaults to runs/NAME"}, name);
  v.option({.name = "about", .doc = "description in one line, printed by galley-recipes ls"}, about);
  v.option({.name = "include",
            .doc = "recipes that this one extends, in order; later ones take precedence. A bare name is built-in, ./x.yaml is relative to "
                   "this file"},
           include);
  v.pairs({.name = "vars", .doc = "your variables, for ${vars.NAME}"}, vars);
  v.option({.name = "seed", .doc = "seed of all random numbers: initial weights, order, augmentation, dropout", .min = 0}, seed);
  v.text(
      {.name = "deterministic",
       .doc = "false: results are bit-identical on the same machine with the same number of threads; true or a number V: training computes "
              "each batch as V logical replicas, so that results are bit-identical with any number of threads and of ranks up to V, and "
              "for sharding ddp, zero1, zero2, fsdp and pipeline. On device cuda it is one kind of GPU that gives equal bits, and false "
              "allows algorithms whose sums differ between runs"},
      deterministic);
  v.text({.name = "device", .doc = "device to compute on"}, device);
  v.text({.name = "threads", .doc = "threads of a process; auto: the number of cores it may use"}, threads);
  v.choice({.name = "memory_format", .doc = "memory format of activations; results agree within rounding"}, memory_format,
           kMemoryFormatNames);
  v.section({.name = "precision", .doc = "dtypes and numerical options"}, precision);
  v.choice({.name = "attention",
            .doc = "how attention is computed. flash: one kernel that never stores the scores; memory_efficient: blocks of query rows, "
                   "whose scores the backward pass computes again, without dropout; math: stores all scores; auto: flash where the "
                   "device has such a kernel, else by the size of the scores. The plan and --verbose=passes print the choice"},
           attention, kAttentionAlgorithmNames);
  v.component({.name = "model", .doc = "a model and its parameters, or type `layers` with a list of layers", .required = true}, model,
              registry->models);
  v.section({.name = "weights", .doc = "initial weights"}, weights);
  v.option(
      {.name = "lora",
       .doc = "low-rank adapters of linear layers (LoRA, Hu et al. 2021), which are trained instead of the model's parameters; null: none"},
      lora);
  v.section({.name = "data", .doc = "data sets and preprocessing"}, data);
  const OptionInfo task_info{
      .name = "task",
      .doc =
          "the task, which determines target fields, loss, metrics and predictions; auto: the model's, else derived from loss "
          "and output; null: no task, tensors only",
      .word = "auto"};
  if (v.present(task_info, !task.type.empty())) {
    v.component(task_info, task, registry->tasks);
  } else {
    task = Component();
  }
  v.component({.name = "loss", .doc = "loss function; auto: the loss of the model's task", .word = "auto"}, loss, registry->losses);
  v.option({.name = "metrics", .doc = "metrics by name; auto: those of the model's task"}, metrics);
  v.section({.name = "evaluate", .doc = "galley-evaluate"}, evaluate);
  v.section({.name = "predict", .doc = "galley-predict"}, predict);
  v.section({.name = "quantize", .doc = "quantization: galley-quantize, galley-calibrate, and galley-train with method: qat"}, quantize);
  v.section({.name = "benchmark", .doc = "galley-benchmark"}, benchmark);
  v.section({.name = "profile", .doc = "galley-profile"}, profile);
  v.section({.name = "train", .doc = "galley-train"}, train);
  v.section({.name = "sharding", .doc = "how ranks divide the model: galley-plan, and galley-train on several ranks"}, sharding);
  v.option({.name = "checkpoint", .doc = "checkpoints for resuming; null: write only the final weights"}, checkpoint);
  v.section({.name = "log", .doc = "what is logged during training"}, log);
}

void check_recipe(const Recipe& recipe) {
  std::vector<Error> errors;
  const auto complain = [&](const std::string& key, const std::string& message, const std::string& remedy) {
    Error error(ErrorCode::kRecipe, message);
    error.key(key);
    if (!remedy.empty()) error.suggest(remedy);
    errors.push_back(std::move(error));
  };
  const PrecisionSection& precision = recipe.precision;
  if (precision.master == PrecisionName::kBf16 || precision.master == PrecisionName::kF16) {
    complain("precision.master", "precision.master must be f32 or f64, since half precision cannot represent small updates",
             "write master: f32");
  }
  for (const char* name : {"train", "val", "test"}) {
    const Split* split = recipe.data.find(name);
    if (!split) continue;
    const std::string key = cat("data.", name);
    if (split->source && !split->from.empty()) complain(key, cat("'", key, "' has both `source` and `from`"), "remove one of them");
    if (!split->from.empty()) {
      const Split* other = split->from == name ? nullptr : recipe.data.find(split->from);
      if (!other || !other->source)
        complain(key + ".from", cat("'", key, ".from' is '", split->from, "', but no other split of that name has a source"),
                 "write train, val or test");
    }
    if (split->batch.count && *split->batch.count == 0)
      complain(key + ".batch", cat("'", key, ".batch' is 0; it must be auto or at least 1"), "");
  }
  if (recipe.evaluate.data != "train" && recipe.evaluate.data != "val" && recipe.evaluate.data != "test") {
    const std::string near = nearest(recipe.evaluate.data, {"train", "val", "test"});
    complain("evaluate.data", cat("'evaluate.data' is '", recipe.evaluate.data, "'; it must be one of: train, val, test"),
             near.empty() ? "" : cat("did you mean '", near, "'?"));
  }
  const CalibrationSection& calibration = recipe.data.calibration;
  const auto one_of = [&](const std::string& key, const std::string& value, const std::vector<std::string>& allowed) {
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    std::string all;
    for (const std::string& name : allowed) all += (all.empty() ? "" : ", ") + name;
    const std::string near = nearest(value, allowed);
    complain(key, cat("'", key, "' is '", value, "'; it must be one of: ", all), near.empty() ? "" : cat("did you mean '", near, "'?"));
  };
  one_of("data.calibration.from", calibration.from, {"train", "val", "test"});
  one_of("data.calibration.pipeline", calibration.pipeline, {"train", "val", "test", "from_weights"});
  if (calibration.batch.count && *calibration.batch.count == 0)
    complain("data.calibration.batch", "'data.calibration.batch' is 0; it must be auto or at least 1", "");
  check_quantize(recipe.quantize, errors);
  check_sharding(recipe.sharding, errors);
  const TrainSection& train = recipe.train;
  if (train.duration && train.duration->value == 0) complain("train.duration", "'train.duration' is 0", "write e.g. 1 epoch");
  if (train.duration && train.duration->unit == DurationUnit::kPercent) {
    complain("train.duration", "'train.duration' is in percent, which has no reference here", "write epochs, steps, samples or a time");
  }
  if (train.batch) {
    try {
      plan_batch(*train.batch);
    } catch (const Error& error) {
      errors.push_back(error);
    }
  }
  if (train.early_stop && !train.validate) {
    complain("train.early_stop", "'train.early_stop' needs validation, but train.validate is null", "write train.validate.every");
  }
  if (train.recompute && train.recompute->mode == RecomputeMode::kMatch && train.recompute->match.empty()) {
    complain("train.recompute", "'train.recompute' names no modules", "write full, selective or {match: [...]}");
  }
  const auto positive = [&](const std::string& key, const Duration& every) {
    if (every.value <= 0) complain(key, cat("'", key, "' is ", every.str(), "; it must be above 0"), "");
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
