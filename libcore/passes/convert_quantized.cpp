#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "libcore/ops/binary.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/quantized.h"
#include "libcore/ops/quantized_recurrent.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/passes/integer_domain.h"
#include "libcore/passes/quantize.h"

namespace galley {
namespace {

bool computes_integers(QuantMethod method) { return method == QuantMethod::kStatic || method == QuantMethod::kQat; }

/// Whether a layer of the plan stays in float; one that the plan does not know is a batch norm between real values.
std::function<bool(const std::string&)> float_layers(const QuantizationPlan& plan) {
  return [&plan](const std::string& name) {
    const LayerPlan* layer = plan.find(name);
    return !computes_integers(plan.method) || layer == nullptr || !layer->float_reason.empty();
  };
}

/// Shape of a layer's weight, input `input`, as its file has it before packing.
Shape weight_shape(const Graph& graph, const Node& node, size_t input = 1) {
  if (!node.is("batch_norm_inference")) return graph.type(node.inputs[input]).shape;
  return Shape{graph.type(node.inputs[0]).shape[1], 1, 1, 1};
}

/// Is the tensor a parameter of the model itself, under that very name?
bool is_parameter(const Graph& graph, ValueId id, const std::string& tensor) { return graph.value(id).role == ValueRole::kParameter && graph.value(id).name == tensor; }

TensorType array(DType dtype, Shape shape) {
  TensorType type;
  type.dtype = dtype;
  type.shape = std::move(shape);
  return type;
}

class Converter {
 public:
  Converter(const Graph& old, const QuantizationPlan& plan)
      : old_(old), plan_(plan), domain_(old, float_layers(plan)), real_(old.value_count(), kNoValue), integers_(old.value_count(), kNoValue), outputs_(output_names(old)) {}

