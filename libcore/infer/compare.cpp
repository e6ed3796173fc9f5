#include "libcore/infer/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/data/loader.h"
#include "libcore/data/source.h"
#include "libcore/infer/evaluate.h"
#include "libcore/infer/inference.h"
#include "libcore/runtime/engine.h"

namespace galley {
namespace {

/// The model of one recipe, ready to run.
struct Side {
  Side(const Session& session, const BatchTypes& types, InferenceModel model, std::shared_ptr<Arena> arena) : engine(session.backend()) {
    const auto program = compile_inference(engine, types, model, "comparison of layers");
    engine.declare(*program);
    session.initialize(model.parameters, engine.store());
    execution = engine.bind(program, {.arena = std::move(arena)});
  }
  Engine engine;
  std::unique_ptr<Execution> execution;
};

/// Compares the outputs of layers for the first samples of the split.
void compare_layers(Session& first, Session& second, const CompareOptions& options, Comparison& comparison) {
  const std::shared_ptr<const QuantizationPlan> plans[] = {loaded_plan(first.recipe()), loaded_plan(second.recipe())};
  const int64_t batch = std::min<int64_t>(options.batch, 8);
  const std::unique_ptr<DataLoader> loader = first.loader(options.split, batch, 0, 1, options.layer_samples);
  const BatchTypes input = first.batch_types(*loader);
  const CapturedModel plain = first.capture_inference(input);
  const bool fused = plans[0] != nullptr || plans[1] != nullptr;
  // Fusion may have removed modules that no result depends on.
  std::map<std::string, ValueId> there =
      module_results(fused ? make_inference(first.capture_inference(input), nullptr).graph : plain.graph);
  std::vector<std::string> modules;
  for (const ParameterSpec& spec : plain.parameters) {
    const OpDef* op = find_op_or_null(spec.module_type);  // the module type of such a layer is the name of its operator
    const bool product = op != nullptr && op->quantize == QuantizeRule::kProduct;
    if (!product || (!modules.empty() && modules.back() == spec.module) || !there.contains(spec.module)) continue;
    modules.push_back(spec.module);
    comparison.layers.push_back({spec.module, spec.module_type, {}});
  }
  const auto made = [&](const Session& session, const std::shared_ptr<const QuantizationPlan>& plan) {
    if (!fused) return make_inference(session.capture_inference(input, modules), nullptr);
    return make_inference(session.capture_inference(input), plan, modules);
  };
  Side a(first, input, made(first, plans[0]), nullptr), b(second, input, made(second, plans[1]), a.engine.arena());
  std::vector<Tensor> results;
  while (const Batch* data = loader->next()) {
    feed_fields(*a.execution, *data);
    a.execution->run();
    results.clear();
    for (const std::string& module : modules) results.push_back(a.execution->output(module));
    feed_fields(*b.execution, *data);
    b.execution->run();
    for (size_t i = 0; i < modules.size(); ++i) comparison.layers[i].distance.add(results[i], b.execution->output(modules[i]), data->valid);
    comparison.layer_samples += data->valid;
  }
}

}  // namespace

void Distance::add(const Tensor& a, const Tensor& b, int64_t rows) {
  GALLEY_ASSERT(a.shape() == b.shape() && a.shape().rank() > 0);
  const int64_t count = a.shape()[0] == 0 ? 0 : a.elements() / a.shape()[0] * rows;
  const float* x = a.data_as<float>();
  const float* y = b.data_as<float>();
  for (int64_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    signal_ += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    noise_ += difference * difference;
    // Written so that a NaN is kept.
    if (!(std::abs(difference) <= max_abs_)) max_abs_ = std::isnan(max_abs_) ? max_abs_ : std::abs(difference);
  }
}

double Distance::sqnr_db() const {
  if (noise_ == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal_ / noise_);
}

Comparison compare_weights_of(Session& session, Session& other_session, const CompareOptions& options) {
  const Recipe& recipe = session.recipe();
  const std::vector<std::string> names = metric_names(session.task(), recipe.metrics);
  Comparison comparison;
  int64_t agreed = 0;
  bool decides = false;
  {
    Engine first(session.backend()), second(other_session.backend());
    CapturedResults results;
    const auto ready = [&](Session& which, Engine& engine) {
      // Both read one batch, whose images are bytes for neither.
      const Evaluator evaluator(which, engine, loaded_plan(which.recipe()), options.split, options.batch, 0, nullptr, {}, nullptr, false);
      engine.declare(evaluator.program());
      which.initialize(evaluator.parameters(), engine.store());
      results = evaluator.results();
      return engine.bind(evaluator.shared_program(), {.arena = first.arena()});
    };
    const std::unique_ptr<Execution> left = ready(session, first), right = ready(other_session, second);
    Execution &a = *left, &b = *right;
    MetricSums first_metrics(session.task(), names, results), second_metrics(session.task(), names, results);
    const std::unique_ptr<DataLoader> loader = session.loader(options.split, options.batch);
    const Source& source = loader->source();
    first_metrics.begin(*loader);
    second_metrics.begin(*loader);
    while (const Batch* data = loader->next()) {
      feed_fields(a, *data);
      a.run();
      const Tensor scores = a.output(session.task().compared());
      first_metrics.add([&](const std::string& name) { return a.output(name); }, *data);
      feed_fields(b, *data);
      b.run();
      const Tensor other = b.output(session.task().compared());
      second_metrics.add([&](const std::string& name) { return b.output(name); }, *data);
      comparison.outputs.add(scores, other, data->valid);
      const std::vector<int64_t> decided = session.task().decisions(scores), differently = session.task().decisions(other);
      decides |= !decided.empty();
      if (decided.empty()) continue;
      for (int64_t row = 0; row < data->valid; ++row) {
        const auto at = static_cast<size_t>(row);
        agreed += decided[at] == differently[at];
        if (decided[at] == differently[at]) continue;
        const auto label = data->fields.find("label");
        const bool index = label != data->fields.end() && label->second.dtype() == DType::kI64;
        comparison.changed.push_back(
            {source.sample_name(data->indices[at]), index ? label->second.data_as<int64_t>()[row] : -1, decided[at], differently[at]});
      }
    }
    comparison.samples = first_metrics.samples();
    comparison.first = first_metrics.values();
    comparison.second = second_metrics.values();
  }
  comparison.top1_agree =
      decides ? 100.0 * static_cast<double>(agreed) / static_cast<double>(comparison.samples) : std::numeric_limits<double>::quiet_NaN();
  compare_layers(session, other_session, options, comparison);
  return comparison;
}

}  // namespace galley
