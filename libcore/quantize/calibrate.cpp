#include "libcore/quantize/calibrate.h"

#include <algorithm>

#include "libcore/base/digest.h"
#include "libcore/base/log.h"
#include "libcore/data/loader.h"
#include "libcore/data/source.h"
#include "libcore/infer/inference.h"
#include "libcore/nn/language_model.h"
#include "libcore/quant/names.h"
#include "libcore/recipe/recipe.h"
#include "libcore/runtime/engine.h"

namespace galley {
namespace {

/// Throws kNumeric, not kRecipe, for a slice without samples: the data are insufficient, but the recipe is valid.
void check_samples(Session& session, const std::string& name) {
  const int64_t size = session.source(name)->size();
  const std::optional<Slice>& slice = session.recipe().data.find(name)->slice;
  const bool shares = slice && slice->begin.percent && slice->end.percent;
  try {
    if (shares) slice->of(size);
  } catch (const Error& error) {
    throw Error(ErrorCode::kNumeric, cat("data.calibration draws from data.", name, ", which has no samples: ", error.message()))
        .key("data.calibration")
        .suggest("write another split, or a larger slice");
  }
  if (size == 0)
    throw Error(ErrorCode::kNumeric, cat("data.calibration draws from data.", name, ", which has no samples"))
        .key("data.calibration")
        .suggest("write another split");
}

/// The rows of a value that belong to the valid samples of a batch: the first ones, if dimension 0 is that of the samples.
struct Rows {
  int64_t count = 1, each = 1;  // rows of the whole value
  int64_t of(int64_t valid, int64_t batch) const { return count % batch == 0 ? count / batch * valid : count; }
};
Rows rows_of(const TensorType& type, int64_t batch) {
  const int64_t elements = type.shape.elements();
  if (type.shape.rank() == 0 || type.shape[0] % batch != 0 || elements == 0) return {1, elements};
  return {batch, elements / batch};
}

}  // namespace

/// Adds the outputs of each node to the statistics of their values.
class Calibrator::Watch : public NodeObserver {
 public:
  Watch(const Program& program, Calibration& calibration, int64_t batch) : batch_(batch), slots_(program.graph().nodes().size()) {
    const Graph& graph = program.graph();
    const std::map<ValueId, std::string> values = watched_values(graph);
    for (size_t n = 0; n < slots_.size(); ++n) {
      const Node& node = graph.nodes()[n];
      const auto found = node.outputs.empty() ? values.end() : values.find(node.outputs[0]);
      if (found == values.end()) continue;
      const auto statistics = calibration.values.find(found->second);
      GALLEY_ASSERT(statistics != calibration.values.end(), "the program computes ", found->second, ", which the graph did not contain");
      slots_[n] = {&statistics->second, &statistics->first, rows_of(graph.type(node.outputs[0]), batch)};
    }
  }
  void set_valid(int64_t valid) { valid_ = valid; }
  void after(const Program&, const Step& step, const NodeOutputs& outputs) override {
    const Slot& slot = slots_[static_cast<size_t>(step.node)];
    if (slot.statistics != nullptr)
      slot.statistics->add(static_cast<const float*>(outputs.host(0)), slot.rows.of(valid_, batch_), slot.rows.each, *slot.name);
  }