  Graph run() {
    check_layers();
    declare_inputs();
    for (size_t n = 0; n < old_.nodes().size(); ++n) {
      const Node& node = old_.nodes()[n];
      new_.set_path(node.path);
      new_.set_phase(node.phase);
      if (domain_.form(n) == IntegerForm::kConstant) {
        if (needed_[n]) copy(node);
      } else if (domain_.integer(n)) {
        add_integer(n);
      } else if (const LayerPlan* layer = layer_of(n); layer != nullptr) {
        add_float_layer(n, *layer);
      } else if (recurrent_layers(n).size() == 2) {
        add_recurrent(n);
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

  /// Of a recurrent node, the weights that are quantized: both or none.
  std::vector<const LayerPlan*> recurrent_layers(size_t n) const {
    std::vector<const LayerPlan*> layers;
    for (const std::string& name : domain_.recurrent_layers(n)) {
      const LayerPlan* layer = plan_.find(name);
      if (layer != nullptr && layer->float_reason.empty()) layers.push_back(layer);
    }
    GALLEY_CHECK_INPUT(layers.empty() || layers.size() == 2, "the plan of quantization has one of the two weights of ", old_.nodes()[n].op->name, " at ", old_.nodes()[n].path, " in integers");
    return layers;
  }

  void check_layers() const {
    std::set<std::string> here;
    for (size_t n = 0; n < old_.nodes().size(); ++n) {
      for (const std::string& name : domain_.layers(n)) {
        here.insert(name);
        const LayerPlan* layer = plan_.find(name);
        if (layer == nullptr && domain_.form(n) == IntegerForm::kScale) continue;
        GALLEY_CHECK_INPUT(layer != nullptr, "the plan of quantization has no layer '", name, "', which this model has: it is of another model");
        const std::string type = layer_type(old_.nodes()[n]);
        GALLEY_CHECK_INPUT(layer->type == type, "the plan of quantization calls layer '", name, "' ", layer->type, ", this model has ", type, " there");
      }
    }
    for (const LayerPlan& layer : plan_.layers) {
      GALLEY_CHECK_INPUT(here.count(layer.name) > 0, "the plan of quantization has the layer '", layer.name, "', which this model has not: it is of another model");
    }
  }

  /// Inputs of a node that the conversion keeps reading: not the weights that become tensors of the file.
  std::vector<ValueId> kept_inputs(size_t n) const {
    const Node& node = old_.nodes()[n];
    const LayerPlan* layer = layer_of(n);
    if (!recurrent_layers(n).empty()) {
      std::vector<ValueId> kept = node.inputs;
      kept[1] = kept[2] = kNoValue;
      return kept;
    }
    if (layer == nullptr) return node.inputs;
    std::vector<ValueId> kept{node.inputs[0], node.is("batch_norm_inference") ? kNoValue : node.input(3)};
    for (size_t i : {1u, 2u}) {
      const ValueId id = node.input(i);
      if (!layer->float_reason.empty() && id != kNoValue && is_parameter(old_, id, tensor_name(*layer, i))) kept.push_back(id);
    }
    return kept;
  }
  static std::string tensor_name(const LayerPlan& layer, size_t input) { return layer.name + (input == 1 ? ".weight" : ".bias"); }

  /// Fed inputs, and parameters that are still read; finds which constant nodes are.
  void declare_inputs() {
    std::vector<bool> read(old_.value_count());
    needed_.resize(old_.nodes().size());
    for (const auto& [name, id] : old_.outputs()) read[static_cast<size_t>(id)] = true;
    for (size_t n = old_.nodes().size(); n-- > 0;) {
      const Node& node = old_.nodes()[n];
      if (domain_.form(n) == IntegerForm::kConstant) {
        needed_[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return read[static_cast<size_t>(id)]; });
        if (!needed_[n]) continue;
      }
      for (ValueId id : kept_inputs(n)) {
        if (id != kNoValue) read[static_cast<size_t>(id)] = true;
      }
    }
    for (ValueId id : old_.inputs()) {
      const ValueInfo& info = old_.value(id);
      if (info.role == ValueRole::kInput || read[static_cast<size_t>(id)]) real_[static_cast<size_t>(id)] = new_.add_input(info.name, info.type, info.role).id();
    }
  }

  const QuantParams& map_of(ValueId old_id) const {
    const std::string& name = domain_.name(domain_.map_of(old_id));
    const auto found = plan_.values.find(name);
    GALLEY_CHECK_INPUT(found != plan_.values.end(), "the plan of quantization has no scale for the value '", name, "': it is of another model, or of samples of another shape");
    return found->second;
  }

  std::string reader_text(const Node* reader) const { return reader == nullptr ? "an output of the graph" : cat(reader->op->name, reader->path.empty() ? "" : " at " + reader->path); }

  /// The real value in the new graph; of integers, dequantized once.
  ValueId real(ValueId old_id, const Node* reader) {
    ValueId& id = real_[static_cast<size_t>(old_id)];
    if (id != kNoValue) return id;
    const ValueId q = integers_[static_cast<size_t>(old_id)];
    GALLEY_ASSERT(q != kNoValue, "a value is read before it is made");
    id = dequantize(new_.at(q), map_of(old_id)).id();
    ++report_.dequantize_nodes;
    report_.inner_dequantize += outputs_.count(old_id) == 0;
    report_.nodes.push_back(cat(domain_.name(old_id), ": dequantize for ", reader_text(reader)));
    return id;
  }

  /// The integers in the new graph; of real values, quantized once.
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
    for (size_t o = 0; o < made.size(); ++o) real_[static_cast<size_t>(node.outputs[o])] = made[o].id();
  }
  void set_integers(const Node& node, Value made) { integers_[static_cast<size_t>(node.outputs[0])] = made.id(); }

  // ---- layers

  Value declare(const LayerPlan& layer, const std::string& name, TensorType type) {
    GALLEY_CHECK(new_.find_input(name) == kNoValue, "the tensor ", name, " is the model's own, which others read too: keep its readers in float");
    report_.tensors.push_back({name, type, ValueRole::kParameter, layer.name, layer.type, true});
    return new_.add_input(name, std::move(type), ValueRole::kParameter);
  }
  void describe(const LayerPlan& layer, const std::string& name, TensorType type) {
    report_.tensors.push_back({name, std::move(type), ValueRole::kParameter, layer.name, layer.type, false});
  }

  struct Weights {
    Value weight, scale, zero_point, bias;
  };
  Weights declare_weights(const Node& node, const LayerPlan& layer, bool reads_zero_point, size_t input = 1) {
    const Shape shape = weight_shape(old_, node, input);
    Shape stored = shape, scales{shape[0]};
    if (layer.bits == 4) stored[-1] = (stored[-1] + 1) / 2;
    if (layer.group_size > 0) scales.push_back((shape.elements() / std::max<int64_t>(1, shape[0]) + layer.group_size - 1) / layer.group_size);
    Weights w;
    w.weight = declare(layer, layer.weight(), array(layer.bits == 4 ? DType::kU8 : DType::kI8, stored));
    w.scale = declare(layer, layer.weight_scale(), array(DType::kF32, scales));
    if (reads_zero_point) {
      w.zero_point = declare(layer, layer.weight_zero_point(), array(DType::kI8, scales));
    } else {
      describe(layer, layer.weight_zero_point(), array(DType::kI8, scales));
    }
    if (!layer.recurrent() && (node.is("batch_norm_inference") || node.input(2) != kNoValue)) w.bias = declare(layer, layer.name + ".bias", array(DType::kF32, Shape{shape[0]}));
    return w;
  }

  /// Layers that compute in float: left so, or with weights that are stored as integers.
  void add_float_layer(size_t n, const LayerPlan& layer) {
    const Node& node = old_.nodes()[n];
    std::vector<ValueId> inputs{real(node.inputs[0], &node), kNoValue, kNoValue};
    if (node.input(3) != kNoValue) inputs.push_back(real(node.inputs[3], &node));
    if (!layer.float_reason.empty()) {
      for (size_t i : {1u, 2u}) {
        const ValueId id = node.input(i);
        if (id == kNoValue) continue;
        const bool own = is_parameter(old_, id, tensor_name(layer, i));
        inputs[i] = own ? real_[static_cast<size_t>(id)] : declare(layer, tensor_name(layer, i), array(DType::kF32, old_.type(id).shape)).id();
      }
      set_real(node, new_.add_node_like(node, std::move(inputs)));
      return;
    }
    const Weights w = declare_weights(node, layer, plan_.method == QuantMethod::kWeightOnly);
    if (plan_.method == QuantMethod::kDynamic) {
      DynamicQuantizedLinearAttrs attrs;
      attrs.activation = node.attrs<LinearAttrs>().activation;
      attrs.saturation = layer.reduced ? Saturation::kReduced : Saturation::kExact;
      set_real(node, {dynamic_quantized_linear(new_.at(inputs[0]), w.weight, w.scale, w.bias, attrs)});
      return;
    }
    GALLEY_ASSERT(plan_.method == QuantMethod::kWeightOnly);
    inputs[1] = stored_weight(node, layer, w, 1);
    inputs[2] = w.bias ? w.bias.id() : kNoValue;
    set_real(node, new_.add_node_like(node, std::move(inputs)));
  }

  /// The real weight, input `input`, from its stored integers.
  ValueId stored_weight(const Node& node, const LayerPlan& layer, const Weights& w, size_t input) {
    DequantizeWeightAttrs attrs;
    attrs.bits = layer.bits;
    attrs.group_size = layer.group_size;
    for (int64_t size : old_.type(node.inputs[input]).shape) attrs.shape.push_back(size);
    return dequantize_weight(w.weight, w.scale, w.zero_point, attrs).id();
  }

  /// A recurrent layer: the input's part of all steps at once, then from step to step.
  void add_recurrent(size_t n) {
    const Node& node = old_.nodes()[n];
    const std::vector<const LayerPlan*> layers = recurrent_layers(n);
    const bool stored = plan_.method == QuantMethod::kWeightOnly;
    const Weights in = declare_weights(node, *layers[0], stored, 1), state = declare_weights(node, *layers[1], stored, 2);
    const auto at = [&](size_t i) { return node.input(i) == kNoValue ? Value() : new_.at(real(node.inputs[i], &node)); };
    if (stored) {
      std::vector<ValueId> inputs;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        inputs.push_back(i == 1 ? stored_weight(node, *layers[0], in, 1) : i == 2 ? stored_weight(node, *layers[1], state, 2) : at(i) ? at(i).id() : kNoValue);
      }
      set_real(node, new_.add_node_like(node, std::move(inputs)));
      return;
    }
    GALLEY_CHECK_INPUT(plan_.method == QuantMethod::kDynamic, "the plan of quantization has the recurrent layer '", layers[0]->name, "' in integers, which ", method_name(plan_.method), " has none for");
    DynamicQuantizedLinearAttrs every;
    every.saturation = layers[0]->reduced ? Saturation::kReduced : Saturation::kExact;
    const Value gates = dynamic_quantized_linear(at(0), in.weight, in.scale, at(3), every);
    const Saturation saturation = layers[1]->reduced ? Saturation::kReduced : Saturation::kExact;
    if (node.is("rnn")) {
      DynamicQuantizedRnnAttrs attrs;
      attrs.nonlinearity = node.attrs<RnnAttrs>().nonlinearity;
      attrs.reverse = node.attrs<RnnAttrs>().reverse;
      attrs.saturation = saturation;
      const QuantizedRecurrent made = dynamic_quantized_rnn(gates, state.weight, state.scale, at(4), at(5), attrs);
      return set_real(node, {made.y, made.h});
    }
    DynamicQuantizedRecurrentAttrs attrs;
    attrs.reverse = node.attrs<RecurrentAttrs>().reverse;
    attrs.saturation = saturation;
    if (node.is("gru")) {
      const QuantizedRecurrent made = dynamic_quantized_gru(gates, state.weight, state.scale, at(4), at(5), attrs);
      return set_real(node, {made.y, made.h});
    }
    const QuantizedLstm made = dynamic_quantized_lstm(gates, state.weight, state.scale, at(4), at(5), at(6), attrs);
    set_real(node, {made.y, made.h, made.c});
  }

