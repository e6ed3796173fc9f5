#include "libcore/dist/graph_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "libcore/base/error.h"
#include "libcore/ops/collective.h"
#include "libcore/profiler/memory_timeline.h"

namespace galley {
namespace {

/// Values other than the largest one may cross the boundary of two stages if they are this small: masks, positions.
constexpr double kSmallShare = 0.05;

/// The smallest extent of a product, from the sizes of its operands: an output of M N elements with K terms each, a second operand of K N.
double extent_of(const Cost& cost, const OpContext& context) {
  const auto outputs = static_cast<double>(std::max<int64_t>(1, context.out(0).elements()));
  const double terms = std::max(1.0, cost.flops / 2 / outputs);
  const double second = context.has(1) ? static_cast<double>(context.in(1).elements()) : outputs;
  const double columns = std::clamp(second / terms, 1.0, outputs);
  return std::max(1.0, std::min({terms, columns, outputs / columns}));
}

class GraphReader {
 public:
  GraphReader(const Graph& graph, const std::vector<GraphParameter>& parameters, const GraphModelOptions& options)
      : graph_(graph), parameters_(parameters), options_(options), count_(static_cast<int>(graph.nodes().size())) {}

  PlanModel read() {
    clones_ = recomputed_nodes(graph_);
    find_units();
    find_storage();
    find_tables();
    make_segments();
    add_memory();
    add_boundaries();
    return std::move(model_);
  }

 private:
  const Node& node(int n) const { return graph_.nodes()[static_cast<size_t>(n)]; }
  static size_t at(int n) { return static_cast<size_t>(n); }

  void find_units() {
    std::vector<std::pair<std::string, int64_t>> modules;
    for (const GraphParameter& parameter : parameters_) {
      const ValueId id = graph_.find_input(parameter.name);
      modules.emplace_back(parameter.module, id == kNoValue ? 0 : graph_.type(id).elements());
    }
    const ModuleUnits units = module_units(modules, options_.wrap);
    for (const std::string& name : units.names) model_.units.push_back({.name = name.empty() ? "model" : name, .parts = {}});
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const ValueId id = graph_.find_input(parameters_[i].name);
      const bool matrix = id != kNoValue && graph_.type(id).shape.rank() >= 2;
      model_.parameters.push_back({.name = parameters_[i].name,
                                   .elements = modules[i].second,
                                   .unit = units.of[i],
                                   .trained = parameters_[i].trained,
                                   .divisible = matrix,
                                   .rows = matrix ? graph_.type(id).shape[0] : 0,
                                   .group = parameters_[i].group,
                                   .order = parameters_[i].order});
      unit_of_module_[parameters_[i].module] = units.of[i];
      parameters_of_module_[parameters_[i].module].push_back(i);
      if (id != kNoValue) parameter_of_[id] = i;
    }
  }

  /// The module with parameters that a node belongs to: its own path or the nearest one above, "" if there is none.
  const std::string& owner(const std::string& path) {
    const auto known = owners_.find(path);
    if (known != owners_.end()) return known->second;
    std::string module = path;
    while (!module.empty() && !unit_of_module_.contains(module)) {
      const size_t dot = module.rfind('.');
      module = dot == std::string::npos ? "" : module.substr(0, dot);
    }
    return owners_[path] = module;
  }

