// Convolution and its backward operators by oneDNN. Primitives and reorders are created once; scratch memory is planned.

#include "libcore/ops/conv.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/onednn/activation.h"
#include "libcore/base/parallel.h"
#include "libcore/vendor/onednn/onednn.h"

namespace galley {
namespace {

using onednn::Call;
using onednn::Desc;

dnnl::memory::dims dims(const std::vector<int64_t>& v, int axes, int64_t minus = 0) {
  dnnl::memory::dims all = per_axis(v, axes);
  for (int64_t& each : all) each -= minus;
  return all;
}

struct Window {
  /// For images and weights of `rank` dimensions.
  Window(const Conv2dWindow& a, int rank)
      : stride(dims(a.stride, rank - 2)), dilation(dims(a.dilation, rank - 2, 1)), padding(dims(a.padding, rank - 2)) {}
  dnnl::memory::dims stride, dilation, padding;
};

/// Padding after the last column that the window reads. oneDNN requires the padding of both sides and rejects more than is used.
dnnl::memory::dims end_padding(const Conv2dWindow& a, const Shape& x, const Shape& kernel, const Shape& y) {
  const int axes = x.rank() - 2;
  const auto stride = per_axis(a.stride, axes), dilation = per_axis(a.dilation, axes), padding = per_axis(a.padding, axes);
  dnnl::memory::dims end;
  for (int axis = 0; axis < axes; ++axis) {
    const auto i = static_cast<size_t>(axis);
    end.push_back((y[2 + axis] - 1) * stride[i] + dilation[i] * (kernel[2 + axis] - 1) + 1 - x[2 + axis] - padding[i]);
  }
  return end;
}

Desc activation_desc(const TensorType& type) { return onednn::desc(type.dtype, type.shape, type.format); }

bool plain(const TensorType& type) { return !type.format.is_blocked(); }

dnnl::convolution_forward::primitive_desc forward_pd(const Desc& src, const Desc& weights, const std::optional<Desc>& bias, const Desc& dst,
                                                     const Conv2dWindow& a, const Shape& x, const Shape& w, const Shape& y,
                                                     dnnl::prop_kind kind, const dnnl::primitive_attr& attr) {
  const Window window(a, x.rank());
  const auto end = end_padding(a, x, w, y);
  if (bias) {
    return GALLEY_ONEDNN(dnnl::convolution_forward::primitive_desc(onednn::engine(), kind, dnnl::algorithm::convolution_direct, src,
                                                                   weights, *bias, dst, window.stride, window.dilation, window.padding, end,
                                                                   attr));
  }
  return GALLEY_ONEDNN(dnnl::convolution_forward::primitive_desc(onednn::engine(), kind, dnnl::algorithm::convolution_direct, src, weights,
                                                                 dst, window.stride, window.dilation, window.padding, end, attr));
}

/// How a residual is added: read in place, or copied to the result, to which the convolution is then added.
enum class Residual { kRead, kCopied };

dnnl::primitive_attr forward_attr(const KernelQuery& q, Residual residual) {
  dnnl::primitive_attr attr = onednn::user_scratchpad();
  dnnl::post_ops ops;
  if (q.has(3) && residual == Residual::kRead) ops.append_binary(dnnl::algorithm::binary_add, activation_desc(q.in(3)));
  if (q.has(3) && residual == Residual::kCopied) ops.append_sum();
  onednn::append_activation(ops, q.attrs<Conv2dAttrs>().activation);
  attr.set_post_ops(ops);
  return attr;
}

dnnl::convolution_forward::primitive_desc forward_with(const KernelQuery& q, Residual residual) {
  std::optional<Desc> bias;
  if (q.has(2)) bias = activation_desc(q.in(2));
  return forward_pd(activation_desc(q.in(0)), onednn::any_weight_desc(q.in(1).dtype, q.in(1).shape, q.attrs<Conv2dAttrs>().groups), bias,
                    activation_desc(q.out(0)), q.attrs<Conv2dAttrs>(), q.in(0).shape, q.in(1).shape, q.out(0).shape,
                    dnnl::prop_kind::forward_training, forward_attr(q, residual));
}

struct ForwardChoice {
  dnnl::convolution_forward::primitive_desc pd;
  Residual residual = Residual::kRead;
};

/// A plain loop, up to a thousand times slower than oneDNN's other kernels.
bool is_reference(const dnnl::primitive_desc_base& pd) { return std::string_view(pd.impl_info_str()).starts_with("ref"); }

/// For contiguous images only the reference of oneDNN reads a residual in place.
ForwardChoice forward_any(const KernelQuery& q) {
  ForwardChoice choice{forward_with(q, Residual::kRead)};
  if (!q.has(3) || !is_reference(choice.pd)) return choice;
  ForwardChoice copied{forward_with(q, Residual::kCopied), Residual::kCopied};
  return is_reference(copied.pd) ? choice : copied;
}

/// The forward primitive from which a backward primitive is created.
dnnl::convolution_forward::primitive_desc hint_of(const Conv2dWindow& a, const TensorType& x, const TensorType& w, const TensorType& y) {
  return forward_pd(activation_desc(x), onednn::any_weight_desc(w.dtype, w.shape, a.groups), std::nullopt, activation_desc(y), a, x.shape,
                    w.shape, y.shape, dnnl::prop_kind::forward_training, onednn::user_scratchpad());
}

dnnl::convolution_backward_data::primitive_desc backward_data_any(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardDataAttrs>();
  const auto hint = hint_of(a, q.out(0), q.in(1), q.in(0));
  const Window window(a, q.out(0).shape.rank());
  const auto end = end_padding(a, q.out(0).shape, q.in(1).shape, q.in(0).shape);
  return GALLEY_ONEDNN(dnnl::convolution_backward_data::primitive_desc(
      onednn::engine(), dnnl::algorithm::convolution_direct, activation_desc(q.out(0)),
      onednn::any_weight_desc(q.in(1).dtype, q.in(1).shape, a.groups), activation_desc(q.in(0)), window.stride, window.dilation,
      window.padding, end, hint, onednn::user_scratchpad()));
}

/// The shape of a weight with inputs and outputs exchanged.
Shape swapped(Shape weight) {
  std::swap(weight[0], weight[1]);
  return weight;
}

/// The input gradient as the forward pass of a transposed convolution, which can be added to the result. Without groups.
dnnl::deconvolution_forward::primitive_desc backward_data_onto(const KernelQuery& q) {
  const auto& a = q.attrs<Conv2dBackwardDataAttrs>();
  const Shape& w = q.in(1).shape;
  const Window window(a, q.out(0).shape.rank());
  const auto end = end_padding(a, q.out(0).shape, w, q.in(0).shape);
  dnnl::primitive_attr attr = onednn::user_scratchpad();
  dnnl::post_ops ops;
  ops.append_sum();
  attr.set_post_ops(ops);
  return GALLEY_ONEDNN(dnnl::deconvolution_forward::primitive_desc(
      onednn::engine(), dnnl::prop_kind::forward_training, dnnl::algorithm::deconvolution_direct, activation_desc(q.in(0)),
      onednn::any_weight_desc(q.in(1).dtype, swapped(w), 1), activation_desc(q.out(0)), window.stride, window.dilation, window.padding, end,
      attr));
}

dnnl::convolution_backward_weights::primitive_desc backward_weights_any(const KernelQuery& q, const TensorType& x, const TensorType& grad) {
  const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
  const TensorType& w = q.out(0);
  const auto hint = hint_of(a, x, w, grad);
  const Window window(a, x.shape.rank());
  const auto end = end_padding(a, x.shape, w.shape, grad.shape);
  return GALLEY_ONEDNN(dnnl::convolution_backward_weights::primitive_desc(
      onednn::engine(), dnnl::algorithm::convolution_direct, activation_desc(x), onednn::any_weight_desc(w.dtype, w.shape, a.groups),
      activation_desc(grad), window.stride, window.dilation, window.padding, end, hint, onednn::user_scratchpad()));
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t size_of(const Desc& desc) { return static_cast<int64_t>(desc.get_size()); }

Support supports_types(std::initializer_list<const TensorType*> activations, const TensorType& weight, int64_t groups) {
  for (const TensorType* type : activations) {
    if (std::string reason = onednn::declines(type->dtype, weight.dtype); !reason.empty()) return Support::no(std::move(reason));
    if (!plain(*type)) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  if (!onednn::weight_desc(weight.dtype, weight.shape, weight.format, groups)) return Support::no(cat("weight format ", weight.format));
  return Support::yes();
}

/// The weight in the format that a primitive wants; a weight in another format is reordered into scratch memory at every run.
class WeightInput {
 public:
  WeightInput() = default;
  WeightInput(const TensorType& weight, int64_t groups, const Desc& wanted, int64_t scratch_at, int threads) : at_(scratch_at) {
    const Desc given = *onednn::weight_desc(weight.dtype, weight.shape, weight.format, groups);
    if (given == wanted) return;
    reorder_ = onednn::make_reorder(given, wanted, threads);
    bytes_ = size_of(wanted);
  }
  const void* read(const void* weight, std::byte* scratch) const {
    if (!reorder_) return weight;
    reorder_.run({weight, scratch + at_});
    return scratch + at_;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t at_ = 0, bytes_ = 0;
  Call reorder_;
};

/// Copies a residual to the result, unless it is already there, for oneDNN to add to.
void put_residual(const KernelArgs& args, size_t input, int64_t bytes) {
  if (args.outputs[0] == args.inputs[input]) return;
  parallel_for(bytes, 1 << 16, [&](int64_t begin, int64_t end) {
    std::memcpy(args.out<std::byte>(0) + begin, args.in<std::byte>(input) + begin, static_cast<size_t>(end - begin));
  });
}

class Forward : public PreparedKernel {
 public:
  explicit Forward(const KernelQuery& q) : bias_(q.has(2)) {
    const ForwardChoice choice = forward_any(q);
    const auto& pd = choice.pd;
    residual_ = q.has(3) && choice.residual == Residual::kRead;
    copied_bytes_ = q.has(3) && !residual_ ? q.out(0).bytes() : 0;
    name_ = pd.impl_info_str();
    pad_bytes_ = aligned(size_of(pd.scratchpad_desc()));
    weight_ = WeightInput(q.in(1), q.attrs<Conv2dAttrs>().groups, pd.weights_desc(), pad_bytes_, q.threads);
    std::vector<Call::Argument> arguments{{DNNL_ARG_SRC, pd.src_desc()},
                                          {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                                          {DNNL_ARG_DST, pd.dst_desc()},
                                          {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}};
    if (bias_) arguments.push_back({DNNL_ARG_BIAS, pd.bias_desc()});
    if (residual_) arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, activation_desc(q.in(3))});
    call_ = Call(dnnl::convolution_forward(pd), std::move(arguments), q.threads);
  }
  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    const void* weight = weight_.read(args.inputs[1], scratch);
    if (copied_bytes_ > 0) put_residual(args, 3, copied_bytes_);
    if (bias_ && residual_) {
      call_.run({args.inputs[0], weight, args.outputs[0], scratch, args.inputs[2], args.inputs[3]});
    } else if (bias_ || residual_) {
      call_.run({args.inputs[0], weight, args.outputs[0], scratch, args.inputs[bias_ ? 2 : 3]});
    } else {
      call_.run({args.inputs[0], weight, args.outputs[0], scratch});
    }
  }
  int64_t scratch_bytes() const override { return pad_bytes_ + weight_.bytes(); }
  std::string implementation() const override { return name_; }

 private:
  bool residual_ = false, bias_;
  int64_t copied_bytes_ = 0;  // of a residual that is copied to the result first
  std::string name_;
  int64_t pad_bytes_ = 0;
  WeightInput weight_;
  Call call_;
};

class BackwardData : public PreparedKernel {
 public:
  explicit BackwardData(const KernelQuery& q) {
    if (q.has(2)) {
      const auto pd = backward_data_onto(q);
      residual_bytes_ = q.out(0).bytes();
      std::vector<int> order(static_cast<size_t>(q.in(1).shape.rank()));
      std::iota(order.begin(), order.end(), 0);
      std::swap(order[0], order[1]);
      prepare(q, pd, pd.weights_desc().permute_axes(order));
      call_ = Call(dnnl::deconvolution_forward(pd),
                   {{DNNL_ARG_SRC, pd.src_desc()},
                    {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                    {DNNL_ARG_DST, pd.dst_desc()},
                    {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}},
                   q.threads);
      return;
    }
    const auto pd = backward_data_any(q);
    prepare(q, pd, pd.weights_desc());
    call_ = Call(dnnl::convolution_backward_data(pd),
                 {{DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                  {DNNL_ARG_WEIGHTS, pd.weights_desc()},
                  {DNNL_ARG_DIFF_SRC, pd.diff_src_desc()},
                  {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}},
                 q.threads);
  }
  void run(Stream&, const KernelArgs& args) const override {
    if (residual_bytes_ > 0) put_residual(args, 2, residual_bytes_);
    auto* scratch = static_cast<std::byte*>(args.scratch);
    call_.run({args.inputs[0], weight_.read(args.inputs[1], scratch), args.outputs[0], scratch});
  }
  int64_t scratch_bytes() const override { return pad_bytes_ + weight_.bytes(); }
  std::string implementation() const override { return name_; }

 private:
  /// `weights`: in the format of the primitive and the convolution's order of dimensions.
  void prepare(const KernelQuery& q, const dnnl::primitive_desc_base& pd, const Desc& weights) {
    name_ = pd.impl_info_str();
    pad_bytes_ = aligned(size_of(pd.scratchpad_desc()));
    weight_ = WeightInput(q.in(1), q.attrs<Conv2dBackwardDataAttrs>().groups, weights, pad_bytes_, q.threads);
  }

  std::string name_;
  int64_t pad_bytes_ = 0, residual_bytes_ = 0;
  WeightInput weight_;
  Call call_;
};

class BackwardWeights : public PreparedKernel {
 public:
  explicit BackwardWeights(const KernelQuery& q) {
    const auto& a = q.attrs<Conv2dBackwardWeightsAttrs>();
    TensorType x = q.in(0), grad = q.in(1);
    // Note [Strided 1x1 weight gradient]: with channels_last and fewer than 16 input channels oneDNN writes past its workspace (its issue
    // 6035, seen in 2.6 .. 3.13): such layers, small by nature, are computed contiguous.
    if (unsafe(a, x, q.out(0).shape)) x.format = grad.format = MemoryFormat::contiguous();
    const auto pd = backward_weights_any(q, x, grad);
    const Desc wanted = *onednn::weight_desc(q.out(0).dtype, q.out(0).shape, q.out(0).format, a.groups);
    name_ = pd.impl_info_str();
    scratch_ = aligned(size_of(pd.scratchpad_desc()));
    if (!(x.format == q.in(0).format)) {
      reorder_x_ = onednn::make_reorder(activation_desc(q.in(0)), activation_desc(x), q.threads);
      reorder_grad_ = onednn::make_reorder(activation_desc(q.in(1)), activation_desc(grad), q.threads);
      x_at_ = scratch_;
      grad_at_ = x_at_ + aligned(x.bytes());
      scratch_ = grad_at_ + aligned(grad.bytes());
    }
    if (wanted != pd.diff_weights_desc()) {
      reorder_ = onednn::make_reorder(pd.diff_weights_desc(), wanted, q.threads);
      weight_at_ = scratch_;
      scratch_ += aligned(size_of(pd.diff_weights_desc()));
    }
    call_ = Call(dnnl::convolution_backward_weights(pd),
                 {{DNNL_ARG_SRC, pd.src_desc()},
                  {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                  {DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc()},
                  {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}},
                 q.threads);
  }
  static bool unsafe(const Conv2dBackwardWeightsAttrs& a, const TensorType& x, const Shape& w) {
    const auto stride = per_axis(a.stride, w.rank() - 2);
    const bool strided = std::any_of(stride.begin(), stride.end(), [](int64_t step) { return step > 1; });
    return x.format.is_channels_last() && w.elements() == w[0] * w[1] && strided && w[1] < 16;
  }
  void run(Stream&, const KernelArgs& args) const override {
    auto* scratch = static_cast<std::byte*>(args.scratch);
    const void* x = args.inputs[0];
    const void* grad = args.inputs[1];
    if (reorder_x_) {
      reorder_x_.run({x, scratch + x_at_});
      reorder_grad_.run({grad, scratch + grad_at_});
      x = scratch + x_at_;
      grad = scratch + grad_at_;
    }
    void* weight = reorder_ ? scratch + weight_at_ : args.outputs[0];
    call_.run({x, grad, weight, scratch});
    if (reorder_) reorder_.run({weight, args.outputs[0]});
  }
  int64_t scratch_bytes() const override { return scratch_; }
  std::string implementation() const override { return name_; }

 private:
  std::string name_;
  int64_t scratch_ = 0, x_at_ = 0, grad_at_ = 0, weight_at_ = 0;
  Call call_, reorder_, reorder_x_, reorder_grad_;
};

/// For some windows oneDNN has only its reference in bf16, though not in f32.
template <class Make>
Support unless_reference(Support support, DType dtype, Make make) {
  if (support && dtype == DType::kBF16 && is_reference(make()))
    return Support::no("the library has no proper kernel for this window of bf16");
  return support;
}

Support supports_forward(const KernelQuery& q) {
  if (q.has(2) && q.in(2).dtype != DType::kF32) return Support::no("bias dtype");
  if (q.has(3) && !(q.in(3).format == q.out(0).format)) return Support::no("residual in another format");
  return unless_reference(supports_types({&q.in(0), &q.out(0)}, q.in(1), q.attrs<Conv2dAttrs>().groups), q.in(0).dtype,
                          [&] { return forward_any(q).pd; });
}
Support supports_backward_data(const KernelQuery& q) {
  if (q.has(2)) {
    // With AVX2 oneDNN takes longer for the sum than a separate add (1024-256 @14: 11.4 ms instead of 9.6).
    if (!onednn::has_avx512()) return Support::no("a residual, without AVX-512");
    if (q.attrs<Conv2dBackwardDataAttrs>().groups != 1) return Support::no("a residual and groups");
    if (!(q.in(2).format == q.out(0).format) || q.in(2).dtype != q.out(0).dtype) return Support::no("residual in another format");
    const Support types = supports_types({&q.in(0), &q.out(0)}, q.in(1), 1);
    return types && is_reference(backward_data_onto(q)) ? Support::no("the library has no proper kernel that adds") : types;
  }
  return unless_reference(supports_types({&q.in(0), &q.out(0)}, q.in(1), q.attrs<Conv2dBackwardDataAttrs>().groups), q.in(0).dtype,
                          [&] { return backward_data_any(q); });
}
Support supports_backward_weights(const KernelQuery& q) {
  return unless_reference(supports_types({&q.in(0), &q.in(1)}, q.out(0), q.attrs<Conv2dBackwardWeightsAttrs>().groups), q.in(0).dtype,
                          [&] { return backward_weights_any(q, q.in(0), q.in(1)); });
}

MemoryFormat preferred(const KernelQuery& q, int input) {
  if (input != 1) return {};
  return onednn::weight_format_of(forward_any(q).pd.weights_desc(), q.in(1).shape, q.attrs<Conv2dAttrs>().groups).value_or(MemoryFormat());
}

}  // namespace

const Algorithm algorithm::kOneDnnConv{supports_forward, prepare_as<Forward>, preferred};
const Algorithm algorithm::kOneDnnConvData{supports_backward_data, prepare_as<BackwardData>};
const Algorithm algorithm::kOneDnnConvWeights{supports_backward_weights, prepare_as<BackwardWeights>};

}  // namespace galley
