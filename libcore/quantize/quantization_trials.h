#pragma once
// QuantizationTrials: measures accuracy, time and size of one model under different quantization settings. For galley-quantize
// --sensitivity and quantize.goal.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libcore/quantize/model_quantizer.h"
#include "libcore/tasks/metrics.h"

namespace galley {

/// What a trial changes in the config.
struct TrialSetting {
  std::vector<std::string> float_layers;    // LayerPlan::name, in addition to those that the config keeps in float
  std::optional<ObserverType> activations;  // of every value; nullopt: as in the config
  std::optional<ObserverType> weights;      // of every layer
  /// Its identity, and its name in reports: "as configured", "activations mse, conv1 in float", "…, 3 layers in float".
  std::string key() const;
  std::string text() const;
};

/// What a trial measures in addition to the size.
struct TrialQuestions {
  bool sqnr = true, metrics = false, latency = false;
};

/// The measurements of one setting.
struct Trial {
  TrialSetting setting;
  TrialQuestions asked;
  double sqnr_db = 0;    // of the model's main output against the float model, over calibration samples; 0: not measured
  MetricValues metrics;  // on evaluate.data; empty: not measured
  double latency_s = 0;  // median of one sample; 0: not measured
  int64_t bytes = 0;     // of the file's tensors
  int64_t quantized_layers = 0;
};

/// Makes trials of one model.
class QuantizationTrials {
 public:
  /// `calibration`: as for plan_quantization. sqnr_db uses at most `samples` samples of data.calibration, which are kept in memory with the
  /// outputs of the float model. All arguments must outlive this object.
  QuantizationTrials(Session& session, ModelQuantizer& quantizer, QuantizeConfig config, const Calibration* calibration,
                     int64_t samples = 64);
  ~QuantizationTrials();

  /// Layers that the config quantizes, in the model's order.
  const std::vector<std::string>& layers() const { return layers_; }
  /// Quantizes the model with the setting.
  QuantizedModel quantize(const TrialSetting& setting) const;

  /// Quantizes the model and measures it.
  Trial run(const TrialSetting& setting, const TrialQuestions& questions);
  /// Metrics and latency of the float model, measured once.
  const MetricValues& float_metrics();
  double float_latency_s();

 private:
  struct Samples;
  QuantizeConfig config_of(const TrialSetting& setting) const;
  double sqnr_db(const QuantizedModel& model);
  MetricValues evaluate(std::shared_ptr<const QuantizationPlan> plan, const std::map<std::string, Tensor>* tensors);
  double latency_s(std::shared_ptr<const QuantizationPlan> plan, const std::map<std::string, Tensor>* tensors);
  void fill(ParameterStore& store, const std::map<std::string, Tensor>* tensors);

  Session& session_;
  ModelQuantizer& quantizer_;
  const QuantizeConfig config_;
  const Calibration* calibration_;
  std::vector<std::string> layers_;
  std::map<std::string, std::string> value_of_;  // quant_name of a layer's result
  int64_t wanted_samples_;
  std::unique_ptr<Samples> samples_;
  MetricValues float_metrics_;
  double float_latency_s_ = 0;
};

}  // namespace galley