  /// For each value: whose memory it is, its last reader, and whether it comes from parameters only or is a gradient of one.
  void find_storage() {
    const size_t n = graph_.value_count();
    root_.resize(n);
    for (size_t v = 0; v < n; ++v) root_[v] = static_cast<ValueId>(v);
    last_.assign(n, -1);
    last_forward_.assign(n, -1);
    from_parameters_.assign(n, false);
    gradient_.assign(n, false);
    std::vector<Phase> made(n, Phase::kForward);
    for (const ValueId id : graph_.inputs()) from_parameters_[static_cast<size_t>(id)] = graph_.value(id).role == ValueRole::kParameter;
    for (int i = 0; i < count_; ++i) {
      const Node& node = this->node(i);
      bool constant = !node.inputs.empty();
      for (const ValueId id : node.inputs) {
        if (id == kNoValue) continue;
        last_[static_cast<size_t>(root_[static_cast<size_t>(id)])] = i;
        if (node.phase == Phase::kForward && !is_view(graph_, node)) last_forward_[static_cast<size_t>(root_[static_cast<size_t>(id)])] = i;
        constant = constant && from_parameters_[static_cast<size_t>(id)];
        if (node.phase == Phase::kUpdate && made[static_cast<size_t>(id)] == Phase::kBackward)
          gradient_[static_cast<size_t>(root_[static_cast<size_t>(id)])] = true;
      }
      for (const ValueId id : node.outputs) {
        made[static_cast<size_t>(id)] = node.phase;
        from_parameters_[static_cast<size_t>(id)] = constant;
        last_[static_cast<size_t>(id)] = i;
      }
      if (is_view(graph_, node)) root_[static_cast<size_t>(node.outputs[0])] = root_[static_cast<size_t>(node.inputs[0])];
      for (const InPlace& update : node.op->updates) {
        const ValueId state = node.input(static_cast<size_t>(update.input));
        if (state != kNoValue && update.output < static_cast<int>(node.outputs.size()))
          from_parameters_[static_cast<size_t>(node.outputs[static_cast<size_t>(update.output)])] = true;
      }
    }
  }

