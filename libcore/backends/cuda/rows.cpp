// Softmax, by the kernels of kernels/rows.h.

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

constexpr Kernel kKernels[] = {
    {"softmax", "lines", contiguous_floats, prepare_cuda<Softmax<device::kSoftmax, false>>},
    {"log_softmax", "lines", contiguous_floats, prepare_cuda<Softmax<device::kLogSoftmax, false>>},
    {"softmax_backward", "lines", contiguous_floats, prepare_cuda<Softmax<device::kSoftmax, true>>},
    {"log_softmax_backward", "lines", contiguous_floats, prepare_cuda<Softmax<device::kLogSoftmax, true>>},
};

}  // namespace

std::span<const Kernel> cuda_rows() { return kKernels; }

}  // namespace galley
