#pragma once
// Evaluator: one pass of a model over a split, metrics as sums over samples. Used while training and by galley-evaluate.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"
#include "libcore/tasks/metric_sums.h"

namespace galley {

struct QuantizationPlan;

class Evaluator {
 public:
  /// Compiles the evaluation program for batches of that size: on integers by a plan (loaded_plan(recipe): as the weights are), in float
  /// without. `samples`: at most so many; 0: all. `round` rewrites the fused graph (QuantizationAware::rounding). The engine must outlive
  /// the evaluator.
  Evaluator(Session& session, Engine& engine, std::shared_ptr<const QuantizationPlan> plan, const std::string& split, int64_t batch,
            int64_t samples = 0, std::function<void(Graph&)> round = nullptr);
  ~Evaluator();

  const Program& program() const { return *program_; }
  std::shared_ptr<const Program> shared_program() const { return program_; }
  /// What the program's outputs mean.
  const CapturedResults& results() const { return results_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// nullptr: it computes in float.
  const std::shared_ptr<const QuantizationPlan>& plan() const { return plan_; }
  /// Bytes of a pass on the host: buffers of the data, and copies of the results that a collector reads.
  int64_t data_bytes() const { return data_bytes_; }
  /// Binds the engine's parameters and scratch. With an `average` suffix (".ema") a second pass is made on the averages, its metrics
  /// prefixed "ema/".
  void bind(const std::string& average = "");
  /// Metrics over the split. Throws (kNumeric) where it has no samples.
  MetricValues run();
  /// Samples of the last run.
  int64_t samples() const { return seen_; }
  /// Damaged samples of the last run that others stood in for (on_error: skip).
  int64_t skipped() const { return skipped_; }
  /// Samples of the last run whose files are irregular but were read in full.
  int64_t irregular() const { return irregular_; }

 private:
  MetricValues pass(Execution& execution);

  std::vector<std::string> metrics_;
  CapturedResults results_;

  Session& session_;
  Engine& engine_;
  std::string split_;
  int64_t batch_, limit_, seen_ = 0, skipped_ = 0, irregular_ = 0, data_bytes_ = 0;
  std::shared_ptr<const QuantizationPlan> plan_;
  std::vector<ParameterSpec> parameters_;
  std::shared_ptr<const Program> program_;
  std::unique_ptr<Execution> execution_, average_;
};

}  // namespace galley
