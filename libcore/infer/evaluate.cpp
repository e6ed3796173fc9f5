#include "libcore/infer/evaluate.h"

#include <algorithm>

#include "libcore/base/parallel.h"
#include "libcore/base/under_key.h"
#include "libcore/comm/leaf_sums.h"
#include "libcore/data/loader.h"
#include "libcore/infer/inference.h"
#include "libcore/nn/attention.h"

namespace galley {

Evaluator::Evaluator(Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan, const std::string& split,
                     int64_t batch, int64_t samples, std::function<void(Graph&)> fake_quantize, std::optional<CacheStorage> cache,
                     const std::function<void(Graph&)>& divide, bool bytes)
    : session_(session),
      engine_(engine),
      split_(split),
      batch_(batch),
      limit_(samples),
      plan_(std::move(plan)),
      fake_quantize_(std::move(fake_quantize)),
      divide_(divide),
      cache_(cache),
      bytes_(bytes && plan_ == nullptr && !fake_quantize_) {  // a plan knows the value that the model reads by its name
  const std::unique_ptr<DataLoader> loader = session.loader(split, batch, 0, 1, samples, {.bytes = bytes_, .fit = true});
  data_bytes_ = loader->buffer_bytes();
  metrics_ = metric_names(session.task(), session.recipe().metrics);
  types_ = session.all_batch_types(*loader);
  const BatchTypes& types = types_.front();
  if (cache) tokens_ = types.fields.at(types.inputs.front()).shape[1];
  sample_shape_ = types.sample();
  program_ = compile(types);
  // Host copies: all results of a batch, and one result during its conversion to the contiguous format.
  int64_t most = 0;
  const MetricSums sums(session.task(), metrics_, results_);
  for (const std::string& name : sums.results()) {
    const TensorType& type = program_->graph().type(program_->graph().find_output(name));
    data_bytes_ += type.bytes();
    if (!type.format.is_contiguous()) most = std::max(most, type.bytes());
  }
  data_bytes_ += most;
  const std::unique_ptr<Collector> collector = session.task().collector(metrics_);
  if (collector == nullptr) return;
  std::map<std::string, TensorType> types_of_results;
  for (const std::string& name : results_.results)
    types_of_results.emplace(name, program_->graph().type(program_->graph().find_output(name)));
  data_bytes_ += collector->bytes(samples > 0 ? std::min(samples, loader->source().size()) : loader->source().size(), types_of_results);
}

Evaluator::~Evaluator() = default;

std::shared_ptr<const Program> Evaluator::compile(const BatchTypes& types) {
  CapturedModel captured = session_.capture_evaluation(types, cache_);
  results_ = captured.results;
  if (divide_) divide_(captured.graph);
  std::string form = fake_quantize_ ? "rounded" : plan_ != nullptr ? plan_->str() : "";
  if (cache_) form += cat(" cache in ", kCacheStorageNames[static_cast<size_t>(*cache_)]);
  InferenceModel model = make_inference(std::move(captured), plan_, {}, fake_quantize_);
  parameters_ = std::move(model.parameters);
  return engine_.program(
      {.mode = "evaluate", .variant = form + pixels_text(types), .fields = types.fields}, cat("evaluation on data.", split_),
      [&] { return std::move(model.graph); }, engine_.has_formats() ? ParameterFormats::kFollow : ParameterFormats::kLead);
}

Execution& Evaluator::execution_for(const Batch& batch, Execution& whole) {
  const std::string& input = types_.front().inputs.front();
  const Shape& shape = batch.at(input).shape();
  size_t number = 0;
  while (number < types_.size() && !(types_[number].fields.at(input).shape == shape)) ++number;
  GALLEY_ASSERT(number < types_.size(), "no program for images ", shape);
  if (number == 0) return whole;
  const bool averages = &whole == average_.get();
  std::unique_ptr<Execution>& execution = sized_[{number, averages}];
  if (execution == nullptr) execution = engine_.bind(compile(types_[number]), {.names = names_of(averages ? average_suffix_ : "")});
  return *execution;
}

void Evaluator::bind(const std::string& average) {
  execution_ = engine_.bind(program_);
  average_suffix_ = average;
  if (average.empty()) return;
  average_ = engine_.bind(program_, {.names = names_of(average)});
}

/// Names of averages, by those of the program.
std::map<std::string, std::string> Evaluator::names_of(const std::string& average) const {
  std::map<std::string, std::string> names;
  if (average.empty()) return names;
  // Includes the averages of learned scales, which are not parameters of the model.
  for (const ValueId id : program_->graph().inputs()) {
    const std::string& name = program_->graph().value(id).name;
    if (engine_.store().has(name + average)) names[name] = name + average;
  }
  return names;
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
  // On a device with memory of its own the next batch arrives beside the run. A program that is bound later may move the arena.
  const bool ahead = !engine_.backend().device().is_host() && execution.keeps_outputs() && types_.size() == 1;
  Session::LoaderPart part{.bytes = bytes_, .held = ahead ? 2 : 1, .fit = ranks == nullptr};
  if (ranks != nullptr) {
    part.rank = ranks->rank();
    part.ranks = ranks->size();
  }
  const std::unique_ptr<DataLoader> loader = session_.loader(split_, batch_, 0, 1, limit_, part);
  metrics.begin(*loader);
  feed_cache_inputs(execution);
  const auto feed = [&](const Batch& data) -> Execution& {
    Execution& sized = execution_for(data, execution);
    feed_fields(sized, data);
    return sized;
  };
  const Batch* data = loader->next();
  Execution* fed = nullptr;
  while (data != nullptr) {
    Execution& sized = ahead && fed != nullptr ? *fed : feed(*data);
    const double share = loader->share();
    sized.run();  // also without a part of the batch: ranks may gather parameters
    const Batch* next = ahead ? loader->next() : nullptr;
    if (next != nullptr) fed = &feed(*next);
    if (share > 0) under_key(pipeline_key(), [&] { metrics.add([&](const std::string& name) { return sized.output(name); }, *data); });
    if (stop()) return std::nullopt;
    data = ahead ? next : loader->next();
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

namespace {

/// The metrics, and those with averaged parameters; nullopt if there are none of either.
std::optional<MetricValues> with_averages(std::optional<MetricValues> values, const std::optional<MetricValues>& averaged) {
  if (!averaged) return std::nullopt;
  for (const auto& [name, value] : *averaged) values->emplace_back("ema/" + name, value);
  return values;
}

/// One replica's part of an evaluation.
struct ReplicaPart {
  std::unique_ptr<DataLoader> loader;
  std::unique_ptr<MetricSums> metrics;
  const Batch* batch = nullptr;
};

/// Replaces the sums of the first part by those of all parts of all ranks.
void add_parts(std::vector<ReplicaPart>& parts, Communicator* ranks, const ReductionTree& tree) {
  std::vector<std::vector<double>> leaves;
  for (const ReplicaPart& part : parts)
    part.metrics->add_others([&](std::span<double> sums) { leaves.emplace_back(sums.begin(), sums.end()); });
  std::vector<const double*> places;
  for (const std::vector<double>& leaf : leaves) places.push_back(leaf.data());
  parts.front().metrics->add_others([&](std::span<double> sums) { sum_leaves(ranks, "metrics", tree, places, sums); });
}

}  // namespace

std::optional<MetricValues> Evaluator::pass(const std::string& average, const std::function<bool()>& stop, Communicator* ranks,
                                            const Replicas& replicas) {
  const int size = ranks != nullptr ? ranks->size() : 1;
  const ReductionTree tree(replicas.count, size);
  const LeafRange own = tree.owned(ranks != nullptr ? ranks->rank() : 0);
  std::vector<ReplicaPart> parts(static_cast<size_t>(own.end - own.begin));
  for (int leaf = own.begin; leaf < own.end; ++leaf) {
    ReplicaPart& part = parts[static_cast<size_t>(leaf - own.begin)];
    part.loader = session_.loader(split_, batch_, 0, 1, limit_, {.rank = leaf, .ranks = replicas.count, .bytes = bytes_});
    part.metrics = std::make_unique<MetricSums>(session_.task(), metrics_, results_);
    part.metrics->begin(*part.loader);
  }
  const auto slots = std::min<int64_t>(replicas.collectives ? 1 : std::max(1, replicas.threads), std::ssize(parts));
  std::vector<std::unique_ptr<Execution>> executions;
  for (int64_t slot = 0; slot < slots; ++slot) {
    executions.push_back(engine_.bind(program_, {.arena = std::make_shared<Arena>(), .names = names_of(average)}));
    feed_cache_inputs(*executions.back());
  }
  // Ranks whose replicas are fewer run the last one again, where programs gather parameters.
  const int64_t runs = replicas.collectives ? (replicas.count + size - 1) / size : std::ssize(parts);
  const auto run_part = [&](int64_t run, Execution& execution) {
    ReplicaPart& part = parts[static_cast<size_t>(std::min<int64_t>(run, std::ssize(parts) - 1))];
    const bool first = run < std::ssize(parts);
    if (first) part.batch = part.loader->next();
    if (part.batch == nullptr) return;
    feed_fields(execution, *part.batch);
    execution.run();
    if (first && part.loader->share() > 0)
      under_key(pipeline_key(), [&] { part.metrics->add([&](const std::string& name) { return execution.output(name); }, *part.batch); });
  };
  for (;;) {
    if (slots == 1) {
      for (int64_t run = 0; run < runs; ++run) run_part(run, *executions.front());
    } else {
      const ThreadShare share(static_cast<int>(slots));
      parallel_tasks(runs, slots, [&](int64_t run, int64_t slot) { run_part(run, *executions[static_cast<size_t>(slot)]); });
    }
    if (parts.front().batch == nullptr) break;
    if (stop()) return std::nullopt;
  }
  add_parts(parts, ranks, tree);
  const MetricSums& metrics = *parts.front().metrics;
  seen_ = metrics.samples();
  skipped_ = irregular_ = 0;
  for (const ReplicaPart& part : parts) {
    skipped_ += part.loader->skips().skipped;
    irregular_ += part.loader->irregular().samples;
  }
  classes_ = metrics.classes();
  return metrics.values();
}

std::optional<MetricValues> Evaluator::run(const std::function<bool()>& stop, Communicator* ranks, const Replicas& replicas) {
  GALLEY_ASSERT(execution_ != nullptr);
  std::optional<MetricValues> values = pass("", stop, ranks, replicas);
  if (!values || !average_) return values;
  return with_averages(std::move(values), pass(average_suffix_, stop, ranks, replicas));
}

std::optional<MetricValues> Evaluator::run(const std::function<bool()>& stop, Communicator* ranks) {
  GALLEY_ASSERT(execution_ != nullptr);
  std::optional<MetricValues> values = pass(*execution_, stop, ranks);
  if (!values || !average_) return values;
  return with_averages(std::move(values), pass(*average_, stop, ranks));
}

}  // namespace galley
