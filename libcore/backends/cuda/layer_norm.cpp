// Layer norm and root mean square norm, by the kernels of kernels/layer_norm.h.

#include <algorithm>
#include <type_traits>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/rms_norm.h"

namespace galley {
namespace {

using device::LayerNormCall;

/// The kernels of one form, forward or backward, of rows of the last elements.
class NormOfRows : public PreparedKernel {
 public:
  NormOfRows(const KernelQuery& query, int64_t size, bool backward) : backward_(backward) {
    const TensorType& x = query.in(backward ? 1 : 0);
    call_.type = type_of(x);
    call_.size = size;
    call_.rows = size == 0 ? 0 : x.shape.elements() / size;
    // A row has the fewest warps that hold it. Few parts for few rows; 384: three blocks for nearly each of the 132 processors of an H100.
    const int64_t packs_of_thread = backward ? 1 : device::kRowPacks, of_warp = 32 * 8 * packs_of_thread;
    call_.warps = 1;
    while (call_.warps < 8 && call_.warps * of_warp < size) call_.warps *= 2;
    packs_ = size % 8 == 0 && size <= 8 * of_warp * (backward ? 2 : 1);
    call_.parts = packs_ ? std::clamp<int64_t>(call_.rows / 4 * call_.warps / 8, 1, 384) : std::clamp<int64_t>(call_.rows, 1, 128);
  }
  int64_t scratch_bytes() const override { return backward_ ? 4 * call_.parts * 2 * call_.size : 0; }
  void run(Stream& stream, const KernelArgs& args) const override {
    LayerNormCall call = call_;
    call.x = args.inputs[backward_ ? 1 : 0];
    call.y = args.outputs[0];
    if (backward_) {
      call.grad = args.inputs[0];
      call.dgamma = args.outputs[1];
      call.partial = static_cast<float*>(args.scratch);
    }
    bind(call, args);
    const bool packs = packs_ && have_packs(call.grad, call.x, call.gamma, call.beta, call.y, call.partial);
    if (backward_) {
      const char* kernel = !packs ? "layer_norm_partial_sums" : call.size > 2048 ? "layer_norm_backward_packs" : "layer_norm_backward_pack";
      launch_elements(stream, kernel, call.parts * device::kThreads, call);
      launch_elements(stream, "layer_norm_sums", 2 * call.size * device::kThreads / 8, call);
      // After the sums: dx may take the memory of grad.
      if (!packs) launch_elements(stream, "layer_norm_backward_rows", call.rows * device::kThreads, call);
    } else if (packs) {
      const int64_t rows_of_block = 8 / call.warps;
      cuda_launch(stream, "layer_norm_packs", (call.rows + rows_of_block - 1) / rows_of_block, call);
    } else {
      launch_elements(stream, "layer_norm_rows", call.rows * device::kThreads, call);
    }
  }

 protected:
  /// Sets gamma, beta, mean, rstd and dbeta.
  virtual void bind(LayerNormCall& call, const KernelArgs& args) const = 0;
  LayerNormCall call_{};
  bool backward_;

 private:
  bool packs_ = false;  // whether the shape has them
};

/// Forward: x, gamma, beta -> y, mean, rstd. Backward: grad, x, mean, rstd, gamma -> dx, dgamma, dbeta.
template <class Attrs>
class LayerNorm : public NormOfRows {
 public:
  explicit LayerNorm(const KernelQuery& query) : NormOfRows(query, size_of(query), kBackward) {
    call_.statistics_type = type_of(kBackward ? query.in(2) : query.out(1));
    call_.vector_type = kBackward      ? type_of(query.out(1))
                        : query.has(1) ? type_of(query.in(1))
                        : query.has(2) ? type_of(query.in(2))
                                       : device::kF32;
    if constexpr (!kBackward) call_.eps = static_cast<float>(query.attrs<Attrs>().eps);
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Attrs, LayerNormBackwardAttrs>;
  static int64_t size_of(const KernelQuery& query) {
    const Shape& x = query.in(kBackward ? 1 : 0).shape;
    int64_t size = 1;
    for (int64_t d = x.rank() - query.attrs<Attrs>().dims; d < x.rank(); ++d) size *= x[static_cast<int>(d)];
    return size;
  }
  void bind(LayerNormCall& call, const KernelArgs& args) const override {
    call.gamma = args.in<void>(kBackward ? 4 : 1);
    if (kBackward) {
      call.mean = const_cast<void*>(args.inputs[2]);
      call.rstd = const_cast<void*>(args.inputs[3]);
      call.dbeta = args.outputs[2];
    } else {
      call.beta = args.in<void>(2);
      call.mean = args.outputs[1];
      call.rstd = args.outputs[2];
    }
  }
};

/// Forward: x, weight -> y, rstd. Backward: grad, x, rstd, weight -> dx, dweight.
template <bool kBackward>
class RmsNormOfRows : public NormOfRows {
 public:
  explicit RmsNormOfRows(const KernelQuery& query) : NormOfRows(query, query.in(kBackward ? 1 : 0).shape[-1], kBackward) {
    call_.statistics_type = type_of(kBackward ? query.in(2) : query.out(1));
    call_.vector_type = kBackward ? type_of(query.out(1)) : query.has(1) ? type_of(query.in(1)) : device::kF32;
    call_.eps = static_cast<float>(query.attrs<RmsNormAttrs>().eps);
    call_.offset = static_cast<float>(query.attrs<RmsNormAttrs>().offset);
  }

 private:
  void bind(LayerNormCall& call, const KernelArgs& args) const override {
    call.gamma = args.in<void>(kBackward ? 3 : 1);
    call.rstd = kBackward ? const_cast<void*>(args.inputs[2]) : args.outputs[1];
  }
};

/// Contiguous f32, bf16 and f16, `x` and `y` of one dtype, and vectors as `gamma`, the place of that input.
Support supports_norm(const KernelQuery& query, bool backward, int gamma) {
  for (const auto* types : {&query.context.inputs, &query.context.outputs}) {
    for (const TensorType* type : *types)
      if (type != nullptr && (!is_floating(type->dtype) || type->dtype == DType::kF64)) return Support::no(cat("dtype ", type->dtype));
  }
  const DType dtype = query.in(0).dtype;
  if (query.out(0).dtype != dtype || query.in(backward ? 1 : 0).dtype != dtype) return Support::no("operands of different dtypes");
  if (backward && query.has(gamma) && query.in(gamma).dtype != query.out(1).dtype) return Support::no("vectors of different dtypes");
  return only_contiguous(query);
}
Support supports_layer_norm(const KernelQuery& query) {
  if (query.has(1) && query.has(2) && query.in(1).dtype != query.in(2).dtype) return Support::no("vectors of different dtypes");
  return supports_norm(query, false, 1);
}

constexpr Kernel kKernels[] = {
    {"layer_norm", "rows", supports_layer_norm, prepare_cuda<LayerNorm<LayerNormAttrs>>},
    {"layer_norm_backward", "rows", [](const KernelQuery& query) { return supports_norm(query, true, 4); },
     prepare_cuda<LayerNorm<LayerNormBackwardAttrs>>},
    {"rms_norm", "rows", [](const KernelQuery& query) { return supports_norm(query, false, 1); }, prepare_cuda<RmsNormOfRows<false>>},
    {"rms_norm_backward", "rows", [](const KernelQuery& query) { return supports_norm(query, true, 3); },
     prepare_cuda<RmsNormOfRows<true>>},
};

}  // namespace

std::span<const Kernel> cuda_layer_norms() { return kKernels; }

}  // namespace galley
