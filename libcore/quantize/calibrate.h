#pragma once
// Calibrator: runs samples of data.calibration through the folded and fused float model, once, and keeps statistics of every value. Used by
// galley-calibrate, and by galley-quantize without a file.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "libcore/infer/session.h"
#include "libcore/quant/calibration.h"
#include "libcore/runtime/engine.h"

namespace galley {

class Calibrator {
 public:
  /// Compiles the model for batches of data.calibration. Throws (kNumeric) where there are no samples.
  explicit Calibrator(Session& session);
  ~Calibrator();

  const Program& program() const { return *program_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Samples that are wanted: data.calibration.samples, or all where there are fewer.
  int64_t samples() const { return samples_; }
  int64_t batch() const { return batch_; }
  /// Values that are watched.
  int64_t values() const { return static_cast<int64_t>(order_.size()); }
  /// Bytes of parameters, scratch and batches, and of the statistics.
  int64_t planned_bytes() const;
  /// model_digest of the graph.
  const std::string& model() const { return model_; }
  /// Shape of one sample.
  const std::vector<int64_t>& input() const { return input_; }

  /// Parameters and buffers, declared: to be filled before `run`.
  ParameterStore& store() { return engine_.store(); }
  /// Reads the samples from calibration.samples() up to samples() and adds them. An empty calibration is begun; another one must be of this
  /// model with these parameters (kInput) and of the same data (kInput). `progress` is told after each batch how many samples there are,
  /// and ends the run by false. Throws (kNumeric), naming the layer, for values that are not finite.
  void run(Calibration& calibration, const std::function<bool(int64_t samples)>& progress = {});

 private:
  class Watch;

  Session& session_;
  Engine engine_;
  int64_t batch_ = 1, samples_ = 0, data_bytes_ = 0;
  std::vector<ParameterSpec> parameters_;
  std::vector<std::string> order_;
  std::vector<std::string> inputs_;  // of the model, by name
  std::vector<int64_t> input_;
  std::string model_, source_;
  std::shared_ptr<const Program> program_;
};

/// Digest of an array's values in their logical order, whatever its memory format.
std::string array_digest(const Tensor& values);
/// Digest of each parameter's values, by name: what Calibration::weights holds.
std::map<std::string, std::string> parameter_digests(const std::vector<ParameterSpec>& parameters, const ParameterStore& store);

}  // namespace galley
