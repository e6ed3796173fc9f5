// Constant folding (sizes, axes and the arithmetic that exporters generate for them), and recognition of functions that exporters write as
// several nodes.

#include <algorithm>
#include <cmath>

#include "libcore/onnx/import/import.h"
#include "libcore/ops/unary.h"

namespace galley::onnx_import {
namespace {

Tensor with_shape(const Tensor& x, Shape shape) {
  GALLEY_CHECK_INPUT(shape.elements() == x.elements(), "a constant ", x.str(), " cannot be reshaped to ", shape);
  return Tensor(x.dtype(), shape, {}, x.storage(), static_cast<const std::byte*>(x.data()) - x.storage()->data());
}

std::optional<Tensor> gathered(Call& c, const Tensor& data, const Tensor& index) {
  if (data.shape().rank() != 1 || index.shape().rank() > 1) return std::nullopt;
  axis_in(c.integer("axis", 0), 1);
  Tensor result(data.dtype(), index.shape());
  const int64_t size = data.shape()[0];
  const std::vector<int64_t> at = to_ints(index);
  for (size_t i = 0; i < at.size(); ++i) {
    GALLEY_CHECK_INPUT(at[i] >= -size && at[i] < size, "index ", at[i], " is out of range for ", size, " elements");
    const int64_t bytes = dtype_size(data.dtype()), from = at[i] < 0 ? at[i] + size : at[i];
    std::copy_n(static_cast<const std::byte*>(data.data()) + from * bytes, bytes,
                static_cast<std::byte*>(result.data()) + static_cast<int64_t>(i) * bytes);
  }
  return result;
}

std::optional<Tensor> sliced(Call& c, const std::vector<Tensor>& inputs) {
  if (inputs[0].shape().rank() != 1 || is_floating(inputs[0].dtype()) || c.inputs() < 3) return std::nullopt;
  const std::vector<int64_t> values = to_ints(inputs[0]), starts = c.ints(1), ends = c.ints(2),
                             steps = c.has(4) ? c.ints(4) : std::vector<int64_t>{1};
  GALLEY_CHECK_INPUT(starts.size() == 1 && ends.size() == 1 && steps.size() == 1 && steps[0] > 0,
                     "a slice of a list of sizes must have one range with a positive step");
  const auto size = static_cast<int64_t>(values.size());
  const auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  std::vector<int64_t> taken;
  for (int64_t i = clip(starts[0]); i < clip(ends[0]); i += std::min(steps[0], size + 1)) taken.push_back(values[static_cast<size_t>(i)]);
  return from_ints(taken).to(inputs[0].dtype());
}

std::optional<Tensor> joined(Call& c, const std::vector<Tensor>& inputs) {
  std::vector<int64_t> all;
  for (const Tensor& input : inputs) {
    if (input.shape().rank() != 1 || is_floating(input.dtype())) return std::nullopt;
    for (const int64_t value : to_ints(input)) all.push_back(value);
  }
  c.integer("axis", 0);
  return from_ints(all).to(inputs[0].dtype());
}

int64_t wrapped(std::string_view op, int64_t a, int64_t b) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  if (op == "Add") return static_cast<int64_t>(ua + ub);
  if (op == "Sub") return static_cast<int64_t>(ua - ub);
  if (op == "Mul") return static_cast<int64_t>(ua * ub);
  GALLEY_CHECK_INPUT(b != 0 && !(a == INT64_MIN && b == -1), "it divides a size by ", b);
  return a / b;
}
double computed(std::string_view op, double a, double b) { return op == "Add" ? a + b : op == "Sub" ? a - b : op == "Mul" ? a * b : a / b; }

/// Only for lists and scalars.
std::optional<Tensor> arithmetic(std::string_view op, const Tensor& a, const Tensor& b) {
  if (a.shape().rank() > 1 || b.shape().rank() > 1 || a.dtype() != b.dtype()) return std::nullopt;
  if (a.elements() != b.elements() && a.elements() != 1 && b.elements() != 1) return std::nullopt;
  Tensor result(a.dtype(), broadcast_shapes(a.shape(), b.shape()));
  const auto count = static_cast<size_t>(result.elements());
  if (is_floating(a.dtype())) {
    const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
    std::vector<double> z;
    for (size_t i = 0; i < count; ++i) z.push_back(computed(op, x[i % x.size()], y[i % y.size()]));
    result.from_doubles(z);
    return result;
  }
  const std::vector<int64_t> x = to_ints(a), y = to_ints(b);
  std::vector<int64_t> z;
  for (size_t i = 0; i < count; ++i) z.push_back(wrapped(op, x[i % x.size()], y[i % y.size()]));
  Tensor list = from_ints(z).to(a.dtype());
  return with_shape(list, result.shape());
}

/// Only for lists of equal length and scalars.
std::optional<Tensor> compared(std::string_view op, const std::vector<Tensor>& inputs) {
  size_t count = 1;
  std::vector<std::vector<int64_t>> lists;
  Shape shape;
  for (const Tensor& input : inputs) {
    if (input.shape().rank() > 1 || is_floating(input.dtype()) || input.elements() == 0) return std::nullopt;
    lists.push_back(to_ints(input));
    if (input.shape().rank() == 1) shape = broadcast_shapes(shape, input.shape());
    count = std::max(count, lists.back().size());
  }
  std::vector<int64_t> result;
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](size_t list) { return lists[list][i % lists[list].size()]; };
    result.push_back(op == "Where"   ? (at(0) != 0 ? at(1) : at(2))
                     : op == "Equal" ? at(0) == at(1)
                     : op == "Less"  ? at(0) < at(1)
                                     : at(0) > at(1));
  }
  return with_shape(from_ints(result).to(op == "Where" ? inputs[1].dtype() : DType::kBool), shape);
}