  /// Sets maps and the promise of small operands, and keeps the made value as integers or real.
  template <class Attrs>
  void set_maps(const Node& node, const LayerPlan& layer, Attrs& attrs) {
    const QuantParams& x = map_of(node.inputs[0]);
    attrs.set_input(x);
    describe(layer, layer.name + ".input_scale", array(DType::kF32, {}));
    describe(layer, layer.name + ".input_zero_point", array(DType::kI64, {}));
    if (layer.reduced || (x.qmin >= 0 && x.qmax <= 127)) attrs.saturation = Saturation::kReduced;
    if (!domain_.made_integer(node.outputs[0])) return;
    attrs.set_output(map_of(node.outputs[0]));
    describe(layer, layer.name + ".output_scale", array(DType::kF32, {}));
    describe(layer, layer.name + ".output_zero_point", array(DType::kI64, {}));
  }
  void set_result(const Node& node, Value made) {
    if (domain_.made_integer(node.outputs[0])) {
      set_integers(node, made);
    } else {
      set_real(node, {made});
    }
  }

  void add_integer_layer(size_t n, const LayerPlan& layer) {
    const Node& node = old_.nodes()[n];
    const Value x = new_.at(integers(node.inputs[0], node));
    const bool dense = node.is("linear"), scale = node.is("batch_norm_inference");
    const ValueId residual = scale ? kNoValue : node.input(3);
    const Value r = residual == kNoValue ? Value() : new_.at(integers(residual, node));
    const Weights w = declare_weights(node, layer, false);
    if (dense) {
      QuantizedLinearAttrs attrs;
      attrs.activation = node.attrs<LinearAttrs>().activation;
      set_maps(node, layer, attrs);
      set_result(node, quantized_linear(x, w.weight, w.scale, w.bias, attrs));
      return;
    }
    QuantizedConv2dAttrs attrs;
    if (scale) {
      attrs.groups = x.channels();
      attrs.activation = node.attrs<BatchNormInferenceAttrs>().activation;
    } else {
      static_cast<Conv2dWindow&>(attrs) = node.attrs<Conv2dAttrs>();
      attrs.activation = node.attrs<Conv2dAttrs>().activation;
    }
    set_maps(node, layer, attrs);
    if (r) attrs.set_residual(map_of(residual));
    set_result(node, quantized_conv2d(x, w.weight, w.scale, w.bias, attrs, r));
  }

