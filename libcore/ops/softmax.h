#pragma once
// Softmax and log-softmax along an axis.

#include "libcore/ops/emit.h"
#include "libcore/ops/registry.h"

namespace galley {

/// For all four operators.
struct SoftmaxAttrs : OptionsOf<SoftmaxAttrs> {
  int64_t axis = -1;
  void options(OptionVisitor& v) override;
};

const OpDef& softmax_op();
const OpDef& softmax_backward_op();
const OpDef& log_softmax_op();
const OpDef& log_softmax_backward_op();

Value softmax(Value x, const SoftmaxAttrs& attrs = {});
Value softmax_backward(Value grad, Value y, const SoftmaxAttrs& attrs = {});
Value log_softmax(Value x, const SoftmaxAttrs& attrs = {});
Value log_softmax_backward(Value grad, Value y, const SoftmaxAttrs& attrs = {});

}  // namespace galley
