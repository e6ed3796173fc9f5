#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "libcore/base/parallel.h"
#include "libcore/ops/registry.h"
#include "libcore/passes/integer_domain.h"
#include "libcore/passes/quantize.h"

namespace galley {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
/// A concat's inputs use the quantization parameters of its output if their own scale is at most this many times smaller (two bits).
constexpr double kLargestShare = 4;
/// |x - zero point| <= 255, |w| <= 128: the sum of more products may exceed 31 bits (ops/quantized.h rejects it).
constexpr int64_t kMostProducts = ((int64_t{1} << 31) - 1) / (255 * 128);

bool computes_integers(QuantMethod method) { return method == QuantMethod::kStatic || method == QuantMethod::kQat; }

/// Is the layer one of f8_e4m3? A batch norm that is not folded has integers.
bool is_f8(const Node& node, const LayerScheme& scheme) {
  return scheme.weights.dtype == QuantDType::kF8E4M3 && node.op->quantize != QuantizeRule::kScale;
}

/// The reason why no kernel supports the layer with that scheme, or "".
std::string without_kernel(const Graph& graph, const Node& node, const LayerScheme& scheme, QuantMethod method) {
  const QuantizeRule rule = node.op->quantize;
  if (rule == QuantizeRule::kRecurrent && computes_integers(method)) return "recurrent layers need the method dynamic or weight_only";
  if (is_f8(node, scheme)) {
    if (method != QuantMethod::kStatic) return "f8_e4m3 weights need the method static";
    return node.op->f8_form != nullptr ? "" : cat("f8_e4m3 does not support ", node.op->name);
  }
  if (rule == QuantizeRule::kScale) return computes_integers(method) ? "" : "a batch norm has no weights to store";
  if (method == QuantMethod::kWeightOnly) return "";
  const WeightScheme& w = scheme.weights;
  if (method == QuantMethod::kDynamic && node.op->dynamic_form == nullptr)
    return cat("dynamic quantization does not support ", node.op->name);
  if (w.dtype != QuantDType::kInt8) return cat(kQuantDTypeNames[static_cast<size_t>(w.dtype)], " weights need the method weight_only");
  if (w.group_size > 0) return "weights in groups need the method weight_only";
  if (!w.symmetric) return "affine weights need the method weight_only";
  const Shape& weight = graph.type(node.inputs[inputs_of(node, PortKind::kWeight).front()]).shape;
  const int64_t products = weight[0] == 0 ? 0 : weight.elements() / weight[0];
  if (products > kMostProducts) return cat("sums of ", products, " products may exceed 32 bits");
  return "";
}

/// The layers that stay in float or run on f8_e4m3, both on real values: they are no part of the integer domain.
std::set<std::string> real_layers(const Graph& graph, const QuantizeConfig& config,
                                  const std::map<std::string, std::string>& float_reasons) {
  std::set<std::string> layers;
  const IntegerDomain names(graph, [](const std::string&) { return true; });
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    for (const std::string& layer : names.layers(n)) {
      const Node& node = graph.nodes()[n];
      if (float_reasons.contains(layer) || is_f8(node, config.of(names.name(node.outputs[0])))) layers.insert(layer);
    }
  }
  return layers;
}

/// Chooses quantization parameters for each value, and shares those of concats with their inputs.
class MapChooser {
 public:
  MapChooser(const Graph& graph, const IntegerDomain& domain, const QuantizeConfig& config, const Calibration& calibration)
      : graph_(graph), domain_(domain), config_(config), calibration_(calibration) {}

  void run(QuantizationPlan& plan) {
    const std::deque<Node>& nodes = graph_.nodes();
    std::vector<std::pair<ValueId, const ActivationScheme*>> chosen;
    for (ValueId id : graph_.inputs()) {
      if (domain_.wanted(id)) chosen.emplace_back(id, &config_.defaults.activations);
    }
    for (size_t n = 0; n < nodes.size(); ++n) {
      if (nodes[n].outputs.empty() || !domain_.wanted(nodes[n].outputs[0])) continue;
      const ValueId y = nodes[n].outputs[0];
      if (domain_.made_integer(y) && domain_.rule(n) == QuantizeRule::kPassThrough) continue;
      chosen.emplace_back(y, &config_.of(domain_.name(y)).activations);
    }
    // Observers that search take milliseconds per value.
    std::vector<QuantParams> params(chosen.size());
    parallel_for(static_cast<int64_t>(chosen.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        params[i] = choose_params(statistics(chosen[i].first), *chosen[i].second);
    });
    for (size_t i = 0; i < chosen.size(); ++i) maps_[chosen[i].first] = params[i];
    // Trained ranges are kept, because the training rounded to them.
    std::set<ValueId> shared;
    for (size_t n = nodes.size(); config_.method != QuantMethod::kQat && n-- > 0;) {
      if (domain_.rule(n) == QuantizeRule::kJoin && domain_.integer(n)) share(nodes[n], shared);
    }
    for (const auto& [id, params] : maps_) plan.values[domain_.name(id)] = params;
  }

