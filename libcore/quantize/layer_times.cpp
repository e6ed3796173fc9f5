#include "libcore/quantize/layer_times.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "libcore/data/loader.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/random_batch.h"
#include "libcore/profiler/integer_facts.h"
#include "libcore/runtime/engine.h"

namespace galley {
namespace {

constexpr int kWarmup = 2;

/// Whether the operator is a float layer with weights, or its integer form.
bool is_layer(const OpDef& op) {
  if (op.quantize == QuantizeRule::kScale || family_of(op).quantize == QuantizeRule::kProduct) return true;
  return multiplies_integers(op);
}

class TimedProgram {
 public:
  TimedProgram(const Session& session, std::shared_ptr<const QuantizationPlan> plan, int64_t batch,
               const std::function<void(ParameterStore&)>& fill)
      : engine_(session.backend()) {
    const BatchTypes types = session.usual_types(batch, false);
    InferenceModel model = inference_model(session, types, std::move(plan));
    program_ = compile_inference(engine_, types, model, "times of layers");
    engine_.declare(*program_);
    fill(engine_.store());
    execution_ = engine_.bind(program_);
    batch_ = random_batch(session, types);
    feed_fields(*execution_, batch_);
  }

  void run() { execution_->run(); }
  void timed_run() {
    NodeTimer timer;
    execution_->run({.observer = &timer});
    rows_.push_back(timer.rows());
  }

  ProgramTimes times() const {
    ProgramTimes times;
    std::map<std::string, int> seen;
    std::vector<double> totals(rows_.size());
    for (size_t i = 0; i < rows_.front().size(); ++i) {
      const NodeTimer::Row& row = rows_.front()[i];
      std::vector<double> seconds;
      for (size_t round = 0; round < rows_.size(); ++round) {
        seconds.push_back(rows_[round][i].seconds);
        totals[round] += seconds.back();
      }
      const LayerTime time{median(std::move(seconds)), row.cost.executed_flops(), row.cost.bytes_read + row.cost.bytes_written};
      times.all.flops += time.flops;
      times.all.bytes += time.bytes;
      if (!is_layer(find_op(row.op))) continue;
      const int count = ++seen[row.path];
      times.layers[count == 1 ? row.path : cat(row.path, ".", count)] = time;
    }
    times.all.seconds = median(std::move(totals));
    return times;
  }

 private:
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }

  Engine engine_;
  std::shared_ptr<const Program> program_;
  std::unique_ptr<Execution> execution_;
  Batch batch_;
  std::vector<std::vector<NodeTimer::Row>> rows_;  // by round
};

}  // namespace

QuantizationTimes time_layers(const Session& session, ModelQuantizer& quantizer, const QuantizedModel& model, int64_t batch, int rounds) {
  TimedProgram real(session, nullptr, batch, [&](ParameterStore& store) {
    for (const std::string& name : store.names()) store.set(name, quantizer.store().get(name));
  });
  TimedProgram quantized(session, model.plan, batch, [&](ParameterStore& store) { model.put(store); });
  for (int i = 0; i < kWarmup; ++i) real.run(), quantized.run();
  for (int i = 0; i < rounds; ++i) {
    real.timed_run();
    quantized.timed_run();
  }
  return {real.times(), quantized.times(), rounds};
}

}  // namespace galley
