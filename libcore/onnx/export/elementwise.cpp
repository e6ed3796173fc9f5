// Functions of one or two values.

#include <cmath>

#include "libcore/onnx/export/functions.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_export {
namespace {

DType dtype_of(const NodeWriter& n) { return n.type(0).dtype; }

template <const char* kOp>
Names plain(const NodeWriter& n) { return {n.to.add(kOp, n.inputs)}; }

template <Activation kActivation>
Names activation(const NodeWriter& n) { return {activated(n.to, n.in(0), kActivation)}; }

Names gelu_node(const NodeWriter& n) {
  if (n.attrs<GeluAttrs>().approximate == GeluApproximation::kNone) return {activated(n.to, n.in(0), Activation::kGelu)};
  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  GraphWriter& w = n.to;
  const std::string& x = n.in(0);
  const std::string cube = w.add("Mul", {w.add("Mul", {w.add("Mul", {x, x}), x}), w.scalar(0.044715)});
  const std::string inner = w.add("Mul", {w.add("Add", {x, cube}), w.scalar(std::sqrt(2 / 3.14159265358979323846))});
  return {w.add("Mul", {w.add("Mul", {x, w.scalar(0.5)}), w.add("Add", {w.add("Tanh", {inner}), w.scalar(1)})})};
}

Names rsqrt_node(const NodeWriter& n) { return {n.to.add("Reciprocal", {n.to.add("Sqrt", {n.in(0)})})}; }
Names square_node(const NodeWriter& n) { return {n.to.add("Mul", {n.in(0), n.in(0)})}; }
Names pow_node(const NodeWriter& n) { return {n.to.add("Pow", {n.in(0), n.to.scalar(n.attrs<PowAttrs>().exponent, dtype_of(n))})}; }
Names clamp_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<ClampAttrs>();
  const auto bound = [&](double value) { return std::isfinite(value) ? n.to.scalar(value, dtype_of(n)) : std::string(); };
  return {n.to.add("Clip", {n.in(0), bound(attrs.min), bound(attrs.max)})};
}
Names affine_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<AffineAttrs>();
  std::string x = n.in(0);
  if (attrs.scale != 1) x = n.to.add("Mul", {x, n.to.scalar(attrs.scale, dtype_of(n))});
  if (attrs.shift != 0 || attrs.scale == 1) x = n.to.add("Add", {x, n.to.scalar(attrs.shift, dtype_of(n))});
  return {x};
}
Names cast_node(const NodeWriter& n) { return {n.to.add("Cast", {n.in(0)}, {attribute("to", int64_t{onnx_type(n.attrs<CastAttrs>().dtype)})})}; }

Names quantize_node(const NodeWriter& n) { return {quantized(n.to, n.in(0), n.attrs<QuantizeAttrs>().params())}; }
Names dequantize_node(const NodeWriter& n) {
  const auto& attrs = n.attrs<DequantizeAttrs>();
  return {dequantized(n.to, n.in(0), {.scale = attrs.scale, .zero_point = attrs.zero_point, .dtype = dtype_of(n)})};
}

constexpr char kExp[] = "Exp", kLog[] = "Log", kSqrt[] = "Sqrt", kSin[] = "Sin", kCos[] = "Cos", kNeg[] = "Neg", kAbs[] = "Abs", kReciprocal[] = "Reciprocal";
constexpr char kAdd[] = "Add", kSub[] = "Sub", kMul[] = "Mul", kDiv[] = "Div", kMax[] = "Max", kMin[] = "Min", kPow[] = "Pow", kEqual[] = "Equal", kLess[] = "Less",
               kGreater[] = "Greater", kWhere[] = "Where";

}  // namespace

std::string activated(GraphWriter& w, const std::string& x, Activation activation) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return w.add("Relu", {x});
    case Activation::kRelu6: return w.add("Clip", {x, w.scalar(0), w.scalar(6)});
    case Activation::kHardswish: return w.add("HardSwish", {x});
    case Activation::kHardsigmoid: return w.add("HardSigmoid", {x}, {attribute("alpha", 1.0 / 6), attribute("beta", 0.5)});
    case Activation::kSigmoid: return w.add("Sigmoid", {x});
    case Activation::kSilu: return w.add("Mul", {x, w.add("Sigmoid", {x})});
    case Activation::kGelu: {
      // x Phi(x), in the form that exporters write and run times know.
      const std::string erf = w.add("Erf", {w.add("Div", {x, w.scalar(std::sqrt(2.0))})});
      return w.add("Mul", {w.add("Mul", {x, w.add("Add", {erf, w.scalar(1)})}), w.scalar(0.5)});
    }
    case Activation::kTanh: return w.add("Tanh", {x});
  }
  GALLEY_ASSERT(false);
}

std::string quantized(GraphWriter& w, const std::string& x, const QuantParams& map) {
  const int64_t low = map.dtype == DType::kU8 ? 0 : -128, high = map.dtype == DType::kU8 ? 255 : 127;
  const bool narrow = map.qmin != low || map.qmax != high;
  const std::string clipped = narrow ? w.add("Clip", {x, w.scalar(dequantize_value(map.qmin, map)), w.scalar(dequantize_value(map.qmax, map))}) : x;
  return w.add("QuantizeLinear", {clipped, w.scalar(map.scale), w.scalar(static_cast<double>(map.zero_point), map.dtype)});
}
std::string dequantized(GraphWriter& w, const std::string& q, const QuantParams& map) {
  return w.add("DequantizeLinear", {q, w.scalar(map.scale), w.scalar(static_cast<double>(map.zero_point), map.dtype)});
}

WriteTable elementwise_rows() {
  return {{"relu", activation<Activation::kRelu>},
          {"relu6", activation<Activation::kRelu6>},
          {"hardswish", activation<Activation::kHardswish>},
          {"hardsigmoid", activation<Activation::kHardsigmoid>},
          {"sigmoid", activation<Activation::kSigmoid>},
          {"silu", activation<Activation::kSilu>},
          {"tanh", activation<Activation::kTanh>},
          {"gelu", gelu_node},
          {"exp", plain<kExp>},
          {"log", plain<kLog>},
          {"sqrt", plain<kSqrt>},
          {"rsqrt", rsqrt_node},
          {"sin", plain<kSin>},
          {"cos", plain<kCos>},
          {"neg", plain<kNeg>},
          {"abs", plain<kAbs>},
          {"square", square_node},
          {"reciprocal", plain<kReciprocal>},
          {"pow", pow_node},
          {"clamp", clamp_node},
          {"affine", affine_node},
          {"cast", cast_node},
          {"quantize", quantize_node},
          {"dequantize", dequantize_node},
          {"add", plain<kAdd>},
          {"sub", plain<kSub>},
          {"mul", plain<kMul>},
          {"div", plain<kDiv>},
          {"maximum", plain<kMax>},
          {"minimum", plain<kMin>},
          {"power", plain<kPow>},
          {"equal", plain<kEqual>},
          {"less", plain<kLess>},
          {"greater", plain<kGreater>},
          {"where", plain<kWhere>}};
}

}  // namespace galley::onnx_export
