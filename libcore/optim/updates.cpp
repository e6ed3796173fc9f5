#include "libcore/optim/updates.h"

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/passes/loss_scale.h"

namespace galley {
namespace {

/// Sets the phase to kUpdate, and the path to that of the current parameter, until the end of the scope.
class UpdateScope {
 public:
  explicit UpdateScope(Graph& graph) : graph_(graph), path_(graph.path()), phase_(graph.phase()) { graph.set_phase(Phase::kUpdate); }
  ~UpdateScope() {
    graph_.set_path(std::move(path_));
    graph_.set_phase(phase_);
  }
  UpdateScope(const UpdateScope&) = delete;
  UpdateScope& operator=(const UpdateScope&) = delete;
  /// "layer1.0.conv2" for "layer1.0.conv2.weight".
  void enter_module_of(const std::string& parameter) {
    const size_t dot = parameter.rfind('.');
    graph_.set_path(dot == std::string::npos ? "" : parameter.substr(0, dot));
  }
  void leave_modules() { graph_.set_path("optimizer"); }

 private:
  Graph& graph_;
  std::string path_;
  Phase phase_;
};

TensorType scalar(DType dtype) {
  TensorType type;
  type.dtype = dtype;
  return type;
}

Value scalar_input(Graph& graph, const std::string& name, DType dtype) {
  const ValueId found = graph.find_input(name);
  return found != kNoValue ? graph.at(found) : graph.add_input(name, scalar(dtype), ValueRole::kInput);
}

/// Returns a copy, because adding nodes may reallocate the graph's table of values.
std::string name_of(const Graph& graph, ValueId id) { return graph.value(id).name; }

/// `gradient`: ranks hold of the state what they hold of the gradient; absent: of its owner.
Value add_state(Graph& graph, UpdateTable& table, ValueId of, std::string_view suffix, bool starts_as_copy, Value gradient = {}) {
  const std::string owner = name_of(graph, of);
  TensorType type = graph.type(of);
  if (gradient) type.placement = gradient.type().placement;
  StateSpec spec{cat(owner, ".", suffix), type, owner, starts_as_copy};
  table.states.push_back(spec);
  return graph.add_input(spec.name, type, ValueRole::kState);
}

/// The state of what one node updates.
Value add_state(Graph& graph, UpdateTable& table, const UpdatePiece& piece, std::string_view suffix, Value gradient = {}) {
  if (piece.in_parameter) return add_state(graph, table, piece.parameter.id(), suffix, false, gradient);
  StateSpec spec{cat(piece.name, ".", suffix), piece.parameter.type(), piece.name};
  if (gradient) spec.type.placement = gradient.type().placement;
  table.states.push_back(spec);
  return graph.add_input(spec.name, spec.type, ValueRole::kState);
}

/// Parameters with a gradient, in the order of the graph's inputs.
std::vector<ValueId> trained(const Graph& graph, const Gradients& gradients) {
  std::vector<ValueId> parameters;
  for (ValueId id : graph.inputs()) {
    if (gradients.count(id) != 0) parameters.push_back(id);
  }
  GALLEY_ASSERT(parameters.size() == gradients.size(), "`gradients` names a value that is not an input of the graph");
  for (ValueId id : parameters) {
    GALLEY_ASSERT(graph.value(id).role == ValueRole::kParameter, name_of(graph, id), " has a gradient, but is not a parameter");
  }
  return parameters;
}

void check_groups(const Graph& graph, const ParameterGroups& groups) {
  GALLEY_ASSERT(!groups.groups.empty(), "no parameter group");
  for (const auto& [parameter, group] : groups.group_of) {
    GALLEY_ASSERT(group < groups.groups.size(), "group ", group, " of ", parameter, " does not exist");
    const ValueId id = graph.find_input(parameter);
    GALLEY_CHECK(id != kNoValue && graph.value(id).role == ValueRole::kParameter, "an optimizer group names '", parameter,
                 "', which is not a parameter of this model");
  }
}

/// The value of each buffer after this step: the output of the node that updates it, else the buffer itself.
std::map<ValueId, ValueId> updated_values(const Graph& graph) {
  std::map<ValueId, ValueId> latest;
  for (const Node& node : graph.nodes()) {
    for (const InPlace& update : node.op->updates) {
      const ValueId state = node.input(static_cast<size_t>(update.input));
      if (state != kNoValue && static_cast<size_t>(update.output) < node.outputs.size()) {
        latest[state] = node.outputs[static_cast<size_t>(update.output)];
      }
    }
  }
  return latest;
}

/// Sum of squares of all gradients. Clipping needs the sum before the first update, so one node reads all gradients (`one_node`). Otherwise
/// each gradient has its own node, so that its memory can be reused after its update.
Value total_of_squares(Graph& graph, const std::vector<Value>& gradients, bool one_node) {
  if (one_node) return sum_squares(gradients);
  Value total;
  for (const Value& gradient : gradients) {
    const Value part = sum_squares(std::span<const Value>(&gradient, 1));
    total = total ? add(total, part) : part;
  }
  return total ? total : full(graph, scalar(DType::kF32), 0);
}

/// The same over the ranks that divide matrices: the parts of all ranks, and once what each rank has whole.
Value total_of_squares(Graph& graph, const std::vector<UpdatePiece>& pieces, const UpdateOptions& options) {
  const bool one_node = options.clip == ClipMode::kNorm || options.loss_scale;
  std::vector<Value> whole, parts;
  for (const UpdatePiece& piece : pieces) (piece.divided ? parts : whole).push_back(piece.gradient);
  if (parts.empty()) return total_of_squares(graph, whole, one_node);
  CollectiveAttrs attrs;
  attrs.name = "grad_norm.parts";
  attrs.tensor = true;
  const Value sum = all_reduce_wait(all_reduce_start(total_of_squares(graph, parts, one_node), attrs), attrs);
  return whole.empty() ? sum : add(sum, total_of_squares(graph, whole, one_node));
}

bool reduces_each(const UpdateOptions& options) { return options.ranks != nullptr && options.ranks->reduces_each(); }

/// The parameters, with their gradients of all passes of an update.
std::vector<UpdatePiece> whole_parameters(Graph& graph, const Gradients& gradients, const std::vector<ValueId>& parameters,
                                          const UpdateOptions& options, UpdateScope& scope, UpdateTable& table,
                                          std::vector<Value>& accumulators) {
  // Sums over ranks start in the backward pass, so that what they read is part of it.
  if (options.ranks != nullptr) graph.set_phase(Phase::kBackward);
  std::vector<UpdatePiece> pieces;
  for (ValueId id : parameters) {
    const std::string name = name_of(graph, id);
    Value gradient = graph.at(gradients.at(id));
    if (options.accumulation > 1 && !reduces_each(options)) {
      scope.enter_module_of(name);
      accumulators.push_back(add_state(graph, table, id, "grad", false, gradient));
      gradient = add(accumulators.back(), gradient);
    }
    const auto group = options.groups.group_of.find(name);
    pieces.push_back({.name = name,
                      .parameter = graph.at(id),
                      .gradient = gradient,
                      .group = group == options.groups.group_of.end() ? 0 : static_cast<int64_t>(group->second),
                      .divided = options.divided && options.divided(name)});
  }
  graph.set_phase(Phase::kUpdate);
  return pieces;
}

/// `x` of summed gradients as that of the gradients of the mean loss, which differ by a factor; `square`: x is a sum of squares.
Value of_mean(Graph& graph, const UpdateOptions& options, Value x, bool square = false) {
  const double mean = 1 / static_cast<double>(options.accumulation);
  if (options.loss_scale) {
    const Value factor = div(full(graph, scalar(DType::kF32), mean), loss_scale_state(graph, kLossScale));
    return square ? mul(mul(x, factor), factor) : mul(x, factor);
  }
  return options.accumulation > 1 ? affine(x, square ? mean * mean : mean) : x;
}

/// The scale of the summed gradients; absent: 1. Adds the outputs "grad_norm" and, with a loss scale, "grad_squares".
Value gradient_scale(Graph& graph, const std::vector<UpdatePiece>& pieces, const UpdateOptions& options) {
  Value scale;
  if (options.grad_norm || options.clip == ClipMode::kNorm || options.loss_scale) {
    Value squares = options.given_squares ? scalar_input(graph, "grad_squares", DType::kF32) : total_of_squares(graph, pieces, options);
    if (options.ranks != nullptr && !options.given_squares) squares = options.ranks->total(squares);
    if (options.loss_scale) graph.add_output("grad_squares", squares);
    squares = of_mean(graph, options, squares, true);
    if (options.grad_norm) graph.add_output("grad_norm", sqrt(squares));
    if (options.clip == ClipMode::kNorm) {
      ClipCoefficientAttrs attrs;
      attrs.max_norm = options.clip_max;
      scale = of_mean(graph, options, clip_coefficient(squares, attrs));
    }
  }
  if (options.clip == ClipMode::kNone && (options.accumulation > 1 || options.loss_scale)) {
    const double mean = 1 / static_cast<double>(options.accumulation);
    scale = options.loss_scale ? of_mean(graph, options, full(graph, scalar(DType::kF32), 1)) : full(graph, scalar(DType::kF32), mean);
  }
  return scale;
}

void add_averages(Graph& graph, const std::vector<ValueId>& parameters, const UpdateOptions& options, UpdateScope& scope,
                  UpdateTable& table) {
  const Value decay = scalar_input(graph, "ema_decay", DType::kF32);
  std::map<ValueId, ValueId> latest = updated_values(graph);
  const std::vector<ValueId> inputs = graph.inputs();
  Value copy;
  const auto average = [&](ValueId id, const Value& share) {
    scope.enter_module_of(name_of(graph, id));
    const Value ema = add_state(graph, table, id, "ema", true);
    const auto found = latest.find(id);
    ema_update(ema, graph.at(found == latest.end() ? id : found->second), share);
  };
  for (ValueId id : parameters) average(id, decay);
  for (ValueId id : inputs) {
    if (graph.value(id).role != ValueRole::kBuffer) continue;
    if (!options.ema_buffers && !copy) copy = full(graph, scalar(DType::kF32), 0);
    average(id, options.ema_buffers ? decay : copy);
  }
}

void add_hook_states(const std::vector<HookState>& states, UpdateTable& table) {
  for (const HookState& state : states) {
    StateSpec spec{state.name, state.type, state.of};
    spec.random = !state.own;
    spec.own = state.own;
    table.states.push_back(spec);
  }
}

/// Declares the states of loss scaling. Returns the number of the next update that is not skipped.
Value next_update(Graph& graph, UpdateTable& table, const UpdateOptions& options) {
  for (const char* name : {kLossScale, kLossScaleAge, kAppliedUpdates}) {
    StateSpec spec{.name = name, .type = loss_scale_state(graph, name).type(), .of = ""};
    if (std::string_view(name) == kLossScale) spec.starts_at = options.first_loss_scale;
    table.states.push_back(std::move(spec));
  }
  return add(loss_scale_state(graph, kAppliedUpdates), full(graph, scalar(DType::kI64), 1));
}

}  // namespace

UpdateTable add_updates(Graph& graph, const Gradients& gradients, const UpdateOptions& options) {
  GALLEY_ASSERT(options.accumulation >= 1);
  GALLEY_CHECK(options.clip == ClipMode::kNone || options.clip_max > 0, "clip: the limit must be above 0, not ", options.clip_max);
  check_groups(graph, options.groups);
  UpdateTable table;
  const std::vector<ValueId> parameters = trained(graph, gradients);
  if (parameters.empty()) return table;
  UpdateScope scope(graph);
  scope.leave_modules();
  const Value step = options.loss_scale ? next_update(graph, table, options) : scalar_input(graph, "step", DType::kI64);

  std::vector<Value> accumulators;
  std::vector<UpdatePiece> pieces = whole_parameters(graph, gradients, parameters, options, scope, table, accumulators);
  if (options.ranks != nullptr) pieces = options.ranks->reduce(graph, pieces);
  if (options.ranks != nullptr) add_hook_states(options.ranks->hook_states(), table);
  if (options.accumulation > 1 && reduces_each(options)) {
    graph.set_phase(Phase::kBackward);  // sums over ranks may follow
    for (UpdatePiece& piece : pieces) {
      accumulators.push_back(add_state(graph, table, piece, "grad", piece.gradient));
      piece.gradient = add(accumulators.back(), piece.gradient);
    }
    graph.set_phase(Phase::kUpdate);
  }
  if (options.ranks != nullptr) options.ranks->sum_copies(graph, pieces);

  scope.leave_modules();
  const Value scale = gradient_scale(graph, pieces, options);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const UpdatePiece& piece = pieces[i];
    const ParameterGroup& group = options.groups.groups[static_cast<size_t>(piece.group)];
    if (piece.in_parameter) {
      scope.enter_module_of(piece.name);
    } else {
      scope.leave_modules();
    }
    Value gradient = piece.gradient;
    if (options.clip == ClipMode::kValue) {
      gradient = of_mean(graph, options, gradient);
      gradient = clamp(gradient, -options.clip_max, options.clip_max);
    }
    std::vector<Value> states;
    for (std::string_view suffix : group.optimizer->states()) states.push_back(add_state(graph, table, piece, suffix));
    const UpdateInputs inputs{piece.parameter, gradient, scalar_input(graph, "lr." + group.name, DType::kF32), step, scale};
    const Value updated = group.optimizer->add_update(inputs, states);
    if (!piece.in_parameter) options.ranks->finish(graph, i, updated);
  }
  for (const Value& accumulator : accumulators) {
    const std::string name = name_of(graph, accumulator.id());
    scope.enter_module_of(name.substr(0, name.rfind('.')));
    clear(accumulator, options.loss_scale ? full(graph, scalar(DType::kBool), 1) : Value());  // also sums that are not finite
  }
  if (!options.ema) return table;
  std::vector<ValueId> averaged = parameters;
  if (reduces_each(options)) {  // a rank averages its ranges
    averaged.clear();
    for (const UpdatePiece& piece : pieces) averaged.push_back(piece.parameter.id());
  }
  add_averages(graph, averaged, options, scope, table);
  return table;
}

std::vector<UpdatePiece> gradient_pieces(Graph& graph, const Gradients& gradients, const UpdateOptions& options) {
  UpdateTable table;
  UpdateScope scope(graph);
  std::vector<Value> accumulators;
  return whole_parameters(graph, gradients, trained(graph, gradients), options, scope, table, accumulators);
}

UpdateTable add_accumulation(Graph& graph, const Gradients& gradients, const UpdateOptions& options) {
  UpdateTable table;
  UpdateScope scope(graph);
  std::vector<Value> accumulators;
  UpdateOptions once = options;
  once.accumulation = 1;
  std::vector<UpdatePiece> pieces = whole_parameters(graph, gradients, trained(graph, gradients), once, scope, table, accumulators);
  if (reduces_each(options)) pieces = options.ranks->reduce(graph, pieces);
  for (const UpdatePiece& piece : pieces) {
    scope.enter_module_of(piece.name);
    accumulate(add_state(graph, table, piece, "grad", piece.gradient), piece.gradient);
  }
  return table;
}

}  // namespace galley
