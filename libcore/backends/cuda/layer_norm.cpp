// Layer norm and root mean square norm, by the kernels of kernels/layer_norm.h.

#include <algorithm>

#include "libcore/backends/bias_sums.h"
#include "libcore/backends/cuda/channel_walk.h"
#include "libcore/backends/residual_norms.h"

namespace galley {
namespace {

using device::LayerNormCall;

/// The elements of the last `dims` dimensions.
int64_t size_of_rows(const Shape& x, int64_t dims) {
  int64_t size = 1;
  for (int64_t d = x.rank() - dims; d < x.rank(); ++d) size *= x[static_cast<int>(d)];
  return size;
}

/// What the kernels of rows compute. kBackwardSums: and the sums of dx over rows.
enum class NormPass { kForward, kBackward, kBackwardSums };

constexpr int64_t kMostWithOnePack = 2048;  // elements of rows of which a thread of the backward kernels has one pack

/// The kernels of one form of rows of the last elements.
class NormOfRows : public PreparedKernel {
 public:
  NormOfRows(const KernelQuery& query, int64_t size, NormPass pass)
      : backward_(pass != NormPass::kForward), sums_(pass == NormPass::kBackwardSums) {
    const TensorType& x = query.in(backward_ ? 1 : 0);
    call_.type = type_of(x);
    call_.size = size;
    call_.rows = size == 0 ? 0 : x.shape.elements() / size;
    // A row has the fewest warps that hold it. Few parts for few rows; 384: three blocks for nearly each of the 132 processors of an H100.
    const int64_t packs_of_thread = backward_ ? 1 : device::kRowPacks, of_warp = 32 * 8 * packs_of_thread;
    call_.warps = 1;
    while (call_.warps < 8 && call_.warps * of_warp < size) call_.warps *= 2;
    packs_ = size % 8 == 0 && size <= 8 * of_warp * (backward_ ? 2 : 1);
    call_.parts = packs_ ? std::clamp<int64_t>(call_.rows / 4 * call_.warps / 8, 1, 384) : std::clamp<int64_t>(call_.rows, 1, 128);
  }
  int64_t scratch_bytes() const override {
    if (!backward_) return 0;
    const int64_t of_parts = 4 * call_.parts * (sums_ ? 3 : 2) * call_.size;
    return sums_ ? std::max(of_parts, row_sums_scratch(walk_of_elements())) : of_parts;
  }
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
    const bool packs = packs_ && have_packs(call.grad, call.x, call.residual, call.sum, call.gamma, call.beta, call.y, call.partial);
    if (backward_) {
      if (packs) call.dx_sums = sums_ ? args.outputs[3] : nullptr;
      run_backward(stream, call, packs);
      if (sums_ && !packs) add_rows(stream, call, args.outputs[3]);
    } else if (packs) {
      const int64_t rows_of_block = 8 / call.warps;
      cuda_launch(stream, "layer_norm_packs", (call.rows + rows_of_block - 1) / rows_of_block, call);
    } else {
      launch_elements(stream, "layer_norm_rows", call.rows * device::kThreads, call);
    }
  }

 protected:
  /// Sets gamma, beta, mean, rstd, dbeta, residual and sum.
  virtual void bind(LayerNormCall& call, const KernelArgs& args) const = 0;
  LayerNormCall call_{};
  bool backward_, sums_;

