#include "libcore/train/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "libcore/data/loader.h"
#include "libcore/data/source.h"
#include "libcore/passes/fold_batch_norm.h"
#include "libcore/passes/fuse.h"
#include "libcore/runtime/compile.h"
#include "libcore/train/evaluate.h"

namespace galley {
namespace {

int64_t decision(const float* scores, int64_t classes) { return std::max_element(scores, scores + classes) - scores; }

/// Layers' results on the split's first samples, both sets of parameters in step.
void compare_layers(Session& session, const CompareOptions& options, ParameterStore& first, ParameterStore& second, const std::vector<ParameterSpec>& parameters,
                    Comparison& comparison) {
  std::vector<std::string> modules;
  for (const ParameterSpec& spec : parameters) {
    const bool product = spec.module_type == "conv2d" || spec.module_type == "linear";
    if (!product || (!modules.empty() && modules.back() == spec.module)) continue;
    modules.push_back(spec.module);
    comparison.layers.push_back({spec.module, spec.module_type, {}});
  }
  const int64_t batch = std::min<int64_t>(options.batch, 8);
  const std::unique_ptr<DataLoader> loader = session.loader(options.split, batch, 0, 1, options.layer_samples);
  const BatchTypes types = session.batch_types(*loader);
  CapturedModel model = session.capture_inference(types.input, modules);
  fold_batch_norm(model.graph);
  fuse_inference(model.graph);
  CompileOptions how;
  how.threads = static_cast<int>(session.threads());
  how.memory_format = session.layout();
  how.parameter_formats = first.formats();
  const std::shared_ptr<const Program> program = compile(std::move(model.graph), how);
  const auto arena = std::make_shared<Arena>();
  Execution a(program, first, arena), b(program, second, arena);
  std::vector<Tensor> results;
  while (const Batch* data = loader->next()) {
    a.feed("input", data->input());
    a.run();
    results.clear();
    for (const std::string& module : modules) results.push_back(a.output(module));
    b.feed("input", data->input());
    b.run();
    for (size_t i = 0; i < modules.size(); ++i) comparison.layers[i].distance.add(results[i], b.output(modules[i]), data->valid);
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
    // NaN stays once it is there.
    if (!(std::abs(difference) <= max_abs_)) max_abs_ = std::isnan(max_abs_) ? max_abs_ : std::abs(difference);
  }
}

double Distance::sqnr_db() const {
  if (noise_ == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(signal_ / noise_);
}

Comparison compare_parameters(Session& session, const CompareOptions& options, ParameterStore& first, ParameterStore& second) {
  const Evaluator evaluator(session, options.split, options.batch, first.formats());
  const Recipe& recipe = session.recipe();
  const bool classifies = session.classes() > 0;
  const std::vector<std::string> names = recipe.metrics == std::vector<std::string>{"auto"} ? std::vector<std::string>() : recipe.metrics;
  Metrics first_metrics(names, session.classes()), second_metrics(names, session.classes());
  Comparison comparison;
  int64_t agreed = 0;
  {
    const auto arena = std::make_shared<Arena>();
    const auto program = evaluator.shared_program();
    Execution a(program, first, arena), b(program, second, arena);
    const std::shared_ptr<const Source> source = session.source(options.split);
    const std::unique_ptr<DataLoader> loader = session.loader(options.split, options.batch);
    while (const Batch* data = loader->next()) {
      const Tensor& target = classifies ? data->label() : data->fields.at("target");
      const Tensor labels = classifies ? target : Tensor();
      a.feed("input", data->input());
      a.feed("target", target);
      a.run();
      const Tensor scores = a.output("scores");
      first_metrics.add(a.output("losses"), scores, labels, data->valid);
      b.feed("input", data->input());
      b.feed("target", target);
      b.run();
      const Tensor other = b.output("scores");
      second_metrics.add(b.output("losses"), other, labels, data->valid);
      comparison.outputs.add(scores, other, data->valid);
      if (!classifies || scores.shape().rank() != 2) continue;
      const int64_t classes = scores.shape()[1];
      for (int64_t row = 0; row < data->valid; ++row) {
        const int64_t decided = decision(scores.data_as<float>() + row * classes, classes), differently = decision(other.data_as<float>() + row * classes, classes);
        agreed += decided == differently;
        if (decided == differently) continue;
        const int64_t label = target.dtype() == DType::kI64 ? target.data_as<int64_t>()[row] : -1;
        comparison.changed.push_back({source->sample_name(data->indices[static_cast<size_t>(row)]), label, decided, differently});
      }
    }
  }
  comparison.samples = first_metrics.samples();
  comparison.first = first_metrics.values();
  comparison.second = second_metrics.values();
  comparison.top1_agree = classifies ? 100.0 * static_cast<double>(agreed) / static_cast<double>(comparison.samples) : std::numeric_limits<double>::quiet_NaN();
  compare_layers(session, options, first, second, evaluator.parameters(), comparison);
  return comparison;
}

}  // namespace galley
