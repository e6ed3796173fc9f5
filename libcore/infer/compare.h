#pragma once
// Compares two sets of weights of one model: metrics, agreement, distances of the outputs of the model and of each layer, and the samples
// with different predictions. For galley-evaluate --against.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/infer/session.h"

namespace galley {

/// The distance of b from a over all added elements.
class Distance {
 public:
  /// Adds the first `rows` rows of two f32 tensors [N,...].
  void add(const Tensor& a, const Tensor& b, int64_t rows);
  double max_abs() const { return max_abs_; }
  /// Signal-to-noise ratio in dB, 10 log10(sum a^2 / sum (a-b)^2): infinite if both are equal, NaN if a value is not finite.
  double sqnr_db() const;

 private:
  double signal_ = 0, noise_ = 0, max_abs_ = 0;
};

/// A sample with different predictions.
struct ChangedSample {
  std::string sample;
  int64_t label = -1;             ///< -1: unknown.
  int64_t first = 0, second = 0;  ///< The predicted classes.
};

/// The distance of the outputs of a layer.
struct LayerDistance {
  std::string module, type;
  Distance distance;
};

/// The result of a comparison.
struct Comparison {
  MetricValues first, second;
  int64_t samples = 0;
  Distance outputs;
  double top1_agree = 0;  ///< Percent of the samples; NaN for models without classes.
  std::vector<ChangedSample> changed;
  std::vector<LayerDistance> layers;  ///< Convolutions and linear layers in the model's order, over layer_samples.
  int64_t layer_samples = 0;
};

/// Options of compare_weights_of.
struct CompareOptions {
  std::string split = "val";
  int64_t batch = 32;
  int64_t layer_samples = 64;  ///< Largest number of samples for the distances of layers, whose outputs are all in memory.
};

/// Evaluates two recipes that differ only in their weights, float or quantized, batch by batch. If one is quantized, the output of a layer
/// is that of its fused operator: after batch norm, residual and activation.
Comparison compare_weights_of(Session& first, Session& second, const CompareOptions& options);

}  // namespace galley
