#pragma once
// The arguments of the kernels of pools.

#include <algorithm>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/pool.h"

namespace galley {

inline void set_steps(const TensorType& type, int64_t* steps) {
  const Shape strides = type.format.strides(type.shape);
  for (int d = 0; d < 4; ++d) steps[d] = strides[d];
}

/// The call of a pool whose forward pass reads arrays of the shape `x` and writes those of the shape `y`.
template <class Attrs>
device::PoolCall pool_call(const Attrs& attrs, device::Pool kind, const Shape& x, const Shape& y) {
  device::PoolCall call{.kind = kind, .planes = x[0] * x[1], .channels = std::max<int64_t>(1, x[1])};
  for (int d = 0; d < 2; ++d) {
    call.x_size[d] = x[d + 2];
    call.y_size[d] = y[d + 2];
  }
  if constexpr (requires { attrs.kernel_size; }) {
    const auto kernel = pair(attrs.kernel_size), stride = pair(attrs.stride.empty() ? attrs.kernel_size : attrs.stride),
               padding = pair(attrs.padding);
    std::copy(kernel.begin(), kernel.end(), call.kernel);
    std::copy(stride.begin(), stride.end(), call.stride);
    std::copy(padding.begin(), padding.end(), call.padding);
  }
  if constexpr (requires { attrs.dilation; }) {
    const auto dilation = pair(attrs.dilation);
    std::copy(dilation.begin(), dilation.end(), call.dilation);
  }
  if constexpr (requires { attrs.count_include_pad; }) call.count_include_pad = attrs.count_include_pad;
  return call;
}

}  // namespace galley
