#include "libcore/passes/fake_quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/fake_quantize.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/apply_extents.h"
#include "libcore/passes/integer_domain.h"
#include "libcore/passes/patterns.h"
#include "libcore/passes/quantize.h"

namespace galley {
namespace {

/// Lower limit of a batch norm's factor when weights are divided by it.
constexpr double kSmallestGain = 1e-12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_product_layer(const Node& node) { return node.op->quantize == QuantizeRule::kProduct; }

size_t weight_input(const Node& product) { return inputs_of(product, PortKind::kWeight).front(); }

TensorType real_array(Shape shape) {
  TensorType type;
  type.shape = std::move(shape);
  return type;
}

template <class Scheme>
RangeParams params_of(const Scheme& scheme, const MovingRange& range) {
  const QuantRange integers = scheme.range();
  QparamsFromRangeAttrs attrs;
  attrs.qmin = integers.min;
  attrs.qmax = integers.max;
  attrs.symmetric = scheme.symmetric;
  return qparams_from_range(range.min, range.max, attrs);
}

/// Range parameters of the current values of the weight, f32 [O] or [].
RangeParams present_params(Value weight, const FakeQuantizedWeight& rounded) {
  Graph& graph = weight.graph();
  const TensorType ranges = real_array(rounded.scales);
  ObserveRangeAttrs observe;
  observe.axis = rounded.scheme.per_channel ? 0 : -1;
  observe.averaging = 1;
  const Value enabled = full(graph, real_array({}), 1);
  return params_of(rounded.scheme,
                   observe_range(weight, full(graph, ranges, kInfinity), full(graph, ranges, -kInfinity), enabled, observe));
}

/// LSQ's factor of a scale's gradient (section 2.2), from the number of values of all channels and the number of integers above 0.
double gradient_factor(int64_t values, int64_t qmax) {
  return 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, values)) * static_cast<double>(qmax));
}

/// The result of conversion for a folded and fused graph.
struct Analysis {
  Analysis(const Graph& live, const QuantizeConfig& config) {
    const std::map<std::string, std::string> in_float = layers_in_float(live, config);
    const IntegerDomain domain(live, [&](const std::string& layer) { return in_float.count(layer) > 0; });
    const auto add = [&](ValueId id, const ActivationScheme& scheme, bool everywhere) {
      sites.push_back({{domain.name(id), domain.name(domain.watched(id)), scheme}, id, everywhere});
    };
    for (ValueId id : live.inputs()) {
      if (domain.wanted(id)) add(id, config.defaults.activations, false);
    }
    for (size_t n = 0; n < live.nodes().size(); ++n) {
      const Node& node = live.nodes()[n];
      integer.push_back(domain.integer(n));
      weights.push_back(nullptr);
      if (domain.integer(n) && domain.rule(n) == QuantizeRule::kProduct) {
        const WeightScheme& scheme = config.of(domain.name(node.outputs[0])).weights;
        GALLEY_ASSERT(scheme.symmetric, "layers_in_float must keep affine weights in float");
        weights.back() = &rounded.emplace_back(
            FakeQuantizedWeight{domain.layer(n) + ".weight",
                                scheme.per_channel ? Shape{live.type(node.inputs[weight_input(node)]).shape[0]} : Shape(), scheme});
      }
      if (node.outputs.empty() || !domain.wanted(node.outputs[0])) continue;
      const ValueId y = node.outputs[0];
      if (domain.made_integer(y) && domain.rule(n) == QuantizeRule::kPassThrough) continue;
      add(y, config.of(domain.name(y)).activations, domain.made_integer(y));
    }
  }

  std::vector<FakeQuantizeSite> sites;
  std::vector<bool> integer;  // by node
  std::deque<FakeQuantizedWeight> rounded;
  std::vector<const FakeQuantizedWeight*> weights;  // by node: of layers that compute on integers
  FakeQuantizedModel model() const {
    FakeQuantizedModel found{.weights = {rounded.begin(), rounded.end()}};
    for (const FakeQuantizeSite& site : sites) found.values.push_back(site.observed);
    return found;
  }
};

/// Rebuilds the graph with fake_quantize nodes.
class FakeQuantizer {
 public:
  FakeQuantizer(Graph& graph, const FakeQuantizeForm& form) : graph_(graph), form_(form) {}