 private:
  static void run_backward(Stream& stream, const LayerNormCall& call, bool packs) {
    const char* kernel = !packs                         ? "layer_norm_partial_sums"
                         : call.dx_sums != nullptr      ? "layer_norm_backward_sums"
                         : call.size > kMostWithOnePack ? "layer_norm_backward_packs"
                                                        : "layer_norm_backward_pack";
    launch_elements(stream, kernel, call.parts * device::kThreads, call);
    launch_elements(stream, "layer_norm_sums", (call.dx_sums != nullptr ? 3 : 2) * call.size * device::kThreads / 8, call);
    // After the sums: dx may take the memory of grad.
    if (!packs) launch_elements(stream, "layer_norm_backward_rows", call.rows * device::kThreads, call);
  }
  /// The sums of dx by kernels of their own, for arrays without packs.
  void add_rows(Stream& stream, const LayerNormCall& call, void* sums) const {
    const device::ReduceChannelsCall adding = row_sums(walk_of_elements(), call.type, call.y, call.partial, sums);
    cuda_launch(stream, "reduce_channels", adding.blocks, adding);
    if (adding.walk.parts > 1) cuda_launch(stream, "reduce_channel_parts", merging_blocks(call.size), adding);
  }
  device::ChannelWalk walk_of_elements() const { return channel_walk({call_.rows, call_.size, 1}, false, 1, kSumLimits); }
  bool packs_ = false;  // whether the shape has them
};

/// How a norm is of x alone, or with an addition: forward of x and a residual, backward of dx and an addend.
enum class Form { kAlone, kAdds };

template <Form kForm>
const LayerNormAttrs& layer_norm_attrs(const KernelQuery& query) {
  if constexpr (kForm == Form::kAdds) return query.attrs<AddLayerNormAttrs>().norm;
  if constexpr (kForm == Form::kAlone) return query.attrs<LayerNormAttrs>();
}
template <Form kForm>
const RmsNormAttrs& rms_norm_attrs(const KernelQuery& query) {
  if constexpr (kForm == Form::kAdds) return query.attrs<AddRmsNormAttrs>().norm;
  if constexpr (kForm == Form::kAlone) return query.attrs<RmsNormAttrs>();
}
/// Sets the residual, and the sum where it is the output after `outputs` others.
void bind_sum(LayerNormCall& call, const KernelArgs& args, size_t outputs) {
  call.residual = args.inputs[1];
  call.sum = args.outputs.size() > outputs ? args.outputs[outputs] : nullptr;
}

/// x[, residual], gamma, beta -> y, mean, rstd[, sum].
template <Form kForm>
class LayerNorm : public NormOfRows {
 public:
  explicit LayerNorm(const KernelQuery& query) : NormOfRows(query, size_of(query), NormPass::kForward) {
    call_.statistics_type = type_of(query.out(1));
    call_.vector_type = query.has(kGamma)       ? type_of(query.in(kGamma))
                        : query.has(kGamma + 1) ? type_of(query.in(kGamma + 1))
                                                : device::kF32;
    call_.eps = static_cast<float>(layer_norm_attrs<kForm>(query).eps);
  }

 private:
  static constexpr int kGamma = kForm == Form::kAdds ? 2 : 1;
  static int64_t size_of(const KernelQuery& query) { return size_of_rows(query.in(0).shape, layer_norm_attrs<kForm>(query).dims); }
  void bind(LayerNormCall& call, const KernelArgs& args) const override {
    if (kForm == Form::kAdds) bind_sum(call, args, 3);
    call.gamma = args.in<void>(kGamma);
    call.beta = args.in<void>(kGamma + 1);
    call.mean = args.outputs[1];
    call.rstd = args.outputs[2];
  }
};

/// grad, x, mean, rstd, gamma[, addend] -> dx, dgamma, dbeta[, sums].
template <NormPass kPass>
class LayerNormBackward : public NormOfRows {
 public:
  explicit LayerNormBackward(const KernelQuery& query)
      : NormOfRows(query, size_of_rows(query.in(1).shape, query.attrs<LayerNormBackwardAttrs>().dims), kPass) {
    call_.statistics_type = type_of(query.in(2));
    call_.vector_type = type_of(query.out(1));
  }

