#include "libcore/backends/cpu/rewrite/target_operators.h"

#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/ops/registry.h"

namespace galley {

void ensure_cpu_operators() {
  static const bool registered = [] {
    ensure_ops_registered();
    const OpDef* const operators[] = {&batch_norm_depthwise_op(), &batch_norm_depthwise_backward_op(), &pointwise_batch_norm_depthwise_op(),
                                      &pointwise_batch_norm_backward_op(), &pointwise_batch_norm_depthwise_backward_op(), &winograd_weights_op(), &winograd_conv2d_op(),
                                      &winograd_conv2d_backward_weights_op(), &quantized_winograd_weights_op(), &quantized_winograd_conv2d_op()};
    register_ops(operators);
    for (const auto& entries : {batch_norm_depthwise_references(), pointwise_references(), winograd_references()}) register_references(entries);
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace galley
