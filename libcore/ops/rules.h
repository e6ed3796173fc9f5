#pragma once
// Rules that operators of several families share: axes, broadcasting, dimension names, cost. For ops/*.cpp only.

#include <string_view>
#include <vector>

#include "libcore/graph/op_def.h"

namespace galley {

/// Axis counted from 0; throws where x has no such axis.
int axis_of(int64_t axis, const TensorType& x);
/// Axes in rising order, all where the list is empty; throws on one out of range or named twice.
std::vector<int> axes_of(const std::vector<int64_t>& axes, const TensorType& x);

/// All inputs one after the other along `axis`, as the first in all else; throws where they differ in another dimension.
TensorType joined(const OpContext& c, int64_t axis);

void check_floating(const TensorType& x, std::string_view name);
void check_integer(const TensorType& x, std::string_view name);
/// u8 or i8, meaning scale * (q - zero_point): a positive float32 value, and one of the dtype's integers.
void check_quantized(const TensorType& x, std::string_view name, double scale, int64_t zero_point);
void check_not_bool(const TensorType& x, std::string_view name);
/// The same dtype and shape, names equal or absent.
void check_like(const TensorType& x, std::string_view x_name, const TensorType& like, std::string_view like_name);
/// A scalar (shape []) of that dtype.
void check_scalar(const TensorType& x, std::string_view name, DType dtype);
/// The gate of an update, where it is given: bool [].
void check_gate(const OpContext& c, int input);

/// The name of a dimension, "" where it has none.
std::string_view dim_name(const TensorType& x, int axis);
/// Both names where they agree or one is absent; throws, showing both, where they differ.
std::string merge_dim_name(std::string_view a, std::string_view b, int axis);
/// `names` without the entries, should all be "".
std::vector<std::string> tidy_names(std::vector<std::string> names);

/// Type of an element-wise result of a and b: a's dtype, broadcast shape, merged names; their format where both are alike.
TensorType broadcast_types(const TensorType& a, const TensorType& b);

/// What one operator of several that stand as one makes of these inputs (nullptr: not given), checked and typed by its own rule.
std::vector<TensorType> infer_part(const OpDef& op, const Options& attrs, std::vector<const TensorType*> inputs);
/// Input i's type; nullptr where it is not given.
inline const TensorType* given(const OpContext& c, int i) { return c.has(i) ? &c.in(i) : nullptr; }

/// Each operand once, and `flops`.
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

/// The reason given by backward operators, which have no gradient of their own.
inline constexpr std::string_view kNoSecondDerivative = "a backward operator: second derivatives are not built";

}  // namespace galley
