#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/integer_builder.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/shape.h"
#include "libcore/passes/integer_domain.h"
#include "libcore/passes/quantize.h"

namespace galley {
namespace {

bool computes_integers(QuantMethod method) { return method == QuantMethod::kStatic || method == QuantMethod::kQat; }

/// Selects the layers that read real values: those that the plan keeps in float, and those of f8_e4m3. A layer that the plan does not
/// contain is a batch norm between real values.
std::function<bool(const std::string&)> float_layers(const QuantizationPlan& plan) {
  return [&plan](const std::string& name) {
    const LayerPlan* layer = plan.find(name);
    return !computes_integers(plan.method) || layer == nullptr || layer->f8 || !layer->float_reason.empty();
  };
}

/// Shapes of a layer's weights in its file, before packing. A factor per channel counts as the weight of a depthwise product.
std::vector<Shape> weight_shapes(const Graph& graph, const Node& node) {
  if (node.op->quantize == QuantizeRule::kScale) return {Shape{graph.type(node.inputs[0]).shape[1], 1, 1, 1}};
  std::vector<Shape> shapes;
  for (size_t i : inputs_of(node, PortKind::kWeight)) shapes.push_back(graph.type(node.inputs[i]).shape);
  return shapes;
}

/// Inputs that are weight and bias of a product, with the names of their tensors. Empty for other nodes.
std::vector<std::pair<size_t, std::string>> layer_tensors(const Node& node, const std::string& layer) {
  std::vector<std::pair<size_t, std::string>> tensors;
  if (node.op->quantize != QuantizeRule::kProduct) return tensors;
  for (size_t i : inputs_of(node, PortKind::kWeight)) tensors.emplace_back(i, layer + ".weight");
  for (size_t i : inputs_of(node, PortKind::kStatistics)) tensors.emplace_back(i, layer + ".bias");
  return tensors;
}

/// Whether the tensor is a parameter of the model with exactly this name.
bool is_parameter(const Graph& graph, ValueId id, const std::string& tensor) {
  return graph.value(id).role == ValueRole::kParameter && graph.value(id).name == tensor;
}

TensorType array(DType dtype, Shape shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = std::move(shape);
  return type;
}

class Converter {
 public:
  Converter(const Graph& old, const QuantizationPlan& plan)
      : old_(old),
        plan_(plan),
        domain_(old, float_layers(plan)),
        values_(planned_values(old, domain_, plan)),
        real_(old.value_count(), kNoValue),
        integers_(old.value_count(), kNoValue),
        outputs_(output_names(old)) {}

  Graph run() {
    check_layers();
    declare_inputs();
    for (size_t n = 0; n < old_.nodes().size(); ++n) {
      const Node& node = old_.nodes()[n];
      new_.set_path(node.path);
      new_.set_phase(node.phase);
      if (domain_.constant(n)) {
        if (needed_[n]) copy(node);
      } else if (const LayerPlan* table = table_of(n)) {
        add_table(node, *table);
      } else if (domain_.integer(n)) {
        add_integer(n);
      } else if (const LayerPlan* layer = layer_of(n); layer != nullptr) {
        layer->f8                     ? add_f8_layer(node, *layer)
        : layer->float_reason.empty() ? add_stored_layer(node, {layer})
                                      : add_float_layer(node, *layer);
      } else if (const std::vector<const LayerPlan*> layers = recurrent_layers(n); !layers.empty()) {
        add_stored_layer(node, layers);
      } else {
        ++report_.float_operators[std::string(node.op->name)];
        copy(node);
      }
    }
    new_.set_path("");
    new_.set_phase(Phase::kForward);
    for (const auto& [name, id] : old_.outputs()) new_.add_output(name, real(id, nullptr));
    list_tensors();
    return std::move(new_);
  }

  ConvertReport take_report() { return std::move(report_); }

 private:
  static std::set<ValueId> output_names(const Graph& graph) {
    std::set<ValueId> ids;
    for (const auto& [name, id] : graph.outputs()) ids.insert(id);
    return ids;
  }

  const LayerPlan* layer_of(size_t n) const { return domain_.layer(n).empty() ? nullptr : plan_.find(domain_.layer(n)); }

  /// The plan of a node that selects rows of a table which is stored as integers, else nullptr.
  const LayerPlan* table_of(size_t n) const { return domain_.table(n).empty() ? nullptr : plan_.find(domain_.table(n)); }

