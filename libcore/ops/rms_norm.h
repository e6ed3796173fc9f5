#pragma once
// Root mean square normalization (Zhang, Sennrich 2019) over the last dimension.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// For both operators.
struct RmsNormAttrs : OptionsOf<RmsNormAttrs> {
  double eps = 1e-6;
  double offset = 0;  // added to the weight (Gemma: 1)
  void options(OptionVisitor& v) override;
};

const OpDef& rms_norm_op();
const OpDef& rms_norm_backward_op();

struct RmsNorm {
  Value y, rstd;
};
/// y = x rstd (offset + weight), rstd = 1 / sqrt(mean(x^2) + eps). x [...,D]; weight [D], or absent: y = x rstd; rstd [...].
RmsNorm rms_norm(Value x, Value weight, const RmsNormAttrs& attrs = {});
/// (dx, dweight).
std::vector<Value> rms_norm_backward(Value grad, Value x, Value rstd, Value weight, const RmsNormAttrs& attrs);

}  // namespace galley
