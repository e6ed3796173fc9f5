#include "libcore/backends/cpu/rewrite/target_operators.h"

#include "libcore/backends/cpu/rewrite/gates.h"
#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/backends/weight_only.h"
#include "libcore/ops/registry.h"

namespace galley {

void ensure_cpu_operators() {
  static const bool registered = [] {
    ensure_ops_registered();
    ensure_weight_only_operator();
    const OpDef* const operators[] = {&batch_norm_depthwise_op(),
                                      &batch_norm_depthwise_backward_op(),
                                      &sum_products_op(),
                                      &gated_batch_norm_backward_op(),
                                      &pointwise_batch_norm_depthwise_op(),
                                      &pointwise_batch_norm_backward_op(),
                                      &pointwise_batch_norm_depthwise_backward_op(),
                                      &winograd_weights_op(),
                                      &winograd_conv2d_op(),
                                      &winograd_conv2d_backward_weights_op(),
                                      &quantized_winograd_weights_op(),
                                      &quantized_winograd_conv2d_op()};
    register_ops(operators);
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace galley