  std::map<ValueId, FakeQuantizeSite> sites;              // by value of the training graph
  std::set<ValueId> integer_results;                      // outputs of nodes that read rounded values
  std::map<ValueId, const FakeQuantizedWeight*> weights;  // by output of a product
  /// The factor of the product's output until conversion folds it in, [O]; absent: none.
  std::map<ValueId, Value> gains;

  void run() {
    const std::deque<Node> old = graph_.nodes();
    graph_.set_nodes({});
    const std::vector<ValueId> inputs = graph_.inputs();
    for (ValueId id : inputs) fake_quantize_if_needed(id);
    for (const Node& node : old) {
      Node made = node;
      const bool reads_integers = !node.outputs.empty() && integer_results.count(node.outputs[0]) > 0;
      for (ValueId& id : made.inputs) {
        const auto found = rounded_.find(id);
        if (found != rounded_.end() && (reads_integers || sites.at(id).everywhere)) id = found->second.id();
      }
      graph_.set_path(node.path);
      if (const auto weight = node.outputs.empty() || !is_product_layer(node) ? weights.end() : weights.find(node.outputs[0]);
          weight != weights.end()) {
        graph_.set_phase(Phase::kForward);
        made.inputs[weight_input(node)] = fake_quantize_weight(node, *weight->second).id();
      }
      graph_.nodes().push_back(std::move(made));
      for (ValueId id : node.outputs) fake_quantize_if_needed(id);
    }
    for (auto& [name, id] : graph_.outputs()) {
      const auto found = rounded_.find(id);
      if (found != rounded_.end() && sites.at(id).everywhere) id = found->second.id();
    }
    graph_.set_path("");
    graph_.set_phase(Phase::kForward);
  }

 private:
  void fake_quantize_if_needed(ValueId id) {
    const auto site = sites.find(id);
    if (site == sites.end()) return;
    graph_.set_phase(Phase::kForward);
    rounded_[id] = fake_quantize_value(site->second.observed, graph_.at(id));
  }

  Value number(double value) { return full(graph_, real_array({}), value); }

  template <class Scheme>
  static FakeQuantizeAttrs attrs_of(const Scheme& scheme) {
    const QuantRange integers = scheme.range();
    FakeQuantizeAttrs attrs;
    attrs.qmin = integers.min;
    attrs.qmax = integers.max;
    return attrs;
  }

  Value fake_quantize_value(const ObservedValue& value, Value x) {
    const ActivationScheme& scheme = value.scheme;
    const Value min = graph_.add_input(value.min(), real_array({}), ValueRole::kState),
                max = graph_.add_input(value.max(), real_array({}), ValueRole::kState);
    MovingRange range{min, max};
    if (form_.observe) {
      ObserveRangeAttrs attrs;
      attrs.averaging = scheme.observer.averaging_constant;
      range = observe_range(x, min, max, number(1), attrs);
      graph_.set_phase(Phase::kUpdate);
      keep_range(min, max, range);
      graph_.set_phase(Phase::kForward);
    }
    const RangeParams params = params_of(scheme, range);
    FakeQuantizeAttrs attrs = attrs_of(scheme);
    if (!form_.learn_scale) return fake_quantize(x, params.scale, params.zero_point, attrs);
    attrs.gradient_factor = gradient_factor(x.type().elements() / std::max<int64_t>(1, x.shape()[0]), attrs.qmax);
    return fake_quantize(x, learned_scale(value.scale(), {}), params.zero_point, attrs);
  }

  Value learned_scale(const std::string& name, Shape shape) {
    return graph_.add_input(name, real_array(std::move(shape)), ValueRole::kParameter);
  }

  Value fake_quantize_weight(const Node& product, const FakeQuantizedWeight& rounded) {
    const Value weight = graph_.at(product.inputs[weight_input(product)]);
    const auto gain = gains.find(product.outputs[0]);
    const bool cancels = rounded.scheme.per_channel && !form_.learn_scale;
    if (cancels || gain == gains.end()) return fake_quantize_folded(weight, rounded);
    Shape rows;
    for (int axis = 0; axis < weight.shape().rank(); ++axis) rows.push_back(axis == 0 ? weight.shape()[0] : 1);
    const Value least = full(graph_, gain->second.type(), kSmallestGain);
    const Value factor = reshape(where(greater(abs(gain->second), least), gain->second, least), rows);
    return div(fake_quantize_folded(mul(weight, factor), rounded), factor);
  }