 private:
  void bind(LayerNormCall& call, const KernelArgs& args) const override {
    call.mean = const_cast<void*>(args.inputs[2]);
    call.rstd = const_cast<void*>(args.inputs[3]);
    call.gamma = args.in<void>(4);
    call.residual = args.in<void>(5);
    call.dbeta = args.outputs[2];
  }
};

/// x[, residual], weight -> y, rstd[, sum].
template <Form kForm>
class RmsNorm : public NormOfRows {
 public:
  explicit RmsNorm(const KernelQuery& query) : NormOfRows(query, query.in(0).shape[-1], NormPass::kForward) {
    call_.statistics_type = type_of(query.out(1));
    call_.vector_type = query.has(kWeight) ? type_of(query.in(kWeight)) : device::kF32;
    call_.eps = static_cast<float>(rms_norm_attrs<kForm>(query).eps);
    call_.offset = static_cast<float>(rms_norm_attrs<kForm>(query).offset);
  }

 private:
  static constexpr int kWeight = kForm == Form::kAdds ? 2 : 1;
  void bind(LayerNormCall& call, const KernelArgs& args) const override {
    if (kForm == Form::kAdds) bind_sum(call, args, 2);
    call.gamma = args.in<void>(kWeight);
    call.rstd = args.outputs[1];
  }
};

/// grad, x, rstd, weight[, addend] -> dx, dweight.
class RmsNormBackward : public NormOfRows {
 public:
  explicit RmsNormBackward(const KernelQuery& query) : NormOfRows(query, query.in(1).shape[-1], NormPass::kBackward) {
    call_.statistics_type = type_of(query.in(2));
    call_.vector_type = type_of(query.out(1));
    call_.offset = static_cast<float>(query.attrs<RmsNormAttrs>().offset);
  }

 private:
  void bind(LayerNormCall& call, const KernelArgs& args) const override {
    call.rstd = const_cast<void*>(args.inputs[2]);
    call.gamma = args.in<void>(3);
    call.residual = args.in<void>(4);
  }
};

/// Contiguous f32, bf16 and f16, arrays of one dtype, and vectors as `gamma`, the place of that input.
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
template <int kGamma>
Support supports_layer_norm(const KernelQuery& query) {
  if (query.has(kGamma) && query.has(kGamma + 1) && query.in(kGamma).dtype != query.in(kGamma + 1).dtype)
    return Support::no("vectors of different dtypes");
  return supports_norm(query, false, kGamma);
}
Support supports_backward_sums(const KernelQuery& query) {
  const int64_t size = query.in(1).shape[-1];
  if (size > kMostWithOnePack) return Support::no(cat("rows of ", size, " elements"));
  if (query.in(1).shape.elements() == 0 || query.in(1).shape.elements() / size >= kMostUnits) return Support::no("no rows, or too many");
  if (query.out(3).dtype != query.out(0).dtype) return Support::no("sums of another dtype");
  return supports_norm(query, true, 4);
}
template <bool kBackward, int kGamma>
Support supports(const KernelQuery& query) {
  return supports_norm(query, kBackward, kGamma);
}

constexpr Kernel kKernels[] = {
    {"layer_norm", "rows", supports_layer_norm<1>, prepare_cuda<LayerNorm<Form::kAlone>>},
    {"add_layer_norm", "rows", supports_layer_norm<2>, prepare_cuda<LayerNorm<Form::kAdds>>},
    {"layer_norm_backward", "rows", supports<true, 4>, prepare_cuda<LayerNormBackward<NormPass::kBackward>>},
    {"layer_norm_backward_add", "rows", supports<true, 4>, prepare_cuda<LayerNormBackward<NormPass::kBackward>>},
    {"layer_norm_backward_sums", "rows", supports_backward_sums, prepare_cuda<LayerNormBackward<NormPass::kBackwardSums>>},
    {"rms_norm", "rows", supports<false, 1>, prepare_cuda<RmsNorm<Form::kAlone>>},
    {"add_rms_norm", "rows", supports<false, 2>, prepare_cuda<RmsNorm<Form::kAdds>>},
    {"rms_norm_backward", "rows", supports<true, 3>, prepare_cuda<RmsNormBackward>},
    {"rms_norm_backward_add", "rows", supports<true, 3>, prepare_cuda<RmsNormBackward>},
};

}  // namespace

std::span<const Kernel> cuda_layer_norms() { return kKernels; }

}  // namespace galley
