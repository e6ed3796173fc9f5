// Batch norm by the batch's statistics, by the kernels of kernels/batch_norm.h.

#include <algorithm>
#include <type_traits>

#include "libcore/backends/cuda/channel_walk.h"
#include "libcore/ops/norm.h"

namespace galley {
namespace {

/// Forward: x, gamma, beta, residual[, sum, squares] -> y, mean, var. Backward: grad, x, mean, var, gamma, beta, y[, addend] -> dx, dgamma,
/// dbeta, dresidual.
template <class Attrs>
class BatchNorm : public PreparedKernel {
 public:
  explicit BatchNorm(const KernelQuery& query) {
    const TensorType& x = query.in(kX);
    view_ = *channel_view(x);
    elements_ = view_.elements();
    call_.type = type_of(x);
    call_.activation = static_cast<int>(query.attrs<Attrs>().activation);
    call_.eps = static_cast<float>(query.attrs<Attrs>().eps);
    call_.count = view_.outer * view_.inner;
    call_.statistics_type = type_of(kBackward ? query.in(2) : query.out(1));
    call_.gradient_type = type_of(query.out(1));
    if (query.has(kGamma)) call_.gamma_type = type_of(query.in(kGamma));
    if (query.has(kGamma + 1)) call_.beta_type = type_of(query.in(kGamma + 1));
  }
  int64_t scratch_bytes() const override {
    const int64_t parts = std::max(channel_walk(view_, false).parts, channel_walk(view_, channels_fit_packs(view_)).parts);
    return static_cast<int64_t>(sizeof(float)) * view_.channels * (2 * parts + device::kNormRows);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::BatchNormCall call = call_;
    call.x = args.inputs[kX];
    call.y = args.outputs[0];
    call.gamma = args.in<void>(kGamma);
    call.beta = args.in<void>(kGamma + 1);
    call.table = static_cast<float*>(args.scratch);
    call.partial = call.table + device::kNormRows * view_.channels;
    if (kBackward) {
      call.grad = args.inputs[0];
      call.mean = const_cast<void*>(args.inputs[2]);
      call.var = const_cast<void*>(args.inputs[3]);
      call.mask = args.in<void>(6);
      call.addend = args.in<void>(7);
      call.dgamma = args.outputs[1];
      call.dbeta = args.outputs[2];
      call.dresidual = args.outputs.size() > 3 ? args.outputs[3] : nullptr;
    } else {
      call.residual = args.in<void>(3);
      call.sum = args.in<float>(4);
      call.squares = args.in<float>(5);
      call.mean = args.outputs[1];
      call.var = args.outputs[2];
    }
    GALLEY_ASSERT(call.addend == nullptr || call.dresidual != nullptr, "a sum of gradients is written as the residual's");
    bool packs = channels_fit_packs(view_);
    for (const auto& arrays : {args.inputs, std::span<const void* const>(args.outputs.data(), args.outputs.size())})
      packs = packs && std::all_of(arrays.begin(), arrays.end(), [](const void* array) { return have_packs(array); });
    call.walk = channel_walk(view_, packs);
    if (elements_ == 0) call.walk.units = 0;
    const int64_t blocks = elements_ == 0 ? 0 : blocks_of(call.walk);
    if (call.sum != nullptr) {
      launch_elements(stream, "batch_norm_of_sums", view_.channels, call);
    } else {
      cuda_launch(stream, kBackward ? "batch_norm_backward_parts" : "batch_norm_parts", blocks_of(call.walk), call);
      cuda_launch(stream, kBackward ? "batch_norm_backward_sums" : "batch_norm_statistics", merging_blocks(view_.channels), call);
    }
    if (call.dresidual != nullptr) {  // which is what reaches the input of the activation
      call.grad = call.dresidual;
      call.mask = call.addend = nullptr;
      call.activation = 0;
    }
    cuda_launch(stream, kBackward ? "batch_norm_backward_values" : "batch_norm_values", blocks, call);
  }

