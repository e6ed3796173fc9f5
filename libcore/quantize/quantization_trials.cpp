#include "libcore/quantize/quantization_trials.h"

#include <algorithm>

#include "libcore/data/loader.h"
#include "libcore/infer/compare.h"
#include "libcore/infer/evaluate.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/random_batch.h"
#include "libcore/profiler/timer.h"
#include "libcore/runtime/engine.h"

namespace galley {
namespace {

constexpr int64_t kSampleBatch = 16;
constexpr double kLatencySeconds = 1;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// A compiled model whose parameters can be filled and bound.
struct Trialled {
  Trialled(const Session& session, const BatchTypes& types, std::shared_ptr<const QuantizationPlan> plan) : engine(session.backend()) {
    program = engine.program(
        {.mode = "predict", .fields = types.fields}, "trial of a quantization",
        [&] { return inference_model(session, types, std::move(plan)).graph; }, ParameterFormats::kLead);
    engine.declare(*program);
  }
  Engine engine;
  std::shared_ptr<const Program> program;
};

}  // namespace

std::string TrialSetting::key() const {
  std::vector<std::string> layers = float_layers;
  std::sort(layers.begin(), layers.end());
  return cat(activations ? observer_name(*activations) : "", "|", weights ? observer_name(*weights) : "", "|", joined(layers));
}

std::string TrialSetting::text() const {
  constexpr size_t kShown = 2;
  std::vector<std::string> parts;
  if (activations) parts.push_back(cat("activations ", observer_name(*activations)));
  if (weights) parts.push_back(cat("weights ", observer_name(*weights)));
  if (!float_layers.empty())
    parts.push_back(float_layers.size() <= kShown ? joined(float_layers) + " in float" : cat(float_layers.size(), " layers in float"));
  return parts.empty() ? "as configured" : joined(parts);
}

/// Inputs of some samples, and the outputs of the float model for them.
struct QuantizationTrials::Samples {
  struct Part {
    Batch batch;
    Tensor output;
  };
  BatchTypes types;
  std::vector<Part> parts;
};

QuantizationTrials::QuantizationTrials(Session& session, ModelQuantizer& quantizer, QuantizeConfig config, const Calibration* calibration,
                                       int64_t samples)
    : session_(session), quantizer_(quantizer), config_(std::move(config)), calibration_(calibration), wanted_samples_(samples) {
  for (const QuantizableLayer& layer : quantizable_layers(quantizer.graph())) value_of_[layer.name] = layer.value;
  for (const LayerPlan& layer : plan_quantization(quantizer.graph(), config_, calibration_).layers) {
    if (layer.float_reason.empty()) layers_.push_back(layer.name);
  }
}

QuantizationTrials::~QuantizationTrials() = default;

QuantizeConfig QuantizationTrials::config_of(const TrialSetting& setting) const {
  QuantizeConfig config = config_;
  const auto change = [&](LayerScheme& scheme) {
    if (setting.activations) scheme.activations.observer = {.type = *setting.activations};
    if (setting.weights) scheme.weights.observer = {.type = *setting.weights};
  };
  change(config.defaults);
  for (auto& [name, scheme] : config.layers) change(scheme);
  for (const std::string& layer : setting.float_layers) {
    LayerScheme scheme = config.of(value_of_.at(layer));
    scheme.keep_float = true;
    scheme.float_reason = "goal";
    config.layers[value_of_.at(layer)] = scheme;
  }
  return config;
}

QuantizedModel QuantizationTrials::quantize(const TrialSetting& setting) const {
  return quantizer_.quantize(config_of(setting), calibration_);
}

Trial QuantizationTrials::run(const TrialSetting& setting, const TrialQuestions& questions) {
  const QuantizedModel model = quantize(setting);
  Trial trial;
  trial.setting = setting;
  trial.asked = questions;
  trial.bytes = model.bytes();
  trial.quantized_layers = model.plan->quantized_layers();
  if (questions.sqnr) trial.sqnr_db = sqnr_db(model);
  if (questions.metrics) trial.metrics = evaluate(model.plan, &model.tensors);
  if (questions.latency) trial.latency_s = latency_s(model.plan, &model.tensors);
  return trial;
}

const MetricValues& QuantizationTrials::float_metrics() {
  if (float_metrics_.empty()) float_metrics_ = evaluate(nullptr, nullptr);
  return float_metrics_;
}

double QuantizationTrials::float_latency_s() {
  if (float_latency_s_ == 0) float_latency_s_ = latency_s(nullptr, nullptr);
  return float_latency_s_;
}

/// Fills the store with the tensors of a converted model, or with the parameters of the float model.
void QuantizationTrials::fill(ParameterStore& store, const std::map<std::string, Tensor>* tensors) {
  for (const std::string& name : store.names()) store.set(name, tensors != nullptr ? tensors->at(name) : quantizer_.store().get(name));
}

double QuantizationTrials::sqnr_db(const QuantizedModel& model) {
  const auto run = [&](Execution& execution, const Batch& batch) {
    feed_fields(execution, batch);
    execution.run();
    return execution.output(execution.program().graph().outputs().front().first);
  };
  if (samples_ == nullptr) {
    samples_ = std::make_unique<Samples>();
    const std::unique_ptr<DataLoader> loader = session_.calibration_loader(kSampleBatch, 0, wanted_samples_);
    samples_->types = session_.batch_types(*loader);
    Trialled real(session_, samples_->types, nullptr);
    fill(real.engine.store(), nullptr);
    const std::unique_ptr<Execution> execution = real.engine.bind(real.program);
    while (const Batch* batch = loader->next()) {
      Samples::Part part{.batch = *batch};
      for (auto& [name, tensor] : part.batch.fields) tensor = tensor.clone();  // the loader reuses its tensors
      part.output = run(*execution, part.batch);
      samples_->parts.push_back(std::move(part));
    }
  }
  Trialled quantized(session_, samples_->types, model.plan);
  fill(quantized.engine.store(), &model.tensors);
  const std::unique_ptr<Execution> execution = quantized.engine.bind(quantized.program);
  Distance distance;
  for (const Samples::Part& part : samples_->parts) distance.add(part.output, run(*execution, part.batch), part.batch.valid);
  return distance.sqnr_db();
}

MetricValues QuantizationTrials::evaluate(std::shared_ptr<const QuantizationPlan> plan, const std::map<std::string, Tensor>* tensors) {
  const Recipe& recipe = session_.recipe();
  const std::string& split = recipe.evaluate.data;
  const int64_t micro = recipe.train.batch ? recipe.train.batch->micro.value_or(recipe.train.batch->global) : 32;
  Engine engine(session_.backend());
  Evaluator evaluator(session_, engine, std::move(plan), split, recipe.data.find(split)->batch.value_or(micro));
  engine.declare(evaluator.program());
  fill(engine.store(), tensors);
  evaluator.bind();
  return evaluator.run();
}

double QuantizationTrials::latency_s(std::shared_ptr<const QuantizationPlan> plan, const std::map<std::string, Tensor>* tensors) {
  const BatchTypes types = session_.usual_types(1, false);
  Trialled trial(session_, types, std::move(plan));
  fill(trial.engine.store(), tensors);
  const std::unique_ptr<Execution> execution = trial.engine.bind(trial.program);
  const Batch batch = random_batch(session_, types);
  feed_fields(*execution, batch);
  const std::vector<std::function<void()>> work{[&] { execution->run(); }};
  return summarize(time_interleaved(work, {.relative_error = 0.02, .max_time_s = kLatencySeconds}).front().seconds).median;
}

}  // namespace galley
