#include "libcore/recipe/quantize_section.h"

#include <array>
#include <set>

#include "libcore/base/error.h"
#include "libcore/quant/observers.h"
#include "libcore/recipe/optional_choice.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 4> kWeightSchemes{"per_channel_symmetric", "per_channel_affine", "per_tensor_symmetric",
                                                         "per_tensor_affine"};
constexpr std::array<std::string_view, 2> kActivationSchemes{"per_tensor_affine", "per_tensor_symmetric"};
constexpr std::array<std::string_view, 2> kFallbacks{"error", "float"};
constexpr std::array<std::string_view, 2> kSaturations{"exact", "reduce"};
constexpr std::array<std::string_view, 2> kKeeps{"float", "integer"};
constexpr std::array<std::string_view, 2> kObjectives{"latency", "size"};
constexpr std::array<std::string_view, 3> kEmbeddings{"auto", "int8", "float"};

constexpr std::string_view kDTypeOfWeights =
    "type of stored weights: int8; int4 with two values per byte (weight_only); f8_e4m3, to which inputs of these layers are rounded too "
    "(static; for GPUs of compute capability 8.9 or later, on a CPU only the file is smaller)";
constexpr std::string_view kSchemeOfWeights = "one scale per output channel or per tensor; symmetric: zero point 0; affine: any zero point";
constexpr std::string_view kObserverOfWeights = "how the range is determined: min_max, percentile or mse";
constexpr std::string_view kGroupOfWeights = "number of weights of a channel that share a scale (weight_only); null: the whole channel";
constexpr std::string_view kDTypeOfActivations = "type of activations: uint8 or int8; inputs of layers with f8_e4m3 weights are f8_e4m3";
constexpr std::string_view kSchemeOfActivations = "symmetric: range centered at 0; affine: any range";
constexpr std::string_view kObserverOfActivations =
    "how the range is determined: a name, or {type: percentile, value: 99.99%}; auto: for each tensor, the observer with the best SQNR";
constexpr std::string_view kReduceRange =
    "quantize activations to 7 bits, so that machines that add pairs of products in 16 bits are fast and exact; auto: 8 bits (with "
    "saturation: reduce, weights have 7 bits instead)";

}  // namespace

void AutoBool::parse(std::string_view text) {
  GALLEY_CHECK(text == "auto" || text == "true" || text == "false", "'", text, "' is not auto, true or false");
  value.reset();
  if (text != "auto") value = text == "true";
}

void Drop::parse(std::string_view text) {
  relative = text.ends_with('%');
  value = parse_number(relative ? text.substr(0, text.size() - 1) : text);
  GALLEY_CHECK(value >= 0, "'", text, "' is negative; the largest drop must be at least 0");
}

void CalibrationSection::options(OptionVisitor& v) {
  v.option({.name = "from", .doc = "split whose samples are used: train, val or test", .main = true}, from);
  v.option({.name = "samples", .doc = "number of samples, drawn with the recipe's seed; all samples if the split has fewer", .min = 1},
           samples);
  v.option({.name = "pipeline", .doc = "preprocessing: the pipeline of this split, or from_weights"}, pipeline);
  v.text({.name = "batch", .doc = "samples per pass; auto: data.val.batch, else the micro batch"}, batch);
}

void ObserverSection::options(OptionVisitor& v) {
  v.choice({.name = "type", .doc = "min_max, moving_average, histogram, percentile, entropy, mse, or auto", .main = true}, type,
           kObserverNames);
  v.option({.name = "value", .doc = "percentile: fraction of the values inside the range, at each end; default 99.99%"}, value);
  v.option({.name = "averaging_constant", .doc = "moving_average: weight of a new batch in the average; default 0.01", .min = 0, .max = 1},
           averaging_constant);
}

ObserverSpec ObserverSection::spec() const {
  ObserverSpec spec{.type = type};
  if (value) spec.percentile = value->percent;
  if (averaging_constant) spec.averaging_constant = *averaging_constant;
  return spec;
}

void QuantizeWeightsSection::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = kDTypeOfWeights, .main = true}, dtype, kQuantDTypeNames);
  v.choice({.name = "scheme", .doc = kSchemeOfWeights}, scheme, kWeightSchemes);
  v.section({.name = "observer", .doc = kObserverOfWeights}, observer);
  v.option({.name = "group_size", .doc = kGroupOfWeights, .min = 1}, group_size);
}

