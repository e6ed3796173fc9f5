// Softmax and batch norm, by the kernels of kernels/rows.h.

#include <algorithm>
#include <type_traits>

#include "libcore/backends/axis_view.h"
#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/rules.h"
#include "libcore/ops/softmax.h"

namespace galley {
namespace {

bool computes_in_float(DType dtype) { return is_floating(dtype) && dtype != DType::kF64; }
Support contiguous_floats(const KernelQuery& query) {
  for (const auto* types : {&query.context.inputs, &query.context.outputs}) {
    for (const TensorType* type : *types)
      if (type != nullptr && !computes_in_float(type->dtype)) return Support::no(cat("dtype ", type->dtype));
  }
  return only_contiguous(query);
}

template <device::Softmax kKind, bool kBackward>
class Softmax : public PreparedKernel {
 public:
  explicit Softmax(const KernelQuery& query) {
    const AxisView x(query.in(0).shape, axis_of(query.attrs<SoftmaxAttrs>().axis, query.in(0)));
    call_ = {.type = type_of(query.out(0)), .kind = kKind, .outer = x.outer, .size = x.size, .inner = x.inner};
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::SoftmaxCall call = call_;
    call.from = args.inputs[kBackward ? 1 : 0];
    call.grad = args.inputs[0];
    call.to = args.outputs[0];
    if (call.size > 0)
      launch_elements(stream, kBackward ? "softmax_backward_lines" : "softmax_lines", call.outer * call.inner * device::kThreads, call);
  }

 private:
  device::SoftmaxCall call_{};
};

/// Forward: x, gamma, beta, residual -> y, mean, var. Backward: grad, x, mean, var, gamma, beta, y -> dx, dgamma, dbeta.
template <class Attrs>
class BatchNorm : public PreparedKernel {
 public:
  explicit BatchNorm(const KernelQuery& query) {
    const TensorType& x = query.in(kBackward ? 1 : 0);
    const Shape steps = x.format.strides(x.shape);
    call_.type = type_of(x);
    call_.vector_type = type_of(query.out(1));
    call_.activation = static_cast<int>(query.attrs<Attrs>().activation);
    call_.eps = static_cast<float>(query.attrs<Attrs>().eps);
    call_.channels = x.shape[1];
    call_.channel_step = steps[1];
    call_.count = 1;
    for (int d = 0; d < x.shape.rank(); ++d) {
      if (d == 1) continue;
      call_.sizes[call_.dimensions] = x.shape[d];
      call_.steps[call_.dimensions++] = steps[d];
      call_.count *= x.shape[d];
    }
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::BatchNormCall call = call_;
    call.y = args.outputs[0];
    call.x = args.inputs[kBackward ? 1 : 0];
    call.gamma = args.in<void>(kBackward ? 4 : 1);
    call.beta = args.in<void>(kBackward ? 5 : 2);
    if (kBackward) {
      call.grad = args.inputs[0];
      call.mean = const_cast<void*>(args.inputs[2]);
      call.var = const_cast<void*>(args.inputs[3]);
      call.dgamma = args.outputs[1];
      call.dbeta = args.outputs[2];
    } else {
      call.mean = args.outputs[1];
      call.var = args.outputs[2];
    }
    launch_elements(stream, kBackward ? "batch_norm_backward_channels" : "batch_norm_channels", call.channels * device::kThreads, call);
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Attrs, BatchNormBackwardAttrs>;
  device::BatchNormCall call_{};
};

template <class Attrs>
Support supports_batch_norm(const KernelQuery& query) {
  const auto& attrs = query.attrs<Attrs>();
  if (!attrs.sync.empty()) return Support::no("statistics of all ranks");
  constexpr bool kBackward = std::is_same_v<Attrs, BatchNormBackwardAttrs>;
  if (query.has(kBackward ? 6 : 3)) return Support::no("residual");
  for (const int i : {0, 1}) {
    const TensorType& image = i == 0 ? query.out(0) : query.in(kBackward ? 1 : 0);
    if (image.format != query.in(0).format || image.dtype != query.in(0).dtype || !computes_in_float(image.dtype))
      return Support::no("operands of different types");
  }
  for (int i = kBackward ? 2 : 1; i < (kBackward ? 6 : 3); ++i)
    if (query.has(i) && query.in(i).dtype != query.out(1).dtype) return Support::no("vectors of different dtypes");
  return no_blocked_formats(query);
}

constexpr Kernel kKernels[] = {
    {"softmax", "lines", contiguous_floats, prepare_cuda<Softmax<device::kSoftmax, false>>},
    {"log_softmax", "lines", contiguous_floats, prepare_cuda<Softmax<device::kLogSoftmax, false>>},
    {"softmax_backward", "lines", contiguous_floats, prepare_cuda<Softmax<device::kSoftmax, true>>},
    {"log_softmax_backward", "lines", contiguous_floats, prepare_cuda<Softmax<device::kLogSoftmax, true>>},
    {"batch_norm", "channels", supports_batch_norm<BatchNormAttrs>, prepare_cuda<BatchNorm<BatchNormAttrs>>},
    {"batch_norm_backward", "channels", supports_batch_norm<BatchNormBackwardAttrs>, prepare_cuda<BatchNorm<BatchNormBackwardAttrs>>},
};

}  // namespace

std::span<const Kernel> cuda_rows() { return kKernels; }

}  // namespace galley