std::optional<Tensor> rounded(std::string_view op, const Tensor& x) {
  if (!is_floating(x.dtype())) return std::nullopt;
  std::vector<double> values = x.to_doubles();
  for (double& value : values) value = op == "Floor" ? std::floor(value) : op == "Ceil" ? std::ceil(value) : std::sqrt(value);
  Tensor result(x.dtype(), x.shape());
  result.from_doubles(values);
  return result;
}

}  // namespace

std::optional<Tensor> fold(Call& c, const std::vector<Tensor>& inputs) {
  const std::string& op = c.node.op_type;
  if (inputs.empty()) return std::nullopt;
  for (const Tensor& input : inputs) {
    if (!input.defined() || input.elements() > kMaxConstant) return std::nullopt;
  }
  if (op == "Identity") return inputs[0];
  if (op == "Gather" && inputs.size() == 2) return gathered(c, inputs[0], inputs[1]);
  if (op == "Slice") return sliced(c, inputs);
  if (op == "Concat") return joined(c, inputs);
  if ((op == "Add" || op == "Sub" || op == "Mul" || op == "Div") && inputs.size() == 2) return arithmetic(op, inputs[0], inputs[1]);
  if ((op == "Where" && inputs.size() == 3) || ((op == "Equal" || op == "Less" || op == "Greater") && inputs.size() == 2))
    return compared(op, inputs);
  if (op == "Floor" || op == "Ceil" || op == "Sqrt") return rounded(op, inputs[0]);
  if (op == "Unsqueeze") return with_shape(inputs[0], unsqueezed_shape(inputs[0].shape(), c.axes(1, {})));
  if (op == "Squeeze") return with_shape(inputs[0], squeezed_shape(inputs[0].shape(), c.axes(1, {})));
  if (op == "Reshape" && inputs.size() == 2 && inputs[0].shape().rank() <= 1 && inputs[0].elements() > 0) {
    const std::vector<int64_t> to = c.ints(1);
    if (to == std::vector<int64_t>{-1}) return with_shape(inputs[0], Shape{inputs[0].elements()});
    return std::nullopt;
  }
  if (op == "Cast") {
    const OnnxType* type = find_onnx_type(static_cast<int32_t>(std::clamp<int64_t>(c.integer("to", 0), 0, 1000)));
    GALLEY_CHECK_INPUT(type != nullptr && type->dtype, "it casts to type ", c.integer("to", 0), ", which Galley does not support");
    // Casts to integers truncate; a bool is false only for 0.
    if (!is_floating(*type->dtype) && *type->dtype != DType::kBool && is_floating(inputs[0].dtype())) {
      std::vector<double> values = inputs[0].to_doubles();
      for (double& value : values) value = std::trunc(value);
      Tensor whole(inputs[0].dtype(), inputs[0].shape());
      whole.from_doubles(values);
      return whole.to(*type->dtype);
    }
    return inputs[0].to(*type->dtype);
  }
  return std::nullopt;
}