  /// Signal-to-noise ratio of the value's own parameters for the observed values; NaN if unknown, or if training left only a range.
  double sqnr_db(ValueId id) const {
    const auto found = maps_.find(id);
    return found == maps_.end() || config_.method == QuantMethod::kQat ? kUnknown
                                                                       : histogram_sqnr_db(statistics(id).histogram(), found->second);
  }

 private:
  const RangeStatistics& statistics(ValueId id) const { return calibration_.at(domain_.name(domain_.watched(id))); }

  /// Processes joins from last to first, so that an input that is a join passes the parameters on.
  void share(const Node& node, std::set<ValueId>& shared) {
    const QuantParams& target = maps_.at(node.outputs[0]);
    for (ValueId input : node.inputs) {
      const ValueId root = domain_.map_of(input);
      QuantParams& own = maps_.at(root);
      if (own == target || own.dtype != target.dtype || !(target.scale <= kLargestShare * own.scale) || !shared.insert(root).second)
        continue;
      own = target;
    }
  }

  const Graph& graph_;
  const IntegerDomain& domain_;
  const QuantizeConfig& config_;
  const Calibration& calibration_;
  std::map<ValueId, QuantParams> maps_;
};

/// Tables of embeddings are stored in integers only where an override asks for it.
bool stores_table(const QuantizeConfig& config, const std::string& name) {
  const auto found = config.layers.find(name);
  return found != config.layers.end() && !found->second.keep_float;
}

/// The graph without dead nodes, whose names and layers must not be in the plan.
Graph live_part(const Graph& fused) {
  Graph graph = fused;
  graph.remove_dead_nodes();
  return graph;
}

/// The scale of x, which the scheme of x's own value observes.
void plan_f8(LayerPlan& layer, const LayerScheme& scheme, const QuantizeConfig& config, const IntegerDomain& domain, ValueId x,
             const Calibration& calibration) {
  const ObserverSpec& observer = config.of(domain.name(x)).activations.observer;
  layer.input_scale = static_cast<double>(choose_f8_scale(calibration.at(domain.name(domain.watched(x))), observer));
  layer.scheme = cat(scheme.weights.str(), ", f8_e4m3 symmetric (", observer.str(), "), f32 result");
}

std::string refusal(const std::vector<LayerPlan>& without) {
  constexpr size_t kShown = 8;
  std::string text = cat(without.size(), without.size() == 1 ? " layer has" : " layers have", " no kernel for the requested scheme");
  for (size_t i = 0; i < std::min(kShown, without.size()); ++i)
    text += cat("\n  ", without[i].name, " (", without[i].type, "): ", without[i].float_reason);
  if (without.size() > kShown) text += cat("\n  and ", without.size() - kShown, " more");
  return text;
}

}  // namespace

QuantizeRule layer_rule(std::string_view type) {
  ensure_ops_registered();
  for (const OpDef* op : all_ops()) {
    const bool layer =
        op->quantize == QuantizeRule::kProduct || op->quantize == QuantizeRule::kScale || op->quantize == QuantizeRule::kRecurrent;
    if (layer && family_of(*op).name == type) return op->quantize;
  }
  return QuantizeRule::kFloat;
}

bool LayerPlan::recurrent() const { return layer_rule(type) == QuantizeRule::kRecurrent; }

const LayerPlan* QuantizationPlan::find(std::string_view name) const {
  const auto found = std::find_if(layers.begin(), layers.end(), [&](const LayerPlan& layer) { return layer.name == name; });
  return found == layers.end() ? nullptr : &*found;
}

int64_t QuantizationPlan::quantized_layers() const {
  return std::count_if(layers.begin(), layers.end(), [](const LayerPlan& layer) { return layer.float_reason.empty(); });
}

std::string QuantizationPlan::dtype() const {
  std::set<QuantDType> types;
  for (const LayerPlan& layer : layers) {
    if (layer.float_reason.empty()) types.insert(layer.f8 ? QuantDType::kF8E4M3 : layer.bits == 4 ? QuantDType::kInt4 : QuantDType::kInt8);
  }
  std::string text;
  for (const QuantDType type : types) text += cat(text.empty() ? "" : " and ", kQuantDTypeNames[static_cast<size_t>(type)]);
  return text.empty() ? "int8" : text;
}

std::string QuantizationPlan::str() const {
  return cat(method_name(method), ": ", quantized_layers(), " of ", layers.size(), " layers in ", dtype());
}

