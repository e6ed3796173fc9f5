#pragma once
// Quantization settings: schemes of weights and activations, resolved for each layer. The recipe's `quantize` section becomes a
// QuantizeConfig (quantize/quantize_config.h); the quantize pass reads only that.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "libcore/tensor/quant_params.h"

namespace galley {

enum class QuantMethod : uint8_t { kStatic, kDynamic, kWeightOnly, kQat };
/// Treatment of layers without an integer kernel.
enum class QuantFallback : uint8_t { kError, kFloat };
/// For machines that add pairs of 8-bit products in 16 bits: use an exact, slower path, or reduce weights by one bit.
enum class SaturationRule : uint8_t { kExact, kReduce };

/// How the range of the integers is computed from the observed values.
enum class ObserverType : uint8_t {
  kMinMax,         ///< minimum and maximum
  kMovingAverage,  ///< moving average of the minima and maxima of batches
  kHistogram,      ///< narrowed from both ends while the squared error on the histogram decreases, as in PyTorch's HistogramObserver
  kPercentile,     ///< cuts off the same fraction of values at each end
  kEntropy,        ///< smallest Kullback-Leibler divergence between the original and the quantized values (Migacz 2017)
  kMse,            ///< smallest mean squared error on the histogram
  kAuto,           ///< the observer above with the highest SQNR on the histogram
};
/// Names in recipes and reports, indexed by the enumerations' values.
inline constexpr std::array<std::string_view, 7> kObserverNames{"min_max", "moving_average", "histogram", "percentile", "entropy", "mse",
                                                                "auto"};
inline constexpr std::array<std::string_view, 4> kMethodNames{"static", "dynamic", "weight_only", "qat"};
inline std::string_view observer_name(ObserverType type) { return kObserverNames[static_cast<size_t>(type)]; }
inline std::string_view method_name(QuantMethod method) { return kMethodNames[static_cast<size_t>(method)]; }

struct ObserverSpec {
  ObserverType type = ObserverType::kMinMax;
  double percentile = 99.99;         ///< For kPercentile: percentage of values kept at each end.
  double averaging_constant = 0.01;  ///< For kMovingAverage.
  /// "min_max", "percentile 99.99%"
  std::string str() const;
};

struct WeightScheme {
  QuantDType dtype = QuantDType::kInt8;  ///< int8, int4 or f8_e4m3.
  bool per_channel = true;               ///< One scale for each slice along dimension 0.
  bool symmetric = true;                 ///< Zero point 0.
  ObserverSpec observer;                 ///< min_max, percentile or mse.
  int64_t group_size = 0;     ///< One scale per group of this number of consecutive values of a slice (weight_only); 0: no groups.
  bool reduce_range = false;  ///< Use -64..64, so that the sum of two products with 8-bit activations fits in 16 bits.
  /// Of integers. Symmetric int8 -127..127, so that the largest weight is represented exactly; affine int8 -128..127; int4 -8..7; reduced
  /// int8 -64..64.
  QuantRange range() const;
  /// "int8 per channel symmetric", "int4 affine, groups of 32"
  std::string str() const;
};

struct ActivationScheme {
  QuantDType dtype = QuantDType::kUint8;  ///< uint8 or int8. The input of a layer with f8 weights is f8_e4m3, symmetric.
  bool symmetric = false;                 ///< Zero point 0 (int8) or 128 (uint8).
  ObserverSpec observer{.type = ObserverType::kAuto};
  bool reduce_range = false;  ///< 7 bits: 0..127, int8 -64..64.
  QuantRange range() const { return quant_range(dtype, reduce_range); }
  /// "uint8 affine (mse)"
  std::string str() const;
};

struct LayerScheme {
  bool keep_float = false;
  std::string float_reason;  ///< Why it is kept in float: "override" or "goal".
  WeightScheme weights;
  ActivationScheme activations;
};

struct QuantizeConfig {
  QuantMethod method = QuantMethod::kStatic;
  QuantFallback fallback = QuantFallback::kError;
  SaturationRule saturation = SaturationRule::kExact;
  LayerScheme defaults;                       ///< Also for the graph's input.
  std::map<std::string, LayerScheme> layers;  ///< By quant_name; only those that differ from the defaults.
  const LayerScheme& of(const std::string& name) const;
};

}  // namespace galley
