#pragma once
// Capture functions of the element-wise functions of two values and of `where` (rows of elementwise.cpp), with NumPy's broadcasting
// (right-aligned, sizes equal or 1); and broadcast_to with its inverse, sum_to. Both operands have one dtype; casts are explicit.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct ShapeAttrs : OptionsOf<ShapeAttrs> {
  std::vector<int64_t> shape;
  void options(OptionVisitor& v) override;
};

const OpDef& sum_to_op();
const OpDef& broadcast_to_op();

Value add(Value a, Value b);
Value sub(Value a, Value b);
Value mul(Value a, Value b);
Value div(Value a, Value b);
Value maximum(Value a, Value b);  ///< equal operands get half of the gradient each, as in PyTorch
Value minimum(Value a, Value b);
Value power(Value a, Value b);  ///< a^b; the gradient of b is defined for a > 0 (0 for a = 0, as in PyTorch)
/// silu(a) * b: SwiGLU's gate and what it lets pass (Shazeer 2020).
Value swiglu(Value a, Value b);
Value equal(Value a, Value b);    ///< bool
Value less(Value a, Value b);     ///< bool, a < b
Value greater(Value a, Value b);  ///< bool, a > b
/// a where `condition` (bool) is true, else b.
Value where(Value condition, Value a, Value b);
/// Sums x over its broadcast dimensions down to `shape`: the inverse of broadcast_to.
Value sum_to(Value x, const ShapeAttrs& attrs);
Value sum_to(Value x, const Shape& shape);
Value broadcast_to(Value x, const ShapeAttrs& attrs);
Value broadcast_to(Value x, const Shape& shape);

inline Value operator+(Value a, Value b) { return add(a, b); }
inline Value operator-(Value a, Value b) { return sub(a, b); }
inline Value operator*(Value a, Value b) { return mul(a, b); }
inline Value operator/(Value a, Value b) { return div(a, b); }

}  // namespace galley