void QuantizeActivationsSection::options(OptionVisitor& v) {
  v.choice({.name = "dtype", .doc = kDTypeOfActivations, .main = true}, dtype, kQuantDTypeNames);
  v.choice({.name = "scheme", .doc = kSchemeOfActivations}, scheme, kActivationSchemes);
  v.section({.name = "observer", .doc = kObserverOfActivations}, observer);
  v.text({.name = "reduce_range", .doc = kReduceRange}, reduce_range);
}

void WeightsOverride::options(OptionVisitor& v) {
  optional_choice(v, {.name = "dtype", .doc = kDTypeOfWeights, .main = true}, dtype, kQuantDTypeNames);
  optional_choice(v, {.name = "scheme", .doc = kSchemeOfWeights}, scheme, kWeightSchemes);
  v.option({.name = "observer", .doc = kObserverOfWeights}, observer);
  v.option({.name = "group_size", .doc = kGroupOfWeights, .min = 1}, group_size);
}

void ActivationsOverride::options(OptionVisitor& v) {
  optional_choice(v, {.name = "dtype", .doc = kDTypeOfActivations, .main = true}, dtype, kQuantDTypeNames);
  optional_choice(v, {.name = "scheme", .doc = kSchemeOfActivations}, scheme, kActivationSchemes);
  v.option({.name = "observer", .doc = kObserverOfActivations}, observer);
  v.option({.name = "reduce_range", .doc = kReduceRange}, reduce_range);
}

void QuantizeOverride::options(OptionVisitor& v) {
  v.option({.name = "match", .doc = "selectors of layers", .required = true, .main = true}, match);
  v.option({.name = "except", .doc = "selectors of layers to exclude"}, except);
  optional_choice(v, {.name = "keep", .doc = "float: do not quantize; integer: quantize, even if a later item says float"}, keep, kKeeps);
  v.option({.name = "weights", .doc = "settings of the layers' weights; other keys as in quantize.weights"}, weights);
  v.option({.name = "activations", .doc = "settings of the layers' outputs; other keys as in quantize.activations"}, activations);
}

void GoalSection::options(OptionVisitor& v) {
  v.option({.name = "metric", .doc = "metric that must stay within the bounds", .required = true, .main = true}, metric);
  v.option({.name = "max_drop", .doc = "largest loss relative to the float model"}, max_drop);
  v.option({.name = "min", .doc = "value that the metric must reach"}, min);
  v.choice({.name = "objective", .doc = "what to minimize: latency (time of a forward pass) or size (bytes of the file)"}, objective,
           kObjectives);
  v.text({.name = "time_budget", .doc = "duration of the search"}, time_budget);
}

void QatSection::options(OptionVisitor& v) {
  v.text({.name = "start", .doc = "when simulated quantization starts; before that, training is in float", .main = true}, start);
  v.text({.name = "observers_until", .doc = "when the ranges of activations are frozen"}, observers_until);
  v.text(
      {.name = "batch_norm_until",
       .doc =
           "when the statistics of batch norms are frozen: from then on training uses the running statistics, as the converted model does"},
      batch_norm_until);
  v.option({.name = "learn_scale", .doc = "also train the scales of activations and weights (LSQ), once the ranges are frozen"},
           learn_scale);
}

void QuantizeSection::options(OptionVisitor& v) {
  v.choice({.name = "method",
            .doc = "static: integer activations with calibrated ranges; dynamic: ranges of each batch; weight_only: integer storage, float "
                   "computation; qat: static, with quantization simulated during training",
            .main = true},
           method, kMethodNames);
  v.option({.name = "calibration", .doc = "file of galley-calibrate; null: galley-quantize calibrates on data.calibration"}, calibration);
  v.section({.name = "weights", .doc = "weights of convolutions and linear layers"}, weights);
  v.section({.name = "activations", .doc = "outputs of layers, and the model's input"}, activations);
  v.choice(
      {.name = "embeddings",
       .doc = "tables of embeddings: int8 (rows with a scale each) or float; auto: int8 where the method is weight_only and the output "
              "layer shares the table, else float"},
      embeddings, kEmbeddings);
  v.list({.name = "overrides", .doc = "settings of individual layers; each key comes from the first matching item that sets it"},
         overrides.items, make_options<QuantizeOverride>);
  v.choice({.name = "fallback", .doc = "layers without an integer kernel: error, or float (reported)"}, fallback, kFallbacks);
  v.choice({.name = "saturation",
            .doc = "machines that add pairs of products in 16 bits: exact (8 bits, a slower kernel there), or reduce (one bit less, fast "
                   "everywhere)"},
           saturation, kSaturations);
  v.option({.name = "goal", .doc = "search for the best model that meets these bounds; null: no search"}, goal);
  v.section({.name = "qat", .doc = "quantization-aware training"}, qat);
}

