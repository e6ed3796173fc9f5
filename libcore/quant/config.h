#pragma once
// How a model is to be quantized: schemes of weights and activations, resolved layer by layer. What the recipe's section `quantize` says
// becomes a QuantizeConfig (quantize/quantize_config.h); the quantize pass reads nothing else.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "libcore/tensor/quant_params.h"

namespace galley {

enum class QuantMethod : uint8_t { kStatic, kDynamic, kWeightOnly, kQat };
/// What to do with a layer that has no integer kernel.
enum class QuantFallback : uint8_t { kError, kFloat };
/// Machines that add pairs of products in 16 bits: run an exact, slower path, or give up one bit of every weight.
enum class SaturationRule : uint8_t { kExact, kReduce };

/// How a range is found from the values seen.
enum class ObserverType : uint8_t {
  kMinMax,         ///< smallest and largest value
  kMovingAverage,  ///< moving average of the batches' smallest and largest values
  kHistogram,      ///< narrowed step by step from both ends while the square error on the histogram falls, as PyTorch's HistogramObserver
  kPercentile,     ///< cuts off the same share of values at each end
  kEntropy,        ///< least Kullback-Leibler divergence between values before and after (Migacz 2017)
  kMse,            ///< least mean square error on the histogram
  kAuto,           ///< of all the others, the one with the best SQNR on the histogram
};
/// By value of the enumerations: what recipes and reports write.
inline constexpr std::array<std::string_view, 7> kObserverNames{"min_max", "moving_average", "histogram", "percentile", "entropy", "mse",
                                                                "auto"};
inline constexpr std::array<std::string_view, 4> kMethodNames{"static", "dynamic", "weight_only", "qat"};
inline std::string_view observer_name(ObserverType type) { return kObserverNames[static_cast<size_t>(type)]; }
inline std::string_view method_name(QuantMethod method) { return kMethodNames[static_cast<size_t>(method)]; }

struct ObserverSpec {
  ObserverType type = ObserverType::kMinMax;
  double percentile = 99.99;         ///< Of kPercentile: percent of the values kept at each end.
  double averaging_constant = 0.01;  ///< Of kMovingAverage.
  /// "min_max", "percentile 99.99%"
  std::string str() const;
};

struct WeightScheme {
  QuantDType dtype = QuantDType::kInt8;  ///< int8 or int4.
  bool per_channel = true;               ///< A scale for each slice along dimension 0.
  bool symmetric = true;                 ///< Zero point 0.
  ObserverSpec observer;                 ///< min_max, percentile or mse.
  int64_t group_size = 0;                ///< A scale for each run of so many values along a slice (weight_only); 0: none.
  bool reduce_range = false;             ///< -64..64: pairs of products with 8-bit activations fit in 16 bits.
  /// Symmetric int8 -127..127, so that the largest weight is met exactly; affine int8 -128..127; int4 -8..7; reduced int8 -64..64.
  QuantRange range() const;
  /// "int8 per channel symmetric", "int4 affine, groups of 32"
  std::string str() const;
};

struct ActivationScheme {
  QuantDType dtype = QuantDType::kUint8;  ///< uint8 or int8.
  bool symmetric = false;                 ///< Zero point 0 (int8) or 128 (uint8).
  ObserverSpec observer{.type = ObserverType::kAuto};
  bool reduce_range = false;  ///< 7 bits: 0..127, int8 -64..64.
  QuantRange range() const { return quant_range(dtype, reduce_range); }
  /// "uint8 affine (mse)"
  std::string str() const;
};

struct LayerScheme {
  bool keep_float = false;
  std::string float_reason;  ///< "override", "goal": why it is kept.
  WeightScheme weights;
  ActivationScheme activations;
};

struct QuantizeConfig {
  QuantMethod method = QuantMethod::kStatic;
  QuantFallback fallback = QuantFallback::kError;
  SaturationRule saturation = SaturationRule::kExact;
  LayerScheme defaults;                       ///< Also of the graph's input.
  std::map<std::string, LayerScheme> layers;  ///< By quant_name; only those that differ from the defaults.
  const LayerScheme& of(const std::string& name) const;
};

}  // namespace galley