  // ---- other operators

  void add_integer(size_t n) {
    const Node& node = old_.nodes()[n];
    if (const LayerPlan* layer = layer_of(n); layer != nullptr) return add_integer_layer(n, *layer);
    std::vector<Value> x;
    for (ValueId id : node.inputs) x.push_back(new_.at(integers(id, node)));
    const QuantParams& from = map_of(node.inputs[0]);
    const QuantParams& to = map_of(node.outputs[0]);
    if (domain_.form(n) == IntegerForm::kPassThrough) return pass_through(node, x[0], from);
    if (domain_.form(n) == IntegerForm::kTable) return set_integers(node, lookup(x[0], table_of(from, to, scalar_function(*node.op, node.attributes.get()))));
    if (node.is("add") || node.is("mul")) return add_binary(node, x[0], x[1], to);
    if (node.is("concat")) return add_concat(node, x, to);
    if (node.is("avg_pool2d")) {
      QuantizedAvgPool2dAttrs attrs;
      static_cast<AvgPoolWindow&>(attrs) = node.attrs<AvgPool2dAttrs>();
      attrs.set_input(from);
      attrs.set_output(to);
      return set_integers(node, quantized_avg_pool2d(x[0], attrs));
    }
    QuantizedAdaptiveAvgPool2dAttrs attrs;
    attrs.set_input(from);
    attrs.set_output(to);
    if (node.is("adaptive_avg_pool2d")) {
      attrs.output_size = node.attrs<AdaptiveAvgPool2dAttrs>().output_size;
      return set_integers(node, quantized_adaptive_avg_pool2d(x[0], attrs));
    }
    GALLEY_ASSERT(node.is("mean"), node.op->name);
    const Value mean = quantized_adaptive_avg_pool2d(x[0], attrs);
    set_integers(node, node.attrs<ReduceAttrs>().keepdim ? mean : reshape(mean, old_.type(node.outputs[0]).shape));
  }

