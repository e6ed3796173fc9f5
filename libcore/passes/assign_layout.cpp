#include "libcore/passes/assign_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "libcore/ops/convert.h"

namespace galley {
namespace {

bool is_named(const Graph& graph, ValueId id) {
  const ValueRole role = graph.value(id).role;
  return role != ValueRole::kActivation && role != ValueRole::kInput;
}

/// Whether the node accepts any format of input i.
bool takes_any_format(const Node& node, size_t i) {
  const FormatRule formats = node.op->layout.formats;
  return (formats == FormatRule::kExplicit || formats == FormatRule::kReorder) && !node.op->has_weight_format(i);
}

/// Whether parameters that are weights of the node keep the format that its kernel prefers.
bool leads(const Node& node, bool trains) {
  const WeightFormat weights = node.op->layout.weights;
  return weights == WeightFormat::kLeads || weights == WeightFormat::kLeadsParameters ||
         (weights == WeightFormat::kLeadsInference && !trains);
}

class Groups {
 public:
  explicit Groups(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), ValueId{0}); }
  ValueId root(ValueId id) {
    ValueId& parent = parent_[static_cast<size_t>(id)];
    return parent == id ? id : parent = root(parent);
  }
  void join(ValueId a, ValueId b) { parent_[static_cast<size_t>(root(a))] = root(b); }

 private:
  std::vector<ValueId> parent_;
};

/// Decides for each value of rank 4 or 5 whether it is channels_last. Values that are connected by nodes of FormatRule::kKeeps have the
/// same format.
std::vector<bool> choose_channels_last(const Graph& graph, LayoutMode mode) {
  std::vector<bool> chosen(graph.value_count());
  if (mode == LayoutMode::kContiguous) return chosen;
  const auto is_image = [&](ValueId id) {
    const TensorType& type = graph.type(id);
    return (type.shape.rank() == 4 || type.shape.rank() == 5) && !is_named(graph, id);
  };
  Groups groups(graph.value_count());
  std::set<ValueId> wanting;
  for (const Node& node : graph.nodes()) {
    if (node.op->layout.formats != FormatRule::kKeeps || !node.op->updates.empty()) continue;
    ValueId first = kNoValue;
    const auto join = [&](ValueId id) {
      if (!is_image(id)) return;
      if (first == kNoValue) {
        first = id;
      } else if (graph.type(id).shape.rank() == graph.type(first).shape.rank()) {
        groups.join(first, id);
      }
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] != kNoValue && !node.op->has_weight_format(i)) join(node.inputs[i]);
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (node.op->outputs[o].kind != PortKind::kWeight) join(node.outputs[o]);
    }
    if (first != kNoValue && (mode == LayoutMode::kChannelsLast || node.op->layout.prefers_channels_last)) wanting.insert(first);
  }
  std::set<ValueId> roots;
  for (ValueId id : wanting) roots.insert(groups.root(id));
  for (size_t v = 0; v < chosen.size(); ++v) {
    const auto id = static_cast<ValueId>(v);
    chosen[v] = is_image(id) && roots.count(groups.root(id)) > 0;
  }
  return chosen;
}

/// Rebuilds the graph with formats and inserts reorders. `named` holds the formats of parameters, buffers and state.
class Rebuilder {
 public:
  Rebuilder(const Graph& old, const std::vector<bool>& channels_last, const std::map<std::string, MemoryFormat>& named,
            const LayoutOptions* weights, LayoutReport& report)
      : old_(old), channels_last_(channels_last), named_(named), weights_(weights), report_(report), map_(old.value_count(), kNoValue) {}

  Graph run() {
    const std::vector<std::vector<int>> users = old_.users();
    for (ValueId id : old_.inputs()) {
      TensorType type = old_.type(id);
      type.format = {};
      if (channels_last_[static_cast<size_t>(id)]) type.format = MemoryFormat::channels_last_for_rank(type.shape.rank());
      const auto format = named_.find(old_.value(id).name);
      if (is_named(old_, id) && format != named_.end()) type.format = format->second;
      map_[static_cast<size_t>(id)] = new_.add_input(old_.value(id).name, std::move(type), old_.value(id).role).id();
    }
    for (const Node& node : old_.nodes()) add(node, users);
    for (const auto& [name, id] : old_.outputs()) new_.add_output(name, map_[static_cast<size_t>(id)]);
    for (size_t v = 0; v < new_.value_count(); ++v) {
      const ValueInfo& info = new_.value(static_cast<ValueId>(v));
      report_.channels_last_values += info.type.format.is_channels_last();
      report_.blocked_parameters += info.role == ValueRole::kParameter && info.type.format.is_blocked();
    }
    return std::move(new_);
  }