namespace {

/// Checks keys that depend on each other.
class QuantizeCheck {
 public:
  QuantizeCheck(const QuantizeSection& quantize, std::vector<Error>& errors) : quantize_(quantize), errors_(errors) {
    types_.insert(quantize.weights.dtype);
    for (size_t i = 0; i < quantize.overrides.size(); ++i) {
      const auto& item = quantize.overrides.at<QuantizeOverride>(i);
      if (item.weights && item.weights->dtype) types_.insert(*item.weights->dtype);
    }
  }

  void run() {
    const QuantizeWeightsSection& weights = quantize_.weights;
    check_weights("quantize.weights", weights.dtype, weights.scheme, weights.observer.type, weights.group_size);
    check_observer("quantize.weights.observer", weights.observer, true);
    check_activations("quantize.activations", quantize_.activations.dtype);
    check_observer("quantize.activations.observer", quantize_.activations.observer, false);
    if (types_ == std::set{QuantDType::kF8E4M3}) check_unused_integers();
    for (size_t i = 0; i < quantize_.overrides.size(); ++i)
      check_override(cat("quantize.overrides.", i), quantize_.overrides.at<QuantizeOverride>(i));
    if (quantize_.goal && !quantize_.goal->max_drop && !quantize_.goal->min)
      complain("quantize.goal", "'quantize.goal' has a metric but no bound", "write e.g. max_drop: 0.5 or min: 73.0");
  }

 private:
  void complain(const std::string& key, const std::string& message, const std::string& remedy) {
    Error error(ErrorCode::kRecipe, message);
    error.key(key);
    if (!remedy.empty()) error.suggest(remedy);
    errors_.push_back(std::move(error));
  }

  void check_observer(const std::string& key, const ObserverSection& observer, bool weights) {
    const bool known = !weights || observer.type == ObserverType::kMinMax || observer.type == ObserverType::kPercentile ||
                       observer.type == ObserverType::kMse;
    if (!known)
      complain(key, cat("'", key, "' is ", observer_name(observer.type), ", which observes activations only"),
               "write min_max, percentile or mse for weights");
    const bool trained = observer.type == ObserverType::kAuto || observer.type == ObserverType::kMovingAverage;
    if (quantize_.method == QuantMethod::kQat && (weights ? observer.type != ObserverType::kMinMax : !trained)) {
      complain(key, cat("'", key, "' is ", observer_name(observer.type), ", but method: qat determines ranges during training"),
               weights ? "write min_max" : "write moving_average (or auto, which is the same)");
    }
    if (!weights && types_.contains(QuantDType::kF8E4M3) && !observes_f8(observer.type)) {
      complain(key, cat("'", key, "' is ", observer_name(observer.type), ", which looks for the error of integers, not of f8_e4m3"),
               "write auto (the observed range), min_max, moving_average or percentile: inputs of layers with f8_e4m3 weights");
    }
    if (observer.value && observer.type != ObserverType::kPercentile) {
      complain(key + ".value", cat("'", key, ".value' belongs to the observer percentile, not to ", observer_name(observer.type)),
               "write type: percentile, or remove it");
    }
    if (observer.value && !(observer.value->percent > 50 && observer.value->percent <= 100)) {
      complain(key + ".value", cat("'", key, ".value' is ", observer.value->str(), "; it must be more than 50% and at most 100%"),
               "write 99.99%");
    }
    if (observer.averaging_constant && observer.type != ObserverType::kMovingAverage) {
      complain(key + ".averaging_constant",
               cat("'", key, ".averaging_constant' belongs to the observer moving_average, not to ", observer_name(observer.type)),
               "write type: moving_average, or remove it");
    }
  }

