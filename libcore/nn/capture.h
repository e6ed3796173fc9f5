#pragma once
// What the zoo's models share besides the Builder's layers: pooling with designated options, squeeze-and-excite.

#include <optional>

#include "libcore/nn/builder.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {

struct PoolOptions {
  Size2 kernel_size;
  std::optional<Size2> stride;  // default: the kernel's size
  Size2 padding = 0;
};
inline Value max_pool(Value x, const PoolOptions& options) {
  MaxPool2dAttrs attrs;
  attrs.kernel_size = options.kernel_size.list();
  attrs.stride = options.stride.value_or(options.kernel_size).list();
  attrs.padding = options.padding.list();
  return emit("max_pool2d", {x}, attrs);
}

/// x [N,C,H,W] -> [N,C,size.h,size.w], means over windows that cover the input.
inline Value adaptive_avg_pool(Value x, Size2 size) {
  AdaptiveAvgPool2dAttrs attrs;
  attrs.output_size = size.list();
  return emit("adaptive_avg_pool2d", {x}, attrs);
}
/// x [N,C,H,W] -> [N,C,1,1].
inline Value global_avg_pool(Value x) { return adaptive_avg_pool(x, 1); }

enum class ActivationKind { kRelu, kRelu6, kHardswish };
inline Value activate(Value x, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kRelu: return relu(x);
    case ActivationKind::kRelu6: return relu6(x);
    case ActivationKind::kHardswish: return hardswish(x);
  }
  GALLEY_ASSERT(false);
}

}  // namespace galley
