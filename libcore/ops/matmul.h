#pragma once
// Matrix products.

#include "libcore/ops/attrs.h"
#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

struct LinearAttrs : OptionsOf<LinearAttrs> {
  Activation activation = Activation::kNone;
  void options(OptionVisitor& v) override;
};
struct MatmulAttrs : OptionsOf<MatmulAttrs> {
  MatmulAttrs(bool a = false, bool b = false) : transpose_a(a), transpose_b(b) {}
  bool transpose_a;
  bool transpose_b;
  void options(OptionVisitor& v) override;
};

const OpDef& linear_op();
const OpDef& matmul_op();

/// x [...,I], weight [O,I], bias [O] or absent -> activation(x weight^T + bias) [...,O].
Value linear(Value x, Value weight, Value bias = {}, const LinearAttrs& attrs = {});
/// a [...,M,K] (transposed: [...,K,M]), b [...,K,N] (transposed: [...,N,K]) -> [...,M,N]. Leading dimensions must be equal, or one operand
/// has rank 2.
Value matmul(Value a, Value b, const MatmulAttrs& attrs = {});

}  // namespace galley