  void check_weights(const std::string& key, QuantDType dtype, WeightSchemeName scheme, ObserverType observer,
                     std::optional<int64_t> group_size) {
    if (dtype == QuantDType::kUint8)
      complain(key + ".dtype", cat("'", key, ".dtype' is uint8; weights must be int8, int4 or f8_e4m3"), "write int8");
    const bool f8 = dtype == QuantDType::kF8E4M3, weight_only = quantize_.method == QuantMethod::kWeightOnly;
    if (f8 && quantize_.method != QuantMethod::kStatic) {
      return complain(key + ".dtype",
                      cat("'", key, ".dtype' is f8_e4m3, which only method: static supports, not ", method_name(quantize_.method)),
                      "write method: static, or int8");
    }
    if (f8 && observer == ObserverType::kMse)
      complain(key + ".observer", cat("'", key, ".observer' is mse, which looks for the error of integers, not of f8_e4m3"),
               "write min_max or percentile");
    if (dtype == QuantDType::kInt4 && !weight_only)
      complain(key + ".dtype", cat("'", key, ".dtype' is int4, which only method: weight_only supports"),
               "write int8, or method: weight_only");
    if (group_size && !weight_only) complain(key + ".group_size", cat("'", key, ".group_size' needs method: weight_only"), "remove it");
    const bool per_tensor = scheme == WeightSchemeName::kPerTensorAffine || scheme == WeightSchemeName::kPerTensorSymmetric;
    if (group_size && per_tensor)
      complain(key + ".group_size", cat("'", key, ".group_size' divides channels, but the scheme is per tensor"),
               "write a scheme per_channel");
    const bool affine = scheme == WeightSchemeName::kPerChannelAffine || scheme == WeightSchemeName::kPerTensorAffine;
    if (affine && !weight_only) {
      complain(
          key + ".scheme",
          cat("'", key, ".scheme' is affine, but ", f8 ? "f8_e4m3 has no zero points" : "integer kernels need weights with zero point 0"),
          f8 ? "write a symmetric scheme" : "write a symmetric scheme, or method: weight_only");
    }
  }

  void check_activations(const std::string& key, QuantDType dtype) {
    if (dtype == QuantDType::kInt4)
      complain(key + ".dtype", cat("'", key, ".dtype' is int4; activations must be uint8 or int8"), "write uint8");
    if (dtype == QuantDType::kF8E4M3)
      complain(key + ".dtype", cat("'", key, ".dtype' is f8_e4m3, which the inputs of layers with f8_e4m3 weights are without it"),
               "remove it, and write quantize.weights.dtype: f8_e4m3");
  }

  /// Keys of integers where no layer has integers.
  void check_unused_integers() {
    const std::string why = " of integers, but no layer has integer weights: inputs of layers with f8_e4m3 weights are f8_e4m3";
    if (quantize_.activations.dtype == QuantDType::kInt8)
      complain("quantize.activations.dtype", cat("'quantize.activations.dtype' is int8, a type", why), "remove it");
    if (quantize_.activations.reduce_range.value.value_or(false))
      complain("quantize.activations.reduce_range", cat("'quantize.activations.reduce_range' is true, a range", why), "remove it");
  }

  void check_override(const std::string& key, const QuantizeOverride& item) {
    const QuantizeWeightsSection& weights = quantize_.weights;
    if (!item.keep && !item.weights && !item.activations)
      complain(key, cat("'", key, "' changes nothing"), "write keep, weights or activations");
    if (item.weights) {
      check_weights(key + ".weights", item.weights->dtype.value_or(weights.dtype), item.weights->scheme.value_or(weights.scheme),
                    item.weights->observer.value_or(weights.observer).type, item.weights->group_size);
      if (item.weights->observer) check_observer(key + ".weights.observer", *item.weights->observer, true);
    }
    if (item.activations) {
      check_activations(key + ".activations", item.activations->dtype.value_or(QuantDType::kUint8));
      if (item.activations->observer) check_observer(key + ".activations.observer", *item.activations->observer, false);
    }
  }

  const QuantizeSection& quantize_;
  std::vector<Error>& errors_;
  std::set<QuantDType> types_;  // of weights, of the section and its overrides
};

}  // namespace

void check_quantize(const QuantizeSection& quantize, std::vector<Error>& errors) { QuantizeCheck(quantize, errors).run(); }

}  // namespace galley
