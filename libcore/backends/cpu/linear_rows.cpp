// Linear layers of the first rows of each sample, by the kernels of `linear`.
//
// Products are prepared for an eighth, two eighths, ... and all of the rows. A run uses the smallest that covers the valid rows, so that at
// most an eighth of the rows is computed in vain and each product packs its weight once.

#include "libcore/backends/cpu/linear_rows.h"

#include <algorithm>
#include <array>

#include "libcore/backends/cpu/table.h"
#include "libcore/ops/linear_rows.h"

namespace galley {
namespace {

constexpr int64_t kParts = 8;

/// A linear layer of `rows` rows with the attributes and operands of the query.
struct Layer {
  Layer(const KernelQuery& q, int64_t rows) {
    const auto input = [&](int i, const char* name) {
      TensorType type = q.in(i);
      if (i == 0) type.shape = {rows, type.shape[2]};
      return graph.add_input(name, type, i == 0 ? ValueRole::kInput : ValueRole::kParameter);
    };
    const Value x = input(0, "x"), weight = input(1, "weight");
    linear(x, weight, q.has(2) ? input(2, "bias") : Value(), q.attrs<LinearAttrs>());
  }
  KernelQuery query(int threads) const {
    const Node& node = graph.nodes().back();
    return {node, context_of(graph, node), threads};
  }
  Graph graph;
};

const Kernel* kernel_of(const KernelQuery& inner) {
  for (const Kernel& kernel : cpu_matmul())
    if (kernel.op == inner.node.op->name && kernel.supports(inner)) return &kernel;
  return nullptr;
}

class LinearRows : public PreparedKernel {
 public:
  explicit LinearRows(const KernelQuery& q)
      : samples_(q.in(0).shape[0]), rows_(q.in(0).shape[1]), in_(q.in(0).shape[2]), out_(q.out(0).shape[2]), bias_(q.has(2)) {
    for (int64_t part = 1; part <= kParts; ++part) {
      const int64_t rows = (rows_ * part + kParts - 1) / kParts;
      if (!products_.empty() && products_.back().rows == rows) continue;
      const Layer layer(q, rows);
      const KernelQuery inner = layer.query(q.threads);
      const Kernel* kernel = kernel_of(inner);
      GALLEY_ASSERT(kernel != nullptr);
      products_.push_back({rows, kernel->prepare(inner)});
      scratch_ = std::max(scratch_, products_.back().kernel->scratch_bytes());
    }
  }
  int64_t scratch_bytes() const override { return scratch_; }
  std::string implementation() const override { return products_.back().kernel->implementation(); }

  void run(Stream& stream, const KernelArgs& args) const override {
    for (int64_t n = 0; n < samples_; ++n) {
      const int64_t count = std::clamp<int64_t>(args.in<int64_t>(3)[n], 0, rows_);
      float* y = args.out<float>(0) + n * rows_ * out_;
      if (count > 0) {
        const auto product = std::find_if(products_.begin(), products_.end(), [&](const Product& p) { return p.rows >= count; });
        const std::array<const void*, 3> inputs{args.in<float>(0) + n * rows_ * in_, args.inputs[1], args.inputs[2]};
        const std::array<void*, 1> outputs{y};
        product->kernel->run(stream, {std::span(inputs).first(bias_ ? 3 : 2), outputs, args.scratch});
      }
      std::fill(y + count * out_, y + rows_ * out_, 0.0f);
    }
  }

 private:
  struct Product {
    int64_t rows;
    std::unique_ptr<PreparedKernel> kernel;
  };
  int64_t samples_, rows_, in_, out_, scratch_ = 0;
  bool bias_;
  std::vector<Product> products_;
};

Support supports(const KernelQuery& q) {
  if (q.in(0).dtype != DType::kF32) return Support::no(cat("dtype ", q.in(0).dtype));
  if (q.in(0).elements() == 0) return Support::no("empty array");
  const Layer layer(q, q.in(0).shape[1]);
  if (kernel_of(layer.query(q.threads)) == nullptr) return Support::no("no kernel of linear supports it");
  return Support::yes();
}

std::unique_ptr<PreparedKernel> prepare(const KernelQuery& q) { return std::make_unique<LinearRows>(q); }

const std::array<Kernel, 1> kKernels{{{"linear_rows", "parts", supports, prepare}}};

}  // namespace

std::span<const Kernel> cpu_linear_rows() { return kKernels; }

}  // namespace galley
