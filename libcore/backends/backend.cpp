#include "libcore/backends/backend.h"

#include <deque>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"

namespace galley {
namespace {

class Loop : public Runner {
 public:
  explicit Loop(const BoundProgram& program) : calls_(program.calls) {}
  void run(Stream& stream) override {
    for (const BoundCall& call : calls_) call.run(stream);
  }

 private:
  std::span<const BoundCall> calls_;
};

/// Puts the images of the query (values of rank 4 and 5, weights apart) into channels_last where layout may do so. Returns their types,
/// which the query refers to.
std::deque<TensorType> lay_channels_last(KernelQuery& asked) {
  const OpDef& op = *asked.node.op;
  std::deque<TensorType> images;
  if (op.layout.formats != FormatRule::kKeeps) return images;
  const auto lay = [&](const TensorType*& type, const std::vector<Port>& ports, size_t port) {
    if (type == nullptr || type->shape.rank() < 4 || (port < ports.size() && ports[port].kind == PortKind::kWeight)) return;
    images.push_back(*type);
    images.back().format = MemoryFormat::channels_last_for_rank(type->shape.rank());
    type = &images.back();
  };
  for (size_t i = 0; i < asked.context.inputs.size(); ++i) lay(asked.context.inputs[i], op.inputs, i);
  for (size_t o = 0; o < asked.context.outputs.size(); ++o) lay(asked.context.outputs[o], op.outputs, o);
  return images;
}

}  // namespace

void BoundCall::run(Stream& stream) const {
  try {
    kernel->run(stream, args);
  } catch (Error& error) {
    if (node != nullptr) error.context(cat(" at ", node->path, " (", node->op->name, ")"));
    throw;
  }
}

std::string KernelChoice::reasons() const {
  std::string text;
  for (const std::string& reason : declined) text += cat(text.empty() ? "" : "; ", reason);
  return text;
}

Backend::Backend(const BackendOptions& options) : options_(options) {
  if (options_.threads <= 0) options_.threads = compute_threads();
}

Limits Backend::limits() const { return {.threads = options_.threads}; }

std::unique_ptr<Runner> Backend::runner(const BoundProgram& program) const { return std::make_unique<Loop>(program); }

std::unique_ptr<DeviceRanks> Backend::connect(Communicator&, DeviceRanks*) const { return nullptr; }

KernelQuery Backend::query(const Graph& graph, const Node& node) const {
  return {node, context_of(graph, node), options_.threads, &device()};
}

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
  if (stage != Stage::kAfterLayout && options_.memory_format != LayoutMode::kContiguous) images = lay_channels_last(asked);
  const Kernel* kernel = choose(asked).kernel;
  return kernel != nullptr && !kernel->reference;
}

std::string Backend::refusal(const Graph& graph, const Node& node, Stage stage) const {
  const auto reason = [&](const KernelQuery& asked) -> std::string {
    const std::span<const Kernel* const> all = kernels(*node.op);
    if (all.empty()) return "there is no kernel";
    // The last kernel is usually a reference, which takes any node; the others may have to ask the vendor's library.
    if (all.back()->supports(asked)) return "";
    const KernelChoice choice = choose(asked);
    return choice.kernel != nullptr ? "" : choice.reasons();
  };
  KernelQuery asked = query(graph, node);
  std::string why = reason(asked);
  if (!why.empty() || stage == Stage::kAfterLayout || options_.memory_format == LayoutMode::kContiguous) return why;
  const std::deque<TensorType> images = lay_channels_last(asked);
  return images.empty() ? "" : reason(asked);
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
