#pragma once
// Capture functions of the element-wise functions of one value and of their backward operators (rows of elementwise.cpp). All keep shape,
// dtype and format. Functions that only recipes use have no capture function: write emit("mish", {x}).

#include <array>
#include <limits>

#include "libcore/ops/emit.h"

namespace galley {

enum class GeluApproximation { kNone, kTanh };
inline constexpr std::array<std::string_view, 2> kGeluApproximationNames{"none", "tanh"};
struct GeluAttrs : OptionsOf<GeluAttrs> {
  GeluApproximation approximate = GeluApproximation::kNone;
  void options(OptionVisitor& v) override;
};
struct PowAttrs : OptionsOf<PowAttrs> {
  double exponent = 2;
  void options(OptionVisitor& v) override;
};
struct ClampAttrs : OptionsOf<ClampAttrs> {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  void options(OptionVisitor& v) override;
};
struct AffineAttrs : OptionsOf<AffineAttrs> {
  double scale = 1;
  double shift = 0;
  void options(OptionVisitor& v) override;
};

Value relu(Value x);         ///< max(x, 0); gradient 0 at 0, as in PyTorch
Value relu6(Value x);        ///< min(max(x, 0), 6); gradient 0 at 0 and 6
Value hardswish(Value x);    ///< x * relu6(x+3) / 6 (Howard et al. 2019)
Value hardsigmoid(Value x);  ///< relu6(x+3) / 6
Value sigmoid(Value x);
Value silu(Value x);  ///< x * sigmoid(x)
/// x * Phi(x); with tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (Hendrycks, Gimpel 2016).
Value gelu(Value x, const GeluAttrs& attrs = {});
Value tanh(Value x);
Value exp(Value x);
Value log(Value x);  ///< natural logarithm
Value sqrt(Value x);
Value rsqrt(Value x);  ///< 1 / sqrt(x)
Value sin(Value x);
Value cos(Value x);
Value neg(Value x);
Value abs(Value x);  ///< gradient 0 at 0
Value square(Value x);
Value reciprocal(Value x);
Value pow(Value x, const PowAttrs& attrs);
Value pow(Value x, double exponent);
/// min(max(x, attrs.min), attrs.max); the gradient passes if min <= x <= max, as in PyTorch.
Value clamp(Value x, const ClampAttrs& attrs);
Value clamp(Value x, double min, double max);
/// x * scale + shift.
Value affine(Value x, const AffineAttrs& attrs);
Value affine(Value x, double scale, double shift = 0);

// Backward operators: grad times the derivative. The second input is the forward input x or output y.
Value relu_backward(Value grad, Value y);
Value relu6_backward(Value grad, Value x);
Value hardswish_backward(Value grad, Value x);
Value hardsigmoid_backward(Value grad, Value x);
Value sigmoid_backward(Value grad, Value y);
Value silu_backward(Value grad, Value x);
Value gelu_backward(Value grad, Value x, const GeluAttrs& attrs = {});
Value tanh_backward(Value grad, Value y);
Value clamp_backward(Value grad, Value x, const ClampAttrs& attrs);

}  // namespace galley
