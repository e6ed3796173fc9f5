// Matrix products by oneDNN. Transposes are expressed as strides; leading dimensions are a batch.

#include "libcore/ops/matmul.h"

#include <array>

#include "libcore/backends/cpu/algorithms.h"
#include "libcore/backends/cpu/conv_thresholds.h"
#include "libcore/backends/cpu/onednn/activation.h"
#include "libcore/vendor/onednn/onednn.h"

namespace galley {
namespace {

using onednn::Call;
using onednn::Desc;

class Product : public PreparedKernel {
 public:
  Product(const Desc& a, const Desc& b, const std::optional<Desc>& bias, const Desc& c, const dnnl::post_ops& ops, int threads)
      : bias_(bias.has_value()) {
    dnnl::primitive_attr attr = onednn::user_scratchpad();
    attr.set_post_ops(ops);
    const auto pd = bias ? GALLEY_ONEDNN(dnnl::matmul::primitive_desc(onednn::engine(), a, b, *bias, c, attr))
                         : GALLEY_ONEDNN(dnnl::matmul::primitive_desc(onednn::engine(), a, b, c, attr));
    name_ = pd.impl_info_str();
    scratch_ = static_cast<int64_t>(pd.scratchpad_desc().get_size());
    std::vector<Call::Argument> arguments{
        {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc()}};
    if (bias_) arguments.push_back({DNNL_ARG_BIAS, *bias});
    call_ = Call(dnnl::matmul(pd), std::move(arguments), threads);
  }
  void run(Stream&, const KernelArgs& args) const override {
    if (bias_) {
      call_.run({args.inputs[0], args.inputs[1], args.outputs[0], args.scratch, args.inputs[2]});
    } else {
      call_.run({args.inputs[0], args.inputs[1], args.outputs[0], args.scratch});
    }
  }
  int64_t scratch_bytes() const override { return scratch_; }
  std::string implementation() const override { return name_; }

 private:
  bool bias_;
  std::string name_;
  int64_t scratch_ = 0;
  Call call_;
};

/// A transposed left operand whose rows are a multiple of 2 KiB apart. oneDNN packs it column by column, which uses few sets of the cache,
/// at half its speed (1024 x 2048 by 2048 x 256, the weight gradient of an LSTM: 33 instead of 71 GFLOP/s, AVX2). It is transposed first.
/// With AVX-512 oneDNN copies it itself, and the transposition would only cost time.
class TransposedFirst : public PreparedKernel {
 public:
  TransposedFirst(const Desc& a, const Desc& plain, std::unique_ptr<PreparedKernel> product, int threads)
      : bytes_((static_cast<int64_t>(plain.get_size()) + 63) / 64 * 64),
        transpose_(onednn::make_reorder(a, plain, threads)),
        product_(std::move(product)) {}
  static bool pays(int64_t m, int64_t n, int64_t k) {
    const int64_t least = conv_threshold::kTransposeSize.value;
    return !onednn::has_avx512() && m % conv_threshold::kTransposeRows.value == 0 && n >= least && k >= least;
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    transpose_.run({args.inputs[0], args.scratch});
    const std::array<const void*, 2> inputs{args.scratch, args.inputs[1]};
    product_->run(stream, {inputs, args.outputs, static_cast<std::byte*>(args.scratch) + bytes_});
  }
  int64_t scratch_bytes() const override { return bytes_ + product_->scratch_bytes(); }
  std::string implementation() const override { return product_->implementation(); }

 private:
  int64_t bytes_;
  Call transpose_;
  std::unique_ptr<PreparedKernel> product_;
};

/// An activation applied to the product in place. As a post-operation of the product, oneDNN computes all activations but relu one element
/// at a time (197 x 768 by 768 x 3072 with gelu: 22 ms, without 11, AVX2 on one thread).
class ActivatedProduct : public PreparedKernel {
 public:
  ActivatedProduct(std::unique_ptr<PreparedKernel> product, const Desc& y, Activation activation, int threads)
      : product_(std::move(product)) {
    const onednn::Eltwise e = onednn::eltwise_of(activation);
    const auto pd = GALLEY_ONEDNN(
        dnnl::eltwise_forward::primitive_desc(onednn::engine(), dnnl::prop_kind::forward_inference, e.algorithm, y, y, e.alpha, e.beta));
    call_ = Call(dnnl::eltwise_forward(pd), {{DNNL_ARG_SRC, y}, {DNNL_ARG_DST, y}}, threads);
  }
  void run(Stream& stream, const KernelArgs& args) const override {
    product_->run(stream, args);
    call_.run({args.outputs[0], args.outputs[0]});
  }
  int64_t scratch_bytes() const override { return product_->scratch_bytes(); }
  std::string implementation() const override { return product_->implementation(); }

