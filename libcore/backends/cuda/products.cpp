// Matrix products and convolutions, by the kernels of kernels/products.h.

#include <algorithm>

#include "libcore/backends/cuda/prepare.h"
#include "libcore/ops/conv.h"
#include "libcore/ops/matmul.h"

namespace galley {
namespace {

bool is_short_float(DType dtype) { return is_floating(dtype) && dtype != DType::kF64; }
Support supports_types(const KernelQuery& query) {
  for (const TensorType* type : {&query.in(0), &query.in(1), &query.out(0)})
    if (!is_short_float(type->dtype)) return Support::no(cat("dtype ", type->dtype));
  return no_blocked_formats(query);
}
/// Bias, residual and activation are operators of their own here: the definition of the operator.
Support supports_conv(const KernelQuery& query) {
  if (query.has(2) || query.has(3)) return Support::no("bias or residual");
  if (query.attrs<Conv2dAttrs>().activation != Activation::kNone) return Support::no("activation");
  return supports_types(query);
}
Support supports_conv_backward_data(const KernelQuery& query) { return query.has(2) ? Support::no("residual") : supports_types(query); }
Support supports_matmul(const KernelQuery& query) {
  for (const TensorType* type : {&query.in(0), &query.in(1), &query.out(0)})
    if (type->format != MemoryFormat()) return Support::no("a format other than contiguous");
  return supports_types(query);
}

class Matmul : public PreparedKernel {
 public:
  explicit Matmul(const KernelQuery& query) {
    const auto& attrs = query.attrs<MatmulAttrs>();
    const Shape &a = query.in(0).shape, &b = query.in(1).shape, &y = query.out(0).shape;
    call_.a_type = type_of(query.in(0));
    call_.b_type = type_of(query.in(1));
    call_.y_type = type_of(query.out(0));
    call_.m = y[-2];
    call_.n = y[-1];
    call_.k = a[attrs.transpose_a ? -2 : -1];
    call_.batch = call_.m * call_.n == 0 ? 0 : y.elements() / (call_.m * call_.n);
    call_.a_batch = a.rank() == 2 ? 0 : call_.m * call_.k;
    call_.b_batch = b.rank() == 2 ? 0 : call_.k * call_.n;
    call_.a_row = attrs.transpose_a ? 1 : call_.k;
    call_.a_column = attrs.transpose_a ? call_.m : 1;
    call_.b_row = attrs.transpose_b ? 1 : call_.n;
    call_.b_column = attrs.transpose_b ? call_.k : 1;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    constexpr int64_t kTile = 64;  // device::kTile
    device::MatmulCall call = call_;
    call.a = args.inputs[0];
    call.b = args.inputs[1];
    call.y = args.outputs[0];
    const int64_t tiles = call.batch * ((call.m + kTile - 1) / kTile) * ((call.n + kTile - 1) / kTile);
    launch_elements(stream, "matmul_tiles", tiles * device::kThreads, call);
  }

 private:
  device::MatmulCall call_{};
};

/// A product of a convolution: which operands are x, the weight and y.
template <class Attrs>
device::ConvCall conv_call(const Attrs& attrs, const TensorType& x, const TensorType& weight, const TensorType& y) {
  device::ConvCall call{.x_type = type_of(x), .weight_type = type_of(weight), .y_type = type_of(y), .groups = attrs.groups};
  const auto set = [](const TensorType& type, int64_t* sizes, int64_t* steps) {
    const Shape strides = type.format.strides(type.shape);
    for (int d = 0; d < 4; ++d) {
      sizes[d] = type.shape[d];
      steps[d] = strides[d];
    }
  };
  set(x, call.x_size, call.x_steps);
  set(weight, call.weight_size, call.weight_steps);
  set(y, call.y_size, call.y_steps);
  const auto stride = pair(attrs.stride), padding = pair(attrs.padding), dilation = pair(attrs.dilation);
  std::copy(stride.begin(), stride.end(), call.stride);
  std::copy(padding.begin(), padding.end(), call.padding);
  std::copy(dilation.begin(), dilation.end(), call.dilation);
  return call;
}

/// What a kernel of kernels/products.h computes; the other two of x, weight and y (or its gradient) are inputs.
enum class ConvResult { kX, kWeight, kY };

template <class Attrs, ConvResult kResult>
class Conv : public PreparedKernel {
 public:
  explicit Conv(const KernelQuery& query)
      : elements_(query.out(0).shape.elements()),
        call_(conv_call(query.attrs<Attrs>(), kResult == ConvResult::kX ? query.out(0) : query.in(0),
                        kResult == ConvResult::kWeight ? query.out(0) : query.in(1),
                        kResult == ConvResult::kY ? query.out(0) : query.in(kResult == ConvResult::kX ? 0 : 1))) {}
  void run(Stream& stream, const KernelArgs& args) const override {
    device::ConvCall call = call_;
    call.x = kResult == ConvResult::kX ? args.outputs[0] : args.inputs[0];
    call.weight = kResult == ConvResult::kWeight ? args.outputs[0] : args.inputs[1];
    call.y = kResult == ConvResult::kY ? args.outputs[0] : args.inputs[kResult == ConvResult::kX ? 0 : 1];
    constexpr const char* kNames[] = {"conv2d_backward_data_direct", "conv2d_backward_weights_direct", "conv2d_direct"};
    // A block adds up one element of the weight's gradient, a thread one of the others.
    const int64_t threads = kResult == ConvResult::kWeight ? elements_ * device::kThreads : elements_;
    launch_elements(stream, kNames[static_cast<int>(kResult)], threads, call);
  }

 private:
  int64_t elements_;
  device::ConvCall call_;
};

constexpr Kernel kKernels[] = {
    {"matmul", "tiles", supports_matmul, prepare_cuda<Matmul>},
    {"conv2d", "direct", supports_conv, prepare_cuda<Conv<Conv2dAttrs, ConvResult::kY>>},
    {"conv2d_backward_data", "direct", supports_conv_backward_data, prepare_cuda<Conv<Conv2dBackwardDataAttrs, ConvResult::kX>>},
    {"conv2d_backward_weights", "direct", supports_types, prepare_cuda<Conv<Conv2dBackwardWeightsAttrs, ConvResult::kWeight>>},
};

}  // namespace

std::span<const Kernel> cuda_products() { return kKernels; }

}  // namespace galley
