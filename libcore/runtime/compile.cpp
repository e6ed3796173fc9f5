#include "libcore/runtime/compile.h"

#include "libcore/base/parallel.h"
#include "libcore/passes/pipelines.h"

namespace galley {
namespace {

bool computes_in_f32(const Graph& graph, const Node& node) {
  for (ValueId id : node.outputs) {
    if (graph.type(id).dtype == DType::kF32) return true;
  }
  return false;
}

std::string joined(const std::vector<std::string>& lines, std::string_view separator) {
  std::string text;
  for (const std::string& line : lines) text += cat(text.empty() ? "" : separator, line);
  return text;
}

/// The node's kernel, prepared. Adds to the report.
Step prepare_step(const Graph& graph, const Node& node, const Backend& backend, ProgramReport& report) {
  const KernelQuery query = backend.query(graph, node);
  KernelChoice choice = backend.choose(query);
  if (choice.kernel == nullptr) {
    fail(ErrorCode::kRecipe, "no kernel for ", node.op->name, node.path.empty() ? "" : " at ", node.path,
         choice.declined.empty() ? "" : "\n  ", joined(choice.declined, "\n  "));
  }
  Step step;
  step.kernel = choice.kernel->prepare(query);
  step.backend = choice.kernel->algorithm;
  step.reference = choice.kernel->reference;
  step.updates = !node.op->updates.empty() || node.phase == Phase::kUpdate;
  const bool slow_reference = step.reference && !backend.reference() && computes_in_f32(graph, node) &&
                              cost_of(*node.op, query.context).flops > 0 && graph.type(node.outputs[0]).elements() > 1;
  if (slow_reference) {
    const std::string why = choice.declined.empty() ? "there is no other" : joined(choice.declined, "; ");
    report.warnings.push_back(cat(node.path, ": ", node.op->name, " runs on the slow reference kernel (", why, ")"));
  }
  std::string implementation = step.kernel->implementation();
  if (implementation.find("ref:any") != std::string::npos || implementation.starts_with("gemm")) {
    report.warnings.push_back(cat(node.path, ": ", node.op->name, " runs on the slow implementation ", implementation));
  }
  report.kernels.push_back(
      {node.path, std::string(node.op->name), std::string(step.backend), std::move(implementation), std::move(choice.declined)});
  return step;
}

}  // namespace

std::shared_ptr<const Program> compile(Graph graph, const CompileOptions& options) {
  auto program = std::make_shared<Program>();
  program->backend_ = options.backend ? options.backend : open_backend();
  const Backend& backend = *program->backend_;
  program->threads_ = backend.limits().threads;
  const ThreadShare share(program->threads_);  // the vendor library builds its primitives for the threads that it sees
  CompileReport passes = compile_passes(graph, backend, {.mode = backend.options().memory_format, .given = options.parameter_formats});
  program->report_.widened = passes.rewrites.widened;
  program->report_.layout = std::move(passes.layout);
  program->graph_ = std::move(graph);

  std::vector<int64_t> scratch;
  for (const Node& node : program->graph_.nodes()) {
    const size_t index = scratch.size();
    scratch.push_back(0);
    if (is_view(program->graph_, node)) continue;
    Step step = prepare_step(program->graph_, node, backend, program->report_);
    step.node = static_cast<int>(index);
    scratch.back() = step.kernel->scratch_bytes();
    program->steps_.push_back(std::move(step));
    if (index < passes.prepare_nodes) program->prepare_steps_ = program->steps_.size();
  }
  program->memory_ = plan_memory(program->graph_, scratch, options.guard_bytes, passes.prepare_nodes);
  return program;
}

}  // namespace galley