  /// Tables: matrices whose readers all select rows of them by an index.
  void find_tables() {
    std::map<ValueId, size_t> parameter_of = parameter_of_;  // also copies of parameters in another dtype
    std::vector<double> reads(parameters_.size(), 0);
    std::vector<bool> other(parameters_.size(), false);
    std::map<std::string, size_t> of_path;
    for (int n = 0; n < count_; ++n) {
      const Node& node = this->node(n);
      if (node.phase != Phase::kForward) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const auto read = parameter_of.find(node.inputs[i]);
        if (read == parameter_of.end()) continue;
        const size_t parameter = read->second;
        if (node.inputs.size() == 1 && from_parameters_[static_cast<size_t>(node.outputs[0])]) {
          parameter_of[node.outputs[0]] = parameter;
          continue;
        }
        const double rows = selected_rows(node, i);
        other[parameter] = other[parameter] || rows == 0;
        reads[parameter] += rows;
        of_path[node.path] = parameter;
      }
    }
    std::vector<int> table_of(parameters_.size(), -1);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const PlanParameter& parameter = model_.parameters[p];
      if (reads[p] == 0 || other[p]) continue;
      table_of[p] = static_cast<int>(model_.tables.size());
      model_.tables.push_back({.parameter = p,
                               .module = parameters_[p].module,
                               .rows = parameter.rows,
                               .width = parameter.elements / std::max<int64_t>(1, parameter.rows),
                               .reads = reads[p]});
    }
    find_operations_of_tables(parameter_of, of_path, table_of);
  }

  /// Rows that a node selects of the matrix at input `i` by an index; 0: it does something else with it.
  double selected_rows(const Node& node, size_t i) const {
    const TensorType& matrix = graph_.type(node.inputs[i]);
    if (matrix.shape.rank() != 2) return 0;
    for (size_t k = 0; k < std::min(node.inputs.size(), node.op->inputs.size()); ++k) {
      if (k == i || node.op->inputs[k].kind != PortKind::kIndex || node.inputs[k] == kNoValue) continue;
      const int64_t rows = graph_.type(node.inputs[k]).elements();
      if (graph_.type(node.outputs[0]).elements() == rows * matrix.shape[1]) return static_cast<double>(rows);
    }
    return 0;
  }

  /// Lookups, the operators that add rows of gradients, and updates.
  void find_operations_of_tables(const std::map<ValueId, size_t>& parameter_of, const std::map<std::string, size_t>& of_path,
                                 const std::vector<int>& table_of) {
    table_of_node_.assign(at(count_), -1);
    for (int n = 0; n < count_; ++n) {
      const Node& node = this->node(n);
      if (node.phase == Phase::kBackward) {
        const auto path = of_path.find(node.path);
        const bool indexed =
            std::any_of(node.op->inputs.begin(), node.op->inputs.end(), [](const Port& port) { return port.kind == PortKind::kIndex; });
        if (path != of_path.end() && indexed) table_of_node_[at(n)] = table_of[path->second];
        continue;
      }
      for (const ValueId id : node.inputs) {
        const auto read = id == kNoValue ? parameter_of.end() : parameter_of.find(id);
        if (read != parameter_of.end() && table_of[read->second] >= 0) table_of_node_[at(n)] = table_of[read->second];
      }
    }
  }

  Operation operation_of(int n) const {
    const Node& node = this->node(n);
    const OpContext context = context_of(graph_, node);
    const Cost cost = cost_of(*node.op, context);
    Operation operation{
        .flops = cost.flops, .executed = cost.executed_flops(), .bytes = cost.bytes_read + cost.bytes_written, .dtype = cost.dtype};
    if (node.op->work == WorkClass::kProduct) {
      operation.extent = extent_of(cost, context);
      if (cost.dtype == DType::kF32 && context.has(0) && is_floating(context.in(0).dtype)) operation.dtype = context.in(0).dtype;
    }
    if (!options_.node_seconds.empty()) operation.seconds = options_.node_seconds[at(n)];
    operation.table = table_of_node_[at(n)];
    return operation;
  }

  void make_segments() {
    segment_of_.assign(at(count_), -1);
    std::map<std::string, int> first_segment;
    std::string forward_module, backward_module;
    for (int n = 0; n < count_; ++n) {
      const Node& node = this->node(n);
      if (is_view(graph_, node)) continue;
      const Operation operation = operation_of(n);
      if (node.phase == Phase::kUpdate) {
        model_.update.push_back(operation);
        continue;
      }
      const bool forward = node.phase == Phase::kForward;
      if (!node.op->view() && node.op->work == WorkClass::kProduct) {
        model_.flops += operation.flops;
        if (!clones_[at(n)]) model_.model_flops += operation.flops;
        if (operation.dtype != DType::kF32) model_.dtype = operation.dtype;
      }
      std::vector<PlanSegment>& segments = forward ? model_.forward : model_.backward;
      std::string& current = forward ? forward_module : backward_module;
      const std::string& module = owner(node.path);
      if (segments.empty() || (!module.empty() && module != current)) {
        const auto unit = unit_of_module_.find(module);
        PlanSegment segment{.name = module.empty() ? "model" : module, .unit = unit == unit_of_module_.end() ? -1 : unit->second};
        segment.first_node = n;
        if (forward) first_segment.emplace(module, static_cast<int>(segments.size()));
        const auto of = first_segment.find(module);
        if (!forward && !module.empty() && of != first_segment.end()) segment.forward = of->second;
        segments.push_back(std::move(segment));
        current = module;
      }
      add_collective(node, segments.back());
      segments.back().work.push_back(operation);
      segment_of_[at(n)] = static_cast<int>(segments.size()) - 1;
      if (!forward) note_gradients(node, static_cast<int>(segments.size()) - 1);
      for (const ValueId id : node.inputs) {
        const auto parameter = forward ? parameter_of_.find(id) : parameter_of_.end();
        if (parameter != parameter_of_.end()) model_.parameters[parameter->second].read_by.push_back(static_cast<int>(segments.size()) - 1);
      }
    }
    // The loss, and modules without a forward segment, belong to the end of the forward pass.
    for (PlanSegment& segment : model_.backward) {
      if (segment.forward < 0) segment.forward = static_cast<int>(model_.forward.size()) - 1;
    }
    for (const auto& [module, segment] : first_segment) {
      const auto own = parameters_of_module_.find(module);
      if (own == parameters_of_module_.end()) continue;
      for (const size_t index : own->second) model_.parameters[index].forward_segment = segment;
    }
    for (PlanParameter& parameter : model_.parameters) {
      if (parameter.forward_segment < 0 && !parameter.read_by.empty()) parameter.forward_segment = parameter.read_by.front();
    }
    if (model_.backward.empty()) return;
    for (const auto& [id, index] : parameter_of_) {
      PlanParameter& parameter = model_.parameters[index];
      if (parameter.trained && parameter.final_segment < 0) parameter.final_segment = static_cast<int>(model_.backward.size()) - 1;
    }
  }

  /// Counts the collectives of tensor parallelism, by their starts.
  void add_collective(const Node& node, PlanSegment& segment) const {
    const auto bytes = static_cast<double>(graph_.type(node.outputs[0]).bytes());
    if (node.op == &all_reduce_start_op() && node.attrs<CollectiveAttrs>().tensor) {
      segment.reduced_bytes = (segment.reduced_bytes * segment.reductions + bytes) / (segment.reductions + 1);
      ++segment.reductions;
    }
    const bool gathers = node.op == &all_gather_start_op(), scatters = node.op == &reduce_scatter_start_op();
    if ((!gathers && !scatters) || !node.attrs<SegmentAttrs>().tensor) return;
    TensorCollectives& all = gathers ? segment.gathers : segment.scatters;
    ++all.count;
    all.bytes += bytes;
  }

  /// The last backward segment of a parameter's module makes its gradient.
  void note_gradients(const Node& node, int segment) {
    const auto own = parameters_of_module_.find(owner(node.path));
    if (own == parameters_of_module_.end()) return;
    for (const size_t index : own->second) {
      if (model_.parameters[index].trained) model_.parameters[index].final_segment = segment;
    }
  }

  bool counts(ValueId id) const {
    const auto v = static_cast<size_t>(id);
    return root_[v] == id && !from_parameters_[v] && !gradient_[v];
  }

  /// Live and kept bytes of the segments.
  void add_memory() {
    std::vector<std::vector<ValueId>> ends(at(count_) + 1);
    double live = 0;
    for (int n = 0; n < count_; ++n) {
      const Node& node = this->node(n);
      if (node.phase == Phase::kUpdate) continue;
      const int s = segment_of_[at(n)];
      PlanSegment* segment = s < 0 ? nullptr : &(node.phase == Phase::kForward ? model_.forward : model_.backward)[at(s)];
      double reused = 0;
      for (const InPlace& reuse : node.op->may_reuse) {
        const ValueId input = node.input(static_cast<size_t>(reuse.input));
        if (input == kNoValue || at(reuse.output) >= node.outputs.size()) continue;
        const ValueId root = root_[static_cast<size_t>(input)];
        const auto shares = [&](ValueId id) { return id != kNoValue && root_[static_cast<size_t>(id)] == root; };
        if (std::count_if(node.inputs.begin(), node.inputs.end(), shares) > 1) continue;
        if (last_[static_cast<size_t>(root)] == n && counts(root) && graph_.value(root).role == ValueRole::kActivation &&
            graph_.type(root).bytes() == graph_.type(node.outputs[at(reuse.output)]).bytes())
          reused = std::max(reused, static_cast<double>(graph_.type(root).bytes()));
      }
      for (const ValueId id : node.outputs) {
        if (!counts(id)) {
          const auto v = static_cast<size_t>(id);
          if (root_[v] == id && from_parameters_[v] && node.op->updates.empty())
            model_.copy_bytes += static_cast<double>(graph_.type(id).bytes());
          continue;
        }
        const auto bytes = static_cast<double>(graph_.type(id).bytes());
        live += bytes;
        const int last = last_[static_cast<size_t>(id)];
        ends[at(last)].push_back(id);
        if (segment != nullptr && node.phase == Phase::kForward && this->node(last).phase != Phase::kForward) segment->kept_bytes += bytes;
      }
      if (segment != nullptr) segment->live_bytes = std::max(segment->live_bytes, live - reused);
      for (const ValueId id : ends[at(n)]) live -= static_cast<double>(graph_.type(id).bytes());
    }
    for (const ValueId id : graph_.inputs()) {
      const ValueInfo& info = graph_.value(id);
      if (info.role == ValueRole::kInput) model_.input_bytes += static_cast<double>(info.type.bytes());
      if (info.role == ValueRole::kBuffer) model_.other_bytes += static_cast<double>(info.type.bytes());
    }
  }

  /// What crosses each boundary between forward segments.
  void add_boundaries() {
    const size_t n = model_.forward.size();
    std::vector<double> sum(n + 1, 0), largest(n + 1, 0);
    for (int i = 0; i < count_; ++i) {
      if (node(i).phase != Phase::kForward || segment_of_[at(i)] < 0) continue;
      for (const ValueId id : node(i).outputs) {
        if (!counts(id)) continue;
        int last = segment_of_[at(i)];
        if (const int reader = last_forward_[static_cast<size_t>(id)]; reader >= 0) last = std::max(last, segment_of_[at(reader)]);
        const auto bytes = static_cast<double>(graph_.type(id).bytes());
        for (int s = segment_of_[at(i)]; s < last; ++s) {
          sum[at(s)] += bytes;
          largest[at(s)] = std::max(largest[at(s)], bytes);
        }
      }
    }
    for (size_t s = 0; s + 1 < n; ++s) {
      if (sum[s] - largest[s] <= kSmallShare * largest[s]) model_.forward[s].output_bytes = sum[s];
    }
  }

  const Graph& graph_;
  const std::vector<GraphParameter>& parameters_;
  const GraphModelOptions& options_;
  int count_;
  PlanModel model_;
  std::map<std::string, int> unit_of_module_;
  std::map<std::string, std::vector<size_t>> parameters_of_module_;
  std::map<std::string, std::string> owners_;
  std::map<ValueId, size_t> parameter_of_;
  std::vector<ValueId> root_;
  std::vector<int> last_, last_forward_, segment_of_, table_of_node_;
  std::vector<bool> clones_, from_parameters_, gradient_;
};

