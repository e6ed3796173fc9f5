#pragma once
// Functions that models of the zoo share in addition to the Builder's layers: pooling with designated options, convolutions followed by
// batch norm, squeeze-and-excite.

#include <optional>
#include <string_view>

#include "libcore/nn/builder.h"
#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/pool.h"
#include "libcore/ops/resize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"

namespace galley {

/// Options of 2-D pooling.
struct PoolOptions {
  Size2 kernel_size;
  std::optional<Size2> stride;  // default: the kernel's size
  Size2 padding = 0;
  bool ceil_mode = false;  // windows may extend beyond the padded edge
};
/// x [N,C,H,W] -> [N,C,H',W']: the largest value of each window.
inline Value max_pool(Value x, const PoolOptions& options) {
  MaxPool2dAttrs attrs;
  attrs.kernel_size = options.kernel_size.list();
  attrs.stride = options.stride.value_or(options.kernel_size).list();
  attrs.padding = options.padding.list();
  attrs.ceil_mode = options.ceil_mode;
  return emit("max_pool2d", {x}, attrs);
}
/// x [N,C,H,W] -> [N,C,H',W']: the mean of each window, padding included.
inline Value avg_pool(Value x, const PoolOptions& options) {
  AvgPool2dAttrs attrs;
  attrs.kernel_size = options.kernel_size.list();
  attrs.stride = options.stride.value_or(options.kernel_size).list();
  attrs.padding = options.padding.list();
  attrs.ceil_mode = options.ceil_mode;
  return emit("avg_pool2d", {x}, attrs);
}

/// x [N,C,H,W] -> [N,C,size.h,size.w]: means over windows that cover the input.
inline Value adaptive_avg_pool(Value x, Size2 size) {
  AdaptiveAvgPool2dAttrs attrs;
  attrs.output_size = size.list();
  return emit("adaptive_avg_pool2d", {x}, attrs);
}
/// x [N,C,H,W] -> [N,C,1,1]: the mean of each channel.
inline Value global_avg_pool(Value x) { return adaptive_avg_pool(x, 1); }

/// Activations of convolution blocks.
enum class ActivationKind { kRelu, kRelu6, kHardswish, kSilu };
inline Value activate(Value x, ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kRelu: return relu(x);
    case ActivationKind::kRelu6: return relu6(x);
    case ActivationKind::kHardswish: return hardswish(x);
    case ActivationKind::kSilu: return silu(x);
  }
  GALLEY_ASSERT(false);
}

/// Options of conv_norm.
struct ConvNormOptions {
  int64_t channels;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t groups = 1;
  std::optional<ActivationKind> activation;
  BatchNormOptions norm = {};
  bool same_padding = false;  // as TensorFlow's SAME: an odd pixel of padding goes to the end; torchvision pads both sides equally
};
/// Convolution "0" whose padding keeps the size (except for the stride), batch norm "1" and activation: torchvision's Conv2dNormActivation.
Value conv_norm(Builder& b, std::string_view name, Value x, const ConvNormOptions& options);

/// Options of squeeze_excite.
struct SqueezeExciteOptions {
  int64_t squeeze_channels;
  Value (*activation)(Value) = relu;
  Value (*gate)(Value) = sigmoid;  // maps to factors in 0..1
};
/// Scales each channel of x by a factor that is computed from the means of all channels (Hu et al. 2017): torchvision's SqueezeExcitation.
Value squeeze_excite(Builder& b, std::string_view name, Value x, const SqueezeExciteOptions& options);

}  // namespace galley