  /// The quantized weights of a recurrent node: both or none.
  std::vector<const LayerPlan*> recurrent_layers(size_t n) const {
    std::vector<const LayerPlan*> layers;
    for (const std::string& name : domain_.recurrent_layers(n)) {
      const LayerPlan* layer = plan_.find(name);
      if (layer != nullptr && layer->float_reason.empty()) layers.push_back(layer);
    }
    GALLEY_CHECK_INPUT(layers.empty() || layers.size() == 2, "the quantization plan has only one of the two weights of ",
                       old_.nodes()[n].op->name, " at ", old_.nodes()[n].path, " in integers; quantize both or none");
    return layers;
  }

  void check_layers() const {
    std::set<std::string> here;
    for (size_t n = 0; n < old_.nodes().size(); ++n) {
      if (table_of(n) != nullptr) here.insert(domain_.table(n));  // plans without tables are complete
      for (const std::string& name : domain_.layers(n)) {
        here.insert(name);
        const LayerPlan* layer = plan_.find(name);
        if (layer == nullptr && domain_.rule(n) == QuantizeRule::kScale) continue;
        GALLEY_CHECK_INPUT(layer != nullptr, "the quantization plan has no layer '", name,
                           "', but this model has; the plan belongs to another model");
        const std::string type = layer_type(old_.nodes()[n]);
        GALLEY_CHECK_INPUT(layer->type == type, "in the quantization plan layer '", name, "' is ", layer->type,
                           ", but in this model it is ", type, "; the plan belongs to another model");
      }
    }
    for (const LayerPlan& layer : plan_.layers) {
      GALLEY_CHECK_INPUT(here.count(layer.name) > 0, "the quantization plan has the layer '", layer.name,
                         "', but this model does not; the plan belongs to another model");
    }
  }

  /// Inputs of a node that the converted node still reads. Excludes weights that become tensors of the file.
  std::vector<ValueId> kept_inputs(size_t n) const {
    const Node& node = old_.nodes()[n];
    const LayerPlan* layer = layer_of(n);
    std::vector<ValueId> kept = node.inputs;
    if (table_of(n) != nullptr) {
      kept[0] = kNoValue;
    } else if (!recurrent_layers(n).empty()) {
      for (size_t i : inputs_of(node, PortKind::kWeight)) kept[i] = kNoValue;
    } else if (layer != nullptr) {
      for (size_t i : inputs_of(node, PortKind::kStatistics)) kept[i] = kNoValue;
      for (size_t i : inputs_of(node, PortKind::kWeight)) kept[i] = kNoValue;
      for (const auto& [i, name] : layer_tensors(node, layer->name)) {
        if (!layer->float_reason.empty() && is_parameter(old_, node.inputs[i], name)) kept[i] = node.inputs[i];
      }
    }
    return kept;
  }

  /// Declares fed inputs and parameters that are still read. Finds the constant nodes among them.
  void declare_inputs() {
    std::vector<bool> read(old_.value_count());
    needed_.resize(old_.nodes().size());
    for (const auto& [name, id] : old_.outputs()) read[static_cast<size_t>(id)] = true;
    for (size_t n = old_.nodes().size(); n-- > 0;) {
      const Node& node = old_.nodes()[n];
      if (domain_.constant(n)) {
        needed_[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return read[static_cast<size_t>(id)]; });
        if (!needed_[n]) continue;
      }
      for (ValueId id : kept_inputs(n)) {
        if (id != kNoValue) read[static_cast<size_t>(id)] = true;
      }
    }
    for (ValueId id : old_.inputs()) {
      const ValueInfo& info = old_.value(id);
      if (info.role == ValueRole::kInput || read[static_cast<size_t>(id)])
        real_[static_cast<size_t>(id)] = new_.add_input(info.name, info.type, info.role).id();
    }
  }

  const QuantParams& map_of(ValueId old_id) const {
    const std::string& name = domain_.name(domain_.map_of(old_id));
    const auto found = values_.find(name);
    GALLEY_CHECK_INPUT(found != values_.end(), "the quantization plan has no scale for the value '", name,
                       "'; it belongs to another model or to another shape of samples");
    return found->second;
  }

  std::string reader_text(const Node* reader) const {
    return reader == nullptr ? "an output of the graph" : cat(reader->op->name, reader->path.empty() ? "" : " at " + reader->path);
  }

