// Pools, by the kernels of kernels/pool.h.

#include "libcore/ops/pool.h"

#include <algorithm>
#include <type_traits>

#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

using device::PoolCall;

Support supports(const KernelQuery& query) {
  if (!is_floating(query.in(0).dtype) || query.in(0).dtype == DType::kF64) return Support::no(cat("dtype ", query.in(0).dtype));
  return no_blocked_formats(query);
}

void set_steps(const TensorType& type, int64_t* steps) {
  const Shape strides = type.format.strides(type.shape);
  for (int d = 0; d < 4; ++d) steps[d] = strides[d];
}

/// The call of a pool whose forward pass reads arrays of the shape `x` and writes those of the shape `y`.
template <class Attrs>
PoolCall pool_call(const Attrs& attrs, device::Pool kind, const Shape& x, const Shape& y) {
  PoolCall call{.kind = kind, .planes = x[0] * x[1], .channels = std::max<int64_t>(1, x[1])};
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

template <class Attrs, device::Pool kKind>
class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& query) : call_(pool_call(query.attrs<Attrs>(), kKind, query.in(0).shape, query.out(0).shape)) {
    call_.type = type_of(query.in(0));
    set_steps(query.in(0), call_.x_steps);
    set_steps(query.out(0), call_.y_steps);
    if (!kMaximum) return;
    call_.index_type = type_of(query.out(1));
    set_steps(query.out(1), call_.index_steps);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    PoolCall call = call_;
    call.x = args.inputs[0];
    call.y = args.outputs[0];
    if (kMaximum) call.index = args.outputs[1];
    launch_elements(stream, kMaximum ? "max_pool" : "average_pool", call.planes * call.y_size[0] * call.y_size[1], call);
  }

 private:
  static constexpr bool kMaximum = kKind == device::kMaxPool || kKind == device::kAdaptiveMaxPool;
  PoolCall call_;
};

template <class Attrs, device::Pool kKind>
class AverageBackward : public PreparedKernel {
 public:
  explicit AverageBackward(const KernelQuery& query)
      : call_(pool_call(query.attrs<Attrs>(), kKind, query.out(0).shape, query.in(0).shape)) {
    call_.type = type_of(query.in(0));
    set_steps(query.in(0), call_.x_steps);
    set_steps(query.out(0), call_.y_steps);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    PoolCall call = call_;
    call.x = args.inputs[0];
    call.y = args.outputs[0];
    launch_elements(stream, "average_pool_backward", call.planes * call.x_size[0] * call.x_size[1], call);
  }

 private:
  PoolCall call_;
};

constexpr Kernel kKernels[] = {
    {"max_pool2d", "windows", supports, prepare_cuda<Forward<MaxPool2dAttrs, device::kMaxPool>>},
    {"avg_pool2d", "windows", supports, prepare_cuda<Forward<AvgPool2dAttrs, device::kAveragePool>>},
    {"avg_pool2d_backward", "windows", supports, prepare_cuda<AverageBackward<AvgPool2dBackwardAttrs, device::kAveragePool>>},
    {"adaptive_avg_pool2d", "windows", supports, prepare_cuda<Forward<AdaptiveAvgPool2dAttrs, device::kAdaptiveAveragePool>>},
    {"adaptive_avg_pool2d_backward", "windows", supports,
     prepare_cuda<AverageBackward<AdaptiveAvgPool2dBackwardAttrs, device::kAdaptiveAveragePool>>},
    {"adaptive_max_pool2d", "windows", supports, prepare_cuda<Forward<AdaptiveMaxPool2dAttrs, device::kAdaptiveMaxPool>>},
};

}  // namespace

std::span<const Kernel> cuda_pool() { return kKernels; }

}  // namespace galley
