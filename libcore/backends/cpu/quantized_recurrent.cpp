// Recurrent layers with weights of 8 bits: at each step the kernel of dynamic_quantized_linear computes the state's part for the whole
// batch, then each thread applies the cell's functions (recurrent_cells.h) to some of its rows. G H H multiplications of bytes for each
// step of a sample; bound by reading the weights at each step where the batch is small.

#include "libcore/ops/quantized_recurrent.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "libcore/backends/cpu/quantized_pack.h"
#include "libcore/backends/cpu/recurrent_cells.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

enum class Step { kLstm, kGru, kTanh, kRelu };

const Kernel& linear_kernel() {
  static const Kernel& kernel = []() -> const Kernel& {
    const std::span<const Kernel> table = cpu_quantized_conv();
    return *std::find_if(table.begin(), table.end(), [](const Kernel& k) { return k.op == "dynamic_quantized_linear"; });
  }();
  return kernel;
}

/// The product of a step as a node, [N,H] -> [N,G H], its weight packed.
struct Product {
  Product(const KernelQuery& q, Saturation saturation) : weight(q.in(1)), scale(q.in(2)), threads(q.threads) {
    DynamicQuantizedLinearAttrs attrs;
    attrs.saturation = saturation;
    node.op = &dynamic_quantized_linear_op();
    node.attributes = std::make_shared<DynamicQuantizedLinearAttrs>(attrs);
    x.shape = {q.in(0).shape[0], weight.shape[1]};
    y.shape = {q.in(0).shape[0], weight.shape[0]};
    has_bias = q.has(3);
    if (has_bias) bias = q.in(3);
    weight.format = packed_format(q);
  }
  static MemoryFormat packed_format(const KernelQuery& q) { return linear_kernel().preferred_format(q, 1); }
  KernelQuery query() const {
    OpContext context;
    context.attributes = node.attributes.get();
    context.inputs = {&x, &weight, &scale, has_bias ? &bias : nullptr};
    context.outputs = {&y};
    return {node, std::move(context), threads};
  }
  Node node;
  TensorType x, weight, scale, bias, y;
  int threads;
  bool has_bias = false;
};

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class Recurrent : public PreparedKernel {
 public:
  Recurrent(const KernelQuery& q, Step step, bool reverse, Saturation saturation)
      : step_(step),
        batch_(q.in(0).shape[0]),
        steps_(q.in(0).shape[1]),
        hidden_(q.in(1).shape[1]),
        width_(q.in(1).shape[0]),
        reverse_(reverse),
        weight_(q.in(1), Product::packed_format(q)) {
    const Product product(q, saturation);
    product_ = linear_kernel().prepare(product.query());
  }
  int64_t scratch_bytes() const override { return aligned(batch_ * width_ * 4) + weight_.scratch_bytes() + product_->scratch_bytes(); }
  std::string implementation() const override { return product_->implementation(); }
  void run(Stream& stream, const KernelArgs& args) const override {
    auto* part = static_cast<float*>(args.scratch);
    std::byte* scratch = static_cast<std::byte*>(args.scratch) + aligned(batch_ * width_ * 4);
    const int8_t* weight = weight_.get(args.in<int8_t>(1), scratch);
    scratch += weight_.scratch_bytes();
    float *state = args.out<float>(1), *cell = step_ == Step::kLstm ? args.out<float>(2) : nullptr;
    start(args.in<float>(4), state);
    if (cell != nullptr) start(args.in<float>(5), cell);
    const std::array<const void*, 4> inputs{state, weight, args.inputs[2], args.in<float>(3)};
    const std::array<void*, 3> outputs{part};  // three: GCC warns that kernels of several outputs would read past one
    for (int64_t turn = 0; turn < steps_; ++turn) {
      const int64_t t = reverse_ ? steps_ - 1 - turn : turn;
      product_->run(stream, {inputs, outputs, scratch});
      parallel_for(batch_, std::max<int64_t>(1, 4096 / width_), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          const float *x = args.in<float>(0) + (n * steps_ + t) * width_, *q = part + n * width_;
          float *h = state + n * hidden_, *y = args.out<float>(0) + (n * steps_ + t) * hidden_;
          switch (step_) {
            case Step::kLstm: recurrent::lstm_row_of_parts(x, q, cell + n * hidden_, h, y, hidden_); break;
            case Step::kGru: recurrent::gru_row_of_parts(x, q, h, y, hidden_); break;
            case Step::kTanh: recurrent::tanh_row_of_parts(x, q, h, y, hidden_); break;
            case Step::kRelu: recurrent::relu_row_of_parts(x, q, h, y, hidden_); break;
          }
        }
      });
    }
  }

 private:
  void start(const float* given, float* state) const {
    const size_t bytes = static_cast<size_t>(batch_ * hidden_) * sizeof(float);
    if (given != nullptr) {
      std::memcpy(state, given, bytes);
    } else {
      std::memset(state, 0, bytes);
    }
  }

  Step step_;
  int64_t batch_, steps_, hidden_, width_;
  bool reverse_;
  quantized::Packed weight_;
  std::unique_ptr<PreparedKernel> product_;
};

Support supports(const KernelQuery& q) {
  for (const int i : {0, 4, 5}) {
    if (q.has(i) && q.in(i).elements() == 0) return Support::no("empty array");
  }
  const bool rnn = q.node.is("dynamic_quantized_rnn");
  return linear_kernel().supports(
      Product(q, rnn ? q.attrs<DynamicQuantizedRnnAttrs>().saturation : q.attrs<DynamicQuantizedRecurrentAttrs>().saturation).query());
}

template <Step kStep>
std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) {
  const auto& attrs = q.attrs<DynamicQuantizedRecurrentAttrs>();
  return std::make_unique<Recurrent>(q, kStep, attrs.reverse, attrs.saturation);
}
std::unique_ptr<PreparedKernel> prepare_rnn(const KernelQuery& q) {
  const auto& attrs = q.attrs<DynamicQuantizedRnnAttrs>();
  return std::make_unique<Recurrent>(q, attrs.nonlinearity == Nonlinearity::kTanh ? Step::kTanh : Step::kRelu, attrs.reverse,
                                     attrs.saturation);
}

MemoryFormat preferred_format(const KernelQuery& q, int input) {
  return input == 1 ? linear_kernel().preferred_format(q, input) : q.in(input).format;
}

const std::array<Kernel, 3> kKernels{{{"dynamic_quantized_lstm", "packed_steps", supports, prepare<Step::kLstm>, preferred_format},
                                      {"dynamic_quantized_gru", "packed_steps", supports, prepare<Step::kGru>, preferred_format},
                                      {"dynamic_quantized_rnn", "packed_steps", supports, prepare_rnn, preferred_format}}};

}  // namespace

std::span<const Kernel> cpu_quantized_recurrent() { return kKernels; }

}  // namespace galley