/// "h.3" of "h.3.attn.c_attn": the item of the first list of modules on the path.
std::string block_of(const std::string& module) {
  for (size_t begin = 0; begin < module.size();) {
    const size_t dot = std::min(module.find('.', begin), module.size());
    const bool number = std::all_of(module.begin() + static_cast<long>(begin), module.begin() + static_cast<long>(dot),
                                    [](char c) { return c >= '0' && c <= '9'; });
    if (number && begin > 0) return module.substr(0, dot);
    begin = dot + 1;
  }
  return "";
}

}  // namespace

PlanModel graph_model(const Graph& graph, const std::vector<GraphParameter>& parameters, const GraphModelOptions& options) {
  PlanModel model = GraphReader(graph, parameters, options).read();
  model.samples = options.samples;
  return model;
}

PlanModel tensor_parallel(const PlanModel& model, int64_t ranks) {
  if (ranks == 1) return model;
  const auto t = static_cast<double>(ranks);
  PlanModel part = model;
  bool blocks = false;
  for (PlanParameter& parameter : part.parameters) {
    if (parameter.divisible) parameter.elements = (parameter.elements + ranks - 1) / ranks;
  }
  const auto divide = [&](std::vector<PlanSegment>& segments, bool forward) {
    for (size_t i = 0; i < segments.size(); ++i) {
      PlanSegment& segment = segments[i];
      for (Operation& operation : segment.work) {
        operation.flops /= t;
        operation.executed /= t;
        operation.bytes /= t;
        if (operation.extent > 0) operation.extent = std::max(1.0, operation.extent / t);
        if (operation.seconds >= 0) operation.seconds /= t;
      }
      segment.live_bytes /= t;
      segment.kept_bytes /= t;
      // Two all-reduces in each pass of a block: after attention and after the feed-forward part.
      const std::string block = block_of(segment.name);
      const bool ends = !block.empty() && (i + 1 == segments.size() || block_of(segments[i + 1].name) != block);
      if (!ends) continue;
      blocks = true;
      const size_t of = forward ? i : static_cast<size_t>(std::max(0, segment.forward));
      double bytes = model.forward[of].output_bytes;
      for (size_t j = of; bytes == 0 && j-- > 0;) bytes = model.forward[j].output_bytes;
      segment.reductions = 2;
      segment.reduced_bytes = bytes;
    }
  };
  divide(part.forward, true);
  divide(part.backward, false);
  for (Operation& operation : part.update) {
    operation.bytes /= t;
    if (operation.seconds >= 0) operation.seconds /= t;
  }
  part.flops /= t;
  part.model_flops /= t;
  part.copy_bytes /= t;
  if (!blocks) {
    throw Error(ErrorCode::kRecipe, "tensor parallelism divides the matrices of blocks, and this model has no list of blocks")
        .key("sharding.strategy")
        .suggest("use fsdp or ddp");
  }
  return part;
}

}  // namespace galley
