#include "libcore/backends/weight_only.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/expansion.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/rewritten.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {
namespace {

constexpr int kX = 0, kWeight = 1, kScale = 2, kZeroPoint = 3, kBias = 4;

std::vector<TensorType> infer(const OpContext& c) {
  const auto& a = c.attrs<WeightOnlyLinearAttrs>();
  const TensorType &x = c.in(kX), &stored = c.in(kWeight);
  GALLEY_CHECK(x.dtype == DType::kF32 && x.shape.rank() >= 1, "x must be f32 [...,I], not ", x);
  GALLEY_CHECK(stored.shape.rank() == 2, "the weight must have 2 dimensions, not ", stored);
  DequantizeWeightAttrs dequantize;
  dequantize.bits = a.bits;
  dequantize.group_size = a.group_size;
  dequantize.shape = {stored.shape[0], x.shape[-1]};
  GALLEY_CHECK(!a.rounded || can_round(a, c.has(kZeroPoint)), "rounded is for groups of 32, 64 or a multiple of 128, without zero points");
  const TensorType weight = infer_part(dequantize_weight_op(), dequantize, {&stored, &c.in(kScale), given(c, kZeroPoint)})[0];
  LinearAttrs linear;
  linear.activation = a.activation;
  return infer_part(linear_op(), linear, {&x, &weight, given(c, kBias)});
}

/// x [...,I], each kRoundedGroup values of a row rounded to integers times a scale. Codes and scales are computed in float32.
Value rounded_rows(Value x) {
  const Shape shape = x.shape();
  const int64_t depth = shape[-1], rows = depth == 0 ? 0 : shape.elements() / depth, groups = (depth + kRoundedGroup - 1) / kRoundedGroup;
  const auto single = [](Value v) { return reduce_precision(v, DType::kF32); };
  const auto number = [&](double v) { return full(x.graph(), {.dtype = x.dtype(), .shape = {}}, v); };
  Value g = reshape(x, {rows, depth});
  if (groups * kRoundedGroup > depth) g = pad(g, {0, 0, 0, groups * kRoundedGroup - depth});
  g = reshape(g, {rows, groups, kRoundedGroup});
  ReduceAttrs last;
  last.axes = {2};
  last.keepdim = true;
  const Value largest = amax(abs(g), last), nothing = number(0), any = greater(largest, nothing);
  const Value inverse = where(any, single(div(number(127), where(any, largest, number(1)))), nothing);
  const Value codes = emit("round", {single(mul(g, inverse))});
  const Value real = reshape(mul(codes, single(div(largest, number(127)))), {rows, groups * kRoundedGroup});
  return reshape(slice(real, 1, 0, depth), shape);
}
/// linear by the dequantized weight.
void define(Expansion& e) {
  const auto& a = e.attrs<WeightOnlyLinearAttrs>();
  DequantizeWeightAttrs stored;
  stored.bits = a.bits;
  stored.group_size = a.group_size;
  LinearAttrs attrs;
  attrs.activation = a.activation;
  const Shape shape{e.type(1).shape[0], e.type(0).shape[-1]};
  const Value weight = cast(definition::dequantized_weight(e, 1, stored, shape), e.compute());
  e.set(0, linear(a.rounded ? rounded_rows(e.in(0)) : e.in(0), weight, e.has(4) ? e.in(4) : Value(), attrs));
}

/// Operations of the product; the weights are read as they are stored.
Cost cost(const OpContext& c) {
  return operand_cost(c, 2.0 * static_cast<double>(c.in(kX).elements()) * static_cast<double>(c.in(kWeight).shape[0]));
}

}  // namespace

void WeightOnlyLinearAttrs::options(OptionVisitor& v) {
  v.option({.name = "bits", .doc = "8, or 4: two signed integers per byte, the low half first", .min = 4, .max = 8}, bits);
  v.option({.name = "group_size", .doc = "weights of an output channel that share a scale; 0: all", .min = 0}, group_size);
  v.choice({.name = "activation", .doc = "applied to the result"}, activation, kActivationNames);
  v.option({.name = "rounded", .doc = "each 32 values of x are rounded to 8 bits with a scale, and multiplied as integers"}, rounded);
}

bool can_round(const WeightOnlyLinearAttrs& attrs, bool zero_point) {
  const int64_t group = attrs.group_size;
  return !zero_point && (group == 0 || group == 32 || group == 64 || group % 128 == 0);
}

const OpDef& weight_only_linear_op() {
  static const OpDef def{
      .name = "weight_only_linear",
      .doc = "linear with a weight that is stored as integers of 8 or 4 bits",
      .inputs = {"x", Port::weight("weight"), Port::statistics("scale"), Port::statistics("zero_point?"), Port::statistics("bias?")},
      .outputs = {"y"},
      .make_attrs = make_options<WeightOnlyLinearAttrs>,
      .infer = infer,
      .no_gradient = "back ends make it for inference",
      .cost = cost,
      .work = WorkClass::kProduct,
      .layout = {.formats = FormatRule::kContiguous},
      .precision = PrecisionRule::kKeepF32,
      .definition = define,
      .made_by_rewrite = true,
      .variant_of = "linear",
      .cases = {"weight_only_linear:1x4096+4096x4096@i8+4096", "weight_only_linear:1x4096+4096x2048@u8+4096x128:bits=4,group_size=32",
                "weight_only_linear:1x4096+4096x2048@u8+4096x128:bits=4,group_size=32,rounded=true",
                "weight_only_linear:512x768+3072x768@i8+3072:rounded=true"}};
  return def;
}

void ensure_weight_only_operator() { ensure_registered({&weight_only_linear_op()}); }

Value weight_only_linear(Value x, Value weight, Value scale, Value zero_point, Value bias, const WeightOnlyLinearAttrs& attrs) {
  return emit_all(weight_only_linear_op(), std::make_unique<WeightOnlyLinearAttrs>(attrs),
                  std::vector<Value>{x, weight, scale, zero_point, bias})[0];
}

}  // namespace galley
