#include "libcore/quantize/quantize_config.h"

#include <optional>
#include <set>

#include "libcore/passes/quantize.h"
#include "libcore/quant/names.h"
#include "libcore/recipe/selector.h"

namespace galley {
namespace {

WeightScheme weights_of(const QuantizeWeightsSection& s) {
  WeightScheme scheme{.dtype = s.dtype, .observer = s.observer.spec(), .group_size = s.group_size.value_or(0)};
  scheme.per_channel = s.scheme == WeightSchemeName::kPerChannelSymmetric || s.scheme == WeightSchemeName::kPerChannelAffine;
  scheme.symmetric = s.scheme == WeightSchemeName::kPerChannelSymmetric || s.scheme == WeightSchemeName::kPerTensorSymmetric;
  return scheme;
}

LayerScheme scheme_of(const QuantizeWeightsSection& weights, const QuantizeActivationsSection& activations, SaturationRule saturation,
                      QuantMethod method) {
  LayerScheme scheme{.weights = weights_of(weights)};
  scheme.activations = {.dtype = activations.dtype,
                        .symmetric = activations.scheme == ActivationSchemeName::kPerTensorSymmetric,
                        .observer = activations.observer.spec(),
                        .reduce_range = activations.reduce_range.value.value_or(false)};
  // Training keeps one range, a moving average, for training and conversion.
  if (method == QuantMethod::kQat && scheme.activations.observer.type == ObserverType::kAuto)
    scheme.activations.observer = {.type = ObserverType::kMovingAverage};
  // Integer products are not computed with weights that are only stored.
  scheme.weights.reduce_range = saturation == SaturationRule::kReduce && !scheme.activations.reduce_range &&
                                method != QuantMethod::kWeightOnly && weights.dtype != QuantDType::kF8E4M3;
  return scheme;
}

/// Whether the section stores a table as integers where no override names it.
bool stores(const QuantizeSection& section, const TableLayer& table) {
  const bool automatic = section.method == QuantMethod::kWeightOnly && table.shared;
  return section.embeddings == EmbeddingStorage::kInt8 || (section.embeddings == EmbeddingStorage::kAuto && automatic);
}

template <class T, class U>
void put(T& to, const std::optional<U>& from) {
  if (from) to = *from;
}

}  // namespace

ActivationScheme default_activations(const QuantizeSection& section) {
  return scheme_of(section.weights, section.activations, section.saturation, section.method).activations;
}

QuantizeConfig resolve_quantize(const QuantizeSection& section, const Graph& fused) {
  QuantizeConfig config{.method = section.method, .fallback = section.fallback, .saturation = section.saturation};
  config.defaults = scheme_of(section.weights, section.activations, section.saturation, section.method);
  std::map<std::string, bool> tables;  // of embeddings, by the names of their results: whether they are integers
  for (const auto& [layer, table] : table_layers(fused)) tables.emplace(table.value, stores(section, table));
  for (const auto& [value, integers] : tables) {
    if (integers) config.layers.emplace(value, config.defaults);
  }
  if (section.overrides.empty()) return config;
  std::vector<Selectable> items;
  const std::vector<int> producers = fused.producers();
  for (const auto& [id, name] : quant_values(fused)) {
    const int producer = producers[static_cast<size_t>(id)];
    const Node* node = producer < 0 ? nullptr : &fused.nodes()[static_cast<size_t>(producer)];
    const std::string type = node == nullptr ? "input" : std::string(family_of(*node->op).name);
    items.push_back({name, type, fused.type(id).shape.rank()});
  }
  // The first item takes precedence, so apply them to the defaults from the last to the first.
  std::vector<std::set<int64_t>> selected;
  for (size_t i = 0; i < section.overrides.size(); ++i) {
    const auto& item = section.overrides.at<QuantizeOverride>(i);
    const std::vector<int64_t> indices = Selector{item.match, item.except}.select(items, cat("quantize.overrides.", i));
    selected.emplace_back(indices.begin(), indices.end());
  }
  for (size_t n = 0; n < items.size(); ++n) {
    QuantizeWeightsSection weights = section.weights;
    QuantizeActivationsSection activations = section.activations;
    std::optional<KeepType> keep;
    bool any = false;
    for (size_t i = section.overrides.size(); i-- > 0;) {
      if (!selected[i].contains(static_cast<int64_t>(n))) continue;
      any = true;
      const auto& item = section.overrides.at<QuantizeOverride>(i);
      if (item.keep) keep = item.keep;
      if (item.weights) {
        put(weights.dtype, item.weights->dtype);
        put(weights.scheme, item.weights->scheme);
        put(weights.observer, item.weights->observer);
        if (item.weights->group_size) weights.group_size = item.weights->group_size;
      }
      if (item.activations) {
        put(activations.dtype, item.activations->dtype);
        put(activations.scheme, item.activations->scheme);
        put(activations.observer, item.activations->observer);
        put(activations.reduce_range, item.activations->reduce_range);
      }
    }
    if (!any) continue;
    // Other overrides than `keep` do not make integers of a table of embeddings.
    const auto table = tables.find(items[n].path);
    if (table != tables.end() && !table->second && keep != KeepType::kInteger) continue;
    LayerScheme scheme = scheme_of(weights, activations, section.saturation, section.method);
    scheme.keep_float = keep == KeepType::kFloat;
    if (scheme.keep_float) scheme.float_reason = "override";
    config.layers.insert_or_assign(items[n].path, std::move(scheme));
  }
  return config;
}

}  // namespace galley
