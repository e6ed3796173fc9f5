#include "libcore/ops/quantized.h"

#include <array>

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/extents.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"

namespace galley {
namespace {

constexpr std::string_view kNoGradient = "integers have no gradient; use fake_quantize for training";
constexpr int64_t kMostProducts = ((int64_t{1} << 31) - 1) / (255 * 128);  // |x - zero_point| <= 255, |w| <= 128

void input_options(OptionVisitor& v, QuantizedInput& a) {
  v.option({.name = "input_scale", .doc = "scale of x, a float32 value", .min = 0}, a.input_scale);
  v.option({.name = "input_zero_point", .doc = "zero point of x"}, a.input_zero_point);
}
void output_options(OptionVisitor& v, QuantizedOutput& a) {
  v.choice({.name = "output_dtype", .doc = "u8, i8, or f32: real values"}, a.output_dtype, kDTypeNames);
  v.option({.name = "output_scale", .doc = "scale of the result, a float32 value", .min = 0}, a.output_scale);
  v.option({.name = "output_zero_point", .doc = "zero point of the result"}, a.output_zero_point);
  v.option({.name = "output_qmin", .doc = "smallest integer of the result"}, a.output_qmin);
  v.option({.name = "output_qmax", .doc = "largest integer of the result"}, a.output_qmax);
}
template <class Attrs>
void product_options(OptionVisitor& v, Attrs& a) {
  v.choice({.name = "activation", .doc = "function applied to the real result"}, a.activation, kActivationNames);
  v.choice({.name = "saturation", .doc = "reduced: two products always fit 16 bits"}, a.saturation, kSaturationNames);
}

/// The type of x with the output's dtype and the given shape. Checks the output's quantization parameters.
std::vector<TensorType> output_type(const QuantizedOutput& a, TensorType x, const Shape& shape) {
  if (a.output_dtype != DType::kF32) check_quant_params(a.output());
  x.dtype = a.output_dtype;
  if (!(x.shape == shape)) x.format = {};
  x.shape = shape;
  return {x};
}

/// Checks inputs 2 and 3 of a product, weight_scale and bias, and that its sums fit in 32 bits.
void check_product(const OpContext& c, const Shape& weight) {
  const Shape outputs{weight[0]};
  GALLEY_CHECK(c.in(2).dtype == DType::kF32 && c.in(2).shape == outputs, "weight_scale must be f32 ", outputs, ", not ", c.in(2));
  if (c.has(3)) GALLEY_CHECK(c.in(3).dtype == DType::kF32 && c.in(3).shape == outputs, "bias must be f32 ", outputs, ", not ", c.in(3));
  const int64_t products = weight[0] == 0 ? 0 : weight.elements() / weight[0];
  GALLEY_CHECK(products <= kMostProducts, "a sum of ", products, " products may exceed 32 bits; at most ", kMostProducts,
               " are supported: weight ", weight, "; keep this layer in float");
}

void check_weight(const OpContext& c, const Shape& weight) {
  GALLEY_CHECK(c.in(1).dtype == DType::kI8, "weight must be i8, not ", c.in(1));
  check_product(c, weight);
}

std::vector<TensorType> infer_conv(const OpContext& c) {
  GALLEY_CHECK(c.in(1).dtype == DType::kI8, "weight must be i8, not ", c.in(1));
  return infer_quantized_conv2d(c, c.in(1).shape);
}

Shape linear_shape(const TensorType& x, const TensorType& weight) {
  GALLEY_CHECK(x.shape.rank() >= 1, "x must have a dimension of features, not ", x.shape);
  GALLEY_CHECK(weight.shape.rank() == 2, "weight must be [O,I], not ", weight.shape);
  GALLEY_CHECK(x.shape[-1] == weight.shape[1], "weight needs ", weight.shape[1], " input features, but the input has ", x.shape[-1],
               ": input ", x.shape, ", weight ", weight.shape);
  Shape y = x.shape;
  y[-1] = weight.shape[0];
  return y;
}

TensorType without_last_name(TensorType x) {
  if (!x.names.empty()) x.names.back().clear();
  x.names = tidy_names(std::move(x.names));
  return x;
}

std::vector<TensorType> infer_linear(const OpContext& c) {
  const auto& a = c.attrs<QuantizedLinearAttrs>();
  check_quantized(c.in(0), "x", a.input_scale, a.input_zero_point);
  const Shape shape = linear_shape(c.in(0), c.in(1));
  check_weight(c, c.in(1).shape);
  return output_type(a, without_last_name(c.in(0)), shape);
}

std::vector<TensorType> infer_dynamic_linear(const OpContext& c) {
  GALLEY_CHECK(c.in(0).dtype == DType::kF32, "x must be f32, not ", c.in(0));
  const Shape shape = linear_shape(c.in(0), c.in(1));
  check_weight(c, c.in(1).shape);
  return output_type({}, without_last_name(c.in(0)), shape);
}

std::vector<TensorType> infer_binary(const OpContext& c) {
  const auto& attrs = c.attrs<QuantizedBinaryAttrs>();
  const TensorType &a = c.in(0), &b = c.in(1);
  check_quantized(a, "a", attrs.a_scale, attrs.a_zero_point);
  check_quantized(b, "b", attrs.b_scale, attrs.b_zero_point);
  const bool gate = a.shape.rank() == 4 && b.shape == Shape({a.shape[0], a.shape[1], 1, 1});
  GALLEY_CHECK(a.shape == b.shape || gate, "b must have a's shape, or [N,C,1,1] against [N,C,H,W]: a ", a, ", b ", b);
  std::vector<std::string> names;
  for (int d = 0; d < a.shape.rank(); ++d) names.push_back(merge_dim_name(dim_name(a, d), dim_name(b, d), d));
  TensorType y = a;
  y.names = tidy_names(std::move(names));
  return output_type(attrs, y, a.shape);
}

std::vector<TensorType> infer_concat(const OpContext& c) {
  const auto& attrs = c.attrs<QuantizedConcatAttrs>();
  const size_t inputs = c.inputs.size();
  GALLEY_CHECK(attrs.input_scales.size() == inputs && attrs.input_zero_points.size() == inputs, inputs,
               " inputs need as many scales and zero points, but there are ", attrs.input_scales.size(), " and ",
               attrs.input_zero_points.size());
  for (size_t i = 0; i < inputs; ++i)
    check_quantized(c.in(static_cast<int>(i)), cat("input ", i), attrs.input_scales[i], attrs.input_zero_points[i]);
  const TensorType y = joined(c, attrs.axis);
  return output_type(attrs, y, y.shape);
}

std::vector<TensorType> infer_avg_pool(const OpContext& c) {
  const auto& a = c.attrs<QuantizedAvgPool2dAttrs>();
  check_quantized(c.in(0), "x", a.input_scale, a.input_zero_point);
  return output_type(a, c.in(0), avg_pool2d_shape(a, c.in(0).shape));
}

std::vector<TensorType> infer_adaptive_avg_pool(const OpContext& c) {
  const auto& a = c.attrs<QuantizedAdaptiveAvgPool2dAttrs>();
  check_quantized(c.in(0), "x", a.input_scale, a.input_zero_point);
  check_mean_inside(c, a.output_size);
  return output_type(a, c.in(0), adaptive_pool2d_shape(a.output_size, c.in(0).shape));
}

Cost cost_product(const OpContext& c) {
  const Shape& weight = c.in(1).shape;
  const double products = weight[0] == 0 ? 0 : static_cast<double>(weight.elements() / weight[0]);
  Cost cost = operand_cost(c, 2 * products * static_cast<double>(c.out(0).elements()));
  cost.dtype = DType::kI8;
  return cost;
}

/// Unsigned activations times signed weights. For two signed operands, products are added in 32 bits.
template <class Attrs>
bool exact_pairs(const OpContext& c) {
  return c.in(0).dtype == DType::kU8 && c.attrs<Attrs>().saturation == Saturation::kExact;
}

OpDef quantized(std::string_view name, std::string_view doc, std::vector<Port> inputs, std::unique_ptr<Options> (*attrs)(),
                std::vector<TensorType> (*infer)(const OpContext&), Cost (*cost)(const OpContext&)) {
  return {.name = name,
          .doc = doc,
          .inputs = std::move(inputs),
          .outputs = {"y"},
          .make_attrs = attrs,
          .infer = infer,
          .no_gradient = kNoGradient,
          .cost = cost,
          .precision = PrecisionRule::kKeepF32,
          .integer = IntegerRole::kComputes};
}

}  // namespace

std::vector<TensorType> infer_quantized_conv2d(const OpContext& c, const Shape& weight) {
  const auto& a = c.attrs<QuantizedConv2dAttrs>();
  const TensorType& x = c.in(0);
  check_quantized(x, "x", a.input_scale, a.input_zero_point);
  const Shape shape = conv_shape(a, x.shape, weight);
  check_product(c, weight);
  if (c.has(4)) {
    check_quantized(c.in(4), "residual", a.residual_scale, a.residual_zero_point);
    GALLEY_CHECK(c.in(4).shape == shape, "residual must have the output's shape ", shape, ", not ", c.in(4));
  }
  return output_type(a, x, shape);
}

void QuantizedConv2dAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  product_options(v, *this);
  input_options(v, *this);
  v.option({.name = "residual_scale", .doc = "scale of the residual, a float32 value", .min = 0}, residual_scale);
  v.option({.name = "residual_zero_point", .doc = "zero point of the residual"}, residual_zero_point);
  output_options(v, *this);
}
void QuantizedLinearAttrs::options(OptionVisitor& v) {
  product_options(v, *this);
  input_options(v, *this);
  output_options(v, *this);
}
void DynamicQuantizedLinearAttrs::options(OptionVisitor& v) { product_options(v, *this); }
void QuantizedBinaryAttrs::options(OptionVisitor& v) {
  v.choice({.name = "activation", .doc = "function applied to the real result"}, activation, kActivationNames);
  v.option({.name = "a_scale", .doc = "scale of a, a float32 value", .min = 0}, a_scale);
  v.option({.name = "a_zero_point", .doc = "zero point of a"}, a_zero_point);
  v.option({.name = "b_scale", .doc = "scale of b, a float32 value", .min = 0}, b_scale);
  v.option({.name = "b_zero_point", .doc = "zero point of b"}, b_zero_point);
  output_options(v, *this);
}
void QuantizedConcatAttrs::options(OptionVisitor& v) {
  v.option({.name = "axis", .doc = "axis along which inputs are concatenated"}, axis);
  v.option({.name = "input_scales", .doc = "scale of each input, float32 values", .min = 0}, input_scales);
  v.option({.name = "input_zero_points", .doc = "zero point of each input"}, input_zero_points);
  output_options(v, *this);
}
void QuantizedAvgPool2dAttrs::options(OptionVisitor& v) {
  window_options(v, *this);
  input_options(v, *this);
  output_options(v, *this);
}
void QuantizedAdaptiveAvgPool2dAttrs::options(OptionVisitor& v) {
  v.option({.name = "output_size", .doc = "rows and columns of the result", .min = 1}, output_size);
  input_options(v, *this);
  output_options(v, *this);
}

