#pragma once
// Predictor: one pass of a model over samples without labels, results in order. Used by galley-predict.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"

namespace galley {

struct PredictOptions {
  int64_t batch = 16;                // at most the source's samples; a model of a fixed batch takes that
  int64_t replicas = 1;              // executions side by side, each on its share of the threads; on another device than the host: one
  std::vector<std::string> capture;  // globs of modules whose results are wanted too; of quantized weights the fused results
  bool keep_going = false;           // go on after a sample that cannot be read, and say why; else it is an error
};

/// Results of the first `indices.size()` rows of each tensor; the rows behind are padding.
struct PredictedBatch {
  std::vector<int64_t> indices;               // in the source
  std::map<int64_t, std::string> unreadable;  // by row: why its sample could not be read; the row means nothing
  std::map<int64_t, std::string> irregular;   // by row: what is wrong with a file that was read all the same
  std::vector<Tensor> outputs;                // contiguous [N,...], in the order of Predictor::outputs()
};

/// Why the samples before the first one that can be read, its pipeline applied, cannot be; of all samples where there is no such one.
std::vector<std::string> unreadable_start(const Source& source, const std::vector<Component>& pipeline);

class Predictor {
 public:
  /// Compiles the model for the source's samples after those items of `pipeline` that apply to its fields. Throws (kInput) where the source
  /// is empty, (kRecipe) where its samples do not fit the model.
  Predictor(Session& session, std::shared_ptr<const Source> source, const std::vector<Component>& pipeline, PredictOptions options);
  ~Predictor();

  /// Names: "output", the model's other results, the captured modules.
  const std::vector<std::string>& outputs() const { return outputs_; }
  /// Type of one batch of that output.
  const TensorType& type(size_t output) const { return types_[output]; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const Program& program() const { return *program_; }
  /// Bytes of parameters, packed weights, scratch and batches, all replicas together.
  int64_t planned_bytes() const;

  /// Parameters and buffers, declared: to be filled before `run`.
  ParameterStore& store() { return engine_->store(); }
  /// Predicts all samples on these parameters and hands the batches over in the source's order.
  void run(const std::function<void(const PredictedBatch&)>& take);

 private:
  struct Crew;
  std::unique_ptr<DataLoader> loader() const;

  Session& session_;
  std::shared_ptr<const Source> source_;
  std::vector<Component> pipeline_;
  PredictOptions options_;
  std::vector<std::string> outputs_;
  std::vector<TensorType> types_;
  std::vector<ParameterSpec> parameters_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Program> program_;
  int64_t threads_ = 1, data_bytes_ = 0;  // threads of one replica
};

}  // namespace galley
