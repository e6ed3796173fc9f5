#include "libcore/nn/capture.h"

#include <algorithm>

namespace galley {

Value conv_norm(Builder& b, std::string_view name, Value x, const ConvNormOptions& options) {
  const auto module = b.scope(name);
  int64_t padding = (options.kernel - 1) / 2 * options.dilation;
  if (options.same_padding) {
    const auto total = [&](int64_t size) {
      const int64_t results = (size + options.stride - 1) / options.stride;
      return std::max<int64_t>(0, (results - 1) * options.stride + (options.kernel - 1) * options.dilation + 1 - size);
    };
    const int64_t rows = total(x.shape()[2]), columns = total(x.shape()[3]);
    if (rows != 2 * padding || columns != 2 * padding) {
      x = pad(x, {0, 0, 0, 0, rows / 2, rows - rows / 2, columns / 2, columns - columns / 2});
      padding = 0;
    }
  }
  x = b.conv2d("0", x,
               {.out_channels = options.channels,
                .kernel_size = options.kernel,
                .stride = options.stride,
                .padding = padding,
                .dilation = options.dilation,
                .groups = options.groups,
                .bias = false});
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