bool quantized_pair(const OpContext& c) {
  const Shape &a = c.in(0).shape, &b = c.in(1).shape;
  const auto gate = [](const Shape& x, const Shape& s) { return x.rank() == 4 && s == Shape({x[0], x[1], 1, 1}); };
  return a == b || gate(a, b) || gate(b, a);
}

namespace {
/// `op` is quantized_add or quantized_mul. A factor per channel must be the second operand.
void pair_on_integers(IntegerBuilder& b, Value (*op)(Value, Value, const QuantizedBinaryAttrs&)) {
  const size_t first = b.in_type(0).shape == b.out_type().shape ? 0 : 1;
  QuantizedBinaryAttrs attrs;
  attrs.set_inputs(b.map(first), b.map(1 - first));
  attrs.set_output(*b.result_map());
  b.set(op(b.in(first), b.in(1 - first), attrs));
}
}  // namespace

void add_on_integers(IntegerBuilder& b) { pair_on_integers(b, quantized_add); }
void mul_on_integers(IntegerBuilder& b) { pair_on_integers(b, quantized_mul); }

const OpDef& quantized_conv2d_op() {
  static const OpDef def = [] {
    OpDef op = quantized("quantized_conv2d", "conv2d of integers, exact in 32 bits, with bias, residual, activation and one rounding",
                         {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?"), "residual?"},
                         make_options<QuantizedConv2dAttrs>, infer_conv, cost_product);
    op.work = WorkClass::kProduct;
    op.layout = {.prefers_channels_last = true, .weights = WeightFormat::kLeads};
    op.cases = {"quantized_conv2d:mb16ic64ih56oc64kh3", "quantized_conv2d:mb16ic256ih14oc1024kh1",
                "quantized_conv2d:mb32ic96ih56oc96kh3sh2g96"};
    op.letters = CaseLetters::kConvolution;
    op.exact_products = exact_pairs<QuantizedConv2dAttrs>;
    op.definition = definition::quantized_conv2d;
    return op;
  }();
  return def;
}
const OpDef& quantized_linear_op() {
  static const OpDef def = [] {
    OpDef op = quantized("quantized_linear", "linear of integers, exact in 32 bits, with bias, activation and one rounding",
                         {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?")},
                         make_options<QuantizedLinearAttrs>, infer_linear, cost_product);
    op.layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeads};
    op.work = WorkClass::kProduct;
    op.cases = {"quantized_linear:mb16ic2048oc1000"};
    op.letters = CaseLetters::kMatrix;
    op.exact_products = exact_pairs<QuantizedLinearAttrs>;
    op.definition = definition::quantized_linear;
    return op;
  }();
  return def;
}
const OpDef& dynamic_quantized_linear_op() {
  static const OpDef def = [] {
    OpDef op =
        quantized("dynamic_quantized_linear", "quantizes x to uint8 by its range, then applies linear on integers with a real result",
                  {"x", Port::weight("weight"), Port::statistics("weight_scale"), Port::statistics("bias?")},
                  make_options<DynamicQuantizedLinearAttrs>, infer_dynamic_linear, cost_product);
    op.layout = {.formats = FormatRule::kContiguous, .weights = WeightFormat::kLeads};
    op.work = WorkClass::kProduct;
    op.cases = {"dynamic_quantized_linear:16x2048+1000x2048@i8+1000"};
    op.integer = IntegerRole::kNone;  // its operands are real values
    op.exact_products = [](const OpContext& c) { return c.attrs<DynamicQuantizedLinearAttrs>().saturation == Saturation::kExact; };
    op.definition = definition::dynamic_quantized_linear;
    return op;
  }();
  return def;
}
const OpDef& quantized_add_op() {
  static const OpDef def = [] {
    OpDef op = quantized("quantized_add", "a + b of integers with separate quantization parameters, and activation", {"a", "b"},
                         make_options<QuantizedBinaryAttrs>, infer_binary, elementwise_cost<6>);
    op.may_reuse = {{0, 0}, {0, 1}};
    op.cases = {"quantized_add:16x64x56x56@u8+16x64x56x56@u8:output_dtype=u8,output_scale=2"};
    op.definition = definition::quantized_add;
    return op;
  }();
  return def;
}
const OpDef& quantized_mul_op() {
  static const OpDef def = [] {
    OpDef op = quantized("quantized_mul", "a * b of integers with separate quantization parameters, and activation", {"a", "b"},
                         make_options<QuantizedBinaryAttrs>, infer_binary, elementwise_cost<6>);
    op.may_reuse = {{0, 0}, {0, 1}};
    op.cases = {"quantized_mul:16x96x28x28@u8+16x96x1x1@u8:output_dtype=u8,output_scale=256"};
    op.definition = definition::quantized_mul;
    return op;
  }();
  return def;
}
const OpDef& quantized_concat_op() {
  static const OpDef def = [] {
    OpDef op = quantized("quantized_concat", "joins integer arrays along an axis and converts them to the same quantization parameters",
                         {"x*"}, make_options<QuantizedConcatAttrs>, infer_concat, elementwise_cost<4>);
    op.cases = {"quantized_concat:16x64x56x56@u8+16x64x56x56@u8:input_scales=[1,2],input_zero_points=[0,0],output_dtype=u8,output_scale=2"};
    op.definition = definition::quantized_concat;
    return op;
  }();
  return def;
}
const OpDef& quantized_avg_pool2d_op() {
  static const OpDef def = [] {
    OpDef op = quantized("quantized_avg_pool2d", "mean of each window of integers", {"x"}, make_options<QuantizedAvgPool2dAttrs>,
                         infer_avg_pool, input_cost<1>);
    op.layout = {.prefers_channels_last = true};
    op.cases = {"quantized_avg_pool2d:16x64x56x56@u8:kernel_size=2,output_dtype=u8"};
    op.definition = definition::quantized_avg_pool2d;
    return op;
  }();
  return def;
}
const OpDef& quantized_adaptive_avg_pool2d_op() {
  static const OpDef def = [] {
    OpDef op =
        quantized("quantized_adaptive_avg_pool2d", "means of integers over as many windows as the result has pixels",
                  {"x", Port::index("extents?")}, make_options<QuantizedAdaptiveAvgPool2dAttrs>, infer_adaptive_avg_pool, input_cost<1>);
    op.layout = {.prefers_channels_last = true};
    op.cases = {"quantized_adaptive_avg_pool2d:16x2048x7x7@u8:output_size=1,output_dtype=u8"};
    op.definition = definition::quantized_adaptive_avg_pool2d;
    return op;
  }();
  return def;
}

Value quantized_conv2d(Value x, Value weight, Value weight_scale, Value bias, const QuantizedConv2dAttrs& attrs, Value residual) {
  return emit("quantized_conv2d", {x, weight, weight_scale, bias, residual}, attrs);
}
Value quantized_linear(Value x, Value weight, Value weight_scale, Value bias, const QuantizedLinearAttrs& attrs) {
  return emit("quantized_linear", {x, weight, weight_scale, bias}, attrs);
}
Value dynamic_quantized_linear(Value x, Value weight, Value weight_scale, Value bias, const DynamicQuantizedLinearAttrs& attrs) {
  return emit("dynamic_quantized_linear", {x, weight, weight_scale, bias}, attrs);
}
Value quantized_add(Value a, Value b, const QuantizedBinaryAttrs& attrs) { return emit("quantized_add", {a, b}, attrs); }
Value quantized_mul(Value a, Value b, const QuantizedBinaryAttrs& attrs) { return emit("quantized_mul", {a, b}, attrs); }
Value quantized_concat(std::span<const Value> x, const QuantizedConcatAttrs& attrs) {
  return emit_all("quantized_concat", std::make_unique<QuantizedConcatAttrs>(attrs), x).front();
}
Value quantized_avg_pool2d(Value x, const QuantizedAvgPool2dAttrs& attrs) { return emit("quantized_avg_pool2d", {x}, attrs); }
Value quantized_adaptive_avg_pool2d(Value x, const QuantizedAdaptiveAvgPool2dAttrs& attrs) {
  return emit("quantized_adaptive_avg_pool2d", {x}, attrs);
}

OpTable quantized_ops() {
  return {&quantized_conv2d_op(), &quantized_linear_op(), &dynamic_quantized_linear_op(), &quantized_add_op(),
          &quantized_mul_op(),    &quantized_concat_op(), &quantized_avg_pool2d_op(),     &quantized_adaptive_avg_pool2d_op()};
}

}  // namespace galley
