#include "libcore/nn/capture.h"

namespace galley {

Value conv_norm(Builder& b, std::string_view name, Value x, const ConvNormOptions& options) {
  const auto module = b.scope(name);
  x = b.conv2d("0", x, {.out_channels = options.channels, .kernel_size = options.kernel, .stride = options.stride,
                        .padding = (options.kernel - 1) / 2 * options.dilation, .dilation = options.dilation, .groups = options.groups, .bias = false});
  x = b.batch_norm("1", x, options.norm);
  return options.activation ? activate(x, *options.activation) : x;
}

Value squeeze_excite(Builder& b, std::string_view name, Value x, const SqueezeExciteOptions& options) {
  const auto module = b.scope(name);
  Value scale = global_avg_pool(x);
  scale = options.activation(b.conv2d("fc1", scale, {.out_channels = options.squeeze_channels}));
  scale = options.gate(b.conv2d("fc2", scale, {.out_channels = x.channels()}));
  return mul(x, scale);
}

}  // namespace galley