  Value fake_quantize_folded(Value weight, const FakeQuantizedWeight& rounded) {
    FakeQuantizeAttrs attrs = attrs_of(rounded.scheme);
    attrs.axis = rounded.scheme.per_channel ? 0 : -1;
    if (!form_.learn_scale) {
      const RangeParams params = present_params(weight, rounded);
      return fake_quantize(weight, params.scale, params.zero_point, attrs);
    }
    attrs.gradient_factor = gradient_factor(weight.type().elements(), attrs.qmax);
    return fake_quantize(weight, learned_scale(rounded.scale(), rounded.scales), full(graph_, real_array(rounded.scales), 0), attrs);
  }

  Graph& graph_;
  FakeQuantizeForm form_;
  std::map<ValueId, Value> rounded_;
};

// ---- training

/// Maps each value of the evaluation graph to the value of the training graph that the same operator of the same module computes. Operators
/// of only one graph, e.g. dropout, have no counterpart.
class Counterparts {
 public:
  Counterparts(const Graph& evaluation, const Graph& training)
      : evaluation_(evaluation), training_(training), ids_(evaluation.value_count(), kNoValue) {
    std::map<Key, const Node*> trained;
    walk(training, [&](const Key& key, const Node& node) { trained.emplace(key, &node); });
    walk(evaluation, [&](const Key& key, const Node& node) {
      const auto found = trained.find(key);
      if (found == trained.end()) return;
      const size_t count = std::min(node.outputs.size(), found->second->outputs.size());
      for (size_t o = 0; o < count; ++o) {
        if (training.type(found->second->outputs[o]).shape == evaluation.type(node.outputs[o]).shape)
          ids_[static_cast<size_t>(node.outputs[o])] = found->second->outputs[o];
      }
    });
    for (ValueId id : evaluation.inputs()) ids_[static_cast<size_t>(id)] = training.find_input(evaluation.value(id).name);
  }

  ValueId find(ValueId evaluated) const { return ids_[static_cast<size_t>(evaluated)]; }
  ValueId at(ValueId evaluated, const std::string& name) const {
    const ValueId id = find(evaluated);
    if (id == kNoValue)
      refuse_norms_inside_extents(training_, "which quantization-aware training cannot fold",
                                  "keep its layers in float with quantize.overrides");
    GALLEY_CHECK(id != kNoValue, "the training graph has no value ", name, " (", evaluation_.type(evaluated),
                 ") of the evaluation graph; keep its layer in float with quantize.overrides");
    return id;
  }

 private:
  using Key = std::pair<std::string, int>;  // path and operator; index among several
  template <class Body>
  static void walk(const Graph& graph, Body body) {
    std::map<std::string, int> seen;
    for (const Node& node : graph.nodes()) {
      if (node.phase != Phase::kForward || node.outputs.empty()) continue;
      const std::string name = cat(node.path, " ", layer_type(node));
      body(Key(name, seen[name]++), node);
    }
  }

  const Graph &evaluation_, &training_;
  std::vector<ValueId> ids_;
};

/// The nodes of the graph before folding and fusion that were merged into a node: those between its output and its inputs.
std::vector<const Node*> origins(const Graph& evaluation, const std::vector<int>& producers, const Node& fused) {
  const std::set<ValueId> ends(fused.inputs.begin(), fused.inputs.end());
  std::vector<const Node*> nodes;
  std::vector<ValueId> open{fused.outputs[0]};
  std::set<ValueId> seen;
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    const int producer = static_cast<size_t>(id) < producers.size() ? producers[static_cast<size_t>(id)] : -1;
    if (producer < 0) continue;
    const Node& node = evaluation.nodes()[static_cast<size_t>(producer)];
    nodes.push_back(&node);
    for (ValueId input : node.inputs) {
      if (input != kNoValue && ends.count(input) == 0 && seen.insert(input).second) open.push_back(input);
    }
  }
  return nodes;
}

