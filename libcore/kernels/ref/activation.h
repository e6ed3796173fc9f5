#pragma once
// Activations fused into other operators, in double.

#include <cmath>

#include "libcore/ops/attrs.h"

namespace galley {

inline double apply_activation(Activation activation, double x) {
  const auto clip = [](double v, double high) { return v < 0 ? 0.0 : v > high ? high : v; };
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kRelu6: return clip(x, 6);
    case Activation::kHardswish: return x * clip(x + 3, 6) / 6;
    case Activation::kHardsigmoid: return clip(x + 3, 6) / 6;
    case Activation::kSigmoid: return 1 / (1 + std::exp(-x));
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kTanh: return std::tanh(x);
  }
  return x;
}

}  // namespace galley
