// Gradients of gelu with their sums over rows, by the kernels of kernels/bias_sums.h; those of norms are in layer_norm.cpp.

#include "libcore/backends/bias_sums.h"

#include <algorithm>

#include "libcore/backends/cuda/channel_walk.h"

namespace galley {
namespace {

/// grad, x -> dx, sums.
class GeluBackwardSums : public PreparedKernel {
 public:
  explicit GeluBackwardSums(const KernelQuery& query) {
    const TensorType& x = query.in(1);
    call_.type = type_of(x);
    call_.by_tanh = query.attrs<GeluAttrs>().approximate == GeluApproximation::kTanh ? 1 : 0;
    view_ = {x.shape.elements() / x.shape[-1], x.shape[-1], 1};
  }
  int64_t scratch_bytes() const override {
    return std::max(row_sums_scratch(walk(false)), channels_fit_packs(view_) ? row_sums_scratch(walk(true)) : 0);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::GeluSumsCall call = call_;
    call.grad = args.inputs[0];
    call.x = args.inputs[1];
    call.dx = args.outputs[0];
    call.sums = args.outputs[1];
    call.partial = static_cast<float*>(args.scratch);
    call.walk = walk(channels_fit_packs(view_) && have_packs(call.grad, call.x, call.dx));
    cuda_launch(stream, "gelu_backward_sums", blocks_of(call.walk), call);
    if (call.walk.parts == 1) return;
    cuda_launch(stream, "reduce_channel_parts", merging_blocks(view_.channels),
                row_sums(call.walk, call.type, nullptr, call.partial, call.sums));
  }

 private:
  device::ChannelWalk walk(bool packs) const { return channel_walk(view_, packs, 1, kSumLimits); }
  device::GeluSumsCall call_{};
  ChannelView view_;
};

Support supports_gelu(const KernelQuery& query) {
  const TensorType& x = query.in(1);
  if (!is_floating(x.dtype) || x.dtype == DType::kF64) return Support::no(cat("dtype ", x.dtype));
  for (const TensorType* type : {&query.in(0), &query.out(0), &query.out(1)})
    if (type->dtype != x.dtype) return Support::no("operands of different dtypes");
  if (x.shape.elements() == 0 || std::max(x.shape.elements() / x.shape[-1], x.shape[-1]) >= kMostUnits)
    return Support::no("no rows, or too many, or rows that are too long");
  return only_contiguous(query);
}

constexpr Kernel kKernels[] = {{"gelu_backward_sums", "channels", supports_gelu, prepare_cuda<GeluBackwardSums>}};

}  // namespace

std::span<const Kernel> cuda_bias_sums() { return kKernels; }

}  // namespace galley
