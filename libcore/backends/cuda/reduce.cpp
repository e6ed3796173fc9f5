// Reductions over axes, by the kernels of kernels/reduce.h.

#include "libcore/ops/reduce.h"

#include <algorithm>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

using device::ReduceCall;

template <device::Reduction kKind>
class Reduce : public PreparedKernel {
 public:
  explicit Reduce(const KernelQuery& query) {
    const TensorType& x = query.in(0);
    const auto& attrs = query.attrs<ReduceAttrs>();
    const std::vector<int> axes = axes_of(attrs.axes, x);
    const Shape steps = x.format.strides(x.shape);
    call_.type = type_of(x);
    call_.kind = kKind;
    call_.reduced = 1;
    call_.outputs = 1;
    const TensorType& y = query.out(0);
    const Shape to_steps = y.format.strides(y.shape);
    for (int d = 0; d < x.shape.rank(); ++d) {
      if (std::find(axes.begin(), axes.end(), d) != axes.end()) {
        call_.reduced_sizes[call_.reduced_dimensions] = x.shape[d];
        call_.reduced_steps[call_.reduced_dimensions++] = steps[d];
        call_.reduced *= x.shape[d];
      } else {
        call_.to_steps[call_.kept_dimensions] = to_steps[attrs.keepdim ? d : call_.kept_dimensions];
        call_.kept_sizes[call_.kept_dimensions] = x.shape[d];
        call_.kept_steps[call_.kept_dimensions++] = steps[d];
        call_.outputs *= x.shape[d];
      }
    }
    constexpr int64_t kFewElements = 64;  // a block's tree would cost more than the sum
    by_blocks_ = call_.reduced >= kFewElements;
    const bool integer = !is_floating(x.dtype);
    name_ = by_blocks_ ? integer ? "reduce_blocks_integer" : "reduce_blocks" : integer ? "reduce_threads_integer" : "reduce_threads";
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    ReduceCall call = call_;
    call.from = args.inputs[0];
    call.to = args.outputs[0];
    launch_elements(stream, name_, by_blocks_ ? call.outputs * device::kThreads : call.outputs, call);
  }

 private:
  ReduceCall call_{};
  bool by_blocks_ = false;
  const char* name_ = "";
};

Support supports(const KernelQuery& query) {
  if (const Support formats = no_blocked_formats(query); !formats) return formats;
  if (query.in(0).dtype != query.out(0).dtype) return Support::no("operands of different dtypes");
  return Support::yes();
}

constexpr Kernel kKernels[] = {
    {"sum", "reduce", supports, prepare_cuda<Reduce<device::kSum>>},
    {"amax", "reduce", supports, prepare_cuda<Reduce<device::kMaximum>>},
    {"amin", "reduce", supports, prepare_cuda<Reduce<device::kMinimum>>},
};

}  // namespace

std::span<const Kernel> cuda_reduce() { return kKernels; }

}  // namespace galley