/// gamma / sqrt(running variance + eps) of the batch norms that read a product's output, by that output. The new nodes precede all others.
std::map<ValueId, Value> running_gains(Graph& graph, const std::set<ValueId>& products) {
  const BatchNorms norms(graph);
  const std::deque<Node> old = graph.nodes();
  graph.set_nodes({});
  std::map<ValueId, Value> gains;
  for (const Node& node : old) {
    const std::optional<BatchNormPattern> norm = norms.match(node);
    if (!norm || products.count(norm->x) == 0) continue;
    GALLEY_ASSERT(norm->var != kNoValue, "batch norms of the captured model must have running statistics");
    graph.set_path(node.path);
    const Value rstd = rsqrt(affine(graph.at(norm->var), 1, norm->eps));
    gains[norm->x] = norm->gamma == kNoValue ? rstd : mul(graph.at(norm->gamma), rstd);
  }
  graph.set_path("");
  std::deque<Node> nodes = graph.nodes();
  nodes.insert(nodes.end(), old.begin(), old.end());
  graph.set_nodes(std::move(nodes));
  return gains;
}

}  // namespace

FakeQuantizedModel fake_quantize_inference(Graph& fused, const QuantizeConfig& config, bool learn_scale) {
  fused.remove_dead_nodes();
  const Analysis analysis(fused, config);
  FakeQuantizer quantizer(fused, {.observe = false, .learn_scale = learn_scale});
  for (const FakeQuantizeSite& site : analysis.sites) quantizer.sites.emplace(site.id, site);
  for (size_t n = 0; n < fused.nodes().size(); ++n) {
    const Node& node = fused.nodes()[n];
    if (analysis.integer[n]) quantizer.integer_results.insert(node.outputs[0]);
    if (analysis.weights[n] != nullptr) quantizer.weights.emplace(node.outputs[0], analysis.weights[n]);
  }
  quantizer.run();
  return analysis.model();
}

TrainingFakeQuantize::TrainingFakeQuantize(const Graph& training, const Graph& evaluation, const Graph& fused,
                                           const QuantizeConfig& config) {
  const Analysis analysis(fused, config);
  const Counterparts counterparts(evaluation, training);
  const std::vector<int> producers = evaluation.producers();
  const BatchNorms norms(evaluation);
  model_ = analysis.model();
  for (const FakeQuantizeSite& site : analysis.sites) sites_.emplace(counterparts.at(site.id, site.observed.name), site);
  for (size_t n = 0; n < fused.nodes().size(); ++n) {
    const Node& node = fused.nodes()[n];
    if (!analysis.integer[n]) continue;
    bool folds = false;
    const std::vector<const Node*> merged = origins(evaluation, producers, node);
    for (const Node* origin : merged) folds |= norms.match(*origin).has_value() && is_product_layer(node);
    for (const Node* origin : merged) {
      const ValueId result = counterparts.find(origin->outputs[0]);
      if (result == kNoValue) continue;
      integer_results_.insert(result);
      // A product whose batch norm is folded computes the output of the batch norm.
      if (analysis.weights[n] != nullptr && (is_product_layer(*origin) || norms.match(*origin)))
        weights_.emplace(result, *analysis.weights[n]);
      if (folds && is_product_layer(*origin)) scaled_.insert(result);
    }
  }
}

void TrainingFakeQuantize::apply(Graph& training, const FakeQuantizeForm& form) const {
  FakeQuantizer quantizer(training, form);
  quantizer.sites = sites_;
  quantizer.integer_results = integer_results_;
  for (const auto& [result, weight] : weights_) quantizer.weights.emplace(result, &weight);
  if (!form.freeze_batch_norm) quantizer.gains = running_gains(training, scaled_);
  quantizer.run();
}

Graph present_weight_scales(const Graph& fused, const std::vector<FakeQuantizedWeight>& rounded) {
  LayerConstants constants = layer_constants(fused);
  Graph& graph = constants.graph;
  std::map<std::string, ValueId> folded(graph.outputs().begin(), graph.outputs().end());
  graph.clear_outputs();
  for (const FakeQuantizedWeight& weight : rounded) {
    const auto found = folded.find(weight.name);
    const Value values = graph.at(found != folded.end() ? found->second : graph.find_input(constants.parameters.at(weight.name)));
    graph.add_output(weight.scale(), present_params(values, weight).scale);
  }
  graph.remove_dead_nodes();
  return std::move(graph);
}

FloatRange range_of_params(const QuantParams& params, bool symmetric) {
  if (symmetric) {
    const auto bound = static_cast<float>(params.scale * static_cast<double>(params.qmax - params.qmin) / 2);
    return {-bound, bound};
  }
  return {static_cast<float>(params.scale * static_cast<double>(params.qmin - params.zero_point)),
          static_cast<float>(params.scale * static_cast<double>(params.qmax - params.zero_point))};
}

}  // namespace galley
