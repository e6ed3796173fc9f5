#pragma once
// Predictor: runs a model on samples without labels and returns the results in order. Used by galley-predict.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"

namespace galley {

/// Options of Predictor.
struct PredictOptions {
  int64_t batch = 16;                ///< Reduced to the number of samples, or to the model's fixed batch size.
  int64_t replicas = 1;              ///< Parallel executions, which share the threads. Always 1 on devices other than the host.
  std::vector<std::string> capture;  ///< Globs of modules whose results become outputs; of quantized weights the fused results.
  bool keep_going = false;           ///< Report samples that cannot be read and continue; false: throw an Error.
};

/// The results of one batch: the first `indices.size()` rows of each tensor. Later rows are padding.
struct PredictedBatch {
  std::vector<int64_t> indices;               ///< Of the samples in the source.
  std::map<int64_t, std::string> unreadable;  ///< By row: why its sample could not be read. Its values are invalid.
  std::map<int64_t, std::string> irregular;   ///< By row: the format error of a file that was read in full.
  std::vector<Tensor> outputs;                ///< Contiguous [N,...], in the order of Predictor::outputs().
};

/// Reads samples, with the pipeline, until one succeeds. Returns the errors of those before it.
std::vector<std::string> unreadable_start(const Source& source, const std::vector<Component>& pipeline);

/// A compiled model and the samples to predict.
class Predictor {
 public:
  /// Compiles the model for the samples of the source after the items of `pipeline` that apply to its fields. Throws (kInput) if the source
  /// is empty, (kRecipe) if its samples do not fit the model.
  Predictor(Session& session, std::shared_ptr<const Source> source, const std::vector<Component>& pipeline, PredictOptions options);
  ~Predictor();

  /// Names of the outputs: "output", the model's other results, the captured modules.
  const std::vector<std::string>& outputs() const { return outputs_; }
  /// Type of an output for one batch.
  const TensorType& type(size_t output) const { return types_[output]; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Shape of a sample of the model's first input, without the batch.
  const Shape& sample_shape() const { return sample_shape_; }
  const Program& program() const { return *program_; }
  /// Bytes of parameters, packed weights, scratch and batches of all replicas.
  int64_t planned_bytes() const;

  /// Declared parameters and buffers. Fill them before `run`.
  ParameterStore& store() { return engine_->store(); }
  /// Predicts all samples and passes the batches to `take` in the order of the source.
  void run(const std::function<void(const PredictedBatch&)>& take);

 private:
  struct Crew;
  std::unique_ptr<DataLoader> loader() const;
  std::shared_ptr<const Program> compile(const BatchTypes& types);
  /// The number in batch_types_ of the size of a batch's images.
  size_t size_of(const Batch& batch) const;
  /// A new execution of the program for images of the size number `size` (batch_types_), which is compiled when a batch first has it.
  std::unique_ptr<Execution> bind(size_t size, const std::shared_ptr<Arena>& arena);

  Session& session_;
  std::shared_ptr<const Source> source_;
  std::vector<Component> pipeline_;
  PredictOptions options_;
  std::vector<std::string> outputs_;
  std::vector<TensorType> types_;
  std::vector<BatchTypes> batch_types_;  // of all sizes of images; the first are those of `program_`
  std::mutex engine_mutex_;
  std::vector<ParameterSpec> parameters_;
  Shape sample_shape_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Program> program_;
  int64_t threads_ = 1, data_bytes_ = 0;  // threads of one replica
};

}  // namespace galley