 private:
  MemoryFormat image_format(ValueId old_id) const {
    return channels_last_[static_cast<size_t>(old_id)] ? MemoryFormat::channels_last_for_rank(old_.type(old_id).shape.rank())
                                                       : MemoryFormat();
  }

  /// The format of the node's activations of rank 4 and 5.
  MemoryFormat node_format(const Node& node) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id != kNoValue && !node.op->has_weight_format(i) && channels_last_[static_cast<size_t>(id)]) return image_format(id);
    }
    for (ValueId id : node.outputs) {
      if (channels_last_[static_cast<size_t>(id)]) return image_format(id);
    }
    return {};
  }

  /// The format that the node needs for input i; `why` is set for the report.
  MemoryFormat wanted(const Node& node, const std::vector<ValueId>& inputs, size_t i, std::string& why) const {
    const TensorType& type = new_.type(inputs[i]);
    if (takes_any_format(node, i)) return type.format;
    if (!node.op->updates.empty()) {
      const TensorType& state = new_.type(inputs[static_cast<size_t>(node.op->updates.front().input)]);
      why = cat(node.op->name, " needs the format of the state");
      return type.shape == state.shape ? state.format : MemoryFormat();
    }
    if (node.op->has_weight_format(i)) {
      why = cat("the kernel of ", node.op->name, " prefers this format of its weight");
      if (weights_ == nullptr || weights_->target == nullptr) return {};
      if (node.op->layout.weights == WeightFormat::kLeadsParameters && new_.value(inputs[i]).role != ValueRole::kParameter) return {};
      Graph probe = probe_graph(node, inputs);
      return weights_->target->weight_format(probe, probe.nodes().back(), static_cast<int>(i));
    }
    why = cat(node.op->name,
              node.op->layout.formats == FormatRule::kContiguous ? " needs contiguous values" : " needs one format for all its inputs");
    const MemoryFormat format = node.op->layout.formats == FormatRule::kContiguous ? MemoryFormat() : node_format(node);
    const int rank = type.shape.rank();
    return format.is_channels_last() && rank == (format == MemoryFormat::channels_last() ? 4 : 5) ? format : MemoryFormat();
  }

  /// A graph with only that node, whose inputs have their types in the new graph.
  Graph probe_graph(const Node& node, const std::vector<ValueId>& inputs) const {
    Graph probe;
    std::vector<ValueId> ids;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == kNoValue) {
        ids.push_back(kNoValue);
        continue;
      }
      ids.push_back(
          probe.add_input(cat("i", i), new_.type(inputs[i]), node.op->has_weight_format(i) ? ValueRole::kParameter : ValueRole::kInput)
              .id());
    }
    probe.add_node_like(node, std::move(ids));
    return probe;
  }

  ValueId reordered(ValueId id, const MemoryFormat& format, const Node& reader, std::string why, bool weight) {
    if (new_.type(id).format == format) return id;
    const auto [found, is_new] = made_.try_emplace({id, format.str()}, kNoValue);
    if (!is_new) return found->second;
    const std::string path = new_.path();
    const Phase phase = new_.phase();
    new_.set_path(reader.path);
    new_.set_phase(reader.phase == Phase::kUpdate ? Phase::kBackward : reader.phase);
    found->second = reorder(new_.at(id), format).id();
    new_.set_path(path);
    new_.set_phase(phase);
    report_.reorders.push_back(
        {reader.path, std::move(why), new_.type(id).bytes(), same_bytes(new_.type(id).shape, new_.type(id).format, format), weight});
    return found->second;
  }

  void add(const Node& node, const std::vector<std::vector<int>>& users) {
    std::vector<ValueId> inputs;
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? kNoValue : map_[static_cast<size_t>(id)]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == kNoValue) continue;
      std::string why;
      const MemoryFormat format = wanted(node, inputs, i, why);
      const bool updated = std::any_of(node.op->updates.begin(), node.op->updates.end(),
                                       [&](const InPlace& update) { return update.input == static_cast<int>(i); });
      GALLEY_ASSERT(!updated || !is_named(old_, node.inputs[i]) || new_.type(inputs[i]).format == format, node.op->name, " at ", node.path,
                    " would update a copy of ", old_.value(node.inputs[i]).name, " in the format ", format);
      const bool weight = node.op->has_weight_format(i) || !node.op->updates.empty() || is_named(old_, node.inputs[i]);
      inputs[i] = reordered(inputs[i], format, node, std::move(why), weight);
    }
    Node made = node;
    if (node.op->layout.with_format != nullptr && channels_last_[static_cast<size_t>(node.outputs[0])]) {
      made.attributes = node.op->layout.with_format(*node.attributes, image_format(node.outputs[0]));
    }
    const std::vector<Value> outputs = new_.add_node_like(made, std::move(inputs));
    for (size_t o = 0; o < outputs.size(); ++o) map_[static_cast<size_t>(node.outputs[o])] = outputs[o].id();
    const bool makes_weight = node.op->layout.weights != WeightFormat::kContiguous && node.op->outputs[0].kind == PortKind::kWeight;
    if (makes_weight) set_gradient_format(node, outputs[0].id(), users);
  }

  /// Gives a weight gradient the format of its state if the kernel supports it and only updates and norms read the gradient.
  void set_gradient_format(const Node& node, ValueId gradient, const std::vector<std::vector<int>>& users) {
    if (weights_ == nullptr || weights_->target == nullptr) return;
    MemoryFormat wish;
    for (int user : users[static_cast<size_t>(node.outputs[0])]) {
      const Node& reader = old_.nodes()[static_cast<size_t>(user)];
      if (takes_any_format(reader, 0)) continue;
      if (reader.op->updates.empty()) return;
      const ValueId state = map_[static_cast<size_t>(reader.inputs[static_cast<size_t>(reader.op->updates.front().input)])];
      if (state == kNoValue || (!wish.is_contiguous() && !(new_.type(state).format == wish))) return;
      wish = new_.type(state).format;
    }
    for (const auto& [name, id] : old_.outputs()) {
      if (id == node.outputs[0]) return;
    }
    MemoryFormat& format = new_.value(gradient).type.format;
    format = wish;
    if (!(weights_->target->output_format(new_, new_.nodes().back(), 0) == wish)) format = {};
  }

  const Graph& old_;
  const std::vector<bool>& channels_last_;
  const std::map<std::string, MemoryFormat>& named_;
  const LayoutOptions* weights_;  // null: weights stay contiguous
  LayoutReport& report_;
  Graph new_;
  std::vector<ValueId> map_;
  std::map<std::pair<ValueId, std::string>, ValueId> made_;
};