 private:
  struct Slot {
    RangeStatistics* statistics = nullptr;
    const std::string* name = nullptr;
    Rows rows;
  };
  int64_t batch_, valid_ = 0;
  std::vector<Slot> slots_;
};

Calibrator::Calibrator(Session& session) : session_(session), engine_(session.backend_without_chains()) {
  const Recipe& recipe = session.recipe();
  const CalibrationSection& section = recipe.data.calibration;
  const int64_t micro = recipe.train.batch ? recipe.train.batch->micro.value_or(recipe.train.batch->global) : 32;
  const int64_t usual = recipe.data.val ? recipe.data.val->batch.value_or(micro) : micro;
  batch_ = std::min(section.batch.value_or(usual), section.samples);
  check_samples(session, section.from);
  const std::unique_ptr<DataLoader> loader = session.calibration_loader(batch_, 0, 1);  // only for its shapes; prefetches one sample
  samples_ = std::min(section.samples, loader->epoch_samples());
  if (samples_ < section.samples)
    log(LogLevel::kWarning, cat("data.calibration.samples is ", section.samples, ", but data.", section.from, " has only ", samples_,
                                " samples; all are used"));
  data_bytes_ = loader->buffer_bytes();
  const Split& split = *recipe.data.find(section.from);
  source_ = digest_of(cat(loader->source().describe(), "\n", split.slice ? split.slice->str() : "", "\n", split.slice_seed.value_or(-1),
                          "\n", recipe.seed, "\n", pipeline_text(session.calibration_pipeline(), *recipe.registry)));
  const BatchTypes types = session.batch_types(*loader);
  inputs_ = types.inputs;
  for (int d = 1; d < types.input().shape.rank(); ++d) input_.push_back(types.input().shape[d]);
  InferenceModel model = inference_model(session, types, nullptr);
  parameters_ = std::move(model.parameters);
  model_ = model_digest(model.graph);
  optional_ = optional_inputs(session, types);
  order_ = watched_names(model.graph);
  program_ = engine_.program(
      {.mode = "calibrate", .fields = types.fields}, cat("calibration on data.", section.from), [&] { return std::move(model.graph); },
      ParameterFormats::kLead);
  engine_.declare(*program_);
}

Calibrator::~Calibrator() = default;

int64_t Calibrator::planned_bytes() const {
  const int64_t statistics = values() * Histogram::kBins * 8;
  return program_->persistent_bytes() + program_->scratch_bytes() + program_->prepared_bytes() + data_bytes_ + statistics;
}

void Calibrator::run(Calibration& calibration, const std::function<bool(int64_t)>& progress) {
  const std::map<std::string, std::string> weights = parameter_digests(parameters_, engine_.store());
  const std::string recipe = dump_recipe(session_.recipe(), DumpKind::kFull);
  if (calibration.parts.empty()) {
    calibration = {.order = order_, .model = model_, .input = input_, .inputs = optional_, .weights = weights, .recipe = recipe};
    for (const std::string& name : order_) calibration.values.emplace(name, RangeStatistics());
  } else {
    calibration.check(model_, weights, "the calibration to continue");
    for (const CalibrationPart& part : calibration.parts) {
      if (part.source == source_) continue;
      throw Error(ErrorCode::kInput, "the calibration to continue is of other data (another source, slice, seed or pipeline)")
          .suggest("use the recipe that it was made with; --merge combines files of different data");
    }
  }
  const int64_t done = calibration.samples();
  if (done >= samples_) return;
  const std::unique_ptr<DataLoader> loader = session_.calibration_loader(batch_, done, samples_);
  const std::unique_ptr<Execution> execution = engine_.bind(program_);
  Watch watch(*program_, calibration, batch_);
  CalibrationPart part{.batch = batch_, .first = done, .source = source_, .recipe = digest_of(recipe)};
  Digest data;
  while (const Batch* batch = loader->next()) {
    const int64_t valid = batch->valid;
    for (const std::string& name : inputs_) {
      const Tensor& values = batch->at(name);
      const int64_t row = values.elements() / batch_;
      data.update(std::span(static_cast<const std::byte*>(values.data()), static_cast<size_t>(valid * row * dtype_size(values.dtype()))));
      const auto input = calibration.values.find(name);
      if (input != calibration.values.end()) input->second.add(values.data_as<float>(), valid, row, name);
    }
    watch.set_valid(valid);
    feed_fields(*execution, *batch);
    execution->run({.observer = &watch});
    part.samples += valid;
    ++part.batches;
    if (progress && !progress(done + part.samples)) break;
  }
  part.data = data.hex();
  calibration.parts.push_back(std::move(part));
  for (const auto& [name, statistics] : calibration.values) {
    if (statistics.empty())
      throw Error(ErrorCode::kNumeric, cat(name, " received no data in ", calibration.samples(), " samples"))
          .suggest("the model does not compute it for these samples; calibrate with others");
  }
}

std::vector<std::string> optional_inputs(const Session& session, const BatchTypes& types) {
  std::vector<std::string> names;
  if (language_model_params(session.model()) == nullptr) return names;  // inputs of detectors: usual_types, or their targets
  for (const ModelInput& input : session.info().all_inputs()) {
    if (input.optional && std::find(types.inputs.begin(), types.inputs.end(), input.name) != types.inputs.end())
      names.push_back(input.name);
  }
  return names;
}

std::string array_digest(const Tensor& values) {
  const Tensor plain = values.to(MemoryFormat::contiguous());
  return digest_of(std::span(static_cast<const std::byte*>(plain.data()), static_cast<size_t>(plain.bytes())));
}

std::map<std::string, std::string> parameter_digests(const std::vector<ParameterSpec>& parameters, const ParameterStore& store) {
  std::map<std::string, std::string> digests;
  for (const ParameterSpec& spec : parameters) {
    if (!store.has(spec.name)) continue;
    digests[spec.name] = array_digest(store.get(spec.name));
  }
  return digests;
}

}  // namespace galley
