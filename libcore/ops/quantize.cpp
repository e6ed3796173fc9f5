#include "libcore/ops/quantize.h"

#include "libcore/ops/convert.h"
#include "libcore/ops/definitions.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

constexpr std::string_view kNoGradient = "integers have no gradient; use fake_quantize for training";

std::vector<TensorType> infer_quantize(const OpContext& c) {
  const auto& a = c.attrs<QuantizeAttrs>();
  GALLEY_CHECK(c.in(0).dtype == DType::kF32, "x must be f32, not ", c.in(0));
  check_quant_params(a.params());
  TensorType y = c.in(0);
  y.dtype = a.dtype;
  return {y};
}

std::vector<TensorType> infer_dequantize(const OpContext& c) {
  const auto& a = c.attrs<DequantizeAttrs>();
  check_quantized(c.in(0), "q", a.scale, a.zero_point);
  TensorType y = c.in(0);
  y.dtype = DType::kF32;
  return {y};
}

std::vector<TensorType> infer_lookup(const OpContext& c) {
  const auto& a = c.attrs<LookupAttrs>();
  check_quantized(c.in(0), "q", 1, 0);
  GALLEY_CHECK(a.dtype == DType::kU8 || a.dtype == DType::kI8, "the table's dtype must be u8 or i8, not ", a.dtype);
  GALLEY_CHECK(a.table.size() == 256, "the table must have 256 entries, not ", a.table.size());
  const int64_t low = a.dtype == DType::kU8 ? 0 : -128, high = low + 255;
  for (int64_t entry : a.table)
    GALLEY_CHECK(entry >= low && entry <= high, "the table's entry ", entry, " is outside the range of ", a.dtype);
  TensorType y = c.in(0);
  y.dtype = a.dtype;
  return {y};
}

std::vector<TensorType> infer_dequantize_weight(const OpContext& c) {
  const auto& a = c.attrs<DequantizeWeightAttrs>();
  const TensorType &w = c.in(0), &scale = c.in(1);
  GALLEY_CHECK(a.bits == 8 || a.bits == 4, "bits must be 8 or 4, not ", a.bits);
  const bool f8 = a.bits == 8 && w.dtype == DType::kF8E4M3;
  const DType stored = f8 ? w.dtype : a.bits == 8 ? DType::kI8 : DType::kU8;
  GALLEY_CHECK(w.dtype == stored && w.shape.rank() >= 1, "a weight of ", a.bits, " bits must be ", stored, " [O,...], not ", w);
  TensorType y;
  y.shape = w.shape;
  if (a.bits == 4) y.shape[-1] = 2 * w.shape[-1];
  if (!a.shape.empty()) {
    y.shape = Shape(std::span<const int64_t>(a.shape));
    Shape held = y.shape;
    if (a.bits == 4) held[-1] = (held[-1] + 1) / 2;
    GALLEY_CHECK(held == w.shape, "a weight ", y.shape, " of ", a.bits, " bits must be stored as ", held, ", not ", w.shape);
  }
  const int64_t outputs = y.shape[0];
  Shape expected{outputs};
  if (a.group_size > 0) expected.push_back((y.shape.elements() / std::max<int64_t>(1, outputs) + a.group_size - 1) / a.group_size);
  GALLEY_CHECK(scale.dtype == DType::kF32 && scale.shape == expected, "scale must be f32 ", expected, ", not ", scale);
  GALLEY_CHECK(!f8 || (!c.has(2) && a.group_size == 0), "weights in f8_e4m3 have neither zero points nor groups");
  if (c.has(2))
    GALLEY_CHECK(c.in(2).dtype == DType::kI8 && c.in(2).shape == expected, "zero_point must be i8 ", expected, ", not ", c.in(2));
  return {y};
}

}  // namespace

void QuantizeAttrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "scale: the real difference of neighboring integers, a float32 value", .min = 0}, scale);
  v.option({.name = "zero_point", .doc = "zero point"}, zero_point);
  v.choice({.name = "dtype", .doc = "u8 or i8"}, dtype, kDTypeNames);
  v.option({.name = "qmin", .doc = "smallest integer used"}, qmin);
  v.option({.name = "qmax", .doc = "largest integer used"}, qmax);
}
void DequantizeAttrs::options(OptionVisitor& v) {
  v.option({.name = "scale", .doc = "scale: the real difference of neighboring integers, a float32 value", .min = 0}, scale);
  v.option({.name = "zero_point", .doc = "zero point"}, zero_point);
}
void LookupAttrs::options(OptionVisitor& v) {
  v.option({.name = "table", .doc = "256 results, in the order of the input's integers", .min = -128, .max = 255}, table);
  v.choice({.name = "dtype", .doc = "dtype of the results: u8 or i8"}, dtype, kDTypeNames);
}
void DequantizeWeightAttrs::options(OptionVisitor& v) {
  v.option({.name = "bits", .doc = "8, or 4: two signed integers per byte, the low half first", .min = 4, .max = 8}, bits);
  v.option({.name = "group_size", .doc = "weights of an output channel that share a scale; 0: all", .min = 0}, group_size);
  v.option({.name = "shape", .doc = "shape of the weight; empty: as stored, with the last axis doubled if bits is 4", .min = 0}, shape);
}

