#include "libcore/quantize/qat.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "libcore/base/digest.h"
#include "libcore/base/log.h"
#include "libcore/ops/fake_quantize.h"
#include "libcore/optim/schedule.h"
#include "libcore/optim/updates.h"
#include "libcore/quantize/calibrate.h"
#include "libcore/quantize/quantize_config.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/engine.h"
#include "libcore/runtime/execution.h"
#include "libcore/runtime/parameter_store.h"

namespace galley {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float number(const ParameterStore& store, const std::string& name) { return *store.get(name).data_as<float>(); }

/// Sets a learned scale and, if there is one, its moving average.
void set_scale(ParameterStore& store, const std::string& name, const Tensor& value) {
  for (const std::string& each : {name, name + ".ema"}) {
    if (store.has(each)) store.set(each, value);
  }
}

}  // namespace

bool trains_quantized(const Recipe& recipe) { return recipe.quantize.method == QuantMethod::kQat; }

std::vector<TrainStage> train_stages(const Recipe& recipe, const RunLength& length) {
  if (!trains_quantized(recipe)) return {TrainStage()};
  const QatSection& qat = recipe.quantize.qat;
  const auto steps = [&](const Duration& duration) { return std::llround(steps_of(duration, length)); };
  const int64_t start = steps(qat.start), observed = steps(qat.observers_until), statistics = steps(qat.batch_norm_until);
  if (length.total_steps > 0 && start >= length.total_steps) {
    throw Error(ErrorCode::kRecipe, cat("quantize.qat.start is ", qat.start.str(), ", but the run ends after ", length.total_steps,
                                        " steps, so nothing would be quantized"))
        .key("quantize.qat.start")
        .suggest("start earlier, or train in float (quantize.method=static)");
  }
  if (observed <= start) {
    throw Error(ErrorCode::kRecipe, cat("quantize.qat.observers_until is ", qat.observers_until.str(), ", not after quantize.qat.start (",
                                        qat.start.str(), "), so no range would be observed"))
        .key("quantize.qat.observers_until")
        .suggest("write a later one");
  }
  std::set<int64_t> ends{0, start, observed, std::max(statistics, start)};
  std::vector<TrainStage> stages;
  for (const int64_t end : ends) {
    if (length.total_steps > 0 && end >= length.total_steps) break;
    const bool observe = end < observed;
    stages.push_back({.first = end + 1,
                      .quantized = end >= start,
                      .form = {.observe = observe, .freeze_batch_norm = end >= statistics, .learn_scale = qat.learn_scale && !observe}});
  }
  return stages;
}

std::string trained_statistics(const std::string& weights) {
  constexpr std::string_view kPrefix = "weights", kSuffix = ".safetensors";
  const size_t slash = weights.rfind('/'), leaf = slash == std::string::npos ? 0 : slash + 1;
  std::string name = weights.substr(leaf);
  if (name.ends_with(kSuffix)) name.resize(name.size() - kSuffix.size());
  if (name.starts_with(kPrefix)) name = name.substr(kPrefix.size());
  return cat(weights.substr(0, leaf), "stats", name, ".calib");
}

QuantizationAware::QuantizationAware(const Session& session, const BatchTypes& types)
    : session_(session), learn_scale_(session.recipe().quantize.qat.learn_scale) {
  const InferenceModel model = inference_model(session, types, nullptr);
  config_ = resolve_quantize(session.recipe().quantize, model.graph);
  model_ = model_digest(model.graph);
  optional_ = optional_inputs(session, types);
  const Shape& input = types.input().shape;
  for (int d = 1; d < input.rank(); ++d) input_.push_back(input[d]);
  for (const ParameterSpec& spec : model.parameters) parameters_.push_back(spec.name);
  Graph graph = model.graph;
  rounded_ = fake_quantize_inference(graph, config_, learn_scale_);
  if (learn_scale_) weight_scales_ = present_weight_scales(model.graph, rounded_.weights);
  if (rounded_.values.empty())
    throw Error(ErrorCode::kRecipe, "quantize.method is qat, but no layer of the model is quantized")
        .key("quantize")
        .suggest("remove items of quantize.overrides with keep: float");
}

FakeQuantizePasses QuantizationAware::passes(const BatchTypes& types, const FakeQuantizeForm& form) const {
  return {.evaluation = session_.capture_inference(types).graph, .config = config_, .form = form};
}

std::function<void(Graph&)> QuantizationAware::fake_quantize() const {
  return [this](Graph& fused) { fake_quantize_inference(fused, config_, learn_scale_); };
}

