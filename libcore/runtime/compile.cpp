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

/// Throws one error that lists the nodes without a kernel.
[[noreturn]] void refuse(const Graph& graph, const std::vector<KernelChoice>& choices, const Backend& backend) {
  constexpr int kMost = 8;  // lines of the message
  std::string text = cat("device ", backend.name(), " has no kernel for");
  int missing = 0;
  auto choice = choices.begin();
  for (const Node& node : graph.nodes()) {
    const KernelChoice& chosen = *choice++;
    if (is_view(graph, node) || chosen.kernel != nullptr || ++missing > kMost) continue;
    text += cat("\n  ", node.op->name, node.path.empty() ? "" : " at ", node.path);
    if (!chosen.declined.empty()) text += cat(" (", chosen.reasons(), ")");
  }
  if (missing > kMost) text += cat("\n  and ", missing - kMost, " more");
  throw Error(ErrorCode::kRecipe, std::move(text)).key("device").suggest("device=cpu has a kernel for every operator");
}

/// Chooses the kernel of each node, by position; views need none. Throws Error if a node has none.
std::vector<KernelChoice> choose_kernels(const Graph& graph, const Backend& backend) {
  std::vector<KernelChoice> choices;
  bool complete = true;
  for (const Node& node : graph.nodes()) {
    KernelChoice& choice = choices.emplace_back();
    if (is_view(graph, node)) continue;
    choice = backend.choose(backend.query(graph, node));
    complete &= choice.kernel != nullptr;
  }
  if (!complete) refuse(graph, choices, backend);
  return choices;
}

/// Prepares the node's kernel and adds it to the report.
Step prepare_step(const Graph& graph, const Node& node, const Backend& backend, KernelChoice choice, ProgramReport& report) {
  const KernelQuery query = backend.query(graph, node);
  Step step;
  step.kernel = choice.kernel->prepare(query);
  step.backend = choice.kernel->algorithm;
  step.reference = choice.kernel->reference;
  step.updates = !node.op->updates.empty() || node.phase == Phase::kUpdate;
  const bool slow_reference = step.reference && !backend.reference() && computes_in_f32(graph, node) &&
                              cost_of(*node.op, query.context).flops > 0 && graph.type(node.outputs[0]).elements() > 1;
  if (slow_reference) {
    const std::string why = choice.declined.empty() ? "it has no other kernel" : choice.reasons();
    report.warnings.push_back(cat(node.path, ": ", node.op->name, " runs on the slow reference kernel (", why, ")"));
  }
  std::string implementation = step.kernel->implementation();
  if (is_slow(implementation)) {
    report.warnings.push_back(cat(node.path, ": ", node.op->name, " runs on the slow implementation ", implementation));
  }
  report.kernels.push_back(
      {node.path, std::string(node.op->name), std::string(step.backend), std::move(implementation), std::move(choice.declined)});
  return step;
}

/// Parameters and buffers that no step after `prepare` reads and no output shows, where no step changes any array.
std::set<ValueId> read_by_prepare(const Program& program) {
  const Graph& graph = program.graph();
  std::set<ValueId> found;
  for (const ValueId id : graph.inputs()) {
    const ValueRole role = graph.value(id).role;
    if ((role == ValueRole::kParameter || role == ValueRole::kBuffer) && graph.type(id).bytes() > 0) found.insert(id);
  }
  const auto named = [&](ValueId id) { return id == kNoValue ? kNoValue : program.memory().values[static_cast<size_t>(id)].named; };
  for (size_t s = 0; s < program.steps().size(); ++s) {
    if (program.steps()[s].updates) return {};
    if (s < program.prepare_steps()) continue;
    for (const ValueId id : graph.nodes()[static_cast<size_t>(program.steps()[s].node)].inputs) found.erase(named(id));
  }
  for (const auto& [name, id] : graph.outputs()) found.erase(named(id));
  return found;
}

}  // namespace

bool is_slow(std::string_view implementation) {
  return implementation.find("ref:any") != std::string_view::npos || implementation.starts_with("gemm");
}

std::shared_ptr<const Program> compile(Graph graph, const CompileOptions& options) {
  auto program = std::make_shared<Program>();
  program->backend_ = options.backend ? options.backend : open_backend();
  const Backend& backend = *program->backend_;
  program->threads_ = backend.limits().threads;
  const ThreadShare share(program->threads_);  // the vendor library builds its primitives for the current number of threads
  CompileReport passes = compile_passes(graph, backend, {.mode = backend.options().memory_format, .given = options.parameter_formats});
  ProgramReport& report = program->report_;
  report.layout = std::move(passes.layout);
  report.rewrites = std::move(passes.rewrites);
  for (const std::string& line : passes.expansion.done)
    report.warnings.push_back(cat(line, ": device ", backend.name(), " has no kernel for this form of the operator"));
  program->graph_ = std::move(graph);

  std::vector<KernelChoice> choices = choose_kernels(program->graph_, backend);
  std::vector<int64_t> scratch;
  for (const Node& node : program->graph_.nodes()) {
    const size_t index = scratch.size();
    scratch.push_back(0);
    if (is_view(program->graph_, node)) continue;
    Step step = prepare_step(program->graph_, node, backend, std::move(choices[index]), report);
    step.node = static_cast<int>(index);
    scratch.back() = step.kernel->scratch_bytes();
    program->steps_.push_back(std::move(step));
    if (index < passes.prepare_nodes) program->prepare_steps_ = program->steps_.size();
  }
  program->memory_ = plan_memory(program->graph_, scratch, options.guard_bytes, passes.prepare_nodes);
  if (!backend.device().is_host()) program->on_host_ = read_by_prepare(*program);
  return program;
}

}  // namespace galley
