#pragma once
// Orthonormal columns of a matrix, for compression of gradients (passes/power_sgd.h).

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

const OpDef& orthonormal_columns_op();
OpTable orthonormal_ops();

/// A column whose norm is at most this part of what it was before the earlier columns were taken out becomes zero.
inline constexpr double kDependentColumn = 1e-6;

/// x [n, r] -> y [n, r]: orthonormal columns that span those of x, by modified Gram-Schmidt. Columns that depend on earlier ones become
/// zero.
Value orthonormal_columns(Value x);

}  // namespace galley
