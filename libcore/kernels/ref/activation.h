#pragma once
// The activation that is fused into another operator's result. For kernels/ref only.

#include <algorithm>
#include <cmath>

#include "libcore/ops/attrs.h"

namespace galley {

inline double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? 0 : x;  // NaN stays
    case Activation::kRelu6: return x < 0 ? 0 : x > 6 ? 6 : x;
    case Activation::kHardswish: return x * std::clamp(x + 3, 0.0, 6.0) / 6;
    case Activation::kHardsigmoid: return std::clamp(x + 3, 0.0, 6.0) / 6;
    case Activation::kSigmoid: return 1 / (1 + std::exp(-x));
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kTanh: return std::tanh(x);
  }
  GALLEY_ASSERT(false);
}

}  // namespace galley
