#pragma once
// Rules that operators of several families share: axes, broadcasting, dimension names, cost. For ops/*.cpp only.

#include <string_view>
#include <vector>

#include "libcore/graph/op_def.h"

namespace galley {

/// The axis counted from 0. Throws if x has no such axis.
int axis_of(int64_t axis, const TensorType& x);
/// The axes in ascending order; all axes if the list is empty. Throws if one is out of range or appears twice.
std::vector<int> axes_of(const std::vector<int64_t>& axes, const TensorType& x);

/// The type of the inputs joined along `axis`; all else is as in the first. Throws if they differ in another dimension.
TensorType joined(const OpContext& c, int64_t axis);

void check_floating(const TensorType& x, std::string_view name);
void check_integer(const TensorType& x, std::string_view name);
/// u8 or i8 for scale * (q - zero_point), where scale is a positive float32 value and zero_point an integer of the dtype.
void check_quantized(const TensorType& x, std::string_view name, double scale, int64_t zero_point);
void check_not_bool(const TensorType& x, std::string_view name);
/// The same dtype and shape; names are equal or absent.
void check_like(const TensorType& x, std::string_view x_name, const TensorType& like, std::string_view like_name);
/// A scalar (shape []) of that dtype.
void check_scalar(const TensorType& x, std::string_view name, DType dtype);
/// The gate of an update, if it is given: bool [].
void check_gate(const OpContext& c, int input);

/// The name of a dimension; "" if it has none.
std::string_view dim_name(const TensorType& x, int axis);
/// The name if both agree or one is absent. Throws, with both names, if they differ.
std::string merge_dim_name(std::string_view a, std::string_view b, int axis);
/// `names`; an empty list if all names are "".
std::vector<std::string> tidy_names(std::vector<std::string> names);

/// The type of an element-wise result of a and b: dtype of a, broadcast shape, merged names; the format of both if it is the same.
TensorType broadcast_types(const TensorType& a, const TensorType& b);

/// Output types of one part of a fused operator, checked and inferred by the part's own rule; nullptr: an input that is not given.
std::vector<TensorType> infer_part(const OpDef& op, const Options& attrs, std::vector<const TensorType*> inputs);
/// The type of input i; nullptr if it is not given.
inline const TensorType* given(const OpContext& c, int i) { return c.has(i) ? &c.in(i) : nullptr; }

/// Reads and writes each operand once, and computes `flops`.
Cost operand_cost(const OpContext& context, double flops);
/// `kFlops` for each element of the first output. A transcendental function counts one.
template <int kFlops>
Cost elementwise_cost(const OpContext& context) {
  return operand_cost(context, kFlops * static_cast<double>(context.out(0).elements()));
}
/// `kFlops` for each element of the first input.
template <int kFlops>
Cost input_cost(const OpContext& context) {
  return operand_cost(context, kFlops * static_cast<double>(context.in(0).elements()));
}

/// OpDef::no_gradient of backward operators.
inline constexpr std::string_view kNoSecondDerivative = "a backward operator: second derivatives are not built";
/// Of operators of rewrites.
inline constexpr std::string_view kAfterDifferentiation = "back ends make it after differentiation";

}  // namespace galley
