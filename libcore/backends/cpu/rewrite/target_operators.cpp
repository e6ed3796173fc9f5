#include "libcore/backends/cpu/rewrite/target_operators.h"

#include "libcore/backends/cpu/rewrite/gates.h"
#include "libcore/backends/cpu/rewrite/pointwise.h"
#include "libcore/backends/cpu/rewrite/quantized_winograd.h"
#include "libcore/backends/weight_only.h"
#include "libcore/ops/rewritten.h"

namespace galley {

void ensure_cpu_operators() {
  ensure_weight_only_operator();
  ensure_registered({&batch_norm_depthwise_op(), &batch_norm_depthwise_backward_op(), &sum_products_op(), &gated_batch_norm_backward_op(),
                     &pointwise_batch_norm_depthwise_op(), &pointwise_batch_norm_backward_op(),
                     &pointwise_batch_norm_depthwise_backward_op(), &winograd_weights_op(), &winograd_conv2d_op(),
                     &winograd_conv2d_backward_weights_op(), &quantized_winograd_weights_op(), &quantized_winograd_conv2d_op()});
}

}  // namespace galley