  /// The real value in the new graph. Integers are dequantized once.
  ValueId real(ValueId old_id, const Node* reader) {
    ValueId& id = real_[static_cast<size_t>(old_id)];
    if (id != kNoValue) return id;
    const ValueId q = integers_[static_cast<size_t>(old_id)];
    GALLEY_ASSERT(q != kNoValue, "a value is read before it is defined");
    id = dequantize(new_.at(q), map_of(old_id)).id();
    ++report_.dequantize_nodes;
    report_.inner_dequantize += outputs_.count(old_id) == 0;
    report_.nodes.push_back(cat(domain_.name(old_id), ": dequantize for ", reader_text(reader)));
    return id;
  }

  /// The integers in the new graph. Real values are quantized once.
  ValueId integers(ValueId old_id, const Node& reader) {
    ValueId& id = integers_[static_cast<size_t>(old_id)];
    if (id != kNoValue) return id;
    id = quantize(new_.at(real_[static_cast<size_t>(old_id)]), map_of(old_id)).id();
    ++report_.quantize_nodes;
    report_.inner_quantize += old_.value(old_id).role != ValueRole::kInput;
    report_.nodes.push_back(cat(domain_.name(old_id), ": quantize for ", reader_text(&reader)));
    return id;
  }

  void copy(const Node& node) {
    std::vector<ValueId> inputs;
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? kNoValue : real(id, &node));
    set_real(node, new_.add_node_like(node, std::move(inputs)));
  }
  void set_real(const Node& node, const std::vector<Value>& made) {
    for (size_t o = 0; o < made.size(); ++o) {
      if (made[o]) real_[static_cast<size_t>(node.outputs[o])] = made[o].id();
    }
  }

  // ---- layers

  Value declare(const LayerPlan& layer, const std::string& name, TensorType type) {
    GALLEY_CHECK(new_.find_input(name) == kNoValue, "the tensor ", name,
                 " is a parameter of the model that other nodes read too; keep its readers in float");
    report_.tensors.push_back({name, type, ValueRole::kParameter, layer.name, layer.type, true});
    return new_.add_input(name, std::move(type), ValueRole::kParameter);
  }
  void describe(const LayerPlan& layer, const std::string& name, TensorType type) {
    report_.tensors.push_back({name, std::move(type), ValueRole::kParameter, layer.name, layer.type, false});
  }

  /// The tensors of a table: i8 rows with a scale each.
  struct Table {
    Value values, scale;
  };
  /// Adds a lookup of rows of integers, which become real values.
  void add_table(const Node& node, const LayerPlan& layer) {
    Table& table = tables_[node.inputs[0]];
    const Shape& shape = old_.type(node.inputs[0]).shape;
    if (!table.values) {
      table.values = declare(layer, layer.weight(), array(DType::kI8, shape));
      table.scale = declare(layer, layer.weight_scale(), array(DType::kF32, {shape[0]}));
      describe(layer, layer.weight_zero_point(), array(DType::kI8, {shape[0]}));
    }
    const Value index = new_.at(real(node.inputs[1], &node));
    const Value rows = cast(embedding(table.values, index), DType::kF32), scales = embedding(reshape(table.scale, {shape[0], 1}), index);
    set_real(node, {mul(rows, scales)});
  }
  /// The table that a layer has as its weight (a tied head), where it can be read in the table's form; else nullptr.
  const Table* shared_table(const Node& node, size_t weight, const LayerPlan& layer) const {
    const auto found = tables_.find(node.inputs[weight]);
    const bool fits = plan_.method == QuantMethod::kWeightOnly && layer.bits == 8 && layer.group_size == 0;
    return found == tables_.end() || !fits ? nullptr : &found->second;
  }

