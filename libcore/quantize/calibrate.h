#pragma once
// Calibrator: runs the samples of data.calibration through the folded and fused float model and collects statistics of every value. For
// galley-calibrate, and for galley-quantize without a calibration file.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "libcore/infer/session.h"
#include "libcore/quant/calibration.h"
#include "libcore/runtime/engine.h"

namespace galley {

/// A compiled model whose values are observed.
class Calibrator {
 public:
  /// Compiles the model for batches of data.calibration. Throws (kNumeric) if there are no samples.
  explicit Calibrator(Session& session);
  ~Calibrator();

  const Program& program() const { return *program_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// The number of samples to read: data.calibration.samples, or all if there are fewer.
  int64_t samples() const { return samples_; }
  int64_t batch() const { return batch_; }
  /// The number of observed values.
  int64_t values() const { return static_cast<int64_t>(order_.size()); }
  /// Bytes of parameters, scratch and batches, and of the statistics.
  int64_t planned_bytes() const;
  /// model_digest of the graph.
  const std::string& model() const { return model_; }
  /// Shape of one sample.
  const std::vector<int64_t>& input() const { return input_; }
  /// Calibration::inputs.
  const std::vector<std::string>& optional() const { return optional_; }

  /// Declared parameters and buffers. Fill them before `run`.
  ParameterStore& store() { return engine_.store(); }
  /// Adds the samples from calibration.samples() up to samples(). A calibration that is not empty must be of this model, these parameters
  /// and the same data, else it throws (kInput). Calls `progress` after each batch with the number of samples; false ends the run. Throws
  /// (kNumeric), with the name of the layer, for values that are not finite.
  void run(Calibration& calibration, const std::function<bool(int64_t samples)>& progress = {});

 private:
  class Watch;

  Session& session_;
  Engine engine_;
  int64_t batch_ = 1, samples_ = 0, data_bytes_ = 0;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::string> order_;
  std::vector<std::string> inputs_;    // of the model, by name
  std::vector<std::string> optional_;  // those of them that the model can do without
  std::vector<int64_t> input_;
  std::string model_, source_;
  std::shared_ptr<const Program> program_;
};

/// The optional inputs of the model that these batches have, for Calibration::inputs.
std::vector<std::string> optional_inputs(const Session& session, const BatchTypes& types);
/// Digest of the values of an array in logical order; it does not depend on the memory format.
std::string array_digest(const Tensor& values);
/// Digest of the values of each parameter, by name, for Calibration::weights.
std::map<std::string, std::string> parameter_digests(const std::vector<ParameterSpec>& parameters, const ParameterStore& store);

}  // namespace galley