const OpDef& quantize_op() {
  static const OpDef def{.name = "quantize",
                         .doc = "clamp(round_half_even(x / scale) + zero_point, qmin, qmax)",
                         .inputs = {"x"},
                         .outputs = {"q"},
                         .make_attrs = make_options<QuantizeAttrs>,
                         .infer = infer_quantize,
                         .no_gradient = kNoGradient,
                         .cost = elementwise_cost<4>,
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::quantize,
                         .integer = IntegerRole::kQuantizes};
  return def;
}
const OpDef& dequantize_op() {
  static const OpDef def{.name = "dequantize",
                         .doc = "scale * (q - zero_point)",
                         .inputs = {"q"},
                         .outputs = {"x"},
                         .make_attrs = make_options<DequantizeAttrs>,
                         .infer = infer_dequantize,
                         .no_gradient = kNoGradient,
                         .cost = elementwise_cost<2>,
                         .precision = PrecisionRule::kKeepF32,
                         .definition = definition::dequantize,
                         .integer = IntegerRole::kDequantizes,
                         .cases = {"dequantize:16x64x56x56@u8:scale=0.5,zero_point=128"}};
  return def;
}
const OpDef& lookup_op() {
  static const OpDef def{.name = "lookup",
                         .doc = "any function of one integer of 8 bits, from a table",
                         .inputs = {"q"},
                         .outputs = {"y"},
                         .make_attrs = make_options<LookupAttrs>,
                         .infer = infer_lookup,
                         .no_gradient = kNoGradient,
                         .may_reuse = {{0, 0}},
                         .integer = IntegerRole::kComputes,
                         .cases = {"lookup:16x64x56x56@u8"}};
  return def;
}
const OpDef& dequantize_weight_op() {
  static const OpDef def{
      .name = "dequantize_weight",
      .doc = "a weight from integers of 8 or 4 bits, or from f8_e4m3, a scale for each output channel or group of its weights",
      .inputs = {Port::weight("weight"), Port::statistics("scale"), Port::statistics("zero_point?")},
      .outputs = {Port::weight("y")},
      .make_attrs = make_options<DequantizeWeightAttrs>,
      .infer = infer_dequantize_weight,
      .no_gradient = kNoGradient,
      .cost = elementwise_cost<2>,
      .layout = {FormatRule::kExplicit},  // the output is a weight, so it is never channels_last
      .precision = PrecisionRule::kKeepF32,
      .definition = definition::dequantize_weight,
      .cases = {"dequantize_weight:1000x2048@i8+1000", "dequantize_weight:1000x1024@u8+1000x32:bits=4,group_size=64"}};
  return def;
}

Value quantize(Value x, const QuantParams& params) { return emit("quantize", {x}, QuantizeAttrs(params)); }
Value dequantize(Value q, const QuantParams& params) {
  check_quant_params(params);
  GALLEY_CHECK(q.dtype() == params.dtype, "q is ", q.type(), ", but its parameters are ", params);
  DequantizeAttrs attrs;
  attrs.scale = params.scale;
  attrs.zero_point = params.zero_point;
  return emit("dequantize", {q}, attrs);
}
Value lookup(Value q, const LookupAttrs& attrs) { return emit("lookup", {q}, attrs); }
Value requantize(Value q, const QuantParams& from, const QuantParams& to) {
  if (from == to) return q;
  return lookup(q, table_of(from, to, [](double x) { return x; }));
}
Value dequantize_weight(Value weight, Value scale, Value zero_point, const DequantizeWeightAttrs& attrs) {
  return emit("dequantize_weight", {weight, scale, zero_point}, attrs);
}

LookupAttrs table_of(const QuantParams& from, const QuantParams& to, const ScalarFunction& f) {
  check_quant_params(from);
  check_quant_params(to);
  LookupAttrs attrs;
  attrs.dtype = to.dtype;
  const int64_t low = from.dtype == DType::kU8 ? 0 : -128;
  for (int64_t q = low; q < low + 256; ++q) attrs.table.push_back(quantize_real(f(dequantize_value(q, from)), to));
  return attrs;
}

OpTable quantize_ops() { return {&quantize_op(), &dequantize_op(), &lookup_op(), &dequantize_weight_op()}; }

}  // namespace galley