  /// Stored weights. `zero_points` are absent if the graph does not read them.
  struct Weights {
    std::vector<IntegerWeight> weights;
    std::vector<Value> zero_points;
    Value bias;
  };
  Weights declare_weights(const Node& node, const std::vector<const LayerPlan*>& layers, bool reads_zero_point) {
    Weights w;
    const std::vector<Shape> shapes = weight_shapes(old_, node);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const LayerPlan& layer = *layers[i];
      const size_t place = node.op->quantize == QuantizeRule::kScale ? 0 : inputs_of(node, PortKind::kWeight)[i];
      if (const Table* table = shared_table(node, place, layer)) {
        w.weights.push_back({.values = table->values, .scale = table->scale});
        w.zero_points.emplace_back();
        continue;
      }
      Shape stored = shapes[i], scales{stored[0]};
      if (layer.group_size > 0)
        scales.push_back((stored.elements() / std::max<int64_t>(1, stored[0]) + layer.group_size - 1) / layer.group_size);
      if (layer.bits == 4) stored[-1] = (stored[-1] + 1) / 2;
      IntegerWeight& weight = w.weights.emplace_back();
      weight.values = declare(layer, layer.weight(), array(layer.f8 ? DType::kF8E4M3 : layer.bits == 4 ? DType::kU8 : DType::kI8, stored));
      weight.scale = declare(layer, layer.weight_scale(), array(DType::kF32, scales));
      weight.reduced = layer.reduced;
      w.zero_points.emplace_back();
      if (layer.f8) continue;
      // Zero points of symmetric weights are 0, and products of integers have no use for them.
      if (reads_zero_point && layer.scheme.find("symmetric") == std::string::npos) {
        w.zero_points.back() = declare(layer, layer.weight_zero_point(), array(DType::kI8, scales));
      } else {
        describe(layer, layer.weight_zero_point(), array(DType::kI8, scales));
      }
    }
    const bool scale = node.op->quantize == QuantizeRule::kScale;
    const bool bias = scale || (node.op->quantize == QuantizeRule::kProduct && !inputs_of(node, PortKind::kStatistics).empty());
    if (bias) w.bias = declare(*layers[0], layers[0]->name + ".bias", array(DType::kF32, Shape{shapes[0][0]}));
    return w;
  }

  /// Adds a layer that the plan keeps in float, with the model's own or folded tensors.
  void add_float_layer(const Node& node, const LayerPlan& layer) {
    std::vector<ValueId> inputs = node.inputs;
    for (size_t i : inputs_of(node, PortKind::kActivation)) inputs[i] = real(node.inputs[i], &node);
    for (const auto& [i, name] : layer_tensors(node, layer.name)) {
      const bool own = is_parameter(old_, node.inputs[i], name);
      inputs[i] =
          own ? real_[static_cast<size_t>(node.inputs[i])] : declare(layer, name, array(DType::kF32, old_.type(node.inputs[i]).shape)).id();
    }
    set_real(node, new_.add_node_like(node, std::move(inputs)));
  }

  /// Adds a layer that computes real values from stored integers: with dynamic quantization of each batch, or in float.
  void add_stored_layer(const Node& node, const std::vector<const LayerPlan*>& layers) {
    const bool dynamic = plan_.method == QuantMethod::kDynamic;
    GALLEY_CHECK_INPUT(dynamic || plan_.method == QuantMethod::kWeightOnly, "the quantization plan has the layer '", layers[0]->name,
                       "' in integers, but ", method_name(plan_.method), " does not support this layer");
    IntegerBuilder::Operands operands;
    const bool product = node.op->quantize == QuantizeRule::kProduct;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const PortKind kind = node.inputs[i] == kNoValue ? PortKind::kWeight : node.op->input_port(i).kind;
      const bool stored = kind == PortKind::kWeight || (product && kind == PortKind::kStatistics);
      operands.inputs.push_back(stored ? Value() : new_.at(real(node.inputs[i], &node)));
    }
    const Weights w = declare_weights(node, layers, !dynamic);
    if (!dynamic) return add_dequantized(node, layers, w, operands.inputs);
    GALLEY_CHECK_INPUT(node.op->dynamic_form != nullptr, "the quantization plan has the layer '", layers[0]->name,
                       "' in integers, but dynamic does not support this layer");
    operands.weights = w.weights;
    operands.bias = w.bias;
    IntegerBuilder builder(old_, node, std::move(operands));
    node.op->dynamic_form(builder);
    set_real(node, builder.results());
  }

  /// Adds a layer of f8_e4m3, from and to real values.
  void add_f8_layer(const Node& node, const LayerPlan& layer) {
    GALLEY_CHECK_INPUT(node.op->f8_form != nullptr && plan_.method == QuantMethod::kStatic, "the quantization plan has the layer '",
                       layer.name, "' in f8_e4m3, but ", method_name(plan_.method), " does not support this layer");
    IntegerBuilder::Operands operands;
    operands.inputs.resize(node.inputs.size());
    operands.maps.resize(node.inputs.size());
    for (size_t i : inputs_of(node, PortKind::kActivation)) operands.inputs[i] = new_.at(real(node.inputs[i], &node));
    const QuantParams x{.scale = layer.input_scale};
    operands.maps[0] = &x;
    const Weights w = declare_weights(node, {&layer}, false);
    describe(layer, cat(layer.name, ".input_scale"), array(DType::kF32, {}));
    operands.weights = w.weights;
    operands.bias = w.bias;
    IntegerBuilder builder(old_, node, std::move(operands));
    node.op->f8_form(builder);
    set_real(node, builder.results());
  }

  /// Adds the layer itself, with weights that are dequantized from their stored integers.
  void add_dequantized(const Node& node, const std::vector<const LayerPlan*>& layers, const Weights& w,
                       const std::vector<Value>& real_inputs) {
    std::vector<ValueId> inputs;
    for (const Value& value : real_inputs) inputs.push_back(value ? value.id() : kNoValue);
    const std::vector<size_t> places = inputs_of(node, PortKind::kWeight);
    for (size_t k = 0; k < places.size(); ++k) {
      DequantizeWeightAttrs attrs;
      attrs.bits = layers[k]->bits;
      attrs.group_size = layers[k]->group_size;
      for (int64_t size : old_.type(node.inputs[places[k]]).shape) attrs.shape.push_back(size);
      inputs[places[k]] = dequantize_weight(w.weights[k].values, w.weights[k].scale, w.zero_points[k], attrs).id();
    }
    if (w.bias) inputs[inputs_of(node, PortKind::kStatistics).front()] = w.bias.id();
    set_real(node, new_.add_node_like(node, std::move(inputs)));
  }

  // ---- operators on integers

  void add_integer(size_t n) {
    const Node& node = old_.nodes()[n];
    const ValueId y = node.outputs[0];
    IntegerBuilder::Operands operands;
    operands.inputs.resize(node.inputs.size());
    operands.maps.resize(node.inputs.size());
    for (size_t i : IntegerDomain::integer_inputs(node)) {
      operands.inputs[i] = new_.at(integers(node.inputs[i], node));
      operands.maps[i] = &map_of(node.inputs[i]);
    }
    for (size_t i : inputs_of(node, PortKind::kIndex)) operands.inputs[i] = new_.at(real(node.inputs[i], &node));
    if (domain_.made_integer(y)) operands.result = &map_of(y);
    if (const LayerPlan* layer = layer_of(n); layer != nullptr) {
      Weights w = declare_weights(node, {layer}, false);
      describe_maps(*layer, operands.result != nullptr);
      const QuantParams& x = *operands.maps[0];
      w.weights[0].reduced |= x.qmin >= 0 && x.qmax <= 127;
      operands.weights = std::move(w.weights);
      operands.bias = w.bias;
    }
    const bool integer = operands.result != nullptr;
    IntegerBuilder builder(old_, node, std::move(operands));
    build_integer_form(builder);
    if (integer) {
      integers_[static_cast<size_t>(y)] = builder.results()[0].id();
    } else {
      set_real(node, builder.results());
    }
  }

  void describe_maps(const LayerPlan& layer, bool integer_result) {
    for (const char* side : {".input", ".output"}) {
      if (side == std::string_view(".output") && !integer_result) continue;
      describe(layer, cat(layer.name, side, "_scale"), array(DType::kF32, {}));
      describe(layer, cat(layer.name, side, "_zero_point"), array(DType::kI64, {}));
    }
  }

  /// Lists parameters and buffers that the graph still reads under the model's own names.
  void list_tensors() {
    std::map<std::string, const LayerPlan*> owners;
    for (const LayerPlan& layer : plan_.layers) owners[layer.name] = &layer;
    std::set<std::string> listed;
    for (const QuantizedTensor& tensor : report_.tensors) listed.insert(tensor.name);
    for (ValueId id : new_.inputs()) {
      const ValueInfo& info = new_.value(id);
      if (info.role == ValueRole::kInput || info.role == ValueRole::kCarried || listed.count(info.name) > 0) continue;
      const auto owner = owners.find(info.name.substr(0, info.name.rfind('.')));
      const bool owned = info.name.find('.') != std::string::npos && owner != owners.end();
      report_.tensors.push_back(
          {info.name, info.type, info.role, owned ? owner->second->name : "", owned ? owner->second->type : "", true});
    }
  }

  const Graph& old_;
  const QuantizationPlan& plan_;
  const IntegerDomain domain_;
  const std::map<std::string, QuantParams> values_;
  Graph new_;
  ConvertReport report_;
  std::vector<ValueId> real_, integers_;  // by value of the old graph
  std::map<ValueId, Table> tables_;       // by value of the old graph
  std::vector<bool> needed_;              // constant nodes whose outputs are still read
  std::set<ValueId> outputs_;
};

}  // namespace