/// Groups of parameters, buffers and state that need the same format because one update reads them together, by the name of each member.
std::map<std::string, std::vector<std::string>> update_groups(const Graph& graph) {
  Groups groups(graph.value_count());
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId old = node.input(static_cast<size_t>(update.input));
      if (old == kNoValue) continue;
      if (static_cast<size_t>(update.output) < node.outputs.size()) groups.join(old, node.outputs[static_cast<size_t>(update.output)]);
      for (ValueId other : node.inputs) {
        // Among them, an activation that is not updated state is a gradient, which each step computes and reorders.
        if (other != kNoValue && graph.type(other).shape == graph.type(old).shape) groups.join(old, other);
      }
    }
  }
  std::map<ValueId, std::vector<std::string>> members;
  for (ValueId id : graph.inputs()) {
    if (is_named(graph, id) && graph.type(id).shape.rank() >= 2) members[groups.root(id)].push_back(graph.value(id).name);
  }
  std::map<std::string, std::vector<std::string>> by_name;
  for (const auto& [root, names] : members) {
    for (const std::string& name : names) by_name[name] = names;
  }
  return by_name;
}

}  // namespace

LayoutReport assign_layout(Graph& graph, const LayoutOptions& options) {
  const std::vector<bool> channels_last = choose_channels_last(graph, options.mode);
  std::map<std::string, MemoryFormat> named = options.given;
  if (options.target != nullptr) {
    // Rebuild with contiguous weights first: the formats that kernels prefer depend only on the formats of activations.
    LayoutReport unused;
    const Graph plain = Rebuilder(graph, channels_last, {}, nullptr, unused).run();
    const bool trains =
        std::any_of(plain.nodes().begin(), plain.nodes().end(), [](const Node& node) { return node.phase == Phase::kBackward; });
    const std::map<std::string, std::vector<std::string>> groups = update_groups(graph);
    for (const Node& node : plain.nodes()) {
      if (node.phase != Phase::kForward || !leads(node, trains)) continue;
      for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
        if (!node.op->has_weight_format(slot) || plain.value(node.inputs[slot]).role != ValueRole::kParameter) continue;
        const std::string& name = plain.value(node.inputs[slot]).name;
        const MemoryFormat format = options.target->weight_format(plain, node, static_cast<int>(slot));
        for (const std::string& member : groups.at(name)) {
          const auto given = options.given.find(member);
          if (given != options.given.end()) named.try_emplace(name, given->second);
        }
        named.try_emplace(name, format);
        for (const std::string& member : groups.at(name)) named.try_emplace(member, named.at(name));
      }
    }
    // A graph of updates alone: state has the format that its parameter was given.
    for (const auto& [name, members] : groups) {
      for (const std::string& member : members) {
        const auto given = options.given.find(member);
        if (given != options.given.end()) named.try_emplace(name, given->second);
      }
    }
  }
  LayoutReport report;
  graph = Rebuilder(graph, channels_last, named, &options, report).run();
  return report;
}

}  // namespace galley