std::vector<QuantizableLayer> quantizable_layers(const Graph& fused) {
  const Graph graph = live_part(fused);
  const IntegerDomain domain(graph, [](const std::string&) { return true; });
  std::vector<QuantizableLayer> layers;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    for (const std::string& name : domain.layers(n)) layers.push_back({name, layer_type(node), domain.name(node.outputs[0])});
  }
  return layers;
}

std::map<std::string, std::string> layers_in_float(const Graph& graph, const QuantizeConfig& config) {
  std::map<std::string, std::string> float_reasons;
  std::vector<LayerPlan> without;
  const IntegerDomain names(graph, [](const std::string&) { return true; });
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    for (const std::string& layer : names.layers(n)) {
      const LayerScheme& scheme = config.of(names.name(node.outputs[0]));
      const std::string reason = without_kernel(graph, node, scheme, config.method);
      if (scheme.keep_float) {
        float_reasons[layer] = scheme.float_reason.empty() ? "override" : scheme.float_reason;
      } else if (!reason.empty()) {
        float_reasons[layer] = "no kernel: " + reason;
        if (node.op->quantize != QuantizeRule::kScale) without.push_back({.name = layer, .type = layer_type(node), .float_reason = reason});
      }
    }
  }
  if (!without.empty() && config.fallback == QuantFallback::kError) {
    throw Error(ErrorCode::kRecipe, refusal(without))
        .key("quantize.fallback")
        .suggest("quantize.fallback=float keeps them in float; or list them in quantize.overrides with keep: float");
  }
  return float_reasons;
}

std::map<std::string, TableLayer> table_layers(const Graph& fused) {
  const Graph graph = live_part(fused);
  const IntegerDomain domain(graph, [](const std::string&) { return true; });
  std::set<ValueId> weights;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (domain.layers(n).empty()) continue;
    for (const size_t i : inputs_of(graph.nodes()[n], PortKind::kWeight)) weights.insert(graph.nodes()[n].inputs[i]);
  }
  std::map<std::string, TableLayer> tables;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!domain.table(n).empty())
      tables.emplace(domain.table(n), TableLayer{domain.name(node.outputs[0]), weights.contains(node.inputs[0])});
  }
  return tables;
}

QuantizationPlan plan_quantization(const Graph& fused, const QuantizeConfig& config, const Calibration* calibration) {
  const Graph graph = live_part(fused);
  const bool integers = computes_integers(config.method);
  GALLEY_ASSERT(!integers || calibration != nullptr, "a static plan needs calibration statistics");
  QuantizationPlan plan;
  plan.method = config.method;

  const std::map<std::string, std::string> float_reasons = layers_in_float(graph, config);
  const std::set<std::string> real = real_layers(graph, config, float_reasons);
  const IntegerDomain domain(graph, [&](const std::string& layer) { return !integers || real.contains(layer); });
  std::optional<MapChooser> maps;
  if (integers) {
    maps.emplace(graph, domain, config, *calibration);
    maps->run(plan);
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (const std::string& table = domain.table(n);
        !table.empty() && plan.find(table) == nullptr && stores_table(config, domain.name(node.outputs[0])))
      plan.layers.push_back({.name = table, .type = layer_type(node), .scheme = "int8 per row symmetric", .sqnr_activation_db = kUnknown});
    // A batch norm between real values is not a layer of the plan.
    if (domain.rule(n) == QuantizeRule::kScale && !domain.integer(n)) continue;
    for (const std::string& name : domain.layers(n)) {
      LayerPlan layer{.name = name, .type = layer_type(node), .sqnr_activation_db = kUnknown};
      const auto reason = float_reasons.find(layer.name);
      if (reason != float_reasons.end()) {
        layer.float_reason = reason->second;
        layer.scheme = "float";
      } else {
        const LayerScheme& scheme = config.of(domain.name(node.outputs[0]));
        const bool scale = domain.rule(n) == QuantizeRule::kScale;
        layer.f8 = is_f8(node, scheme);
        if (layer.f8) {
          plan_f8(layer, scheme, config, domain, node.inputs[0], *calibration);
          plan.layers.push_back(std::move(layer));
          continue;
        }
        layer.bits = !scale && scheme.weights.dtype == QuantDType::kInt4 ? 4 : 8;
        layer.group_size = scale ? 0 : scheme.weights.group_size;
        layer.reduced = scheme.weights.reduce_range && layer.bits == 8;
        layer.scheme = scale ? "int8 per channel" : scheme.weights.str();
        if (integers) {
          const ValueId y = node.outputs[0];
          layer.scheme += domain.made_integer(y) ? ", " + scheme.activations.str() : ", f32 result";
          if (domain.made_integer(y)) layer.sqnr_activation_db = maps->sqnr_db(y);
        }
        if (config.method == QuantMethod::kDynamic) layer.scheme += ", uint8 affine of each batch";
      }
      plan.layers.push_back(std::move(layer));
    }
  }
  return plan;
}

}  // namespace galley
