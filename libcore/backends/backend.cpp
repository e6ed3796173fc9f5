#include "libcore/backends/backend.h"

#include <deque>

#include "libcore/base/parallel.h"

namespace galley {
namespace {

class Loop : public Runner {
 public:
  explicit Loop(const BoundProgram& program) : calls_(program.calls) {}
  void run(Stream& stream) override {
    for (const BoundCall& call : calls_) call.kernel->run(stream, call.args);
  }

 private:
  std::span<const BoundCall> calls_;
};

}  // namespace

Backend::Backend(const BackendOptions& options) : options_(options) {
  if (options_.threads <= 0) options_.threads = compute_threads();
}

Limits Backend::limits() const { return {.threads = options_.threads}; }

std::unique_ptr<Runner> Backend::runner(const BoundProgram& program) const { return std::make_unique<Loop>(program); }

KernelQuery Backend::query(const Graph& graph, const Node& node) const { return {node, context_of(graph, node), options_.threads}; }

KernelChoice Backend::choose(const KernelQuery& query) const {
  KernelChoice choice;
  for (const Kernel* kernel : kernels(*query.node.op)) {
    const Support support = kernel->supports(query);
    if (support) {
      choice.kernel = kernel;
      return choice;
    }
    choice.declined.push_back(cat(kernel->algorithm, ": ", support.reason));
  }
  return choice;
}

bool Backend::has_kernel(const Graph& graph, const Node& node, Stage stage) const {
  KernelQuery asked = query(graph, node);
  std::deque<TensorType> images;
  const auto lay = [&](const TensorType*& type) {
    if (type == nullptr || type->shape.rank() < 4) return;
    images.push_back(*type);
    images.back().format = MemoryFormat::channels_last_for_rank(type->shape.rank());
    type = &images.back();
  };
  if (stage != Stage::kAfterLayout && options_.memory_format != LayoutMode::kContiguous && node.op->layout.formats == FormatRule::kKeeps) {
    for (size_t i = 0; i < asked.context.inputs.size(); ++i) {
      if (i >= node.op->inputs.size() || node.op->inputs[i].kind != PortKind::kWeight) lay(asked.context.inputs[i]);
    }
    for (size_t o = 0; o < asked.context.outputs.size(); ++o) {
      if (o >= node.op->outputs.size() || node.op->outputs[o].kind != PortKind::kWeight) lay(asked.context.outputs[o]);
    }
  }
  const Kernel* kernel = choose(asked).kernel;
  return kernel != nullptr && !kernel->reference;
}

MemoryFormat Backend::weight_format(const Graph& graph, const Node& node, int input) const {
  const KernelQuery asked = query(graph, node);
  const Kernel* kernel = choose(asked).kernel;
  if (kernel == nullptr) return {};
  if (kernel->preferred_format != nullptr) return kernel->preferred_format(asked, input);
  return kernel->reference && !reference() ? MemoryFormat() : asked.in(input).format;
}

MemoryFormat Backend::output_format(const Graph& graph, const Node& node, int output) const {
  const KernelQuery asked = query(graph, node);
  const Kernel* kernel = choose(asked).kernel;
  if (kernel == nullptr) return {};
  if (kernel->preferred_output_format != nullptr) return kernel->preferred_output_format(asked, output);
  return kernel->reference && !reference() ? MemoryFormat() : asked.out(output).format;
}

}  // namespace galley
