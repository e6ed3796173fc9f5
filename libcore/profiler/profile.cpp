#include "libcore/profiler/profile.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "libcore/ops/registry.h"
#include "libcore/runtime/compile.h"

namespace galley {
namespace {

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

void add(WorkSum& to, const WorkSum& what) {
  to.calls += what.calls;
  to.self_s += what.self_s;
  to.flops += what.flops;
  to.executed += what.executed;
  to.bytes += what.bytes;
  to.limit_s += what.limit_s;
}

bool is_compute_bound(const Arithmetic& work, double bytes, const MachineLimits& machine) {
  return work.seconds_at(machine) * machine.bytes_per_s > bytes;
}
void set_bound(WorkSum& sum, const MachineLimits& machine) { sum.compute_bound = is_compute_bound(sum.executed, sum.bytes, machine); }

std::string shape_text(const Graph& graph, const Node& node) {
  std::string text;
  for (ValueId id : node.inputs) {
    if (id == kNoValue || graph.type(id).shape.rank() == 0) continue;
    text += cat(text.empty() ? "" : " ", graph.type(id).shape);
  }
  return cat(text, text.empty() ? "-> " : " -> ", node.outputs.empty() ? std::string("-") : cat(graph.type(node.outputs[0]).shape));
}

/// The path of a module's parent: "layer1.0.conv1" -> "layer1.0"; "" is the model.
std::string parent_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// The tree of modules, filled from operator rows.
class ModuleTree {
 public:
  ModuleTree() {
    rows_.emplace_back();
    index_[""] = 0;
  }

  void add_operator(const OperatorRow& row) {
    const size_t at = find(row.module);
    add(rows_[at], row);
    for (int i = static_cast<int>(at); i >= 0; i = rows_[static_cast<size_t>(i)].parent) {
      ModuleRow& module = rows_[static_cast<size_t>(i)];
      module.total_s += row.self_s;
      (row.phase == "forward" ? module.forward_s : row.phase == "backward" ? module.backward_s : module.update_s) += row.self_s;
      module.total_flops += row.flops;
      module.total_executed += row.executed;
      module.total_bytes += row.bytes;
      module.total_limit_s += row.limit_s;
    }
  }
  void add_bytes(const std::string& path, int64_t ModuleRow::* member, int64_t bytes) {
    for (int i = static_cast<int>(find(path)); i >= 0; i = rows_[static_cast<size_t>(i)].parent)
      rows_[static_cast<size_t>(i)].*member += bytes;
  }

  /// Parents before children, children in order of their first appearance.
  std::vector<ModuleRow> finish(double wall_s, const MachineLimits& machine) {
    std::vector<std::vector<size_t>> children(rows_.size());
    for (size_t i = 1; i < rows_.size(); ++i) children[static_cast<size_t>(rows_[i].parent)].push_back(i);
    std::vector<ModuleRow> ordered;
    std::vector<std::pair<size_t, int>> open{{0, -1}};
    while (!open.empty()) {
      const auto [at, parent] = open.back();
      open.pop_back();
      ModuleRow row = rows_[at];
      row.parent = parent;
      row.percent = wall_s > 0 ? 100 * row.total_s / wall_s : 0;
      row.compute_bound = is_compute_bound(row.total_executed, row.total_bytes, machine);
      const int here = static_cast<int>(ordered.size());
      ordered.push_back(std::move(row));
      for (size_t c = children[at].size(); c-- > 0;) open.push_back({children[at][c], here});
    }
    return ordered;
  }

 private:
  size_t find(const std::string& path) {
    if (const auto found = index_.find(path); found != index_.end()) return found->second;
    const size_t parent = find(parent_path(path));
    ModuleRow row;
    row.path = path;
    row.parent = static_cast<int>(parent);
    row.depth = rows_[parent].depth + 1;
    rows_.push_back(std::move(row));
    return index_[path] = rows_.size() - 1;
  }

