// Convolutions of the first images of each sample, by the kernels of convolutions.
//
// The convolution is prepared for an eighth of a sample's images, and runs until it has covered the valid ones; the last run ends with the
// last image, so that it may compute images again. Where Winograd's form pays, a run transforms the weights once, into scratch memory.

#include "libcore/backends/cpu/conv_rows.h"

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/rewrite/winograd.h"
#include "libcore/backends/cpu/table.h"
#include "libcore/ops/conv_rows.h"

namespace galley {
namespace {

constexpr int64_t kParts = 8, kAlign = 64;

bool is_transposed(const KernelQuery& q) { return q.node.op == &conv2d_backward_data_rows_op(); }
int count_input(const KernelQuery& q) { return is_transposed(q) ? 3 : 4; }
int64_t samples(const KernelQuery& q) { return q.in(count_input(q)).shape[0]; }
int64_t rows(const KernelQuery& q) { return q.in(0).shape[0] / samples(q); }
int64_t part(const KernelQuery& q) { return (rows(q) + kParts - 1) / kParts; }

/// The convolution of a part of the images, with the operands of the query: one node, or Winograd's two.
class PartGraph {
 public:
  explicit PartGraph(const KernelQuery& q) {
    const auto input = [&](int i, const char* name) {
      TensorType type = q.in(i);
      if (i == 0) type.shape[0] = part(q);
      return graph_.add_input(name, type, i == 0 ? ValueRole::kInput : ValueRole::kParameter);
    };
    const Value x = input(0, "x"), weight = input(1, "weight");
    Value y;
    if (is_transposed(q)) {
      y = conv2d_backward_data(x, weight, q.attrs<Conv2dBackwardDataAttrs>());
    } else {
      const Value bias = q.has(2) ? input(2, "bias") : Value();
      y = conv2d(x, weight, bias, q.attrs<Conv2dAttrs>());
      if (uses_winograd(q, x.shape(), y.shape())) {
        WinogradConv2dAttrs attrs;
        attrs.padding = q.attrs<Conv2dAttrs>().padding;
        attrs.activation = q.attrs<Conv2dAttrs>().activation;
        graph_.nodes().clear();
        y = winograd_conv2d(x, winograd_weights(weight, {}), bias, attrs);
      }
    }
    graph_.value(y.id()).type.format = q.out(0).format;
  }
  /// The transform of the weights; null: there is none.
  const Node* transform() const { return graph_.nodes().size() > 1 ? &graph_.nodes().front() : nullptr; }
  KernelQuery query(const Node& node, int threads) const { return {node, context_of(graph_, node), threads}; }
  KernelQuery convolution(int threads) const { return query(graph_.nodes().back(), threads); }
  const TensorType& transformed() const { return graph_.type(transform()->outputs[0]); }

 private:
  static bool uses_winograd(const KernelQuery& q, const Shape& x, const Shape& y) {
    return q.in(0).format.is_channels_last() && q.in(1).format.is_contiguous() && winograd::fits(q.attrs<Conv2dAttrs>(), q.in(1).shape) &&
           winograd::worthwhile(x, y, false);
  }
  Graph graph_;
};

const Kernel* kernel_of(const KernelQuery& inner) {
  for (const Kernel& kernel : cpu_conv())
    if (kernel.op == inner.node.op->name && kernel.supports(inner)) return &kernel;
  return nullptr;
}

class ConvRows : public PreparedKernel {
 public:
  explicit ConvRows(const KernelQuery& q)
      : samples_(samples(q)),
        rows_(rows(q)),
        part_(part(q)),
        count_(static_cast<size_t>(count_input(q))),
        bias_(!is_transposed(q) && q.has(2)),
        x_floats_(q.in(0).elements() / q.in(0).shape[0]),
        y_floats_(q.out(0).elements() / q.out(0).shape[0]) {
    const PartGraph graph(q);
    const auto prepared = [&](const KernelQuery& inner) {
      const Kernel* kernel = kernel_of(inner);
      GALLEY_ASSERT(kernel != nullptr);
      return kernel->prepare(inner);
    };
    convolution_ = prepared(graph.convolution(q.threads));
    if (const Node* transform = graph.transform()) {
      transform_ = prepared(graph.query(*transform, q.threads));
      const TensorType& type = graph.transformed();
      transformed_ = (type.format.padded_elements(type.shape) * dtype_size(type.dtype) + kAlign - 1) / kAlign * kAlign;
    }
    scratch_ = transformed_ + std::max(convolution_->scratch_bytes(), transform_ == nullptr ? 0 : transform_->scratch_bytes());
  }
  int64_t scratch_bytes() const override { return scratch_; }
  std::string implementation() const override { return convolution_->implementation(); }