 private:
  static constexpr bool kBackward = std::is_same_v<Attrs, BatchNormBackwardAttrs>;
  static constexpr int kX = kBackward ? 1 : 0, kGamma = kBackward ? 4 : 1;
  device::BatchNormCall call_{};
  ChannelView view_;
  int64_t elements_ = 0;
};

bool is_short_float(const TensorType& type) { return is_floating(type.dtype) && type.dtype != DType::kF64; }

template <class Attrs>
Support supports_batch_norm(const KernelQuery& query) {
  if (!query.attrs<Attrs>().sync.empty()) return Support::no("statistics of all ranks");
  constexpr bool kBackward = std::is_same_v<Attrs, BatchNormBackwardAttrs>;
  const TensorType& x = query.in(kBackward ? 1 : 0);
  const std::optional<ChannelView> view = channel_view(x);
  if (!view) return Support::no(cat("format ", x.format));
  if (view->outer * view->inner >= kMostUnits || view->channels * view->inner >= kMostUnits) return Support::no("2^30 elements");
  for (const auto* types : {&query.context.inputs, &query.context.outputs}) {
    for (const TensorType* type : *types) {
      if (type == nullptr) continue;
      if (!is_short_float(*type)) return Support::no(cat("dtype ", type->dtype));
      if (type->shape.rank() > 1 && (type->format != x.format || type->dtype != x.dtype)) return Support::no("operands of different types");
    }
  }
  return Support::yes();
}

Support supports_sums(const KernelQuery& query) {
  for (const int i : {4, 5})
    if (query.in(i).dtype != DType::kF32) return Support::no("sums of another dtype than f32");
  return supports_batch_norm<BatchNormAttrs>(query);
}

class Update : public PreparedKernel {
 public:
  explicit Update(const KernelQuery& query) {
    const auto& attrs = query.attrs<BatchNormUpdateAttrs>();
    // The unbiased variance of a single value is undefined: 0, as of the definition.
    const double correction = attrs.count > 1 ? static_cast<double>(attrs.count) / static_cast<double>(attrs.count - 1) : 1;
    call_.channels = query.in(0).shape[0];
    call_.type = type_of(query.in(0));
    call_.keep = static_cast<float>(1 - attrs.momentum);
    call_.take = static_cast<float>(attrs.momentum);
    call_.take_var = static_cast<float>(attrs.momentum * correction);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    device::BatchNormUpdateCall call = call_;
    call.running_mean = args.outputs[0];
    call.running_var = args.outputs[1];
    call.mean = args.in<float>(2);
    call.var = args.in<float>(3);
    call.count = args.in<int64_t>(4) == nullptr ? nullptr : args.out<int64_t>(2);
    call.gate = args.in<uint8_t>(5);
    launch_elements(stream, "batch_norm_update_channels", std::max<int64_t>(1, call.channels), call);
  }

 private:
  device::BatchNormUpdateCall call_{};
};
Support supports_update(const KernelQuery& query) {
  for (const int i : {2, 3})
    if (query.in(i).dtype != DType::kF32) return Support::no(cat("statistics in ", query.in(i).dtype));
  if (!is_short_float(query.in(0)) || query.in(1).dtype != query.in(0).dtype)
    return Support::no(cat("running statistics in ", query.in(0).dtype, " and ", query.in(1).dtype));
  return Support::yes();
}

constexpr Kernel kKernels[] = {
    {"batch_norm_update", "channels", supports_update, prepare_cuda<Update>},
    {"batch_norm", "channels", supports_batch_norm<BatchNormAttrs>, prepare_cuda<BatchNorm<BatchNormAttrs>>},
    {"batch_norm_of_sums", "channels", supports_sums, prepare_cuda<BatchNorm<BatchNormAttrs>>},
    {"batch_norm_backward", "channels", supports_batch_norm<BatchNormBackwardAttrs>, prepare_cuda<BatchNorm<BatchNormBackwardAttrs>>},
    {"add_batch_norm_backward", "channels", supports_batch_norm<BatchNormBackwardAttrs>, prepare_cuda<BatchNorm<BatchNormBackwardAttrs>>},
};

}  // namespace

std::span<const Kernel> cuda_batch_norm() { return kKernels; }

}  // namespace galley