std::vector<std::string> QuantizationAware::scales() const {
  std::vector<std::string> names;
  if (!learn_scale_) return names;
  for (const ObservedValue& value : rounded_.values) names.push_back(value.scale());
  for (const FakeQuantizedWeight& weight : rounded_.weights) names.push_back(weight.scale());
  return names;
}

std::vector<StateSpec> QuantizationAware::states() const {
  std::vector<StateSpec> states;
  for (const ObservedValue& value : rounded_.values) {
    states.push_back({.name = value.min(), .of = value.name, .starts_at = static_cast<double>(kInfinity)});
    states.push_back({.name = value.max(), .of = value.name, .starts_at = -static_cast<double>(kInfinity)});
    if (learn_scale_) states.push_back({.name = value.scale(), .of = value.name, .starts_at = 1, .role = ValueRole::kParameter});
  }
  if (!learn_scale_) return states;
  for (const FakeQuantizedWeight& weight : rounded_.weights) {
    StateSpec state{.name = weight.scale(), .of = weight.name, .starts_at = 1, .role = ValueRole::kParameter};
    state.type.shape = weight.scales;
    states.push_back(std::move(state));
  }
  return states;
}

QuantParams QuantizationAware::params_of(const ObservedValue& value, const ParameterStore& store) const {
  const double min = static_cast<double>(number(store, value.min())), max = static_cast<double>(number(store, value.max()));
  if (!std::isfinite(min) || !std::isfinite(max)) {
    throw Error(ErrorCode::kNumeric, cat("training observed no range of ", value.name, " (", min, "..", max, ")"))
        .suggest("the model does not compute it for these samples");
  }
  const QuantRange integers = value.scheme.range();
  return value.scheme.symmetric ? symmetric_params(std::max({-min, max, 0.0}), integers) : affine_params(min, max, integers);
}

void QuantizationAware::set_scales(Engine& engine) const {
  if (!learn_scale_) return;
  ParameterStore& store = engine.store();
  for (const ObservedValue& value : rounded_.values) {
    Tensor scale(DType::kF32, Shape());
    *scale.data_as<float>() = static_cast<float>(params_of(value, store).scale);
    set_scale(store, value.scale(), scale);
  }
  const auto program =
      engine.program({.mode = "weight scales"}, "scales of weights start from their ranges", [&] { return weight_scales_; });
  const std::unique_ptr<Execution> execution = engine.bind(program);
  execution->run();
  for (const FakeQuantizedWeight& weight : rounded_.weights) set_scale(store, weight.scale(), execution->output(weight.scale()));
}

Calibration QuantizationAware::calibration(const ParameterStore& store, const std::string& suffix) const {
  Calibration calibration{.model = model_, .input = input_, .inputs = optional_, .recipe = dump_recipe(session_.recipe(), DumpKind::kFull)};
  calibration.parts.push_back(
      {.samples = 1, .batches = 1, .batch = 1, .source = digest_of(std::string("training")), .recipe = digest_of(calibration.recipe)});
  const auto named = [&](const std::string& name) { return store.has(name + suffix) ? name + suffix : name; };
  for (const std::string& name : parameters_) calibration.weights[name] = array_digest(store.get(named(name)));
  for (const ObservedValue& value : rounded_.values) {
    QuantParams params = params_of(value, store);
    FloatRange range{number(store, value.min()), number(store, value.max())};
    if (learn_scale_) {
      params.scale = std::max(static_cast<double>(number(store, named(value.scale()))), kLeastFakeScale);
      range = range_of_params(params, value.scheme.symmetric);
    }
    RangeStatistics statistics;
    const float bounds[] = {range.min, range.max};
    statistics.add(bounds, 1, 2, value.name);
    if (calibration.values.emplace(value.statistics, std::move(statistics)).second) calibration.order.push_back(value.statistics);
  }
  if (!learn_scale_) return calibration;
  for (const FakeQuantizedWeight& weight : rounded_.weights) {
    Tensor bounds = store.get(named(weight.scale())).clone();
    QuantParams params{.qmin = weight.scheme.range().min, .qmax = weight.scheme.range().max};
    for (float& bound : std::span(bounds.data_as<float>(), static_cast<size_t>(bounds.elements()))) {
      params.scale = std::max(static_cast<double>(bound), kLeastFakeScale);
      bound = range_of_params(params, /*symmetric=*/true).max;
    }
    calibration.weight_bounds.emplace(weight.name, std::move(bounds));
  }
  return calibration;
}

}  // namespace galley
