#include "libcore/runtime/compile.h"

#include <algorithm>
#include <set>

#include "libcore/backends/table.h"
#include "libcore/base/parallel.h"
#include "libcore/passes/assign_precision.h"
#include "libcore/passes/fuse.h"
#include "libcore/passes/order_updates.h"
#include "libcore/passes/winograd.h"

namespace galley {
namespace {

/// Constants larger than this are made anew each run rather than kept.
constexpr int64_t kLargestKeptConstant = 1 << 20;

KernelQuery query_of(const Graph& graph, const Node& node, int threads) { return {node, context_of(graph, node), threads}; }

/// Asks the kernel that would be chosen. One without a preference takes weights as they come, but nobody wants the reference for it.
LayoutOptions layout_options(const CompileOptions& options, int threads) {
  LayoutOptions layout;
  layout.mode = options.memory_format;
  layout.given = options.parameter_formats;
  const bool reference_only = options.reference_only;
  const auto as_it_is = [=](const Kernel* kernel, const MemoryFormat& format) {
    return kernel != nullptr && (reference_only || !kernel->reference) ? format : MemoryFormat();
  };
  layout.preferred_weight = [=](const Graph& graph, const Node& node, size_t input) {
    const KernelQuery query = query_of(graph, node, threads);
    const Kernel* kernel = choose_kernel(query, reference_only).kernel;
    if (kernel == nullptr || kernel->preferred_format == nullptr) return as_it_is(kernel, query.in(static_cast<int>(input)).format);
    return kernel->preferred_format(query, static_cast<int>(input));
  };
  layout.preferred_output = [=](const Graph& graph, const Node& node) {
    const KernelQuery query = query_of(graph, node, threads);
    const Kernel* kernel = choose_kernel(query, reference_only).kernel;
    if (kernel == nullptr || kernel->preferred_output_format == nullptr) return as_it_is(kernel, query.out(0).format);
    return kernel->preferred_output_format(query, 0);
  };
  return layout;
}

/// Moves nodes that depend on unchanging parameters, buffers and constants alone to the front. Returns how many.
size_t hoist_prepare(Graph& graph) {
  std::set<ValueId> changed;  // named inputs that the graph updates
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      if (node.input(static_cast<size_t>(update.input)) != kNoValue) changed.insert(node.inputs[static_cast<size_t>(update.input)]);
    }
  }
  std::vector<bool> fixed(graph.value_count());
  for (ValueId id : graph.inputs()) {
    const ValueRole role = graph.value(id).role;
    fixed[static_cast<size_t>(id)] = (role == ValueRole::kParameter || role == ValueRole::kBuffer) && changed.count(id) == 0;
  }
  std::deque<Node> front, rest;
  for (const Node& node : graph.nodes()) {
    bool early = node.op->updates.empty() && !node.op->has_effect;
    for (ValueId id : node.inputs) early &= id == kNoValue || fixed[static_cast<size_t>(id)];
    if (node.inputs.empty()) {
      for (ValueId id : node.outputs) early &= graph.type(id).bytes() <= kLargestKeptConstant;
    }
    for (ValueId id : node.outputs) fixed[static_cast<size_t>(id)] = early;
    (early ? front : rest).push_back(node);
  }
  const size_t count = front.size();
  front.insert(front.end(), rest.begin(), rest.end());
  graph.set_nodes(std::move(front));
  return count;
}

/// Formats are not assigned yet: images are taken as they will lie.
bool has_kernel_in(const Graph& graph, const Node& node, LayoutMode mode, int threads) {
  KernelQuery query = query_of(graph, node, threads);
  std::deque<TensorType> images;
  const auto lay = [&](const TensorType*& type) {
    if (type == nullptr || type->shape.rank() < 4) return;
    images.push_back(*type);
    images.back().format = MemoryFormat::channels_last_for_rank(type->shape.rank());
    type = &images.back();
  };
  if (mode != LayoutMode::kContiguous && node.op->layout.formats == FormatRule::kKeeps) {
    for (size_t i = 0; i < query.context.inputs.size(); ++i) {
      if (i >= node.op->inputs.size() || node.op->inputs[i].kind != PortKind::kWeight) lay(query.context.inputs[i]);
    }
    for (const TensorType*& type : query.context.outputs) lay(type);
  }
  return !choose_kernel(query).kernel->reference;
}

