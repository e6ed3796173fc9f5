// Softmax and layer norm, by the kernels of kernels/rows.h and kernels/layer_norm.h.

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

/// Forward: x, gamma, beta -> y, mean, rstd. Backward: grad, x, mean, rstd, gamma -> dx, dgamma, dbeta.
template <class Attrs>
class LayerNorm : public PreparedKernel {
 public:
  explicit LayerNorm(const KernelQuery& query) {
    const TensorType& x = query.in(kBackward ? 1 : 0);
    call_.type = type_of(x);
    call_.size = call_.warps = 1;
    for (int64_t d = x.shape.rank() - query.attrs<Attrs>().dims; d < x.shape.rank(); ++d) call_.size *= x.shape[static_cast<int>(d)];
    call_.rows = call_.size == 0 ? 0 : x.shape.elements() / call_.size;
    // A row has the fewest warps that hold it. Few parts for few rows; 384: three blocks for nearly each of the 132 processors of an H100.
    constexpr int64_t kPacks = kBackward ? 1 : device::kRowPacks, kWarpElements = 32 * 8 * kPacks;
    while (call_.warps < 8 && call_.warps * kWarpElements < call_.size) call_.warps *= 2;
    packs_ = call_.size % 8 == 0 && call_.size <= 8 * kWarpElements * (kBackward ? 2 : 1);
    call_.parts = packs_ ? std::clamp<int64_t>(call_.rows / 4 * call_.warps / 8, 1, 384) : std::clamp<int64_t>(call_.rows, 1, 128);
    call_.statistics_type = type_of(kBackward ? query.in(2) : query.out(1));
    const int gamma = kBackward ? 4 : 1;
    call_.vector_type = kBackward ? type_of(query.out(1)) : query.has(gamma) ? type_of(query.in(gamma)) : device::kF32;
    if constexpr (!kBackward) call_.eps = static_cast<float>(query.attrs<Attrs>().eps);
  }
  int64_t scratch_bytes() const override { return kBackward ? 4 * call_.parts * 2 * call_.size : 0; }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::LayerNormCall call = call_;
    call.y = args.outputs[0];
    if (kBackward) {
      call.grad = args.inputs[0];
      call.x = args.inputs[1];
      call.mean = const_cast<void*>(args.inputs[2]);
      call.rstd = const_cast<void*>(args.inputs[3]);
      call.gamma = args.in<void>(4);
      call.dgamma = args.outputs[1];
      call.dbeta = args.outputs[2];
      call.partial = static_cast<float*>(args.scratch);
      const bool packs = packs_ && have_packs(call.grad, call.x, call.gamma, call.y, call.partial);
      const char* kernel = !packs ? "layer_norm_partial_sums" : call.size > 2048 ? "layer_norm_backward_packs" : "layer_norm_backward_pack";
      launch_elements(stream, kernel, call.parts * device::kThreads, call);
      launch_elements(stream, "layer_norm_sums", 2 * call.size * device::kThreads / 8, call);
      // After the sums: dx may take the memory of grad.
      if (!packs) launch_elements(stream, "layer_norm_backward_rows", call.rows * device::kThreads, call);
    } else {
      call.x = args.inputs[0];
      call.gamma = args.in<void>(1);
      call.beta = args.in<void>(2);
      call.mean = args.outputs[1];
      call.rstd = args.outputs[2];
      const bool packs = packs_ && have_packs(call.x, call.gamma, call.beta, call.y);
      const int64_t rows_of_block = 8 / call.warps;
      if (packs) return cuda_launch(stream, "layer_norm_packs", (call.rows + rows_of_block - 1) / rows_of_block, call);
      launch_elements(stream, "layer_norm_rows", call.rows * device::kThreads, call);
    }
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Attrs, LayerNormBackwardAttrs>;
  device::LayerNormCall call_{};
  bool packs_ = false;  // whether the shape has them
};

template <class Attrs>
Support supports_layer_norm(const KernelQuery& query) {
  constexpr bool kBackward = std::is_same_v<Attrs, LayerNormBackwardAttrs>;
  const DType dtype = query.in(0).dtype;
  if (query.out(0).dtype != dtype || query.in(kBackward ? 1 : 0).dtype != dtype) return Support::no("operands of different dtypes");
  const int gamma = kBackward ? 4 : 1;
  if (!kBackward && query.has(gamma) && query.has(gamma + 1) && query.in(gamma).dtype != query.in(gamma + 1).dtype)
    return Support::no("vectors of different dtypes");
  if (kBackward && query.has(gamma) && query.in(gamma).dtype != query.out(1).dtype) return Support::no("vectors of different dtypes");
  return contiguous_floats(query);
}

constexpr Kernel kKernels[] = {
    {"softmax", "lines", contiguous_floats, prepare_cuda<Softmax<device::kSoftmax, false>>},
    {"log_softmax", "lines", contiguous_floats, prepare_cuda<Softmax<device::kLogSoftmax, false>>},
    {"softmax_backward", "lines", contiguous_floats, prepare_cuda<Softmax<device::kSoftmax, true>>},
    {"log_softmax_backward", "lines", contiguous_floats, prepare_cuda<Softmax<device::kLogSoftmax, true>>},
    {"layer_norm", "rows", supports_layer_norm<LayerNormAttrs>, prepare_cuda<LayerNorm<LayerNormAttrs>>},
    {"layer_norm_backward", "rows", supports_layer_norm<LayerNormBackwardAttrs>, prepare_cuda<LayerNorm<LayerNormBackwardAttrs>>},
};

}  // namespace

std::span<const Kernel> cuda_rows() { return kKernels; }

}  // namespace galley
