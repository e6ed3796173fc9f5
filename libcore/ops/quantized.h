#pragma once
// Operators on quantized activations: integer products and sums, one rounding at the end. Activations are u8 or i8 with one scale and zero
// point per array, weights are i8 with zero point 0 and an f32 scale for each output channel, biases are f32.
// All compute  real = activation(...)  and return clamp(round_half_even(real / output_scale) + output_zero_point, output_qmin,
// output_qmax), or `real` itself if output_dtype is f32. The reference computes `real` in double, kernels in float32: results may differ by
// one level if `real` is within the error of float32 of the middle between two levels.

#include "libcore/ops/conv.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/quantize.h"

namespace galley {

/// Scale and zero point of an operator's integer input, as attributes.
struct QuantizedInput {
  double input_scale = 1;
  int64_t input_zero_point = 0;
  void set_input(const QuantParams& p) {
    input_scale = p.scale;
    input_zero_point = p.zero_point;
  }
};
/// Dtype, scale and zero point of the result. Default: real values.
struct QuantizedOutput {
  DType output_dtype = DType::kF32;  // u8, i8, or f32 (then the other members are unused)
  double output_scale = 1;
  int64_t output_zero_point = 0;
  int64_t output_qmin = 0, output_qmax = 255;
  void set_output(const QuantParams& p) {
    output_dtype = p.dtype;
    output_scale = p.scale;
    output_zero_point = p.zero_point;
    output_qmin = p.qmin;
    output_qmax = p.qmax;
  }
  QuantParams output() const { return {output_scale, output_zero_point, output_dtype, output_qmin, output_qmax}; }
};

/// The range of the operands: reduced promises |w| <= 64 or x in 0..127, so that the sum of two products fits 16 bits (vpmaddubsw). The
/// result is the same.
enum class Saturation { kExact, kReduced };
inline constexpr std::array<std::string_view, 2> kSaturationNames{"exact", "reduced"};

inline Saturation saturation_of(const IntegerWeight& weight) { return weight.reduced ? Saturation::kReduced : Saturation::kExact; }

struct QuantizedConv2dAttrs : OptionsOf<QuantizedConv2dAttrs>, Conv2dWindow, QuantizedInput, QuantizedOutput {
  Activation activation = Activation::kNone;
  double residual_scale = 1;
  int64_t residual_zero_point = 0;
  Saturation saturation = Saturation::kExact;
  void set_residual(const QuantParams& p) {
    residual_scale = p.scale;
    residual_zero_point = p.zero_point;
  }
  void options(OptionVisitor& v) override;
};
struct QuantizedLinearAttrs : OptionsOf<QuantizedLinearAttrs>, QuantizedInput, QuantizedOutput {
  Activation activation = Activation::kNone;
  Saturation saturation = Saturation::kExact;
  void options(OptionVisitor& v) override;
};
struct DynamicQuantizedLinearAttrs : OptionsOf<DynamicQuantizedLinearAttrs> {
  Activation activation = Activation::kNone;
  Saturation saturation = Saturation::kExact;  // reduced: x is quantized to 0..127
  void options(OptionVisitor& v) override;
};
/// For quantized_add and quantized_mul.
struct QuantizedBinaryAttrs : OptionsOf<QuantizedBinaryAttrs>, QuantizedOutput {
  double a_scale = 1, b_scale = 1;
  int64_t a_zero_point = 0, b_zero_point = 0;
  Activation activation = Activation::kNone;
  void set_inputs(const QuantParams& a, const QuantParams& b) {
    a_scale = a.scale;
    a_zero_point = a.zero_point;
    b_scale = b.scale;
    b_zero_point = b.zero_point;
  }
  void options(OptionVisitor& v) override;
};
struct QuantizedConcatAttrs : OptionsOf<QuantizedConcatAttrs>, QuantizedOutput {
  int64_t axis = 1;
  std::vector<double> input_scales;  // one per input
  std::vector<int64_t> input_zero_points;
  void add_input(const QuantParams& p) {
    input_scales.push_back(p.scale);
    input_zero_points.push_back(p.zero_point);
  }
  void options(OptionVisitor& v) override;
};
struct QuantizedAvgPool2dAttrs : OptionsOf<QuantizedAvgPool2dAttrs>, AvgPoolWindow, QuantizedInput, QuantizedOutput {
  void options(OptionVisitor& v) override;
};
struct QuantizedAdaptiveAvgPool2dAttrs : OptionsOf<QuantizedAdaptiveAvgPool2dAttrs>, QuantizedInput, QuantizedOutput {
  std::vector<int64_t> output_size{1};
  void options(OptionVisitor& v) override;
};

/// Checks the inputs of an integer convolution (x, weight, weight_scale, bias, residual) and infers its result. `weight` is the shape of
/// the weight, which may be stored in another form. Attributes: QuantizedConv2dAttrs.
std::vector<TensorType> infer_quantized_conv2d(const OpContext& context, const Shape& weight);

const OpDef& quantized_conv2d_op();
const OpDef& quantized_linear_op();
const OpDef& dynamic_quantized_linear_op();
const OpDef& quantized_add_op();
const OpDef& quantized_mul_op();
const OpDef& quantized_concat_op();
const OpDef& quantized_avg_pool2d_op();
const OpDef& quantized_adaptive_avg_pool2d_op();

/// x u8|i8 [N,C,H,W], weight i8 [O,C/groups,kh,kw], weight_scale f32 [O], bias f32 [O] or absent, residual u8|i8 of the shape of the result
/// or absent. acc = sum (x - input_zero_point) * w, exact in 32 bits (a sum that could exceed 2^31 is refused); padding has the value
/// input_zero_point; real = activation(acc * (input_scale * weight_scale[o]) + bias[o] + residual_scale * (residual -
/// residual_zero_point)).
Value quantized_conv2d(Value x, Value weight, Value weight_scale, Value bias, const QuantizedConv2dAttrs& attrs, Value residual = {});
/// x u8|i8 [...,I], weight i8 [O,I], weight_scale f32 [O], bias f32 [O] or absent -> [...,O]; formula as above.
Value quantized_linear(Value x, Value weight, Value weight_scale, Value bias, const QuantizedLinearAttrs& attrs);
/// Quantizes x f32 [...,I] with affine_params of its smallest and largest value (uint8; reduced: 0..127), then computes as
/// quantized_linear, with a result f32 [...,O]. An empty x gives an empty result.
Value dynamic_quantized_linear(Value x, Value weight, Value weight_scale, Value bias, const DynamicQuantizedLinearAttrs& attrs = {});
/// activation(a_scale (a - a_zero_point) + b_scale (b - b_zero_point)); b has the shape of a, or [N,C,1,1] for a [N,C,H,W].
Value quantized_add(Value a, Value b, const QuantizedBinaryAttrs& attrs);
/// activation(a_scale (a - a_zero_point) * b_scale (b - b_zero_point)); shapes as quantized_add.
Value quantized_mul(Value a, Value b, const QuantizedBinaryAttrs& attrs);
/// Has a sum or product of these inputs an integer form: do both have one shape, or has one of them one value per channel?
/// OpDef::quantizable of add and mul.
bool quantized_pair(const OpContext& context);
/// OpDef::integer_form of add and mul.
void add_on_integers(IntegerBuilder& builder);
void mul_on_integers(IntegerBuilder& builder);
/// Joins inputs u8|i8, each with a scale and zero point of its own, into one array with the output's.
Value quantized_concat(std::span<const Value> x, const QuantizedConcatAttrs& attrs);
/// Mean of each window: sum (x - input_zero_point), exact, times input_scale / divisor. Padding counts as real 0.
Value quantized_avg_pool2d(Value x, const QuantizedAvgPool2dAttrs& attrs);
Value quantized_adaptive_avg_pool2d(Value x, const QuantizedAdaptiveAvgPool2dAttrs& attrs);

}  // namespace galley
