#include "libcore/infer/evaluate.h"

#include <algorithm>

#include "libcore/comm/communicator.h"
#include "libcore/data/loader.h"
#include "libcore/infer/inference.h"
#include "libcore/nn/attention.h"

namespace galley {

Evaluator::Evaluator(Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan, const std::string& split,
                     int64_t batch, int64_t samples, std::function<void(Graph&)> fake_quantize, std::optional<CacheStorage> cache)
    : session_(session), engine_(engine), split_(split), batch_(batch), limit_(samples), plan_(std::move(plan)) {
  const std::unique_ptr<DataLoader> loader = session.loader(split, batch, 0, 1, samples);
  data_bytes_ = loader->buffer_bytes();
  metrics_ = metric_names(session.task(), session.recipe().metrics);
  const BatchTypes types = session.batch_types(*loader);
  CapturedModel captured = session.capture_evaluation(types, cache);
  results_ = captured.results;
  std::string form = fake_quantize ? "rounded" : plan_ != nullptr ? plan_->str() : "";
  if (cache) {
    form += cat(" cache in ", kCacheStorageNames[static_cast<size_t>(*cache)]);
    tokens_ = types.fields.at(types.inputs.front()).shape[1];
  }
  InferenceModel model = make_inference(std::move(captured), plan_, {}, std::move(fake_quantize));
  parameters_ = std::move(model.parameters);
  sample_shape_ = types.sample();
  program_ = engine.program(
      {.mode = "evaluate", .variant = form, .fields = types.fields}, cat("evaluation on data.", split),
      [&] { return std::move(model.graph); }, engine.has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
  // Host copies: all results of a batch, and one result during its conversion to the contiguous format.
  int64_t most = 0;
  const MetricSums sums(session.task(), metrics_, results_);
  for (const std::string& name : sums.results()) {
    const TensorType& type = program_->graph().type(program_->graph().find_output(name));
    data_bytes_ += type.bytes();
    if (!type.format.is_contiguous()) most = std::max(most, type.bytes());
  }
  data_bytes_ += most;
}

Evaluator::~Evaluator() = default;

void Evaluator::bind(const std::string& average) {
  execution_ = engine_.bind(program_);
  if (average.empty()) return;
  std::map<std::string, std::string> binding;
  // Includes the averages of learned scales, which are not parameters of the model.
  for (const ValueId id : program_->graph().inputs()) {
    const std::string& name = program_->graph().value(id).name;
    if (engine_.store().has(name + average)) binding[name] = name + average;
  }
  average_ = engine_.bind(program_, {.names = std::move(binding)});
}

bool Evaluator::divides() const { return MetricSums(session_.task(), metrics_, results_).only_sums(); }

/// Each sample begins at the start of its row of the cache; what an earlier one left there is at positions that no token reads.
void Evaluator::feed_cache_inputs(Execution& execution) const {
  if (tokens_ == 0) return;
  const auto feed = [&](const char* name, const Shape& shape, const std::function<int64_t(int64_t)>& value) {
    if (!execution.takes(name)) return;
    Tensor values(DType::kI64, shape);
    for (int64_t i = 0; i < values.elements(); ++i) values.data_as<int64_t>()[i] = value(i);
    execution.feed(name, values);
  };
  feed(cache_input::kStart, {batch_}, [](int64_t) { return 0; });
  feed(cache_input::kPositions, {batch_, tokens_}, [this](int64_t i) { return i % tokens_; });
  feed(cache_input::kLast, {batch_}, [this](int64_t) { return tokens_ - 1; });
  feed(cache_input::kLength, {batch_}, [this](int64_t) { return tokens_; });
}

std::optional<MetricValues> Evaluator::pass(Execution& execution, const std::function<bool()>& stop, Communicator* ranks) {
  MetricSums metrics(session_.task(), metrics_, results_);
  const std::unique_ptr<DataLoader> loader =
      ranks == nullptr ? session_.loader(split_, batch_, 0, 1, limit_)
                       : session_.loader(split_, batch_, 0, 1, limit_, {.rank = ranks->rank(), .ranks = ranks->size()});
  metrics.begin(*loader);
  feed_cache_inputs(execution);
  while (const Batch* data = loader->next()) {
    feed_fields(execution, *data);
    execution.run();  // also without a part of the batch: ranks may gather parameters
    if (loader->share() > 0) metrics.add([&](const std::string& name) { return execution.output(name); }, *data);
    if (stop()) return std::nullopt;
  }
  if (ranks != nullptr) {
    metrics.add_others([&](std::span<double> sums) {
      ranks->all_reduce("metrics", sums.data(), sums.data(), static_cast<int64_t>(sums.size()), DType::kF64);
    });
  }
  seen_ = metrics.samples();
  skipped_ = loader->skips().skipped;
  irregular_ = loader->irregular().samples;
  classes_ = metrics.classes();
  return metrics.values();
}

std::optional<MetricValues> Evaluator::run(const std::function<bool()>& stop, Communicator* ranks) {
  GALLEY_ASSERT(execution_ != nullptr);
  std::optional<MetricValues> values = pass(*execution_, stop, ranks);
  if (!values || !average_) return values;
  const std::optional<MetricValues> averaged = pass(*average_, stop, ranks);
  if (!averaged) return std::nullopt;
  for (const auto& [name, value] : *averaged) values->emplace_back("ema/" + name, value);
  return values;
}

}  // namespace galley
