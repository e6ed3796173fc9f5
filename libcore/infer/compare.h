#pragma once
// Two sets of weights of one model, output by output: metrics, agreement, distance of the outputs and of every layer's, and the samples
// on which they decide differently. For galley-evaluate --against.

#include <cstdint>
#include <string>
#include <vector>

#include "libcore/infer/session.h"

namespace galley {

/// How far b is from a over all elements seen.
class Distance {
 public:
  /// The first `rows` of [N,...] of both, f32.
  void add(const Tensor& a, const Tensor& b, int64_t rows);
  double max_abs() const { return max_abs_; }
  /// Signal to noise, 10 log10(sum a^2 / sum (a-b)^2): infinite where both are the same, NaN where one is not finite.
  double sqnr_db() const;

 private:
  double signal_ = 0, noise_ = 0, max_abs_ = 0;
};

struct ChangedSample {
  std::string sample;
  int64_t label = -1;             // -1: unknown
  int64_t first = 0, second = 0;  // what each decides
};

struct LayerDistance {
  std::string module, type;
  Distance distance;
};

struct Comparison {
  MetricValues first, second;
  int64_t samples = 0;
  Distance outputs;
  double top1_agree = 0;  // percent of the samples; NaN for models that do not classify
  std::vector<ChangedSample> changed;
  std::vector<LayerDistance> layers;  // convolutions and linear layers, in the model's order, over layer_samples
  int64_t layer_samples = 0;
};

struct CompareOptions {
  std::string split = "val";
  int64_t batch = 32;
  int64_t layer_samples = 64;  // at most so many samples for the layers' results, which are all held at once
};

/// Evaluates the weights of two recipes batch by batch, float or quantized each; the recipes differ in their weights alone. Where one of
/// them is quantized, a layer's result is what its fused operator gives: after batch norm, residual and activation.
Comparison compare_weights_of(Session& first, Session& second, const CompareOptions& options);

}  // namespace galley