  std::vector<ModuleRow> rows_;
  std::map<std::string, size_t> index_;
};

}  // namespace

std::string_view phase_name(Phase phase) {
  return phase == Phase::kForward ? "forward" : phase == Phase::kBackward ? "backward" : "update";
}

const OpDef* operator_of(const OperatorRow& row) {
  ensure_ops_registered();
  return find_op_or_null(row.type);
}

OperatorRow describe(const Program& program, size_t step, const MachineLimits& machine) {
  const Graph& graph = program.graph();
  const Step& taken = program.steps()[step];
  const Node& node = graph.nodes()[static_cast<size_t>(taken.node)];
  const KernelReport& kernel = program.report().kernels[step];
  OperatorRow row;
  row.module = node.path;
  row.type = node.op->name;
  row.phase = phase_name(node.phase);
  row.backend = kernel.backend;
  row.implementation = kernel.implementation;
  row.shape = shape_text(graph, node);
  const Cost cost = cost_of(*node.op, context_of(graph, node));
  row.calls = 1;
  row.flops = cost.flops;
  row.executed.add(cost);
  row.bytes = cost.bytes_read + cost.bytes_written;
  if (machine.flops_per_s > 0 && machine.bytes_per_s > 0)
    row.limit_s = std::max(row.executed.seconds_at(machine), row.bytes / machine.bytes_per_s);
  set_bound(row, machine);
  if (taken.reference || is_slow(row.implementation)) {
    for (const std::string& reason : kernel.declined) row.note += cat(row.note.empty() ? "" : "; ", reason);
    if (row.note.empty()) row.note = taken.reference ? "no other kernel supports it" : "oneDNN has no faster kernel for it";
  }
  return row;
}

namespace {

/// Values indexed by program and step.
template <class T>
using PerStep = std::vector<std::vector<T>>;

struct Measured {
  int64_t calls = 0, ns = 0;
};

PerStep<OperatorRow> describe_programs(const Recording& recording, const MachineLimits& machine) {
  PerStep<OperatorRow> described;
  for (const Program* program : recording.programs) {
    std::vector<OperatorRow> rows;
    const std::vector<bool> clones = recomputed_nodes(program->graph());
    for (size_t s = 0; s < program->steps().size(); ++s) {
      OperatorRow row = describe(*program, s, machine);
      row.recomputed = clones[static_cast<size_t>(program->steps()[s].node)];
      rows.push_back(std::move(row));
    }
    described.push_back(std::move(rows));
  }
  return described;
}

/// Adds the steps' times to the profile and each operator's time to `measured`.
void add_times(const Recording& recording, Profile& profile, PerStep<Measured>& measured) {
  const StepMark* before = nullptr;
  for (const StepMark& step : recording.steps) {
    // Consecutive steps form one window that includes the time between them; a skipped step ends it.
    const bool consecutive = before != nullptr && step.number == before->number + 1;
    const int64_t begin = consecutive ? before->end_ns : step.begin_ns;
    int64_t nodes_ns = 0, waits_ns = 0;
    for (size_t e = step.first_node; e < step.end_node; ++e) {
      const NodeEvent& event = recording.nodes[e];
      Measured& operation = measured[static_cast<size_t>(event.program)][static_cast<size_t>(event.step)];
      ++operation.calls;
      operation.ns += event.end_ns - event.begin_ns;
      nodes_ns += event.end_ns - event.begin_ns;
    }
    for (size_t w = step.first_wait; w < step.end_wait; ++w) waits_ns += recording.waits[w].end_ns - recording.waits[w].begin_ns;
    ++profile.steps;
    profile.step_s.push_back(seconds(step.end_ns - begin));
    profile.waits_s.push_back(seconds(waits_ns));
    profile.wall_s += seconds(step.end_ns - begin);
    profile.compute_s += seconds(nodes_ns);
    profile.data_s += seconds(waits_ns);
    profile.resident_bytes = std::max(profile.resident_bytes, step.resident_bytes);
    before = &step;
  }
  profile.gap_s = profile.wall_s - profile.compute_s - profile.data_s;
}

/// A described operator with the totals of its calls.
OperatorRow times_calls(OperatorRow row, const Measured& measured) {
  const auto calls = static_cast<double>(measured.calls);
  row.calls = measured.calls;
  row.self_s = seconds(measured.ns);
  row.flops *= calls;
  row.executed = row.executed * calls;
  row.bytes *= calls;
  row.limit_s *= calls;
  return row;
}

/// Sets the profile's work and operators (slowest first) and adds each operator to its modules. Equal operators of several programs become
/// one row.
void add_operators(const PerStep<OperatorRow>& described, const PerStep<Measured>& measured, Profile& profile, ModuleTree& tree) {
  std::map<std::tuple<std::string, std::string, std::string, std::string, std::string, bool>, OperatorRow> rows;
  for (size_t p = 0; p < described.size(); ++p) {
    for (size_t s = 0; s < described[p].size(); ++s) {
      if (measured[p][s].calls == 0) continue;
      OperatorRow row = times_calls(described[p][s], measured[p][s]);
      add(profile.work, row);
      tree.add_operator(row);
      OperatorRow& sum = rows[{row.module, row.type, row.phase, row.shape, row.implementation, row.recomputed}];
      if (sum.calls == 0) {
        sum = std::move(row);
      } else {
        add(sum, row);
      }
    }
  }
  for (auto& [key, row] : rows) {
    row.percent = profile.wall_s > 0 ? 100 * row.self_s / profile.wall_s : 0;
    profile.operators.push_back(std::move(row));
  }
  std::stable_sort(profile.operators.begin(), profile.operators.end(),
                   [](const OperatorRow& a, const OperatorRow& b) { return a.self_s > b.self_s; });
}

/// Adds the bytes of parameters and activations to the modules.
void add_module_bytes(const Program& program, ModuleTree& tree) {
  for (ValueId id : program.graph().inputs()) {
    const ValueInfo& info = program.graph().value(id);
    if (info.role == ValueRole::kParameter) tree.add_bytes(parent_path(info.name), &ModuleRow::parameter_bytes, info.type.bytes());
  }
  for (const Step& step : program.steps()) {
    const Node& node = program.graph().nodes()[static_cast<size_t>(step.node)];
    for (ValueId id : node.outputs) {
      const MemorySlot& place = program.memory().values[static_cast<size_t>(id)];
      if (place.region == MemorySlot::Region::kArena) tree.add_bytes(node.path, &ModuleRow::made_bytes, place.bytes);
    }
  }
}

}  // namespace

Profile make_profile(const Recording& recording, const MachineLimits& machine) {
  GALLEY_ASSERT(!recording.steps.empty() && recording.steps.back().end_ns > 0, "a profile needs at least one finished step");
  Profile profile;
  profile.machine = machine;
  const PerStep<OperatorRow> described = describe_programs(recording, machine);
  PerStep<Measured> measured(described.size());
  for (size_t p = 0; p < described.size(); ++p) measured[p].resize(described[p].size());
  add_times(recording, profile, measured);
  ModuleTree tree;
  add_operators(described, measured, profile, tree);
  set_bound(profile.work, machine);
  if (recording.programs.empty()) return profile;
  const Program& last = *recording.programs[static_cast<size_t>(recording.nodes.empty() ? 0 : recording.nodes.back().program)];
  add_module_bytes(last, tree);
  profile.modules = tree.finish(profile.wall_s, machine);
  profile.memory = memory_timeline(last);
  return profile;
}

std::vector<OperatorRow> grouped(const Profile& profile, ProfileGroup group) {
  if (group == ProfileGroup::kLayer) return profile.operators;
  std::map<std::tuple<std::string, std::string, std::string>, OperatorRow> sums;
  for (const OperatorRow& row : profile.operators) {
    const bool by_module = group == ProfileGroup::kModule, by_shape = group == ProfileGroup::kShape;
    OperatorRow& sum = sums[{by_module ? row.module : row.type, by_module ? "" : row.phase, by_shape ? row.shape : ""}];
    if (sum.calls == 0) {
      if (by_module) {
        sum.module = row.module;
      } else {
        sum.type = row.type;
        sum.phase = row.phase;
        sum.backend = row.backend;
      }
      if (by_shape) sum.shape = row.shape;
    } else if (sum.backend != row.backend && !sum.backend.empty()) {
      sum.backend = "several";
    }
    add(sum, row);
    sum.percent += row.percent;
  }
  std::vector<OperatorRow> rows;
  for (auto& [key, row] : sums) {
    set_bound(row, profile.machine);
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const OperatorRow& a, const OperatorRow& b) { return a.self_s > b.self_s; });
  return rows;
}

}  // namespace galley