  void pass_through(const Node& node, Value x, const QuantParams& map) {
    Node moved = node;
    if (node.is("pad")) {
      auto attrs = std::make_shared<PadAttrs>(node.attrs<PadAttrs>());
      attrs->value = static_cast<double>(quantize_value(static_cast<float>(attrs->value), map));
      moved.attributes = std::move(attrs);
    }
    set_integers(node, new_.add_node_like(moved, {x.id()}).front());
  }

  void add_binary(const Node& node, Value a, Value b, const QuantParams& to) {
    // The factor for each channel comes second.
    const bool swap = !(a.shape() == old_.type(node.outputs[0]).shape);
    QuantizedBinaryAttrs attrs;
    attrs.set_inputs(map_of(node.inputs[swap ? 1 : 0]), map_of(node.inputs[swap ? 0 : 1]));
    attrs.set_output(to);
    if (swap) std::swap(a, b);
    set_integers(node, node.is("add") ? quantized_add(a, b, attrs) : quantized_mul(a, b, attrs));
  }

  void add_concat(const Node& node, const std::vector<Value>& x, const QuantParams& to) {
    QuantizedConcatAttrs attrs;
    attrs.axis = node.attrs<ConcatAttrs>().axis;
    bool alike = true;
    for (ValueId id : node.inputs) {
      attrs.add_input(map_of(id));
      alike = alike && map_of(id) == to;
    }
    attrs.set_output(to);
    set_integers(node, alike ? concat(x, node.attrs<ConcatAttrs>()) : quantized_concat(x, attrs));
  }

  /// Parameters and buffers under the model's own names that the graph still reads.
  void list_tensors() {
    std::map<std::string, const LayerPlan*> owners;
    for (const LayerPlan& layer : plan_.layers) owners[layer.name] = &layer;
    std::set<std::string> listed;
    for (const QuantizedTensor& tensor : report_.tensors) listed.insert(tensor.name);
    for (ValueId id : new_.inputs()) {
      const ValueInfo& info = new_.value(id);
      if (info.role == ValueRole::kInput || listed.count(info.name) > 0) continue;
      const auto owner = owners.find(info.name.substr(0, info.name.rfind('.')));
      const bool owned = info.name.find('.') != std::string::npos && owner != owners.end();
      report_.tensors.push_back({info.name, info.type, info.role, owned ? owner->second->name : "", owned ? owner->second->type : "", true});
    }
  }

  const Graph& old_;
  const QuantizationPlan& plan_;
  const IntegerDomain domain_;
  Graph new_;
  ConvertReport report_;
  std::vector<ValueId> real_, integers_;  // by old value
  std::vector<bool> needed_;              // constant nodes that are still read
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
  const auto put = [&](const std::string& prefix, ValueId id) {
    const QuantParams& params = plan.values.at(domain.name(domain.map_of(id)));
    values[prefix + "_scale"] = params.scale;
    values[prefix + "_zero_point"] = static_cast<double>(params.zero_point);
  };
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
    if (domain.form(n) == IntegerForm::kConstant) {
      std::vector<ValueId> inputs;
      for (ValueId id : node.inputs) inputs.push_back(mapped(id));
      const std::vector<Value> made = graph.add_node_like(node, std::move(inputs));
      for (size_t o = 0; o < made.size(); ++o) map[static_cast<size_t>(node.outputs[o])] = made[o].id();
      continue;
    }
    for (const std::string& name : domain.recurrent_layers(n)) constants.parameters[name] = name;
    if (domain.layer(n).empty()) continue;
    const std::string weight = domain.layer(n) + ".weight", bias = domain.layer(n) + ".bias";
    if (node.is("batch_norm_inference")) {
      // y = x s + (beta - mean s), s = gamma / sqrt(var + eps): a product of one weight a channel.
      graph.set_path(node.path);
      const auto at = [&](size_t i) { return node.input(i) == kNoValue ? Value() : graph.at(mapped(node.inputs[i])); };
      const Value rstd = rsqrt(affine(at(4), 1, node.attrs<BatchNormInferenceAttrs>().eps));
      const Value s = at(1) ? mul(at(1), rstd) : rstd;
      const Value shift = neg(mul(at(3), s));
      graph.add_output(weight, reshape(s, weight_shape(old, node)));
      graph.add_output(bias, at(2) ? add(shift, at(2)) : shift);
      continue;
    }
    for (size_t i : {1u, 2u}) {
      const ValueId id = node.input(i);
      if (id == kNoValue) continue;
      const std::string& name = i == 1 ? weight : bias;
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