 private:
  std::unique_ptr<PreparedKernel> product_;
  Call call_;
};

Support supports(const KernelQuery& q) {
  for (const TensorType* type : {&q.in(0), &q.in(1), &q.out(0)}) {
    if (std::string reason = onednn::declines(type->dtype, q.out(0).dtype); !reason.empty()) return Support::no(std::move(reason));
    if (!type->format.is_contiguous()) return Support::no(cat("format ", type->format));
    if (type->elements() == 0) return Support::no("empty array");
  }
  return Support::yes();
}
Support supports_linear(const KernelQuery& q) {
  if (q.has(2) && q.in(2).dtype != DType::kF32) return Support::no("bias dtype");
  return supports(q);
}

std::unique_ptr<PreparedKernel> prepare_linear(const KernelQuery& q) {
  const DType dtype = q.in(0).dtype;
  const int64_t in = q.in(1).shape[1], out = q.in(1).shape[0], rows = q.in(0).elements() / in;
  const Activation activation = q.attrs<LinearAttrs>().activation;
  const bool by_product = activation == Activation::kNone || activation == Activation::kRelu;
  dnnl::post_ops ops;
  if (by_product) onednn::append_activation(ops, activation);
  std::optional<Desc> bias;
  if (q.has(2)) bias = onednn::strided_desc(DType::kF32, {1, out}, {out, 1});
  const Desc y = onednn::strided_desc(dtype, {rows, out}, {out, 1});
  auto product = std::make_unique<Product>(onednn::strided_desc(dtype, {rows, in}, {in, 1}),
                                           onednn::strided_desc(dtype, {in, out}, {1, in}), bias, y, ops, q.threads);
  if (by_product) return product;
  return std::make_unique<ActivatedProduct>(std::move(product), y, activation, q.threads);
}

/// [batch,] rows x columns of an operand that may be stored transposed; batch 1 where it has none.
Desc operand(DType dtype, const Shape& shape, bool transposed, int64_t batch) {
  const int64_t r = shape[-2], c = shape[-1];
  const int64_t rows = transposed ? c : r, columns = transposed ? r : c;
  const int64_t row_step = transposed ? 1 : c, column_step = transposed ? c : 1;
  if (batch == 0) return onednn::strided_desc(dtype, {rows, columns}, {row_step, column_step});
  return onednn::strided_desc(dtype, {shape.rank() == 2 ? 1 : batch, rows, columns}, {r * c, row_step, column_step});
}

std::unique_ptr<PreparedKernel> prepare_matmul(const KernelQuery& q) {
  const auto& t = q.attrs<MatmulAttrs>();
  const DType dtype = q.out(0).dtype;
  const Shape& y = q.out(0).shape;
  const int64_t batch = y.rank() == 2 ? 0 : y.elements() / (y[-1] * y[-2]);
  if (batch == 0 && t.transpose_a && TransposedFirst::pays(y[0], y[1], q.in(0).shape[0])) {
    const Desc plain = operand(dtype, {y[0], q.in(0).shape[0]}, false, 0);
    auto product = std::make_unique<Product>(plain, operand(dtype, q.in(1).shape, t.transpose_b, 0), std::nullopt,
                                             operand(dtype, y, false, 0), dnnl::post_ops(), q.threads);
    return std::make_unique<TransposedFirst>(operand(dtype, q.in(0).shape, true, 0), plain, std::move(product), q.threads);
  }
  return std::make_unique<Product>(operand(dtype, q.in(0).shape, t.transpose_a, batch), operand(dtype, q.in(1).shape, t.transpose_b, batch),
                                   std::nullopt, operand(dtype, y, false, batch), dnnl::post_ops(), q.threads);
}

}  // namespace

const Algorithm algorithm::kOneDnnLinear{supports_linear, prepare_linear};
const Algorithm algorithm::kOneDnnMatmul{supports, prepare_matmul};

}  // namespace galley