ConvertReport convert_quantized(Graph& fused, const QuantizationPlan& plan) {
  fused.remove_dead_nodes();
  Converter converter(fused, plan);
  Graph converted = converter.run();
  fused = std::move(converted);
  return converter.take_report();
}

std::map<std::string, double> plan_tensors(const Graph& fused, const QuantizationPlan& plan) {
  std::map<std::string, double> values;
  if (!computes_integers(plan.method)) return values;
  Graph graph = fused;
  graph.remove_dead_nodes();
  const IntegerDomain domain(graph, float_layers(plan));
  const std::map<std::string, QuantParams> planned = planned_values(graph, domain, plan);
  const auto put = [&](const std::string& prefix, ValueId id) {
    const QuantParams& params = planned.at(domain.name(domain.map_of(id)));
    values[prefix + "_scale"] = params.scale;
    values[prefix + "_zero_point"] = static_cast<double>(params.zero_point);
  };
  for (const LayerPlan& layer : plan.layers) {
    if (layer.f8) values[layer.name + ".input_scale"] = layer.input_scale;
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (domain.layer(n).empty() || !domain.integer(n)) continue;
    put(domain.layer(n) + ".input", node.inputs[0]);
    if (domain.made_integer(node.outputs[0])) put(domain.layer(n) + ".output", node.outputs[0]);
  }
  return values;
}

