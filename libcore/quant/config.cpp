#include "libcore/quant/config.h"

#include "libcore/base/error.h"
#include "libcore/base/units.h"

namespace galley {
std::string ObserverSpec::str() const {
  switch (type) {
    case ObserverType::kPercentile: return cat("percentile ", number_text(percentile), "%");
    case ObserverType::kMovingAverage: return cat("moving_average ", number_text(averaging_constant));
    default: return std::string(observer_name(type));
  }
}

QuantRange WeightScheme::range() const {
  QuantRange range = quant_range(dtype, reduce_range && dtype == QuantDType::kInt8);
  if (symmetric && dtype == QuantDType::kInt8 && !reduce_range) range.min = -127;
  return range;
}

std::string WeightScheme::str() const {
  std::string text = cat(kQuantDTypeNames[static_cast<size_t>(dtype)],
                         group_size > 0 ? cat(" groups of ", group_size)
                         : per_channel  ? " per channel"
                                        : " per tensor",
                         symmetric ? " symmetric" : " affine");
  if (reduce_range) text += " reduced";
  if (observer.type != ObserverType::kMinMax) text += cat(" (", observer.str(), ")");
  return text;
}

std::string ActivationScheme::str() const {
  return cat(kQuantDTypeNames[static_cast<size_t>(dtype)], symmetric ? " symmetric" : " affine", reduce_range ? " reduced" : "", " (",
             observer.str(), ")");
}

const LayerScheme& QuantizeConfig::of(const std::string& name) const {
  const auto found = layers.find(name);
  return found == layers.end() ? defaults : found->second;
}

}  // namespace galley