namespace {

/// Exporters write sqrt(2) in float32 (relative error 2e-8) or with five digits (1.4142, relative error 9.6e-6). The operator that replaces
/// the nodes uses the exact constant. This changes the result by at most this relative error for a factor, and by less than 3e-6 for the
/// argument of erf in gelu, because x^2 phi(x) < 0.3.
constexpr double kConstantTolerance = 1e-5;

bool near(std::optional<double> value, double expected) { return value && std::fabs(*value - expected) <= kConstantTolerance * expected; }

/// The other input of a binary node.
const std::string& other_input(const OnnxNode& node, const std::string& one) {
  return node.inputs[0] == one ? node.inputs[1] : node.inputs[0];
}

bool is_binary(const OnnxNode* node, std::string_view op) {
  return node != nullptr && node->op_type == op && node->domain.empty() && node->inputs.size() == 2 && node->outputs.size() == 1;
}

/// Recognizes gelu, x Phi(x), at its first node x / sqrt(2), and consumes the nodes up to the last product.
bool make_gelu(Call& c) {
  Importer& to = c.to;
  const OnnxNode& first = c.node;
  std::string x;
  if (is_binary(&first, "Div") && near(to.known_scalar(first.inputs[1]), std::sqrt(2.0))) x = first.inputs[0];
  for (size_t i : {0u, 1u}) {
    if (is_binary(&first, "Mul") && near(to.known_scalar(first.inputs[i]), std::sqrt(0.5))) x = first.inputs[1 - i];
  }
  if (x.empty()) return false;
  const OnnxNode* erf = to.only_reader(first.outputs[0]);
  if (erf == nullptr || erf->op_type != "Erf" || erf->outputs.size() != 1) return false;
  const OnnxNode* sum = to.only_reader(erf->outputs[0]);
  if (!is_binary(sum, "Add") || !near(to.known_scalar(other_input(*sum, erf->outputs[0])), 1)) return false;
  const OnnxNode* product = to.only_reader(sum->outputs[0]);
  if (!is_binary(product, "Mul")) return false;
  // The product of x, the sum and 1/2, in any order.
  const std::string& factor = other_input(*product, sum->outputs[0]);
  const OnnxNode* last = product;
  const OnnxNode* half = nullptr;
  if (factor == x || near(to.known_scalar(factor), 0.5)) {
    last = to.only_reader(product->outputs[0]);
    if (!is_binary(last, "Mul")) return false;
    const std::string& rest = other_input(*last, product->outputs[0]);
    if (factor == x ? !near(to.known_scalar(rest), 0.5) : rest != x) return false;
  } else {
    half = to.producer(factor);
    if (!is_binary(half, "Mul") || to.only_reader(factor) != product) return false;
    const bool halves = (half->inputs[0] == x && near(to.known_scalar(half->inputs[1]), 0.5)) ||
                        (half->inputs[1] == x && near(to.known_scalar(half->inputs[0]), 0.5));
    if (!halves) return false;
  }
  const Value made = gelu(to.value(to.item(x)));
  for (const OnnxNode* node : {erf, sum, product, last, half}) {
    if (node != nullptr) to.skip(*node);
  }
  to.set(last->outputs[0], {.value = made});
  return true;
}

/// Recognizes x sigmoid(x) and x hardsigmoid(x) at the (hard) sigmoid.
bool make_gated(Call& c) {
  const bool hard = c.node.op_type == "HardSigmoid";
  if (!hard && c.node.op_type != "Sigmoid") return false;
  if (c.node.inputs.size() != 1 || c.node.outputs.size() != 1) return false;
  const OnnxNode* product = c.to.only_reader(c.node.outputs[0]);
  if (!is_binary(product, "Mul") || other_input(*product, c.node.outputs[0]) != c.node.inputs[0]) return false;
  if (hard && (!near(c.real("alpha", 0.2), 1.0 / 6) || !near(c.real("beta", 0.5), 0.5))) return false;
  const Value x = c.x(0);
  c.to.skip(*product);
  c.to.set(product->outputs[0], {.value = hard ? hardswish(x) : silu(x)});
  return true;
}

}  // namespace

bool make_pattern(Call& c) { return make_gelu(c) || make_gated(c); }

}  // namespace galley::onnx_import