LayerConstants layer_constants(const Graph& fused) {
  LayerConstants constants;
  Graph& graph = constants.graph;
  Graph old = fused;
  old.remove_dead_nodes();
  const IntegerDomain domain(old, [](const std::string&) { return true; });
  std::vector<ValueId> map(old.value_count(), kNoValue);
  for (ValueId id : old.inputs()) {
    const ValueInfo& info = old.value(id);
    if (info.role != ValueRole::kInput) map[static_cast<size_t>(id)] = graph.add_input(info.name, info.type, info.role).id();
  }
  const auto mapped = [&](ValueId id) { return id == kNoValue ? kNoValue : map[static_cast<size_t>(id)]; };
  for (size_t n = 0; n < old.nodes().size(); ++n) {
    const Node& node = old.nodes()[n];
    if (domain.constant(n)) {
      std::vector<ValueId> inputs;
      for (ValueId id : node.inputs) inputs.push_back(mapped(id));
      const std::vector<Value> made = graph.add_node_like(node, std::move(inputs));
      for (size_t o = 0; o < made.size(); ++o) map[static_cast<size_t>(node.outputs[o])] = made[o].id();
      continue;
    }
    for (const std::string& name : domain.recurrent_layers(n)) constants.parameters[name] = name;
    if (!domain.table(n).empty()) constants.parameters[old.value(node.inputs[0]).name] = old.value(node.inputs[0]).name;
    if (domain.layer(n).empty()) continue;
    const std::string& layer = domain.layer(n);
    if (domain.rule(n) == QuantizeRule::kScale) {
      graph.set_path(node.path);
      IntegerBuilder::Operands operands;
      for (ValueId id : node.inputs) operands.inputs.push_back(mapped(id) == kNoValue ? Value() : graph.at(mapped(id)));
      IntegerBuilder builder(old, node, std::move(operands));
      node.op->channel_scale(builder);
      graph.add_output(layer + ".weight", reshape(builder.results()[0], weight_shapes(old, node).front()));
      graph.add_output(layer + ".bias", builder.results()[1]);
      continue;
    }
    for (const auto& [i, name] : layer_tensors(node, layer)) {
      const ValueId id = node.inputs[i];
      if (old.value(id).role == ValueRole::kActivation) {
        graph.add_output(name, mapped(id));
      } else {
        constants.parameters[name] = old.value(id).name;
      }
    }
  }
  graph.set_path("");
  return constants;
}

}  // namespace galley