  void run(Stream& stream, const KernelArgs& args) const override {
    const int64_t* counts = args.in<int64_t>(count_);
    std::byte* rest = static_cast<std::byte*>(args.scratch) + transformed_;
    const void* weight = args.inputs[1];
    if (transform_ != nullptr && std::any_of(counts, counts + samples_, [](int64_t count) { return count > 0; })) {
      const std::array<const void*, 1> inputs{weight};
      const std::array<void*, 1> outputs{args.scratch};
      transform_->run(stream, {inputs, outputs, rest});
      weight = args.scratch;
    }
    for (int64_t n = 0; n < samples_; ++n) {
      const int64_t count = std::clamp<int64_t>(counts[n], 0, rows_);
      const float* x = args.in<float>(0) + n * rows_ * x_floats_;
      float* y = args.out<float>(0) + n * rows_ * y_floats_;
      for (int64_t begin = 0; begin < count; begin += part_) {
        const int64_t at = std::min(begin, rows_ - part_);
        const std::array<const void*, 3> inputs{x + at * x_floats_, weight, bias_ ? args.inputs[2] : nullptr};
        const std::array<void*, 1> outputs{y + at * y_floats_};
        convolution_->run(stream, {std::span(inputs).first(bias_ ? 3 : 2), outputs, rest});
      }
      std::fill(y + count * y_floats_, y + rows_ * y_floats_, 0.0f);
    }
  }

 private:
  int64_t samples_, rows_, part_;
  size_t count_;
  bool bias_;
  int64_t x_floats_, y_floats_, transformed_ = 0, scratch_ = 0;
  std::unique_ptr<PreparedKernel> transform_, convolution_;
};

/// Images follow each other in memory.
bool is_by_image(const MemoryFormat& format) { return format.is_contiguous() || format.is_channels_last(); }

Support supports(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  if (q.in(0).elements() == 0 || q.out(0).elements() == 0) return Support::no("empty array");
  if (!is_by_image(q.in(0).format) || !is_by_image(q.out(0).format)) return Support::no("memory format");
  const PartGraph graph(q);
  const bool transforms = graph.transform() == nullptr || kernel_of(graph.query(*graph.transform(), q.threads)) != nullptr;
  if (!transforms || kernel_of(graph.convolution(q.threads)) == nullptr) return Support::no("no kernel of convolutions supports it");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) { return std::make_unique<ConvRows>(q); }

/// That of the convolution.
MemoryFormat preferred_format(const KernelQuery& q, int input) {
  const PartGraph graph(q);
  if (input != 1 || graph.transform() != nullptr) return q.in(input).format;
  const KernelQuery inner = graph.convolution(q.threads);
  const Kernel* kernel = kernel_of(inner);
  return kernel == nullptr || kernel->preferred_format == nullptr ? q.in(input).format : kernel->preferred_format(inner, input);
}

const std::array<Kernel, 2> kKernels{{{"conv2d_rows", "parts", supports, prepare, preferred_format},
                                      {"conv2d_backward_data_rows", "parts", supports, prepare, preferred_format}}};

}  // namespace

std::span<const Kernel> cpu_conv_rows() { return kKernels; }

}  // namespace galley
