#include "libcore/ops/rules.h"

#include <algorithm>

#include "libcore/tensor/quant_params.h"

namespace galley {

int axis_of(int64_t axis, const TensorType& x) {
  const int rank = x.shape.rank();
  GALLEY_CHECK(axis >= -rank && axis < rank, "axis ", axis, " is out of range for rank ", rank, ": input ", x.shape);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

std::vector<TensorType> infer_part(const OpDef& op, const Options& attrs, std::vector<const TensorType*> inputs) {
  OpContext context;
  context.attributes = &attrs;
  context.inputs = std::move(inputs);
  return op.infer(context);
}

TensorType joined(const OpContext& c, int64_t along) {
  GALLEY_CHECK(!c.inputs.empty(), "needs at least one input");
  const TensorType& first = c.in(0);
  const int axis = axis_of(along, first);
  TensorType y = first;
  y.format = {};
  for (size_t i = 1; i < c.inputs.size(); ++i) {
    const TensorType& x = c.in(static_cast<int>(i));
    bool fits = x.shape.rank() == first.shape.rank();
    for (int d = 0; fits && d < first.shape.rank(); ++d) fits = d == axis || x.shape[d] == first.shape[d];
    GALLEY_CHECK(fits, "inputs must agree in all dimensions except ", axis, ": input 0 ", first.shape, ", input ", i, " ", x.shape);
    y.shape[axis] += x.shape[axis];
    std::vector<std::string> names;
    for (int d = 0; d < first.shape.rank(); ++d) names.push_back(merge_dim_name(dim_name(y, d), dim_name(x, d), d));
    y.names = tidy_names(std::move(names));
  }
  return y;
}

std::vector<int> axes_of(const std::vector<int64_t>& axes, const TensorType& x) {
  std::vector<int> result;
  for (int64_t axis : axes) result.push_back(axis_of(axis, x));
  if (axes.empty()) {
    for (int axis = 0; axis < x.shape.rank(); ++axis) result.push_back(axis);
  }
  std::sort(result.begin(), result.end());
  const auto twice = std::adjacent_find(result.begin(), result.end());
  GALLEY_CHECK(twice == result.end(), "axis ", *twice, " occurs twice: input ", x.shape);
  return result;
}

void check_floating(const TensorType& x, std::string_view name) {
  GALLEY_CHECK(is_floating(x.dtype), name, " must have a floating-point dtype, not ", x, "; cast it first");
}

void check_integer(const TensorType& x, std::string_view name) {
  GALLEY_CHECK(x.dtype == DType::kI64 || x.dtype == DType::kI32, name, " must be i64 or i32, not ", x);
}

void check_quantized(const TensorType& x, std::string_view name, double scale, int64_t zero_point) {
  GALLEY_CHECK(x.dtype == DType::kU8 || x.dtype == DType::kI8, name, " must be u8 or i8, not ", x, "; quantize it first");
  const int64_t low = x.dtype == DType::kU8 ? 0 : -128;
  check_quant_params({scale, zero_point, x.dtype, low, low + 255});
}

void check_not_bool(const TensorType& x, std::string_view name) {
  GALLEY_CHECK(x.dtype != DType::kBool, name, " is ", x, "; arithmetic on bool is undefined, so cast it first");
}

void check_like(const TensorType& x, std::string_view x_name, const TensorType& like, std::string_view like_name) {
  GALLEY_CHECK(x.dtype == like.dtype && x.shape == like.shape, x_name, " must have the dtype and shape of ", like_name, ": ", x_name, " ",
               x, ", ", like_name, " ", like);
  for (int axis = 0; axis < x.shape.rank(); ++axis) merge_dim_name(dim_name(x, axis), dim_name(like, axis), axis);
}

void check_scalar(const TensorType& x, std::string_view name, DType dtype) {
  GALLEY_CHECK(x.dtype == dtype && x.shape.rank() == 0, name, " must be ", dtype, " [], not ", x);
}

void check_gate(const OpContext& c, int input) {
  if (c.has(input)) check_scalar(c.in(input), "gate", DType::kBool);
}

std::string_view dim_name(const TensorType& x, int axis) {
  return x.names.empty() || axis < 0 ? std::string_view() : std::string_view(x.names[static_cast<size_t>(axis)]);
}

std::string merge_dim_name(std::string_view a, std::string_view b, int axis) {
  GALLEY_CHECK(a.empty() || b.empty() || a == b, "dimension names differ at dimension ", axis, ": '", a, "' and '", b, "'");
  return std::string(a.empty() ? b : a);
}

std::vector<std::string> tidy_names(std::vector<std::string> names) {
  if (std::all_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); })) names.clear();
  return names;
}

TensorType broadcast_types(const TensorType& a, const TensorType& b) {
  TensorType result;
  result.dtype = a.dtype;
  result.shape = broadcast_shapes(a.shape, b.shape);
  const int rank = result.shape.rank();
  std::vector<std::string> names;
  for (int axis = 0; axis < rank; ++axis) {
    names.push_back(merge_dim_name(dim_name(a, axis - (rank - a.shape.rank())), dim_name(b, axis - (rank - b.shape.rank())), axis));
  }
  result.names = tidy_names(std::move(names));
  if (a.shape == b.shape && a.format == b.format) result.format = a.format;
  return result;
}

Cost operand_cost(const OpContext& context, double flops) {
  Cost cost;
  cost.flops = flops;
  for (const TensorType* type : context.inputs) cost.bytes_read += type ? static_cast<double>(type->bytes()) : 0;
  for (const TensorType* type : context.outputs) cost.bytes_written += type ? static_cast<double>(type->bytes()) : 0;
  return cost;
}

}  // namespace galley
