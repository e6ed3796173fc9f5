// Pools, by the kernels of kernels/pool.h.

#include "libcore/ops/pool.h"

#include <algorithm>
#include <type_traits>

#include "libcore/backends/cuda/pool_call.h"
#include "libcore/backends/cuda/prepare.h"

namespace galley {
namespace {

using device::PoolCall;

/// Maxima also of integers of 8 bits (ops/quantized.h).
Support supports_maximum(const KernelQuery& query) {
  const DType dtype = query.in(0).dtype;
  if ((!is_floating(dtype) || dtype == DType::kF64) && dtype != DType::kU8 && dtype != DType::kI8) return Support::no(cat("dtype ", dtype));
  return no_blocked_formats(query);
}
Support supports(const KernelQuery& query) {
  if (!is_floating(query.in(0).dtype) || query.in(0).dtype == DType::kF64) return Support::no(cat("dtype ", query.in(0).dtype));
  return no_blocked_formats(query);
}

Support supports_whole_images(const KernelQuery& query) {
  if (query.has(1)) return Support::no("extents");
  return supports(query);
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
    {"max_pool2d", "windows", supports_maximum, prepare_cuda<Forward<MaxPool2dAttrs, device::kMaxPool>>},
    {"avg_pool2d", "windows", supports, prepare_cuda<Forward<AvgPool2dAttrs, device::kAveragePool>>},
    {"avg_pool2d_backward", "windows", supports, prepare_cuda<AverageBackward<AvgPool2dBackwardAttrs, device::kAveragePool>>},
    {"adaptive_avg_pool2d", "windows", supports_whole_images, prepare_cuda<Forward<AdaptiveAvgPool2dAttrs, device::kAdaptiveAveragePool>>},
    {"adaptive_avg_pool2d_backward", "windows", supports,
     prepare_cuda<AverageBackward<AdaptiveAvgPool2dBackwardAttrs, device::kAdaptiveAveragePool>>},
    {"adaptive_max_pool2d", "windows", supports_maximum, prepare_cuda<Forward<AdaptiveMaxPool2dAttrs, device::kAdaptiveMaxPool>>},
};

}  // namespace

std::span<const Kernel> cuda_pool() { return kKernels; }

}  // namespace galley