bool computes_in_f32(const Graph& graph, const Node& node) {
  for (ValueId id : node.outputs) {
    if (graph.type(id).dtype == DType::kF32) return true;
  }
  return false;
}

}  // namespace

bool has_kernel(const Graph& graph, const Node& node, const CompileOptions& options) {
  return !options.reference_only && has_kernel_in(graph, node, options.memory_format, options.threads > 0 ? options.threads : compute_threads());
}

std::shared_ptr<const Program> compile(Graph graph, const CompileOptions& options) {
  const int threads = options.threads > 0 ? options.threads : compute_threads();
  const ThreadShare share(threads);  // the vendor library builds its primitives for the threads that it sees
  auto program = std::make_shared<Program>();
  program->threads_ = threads;
  graph.remove_dead_nodes();
  const auto has_own_kernel = [threads](const Graph& probe, const Node& node) { return !choose_kernel(query_of(probe, node, threads)).kernel->reference; };
  if (!options.reference_only) {
    const auto has_kernel_then = [&](const Graph& probe, const Node& node) { return has_kernel_in(probe, node, options.memory_format, threads); };
    fuse_gates(graph, has_kernel_then);
    program->report_.widened = widen_unsupported(graph, has_kernel_then);
  }
  if (options.winograd && !options.reference_only && options.memory_format != LayoutMode::kContiguous) {
    use_winograd(graph, has_own_kernel);
  }
  order_updates(graph);
  program->report_.layout = assign_layout(graph, layout_options(options, threads));
  if (!options.reference_only) {
    fuse_pointwise(graph, has_own_kernel);
    fuse_gradient_sums(graph, has_own_kernel);
  }
  const size_t prepare_nodes = hoist_prepare(graph);
  verify(graph);
  program->graph_ = std::move(graph);
  const Graph& final_graph = program->graph_;

  std::vector<int64_t> scratch;
  int index = 0;
  for (const Node& node : final_graph.nodes()) {
    scratch.push_back(0);
    if (!is_view(final_graph, node)) {
      const KernelQuery query = query_of(final_graph, node, threads);
      KernelChoice choice = choose_kernel(query, options.reference_only);
      if (choice.kernel == nullptr) {
        std::string reasons;
        for (const std::string& reason : choice.declined) reasons += "\n  " + reason;
        fail(ErrorCode::kRecipe, "no kernel for ", node.op->name, node.path.empty() ? "" : " at ", node.path, reasons);
      }
      Step step;
      step.node = index;
      step.kernel = choice.kernel->prepare(query);
      step.backend = choice.kernel->algorithm;
      step.reference = choice.kernel->reference;
      step.updates = !node.op->updates.empty() || node.phase == Phase::kUpdate;
      scratch.back() = step.kernel->scratch_bytes();
      const std::string implementation = step.kernel->implementation();
      const bool slow_reference = step.reference && !options.reference_only && computes_in_f32(final_graph, node) &&
                                  cost_of(*node.op, query.context).flops > 0 && final_graph.type(node.outputs[0]).elements() > 1;
      if (slow_reference) {
        std::string reasons;
        for (const std::string& reason : choice.declined) reasons += (reasons.empty() ? "" : "; ") + reason;
        program->report_.warnings.push_back(cat(node.path, ": ", node.op->name, " runs on the slow reference kernel",
                                                reasons.empty() ? " (there is no other)" : " (", reasons, reasons.empty() ? "" : ")"));
      }
      if (implementation.find("ref:any") != std::string::npos || implementation.starts_with("gemm")) {
        program->report_.warnings.push_back(cat(node.path, ": ", node.op->name, " runs on the slow implementation ", implementation));
      }
      program->report_.kernels.push_back(
          {node.path, std::string(node.op->name), std::string(step.backend), implementation, std::move(choice.declined)});
      if (static_cast<size_t>(index) < prepare_nodes) program->prepare_steps_ = program->steps_.size() + 1;
      program->steps_.push_back(std::move(step));
    }
    ++index;
  }
  program->memory_ = plan_memory(final_graph, scratch, options.guard_bytes, prepare_nodes);
  return program;
}

std::shared_ptr<const Program> ProgramCache::get(const std::string& key, const std::string& reason,
                                                 const std::function<std::shared_ptr<const Program>()>& make) {
  std::shared_ptr<const Program>& program = programs_[key];
  if (program == nullptr) {
    program = make();
    reasons_.push_back(cat(key, ": ", reason));
  }
  return program;
}

}  // namespace galley
