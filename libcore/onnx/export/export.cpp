// onnx_document: exports each node of a float or quantized graph with its operator's row.

#include "libcore/onnx/export/export.h"

#include <algorithm>
#include <map>

#include "libcore/base/error.h"
#include "libcore/onnx/export/functions.h"
#include "libcore/onnx/export/graph_writer.h"
#include "libcore/ops/norm.h"
#include "libcore/passes/integer_domain.h"

namespace galley {
namespace onnx_export {
namespace {

const std::map<std::string_view, WriteNode>& rows() {
  static const std::map<std::string_view, WriteNode> all = [] {
    std::map<std::string_view, WriteNode> made;
    for (const WriteTable& table : {layer_rows(), attention_rows(), rotary_rows(), elementwise_rows(), shape_rows(), detection_rows()})
      made.insert(table.begin(), table.end());
    return made;
  }();
  return all;
}

/// Sizes that depend on the batch are derived from the shapes of values; any other difference between the two captures cannot be exported.
void check_equal_attributes(const GraphWriter& w, const Graph& graph, const Graph* other, size_t n, std::string_view size,
                            std::string_view option) {
  if (other == nullptr) return;
  const Node &a = graph.nodes()[n], &b = other->nodes()[n];
  GALLEY_ASSERT(a.op == b.op && a.path == b.path, "two captures of one model differ");
  for (const char* takes_sizes : {"reshape", "broadcast_to", "full", "slice", "iota"}) {
    if (a.is(takes_sizes)) return;
  }
  if (print_attributes(*a.op, a.attributes.get()) != print_attributes(*b.op, b.attributes.get()))
    w.refuse(cat("its attributes depend on the ", size, ": export it for a fixed one with ", option));
}

class Exporter {
 public:
  explicit Exporter(const OnnxExport& request)
      : request_(request), graph_(*request.graph), w_(request, document_), domain_(graph_, [plan = request.plan](const std::string& name) {
          const LayerPlan* layer = plan == nullptr ? nullptr : plan->find(name);
          return layer == nullptr || !layer->float_reason.empty() ||
                 (plan->method != QuantMethod::kStatic && plan->method != QuantMethod::kQat);
        }) {
    if (request.plan == nullptr) return;
    for (const LayerPlan& layer : request.plan->layers) {
      if (!layer.f8) continue;
      throw Error(ErrorCode::kRecipe, cat("layer ", layer.name, " has operands in f8_e4m3, which ONNX supports only from opset 19"))
          .suggest("quantize with quantize.weights.dtype=int8, then export again");
    }
    values_ = planned_values(graph_, domain_, *request.plan);
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const LayerPlan* table = domain_.table(n).empty() ? nullptr : request.plan->find(domain_.table(n));
      if (table != nullptr && table->float_reason.empty()) tables_[graph_.nodes()[n].inputs[0]] = table;
    }
  }

  OnnxDocument run() {
    for (const Graph* other : {request_.other, request_.longer, request_.later})
      GALLEY_ASSERT(other == nullptr || graph_.nodes().size() == other->nodes().size(), "two captures of one model differ");
    for (const ValueId id : graph_.inputs()) {
      const ValueInfo& info = graph_.value(id);
      if (info.role == ValueRole::kInput) w_.declare_input(id);
    }
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      // Nodes that depend only on parameters are exported when another node reads them; folded weights are never read.
      if (!domain_.constant(n)) write(n);
    }
    std::vector<std::pair<std::string, std::string>> outputs;
    for (const auto& [name, id] : graph_.outputs()) outputs.emplace_back(name, float_name(id));
    w_.finish_outputs(outputs);
    return std::move(document_);
  }

 private:
  const QuantParams& map_of(ValueId id) const {
    const std::string& name = domain_.name(domain_.map_of(id));
    const auto found = values_.find(name);
    GALLEY_CHECK_INPUT(found != values_.end(), "the quantization plan has no scale for the value '", name,
                       "': it was made for another model or for samples of another shape");
    return found->second;
  }
  /// Name of the float form of a value. An integer value is dequantized separately for each reader, as ONNX run times expect.
  std::string float_name(ValueId id) {
    if (const auto q = integer_names_.find(id); q != integer_names_.end()) return dequantized(w_, q->second, map_of(id));
    if (!w_.known(id)) {
      const ValueInfo& info = graph_.value(id);
      if (info.role != ValueRole::kActivation) {
        w_.set(id, w_.array(info.name, info.type.dtype, info.type.shape));
      } else {
        const int producer = domain_.producers()[static_cast<size_t>(id)];
        GALLEY_ASSERT(producer >= 0, "a value is read before it is made");
        if (domain_.constant(static_cast<size_t>(producer))) write(static_cast<size_t>(producer));
        w_.set_node(graph_.nodes()[static_cast<size_t>(producer)]);
        if (!w_.known(id)) w_.refuse("ONNX has no equivalent of an output of it that is used");
      }
    }
    return w_.name(id);
  }

  /// Name of the integer form of a value; a float value is quantized once.
  std::string integer_name(ValueId id) {
    if (const auto q = integer_names_.find(id); q != integer_names_.end()) return q->second;
    return integer_names_[id] = quantized(w_, float_name(id), map_of(id));
  }

  /// A layer's weight: the quantized weight with its scales, or the float array of that name.
  std::string layer_weight(const LayerPlan* plan, const std::string& name, const Shape& shape) {
    if (plan == nullptr || !plan->float_reason.empty()) return w_.array(name, DType::kF32, shape);
    if (plan->group_size > 0) {
      throw Error(ErrorCode::kRecipe, cat("layer ", plan->name, " has one scale per group of ", plan->group_size,
                                          " weights, which ONNX supports only from opset 21"))
          .suggest("quantize with quantize.weights.group_size=null, then export again");
    }
    const std::string weight = plan->weight();
    std::string q;
    if (plan->bits == 4) {
      q = w_.array(weight, DType::kI8, shape, [values = request_.values, weight, shape] { return unpacked(values(weight), shape); });
    } else {
      q = w_.array(weight, DType::kI8, shape);
    }
    Names inputs{q, w_.array(plan->weight_scale(), DType::kF32, {shape[0]})};
    if (request_.plan->method == QuantMethod::kWeightOnly) inputs.push_back(w_.array(plan->weight_zero_point(), DType::kI8, {shape[0]}));
    return w_.add("DequantizeLinear", inputs, {attribute("axis", int64_t{0})});
  }
  /// Unpacks int4 values, two per byte along the last axis, low half first.
  static Tensor unpacked(const Tensor& packed, const Shape& shape) {
    Tensor made(DType::kI8, shape);
    const int64_t row = shape[-1], bytes = (row + 1) / 2, rows = row == 0 ? 0 : shape.elements() / row;
    const auto* from = packed.data_as<uint8_t>();
    auto* to = static_cast<int8_t*>(made.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < row; ++i) {
        const int half = from[r * bytes + i / 2] >> (i % 2 * 4) & 0xf;
        to[r * row + i] = static_cast<int8_t>(half < 8 ? half : half - 16);
      }
    }
    return made;
  }

  /// The plan that names a layer's stored weight: its own, or that of a table which it shares (a tied head) and whose form it has.
  const LayerPlan* weight_plan(const LayerPlan* plan, ValueId weight) const {
    const auto table = tables_.find(weight);
    const bool shares = plan != nullptr && table != tables_.end() && plan->float_reason.empty() && plan->bits == 8 && plan->group_size == 0;
    return shares ? table->second : plan;
  }

  /// Names of a node's inputs; weights of layers are replaced by their named or quantized tensors.
  Names input_names(size_t n) {
    const Node& node = graph_.nodes()[n];
    const std::string& layer = domain_.layer(n);
    const LayerPlan* plan = request_.plan == nullptr || layer.empty() ? nullptr : request_.plan->find(layer);
    const bool product = domain_.rule(n) == QuantizeRule::kProduct;
    const std::vector<size_t> whole = domain_.integer(n) ? domain_.integer_inputs(node) : std::vector<size_t>{};
    const std::vector<std::string>& recurrent = domain_.recurrent_layers(n);
    Names names;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == kNoValue) {
        names.emplace_back();
      } else if (std::find(whole.begin(), whole.end(), i) != whole.end()) {
        names.push_back(dequantized(w_, integer_name(id), map_of(id)));
      } else if (product && (i == 1 || i == 2) &&
                 (request_.plan != nullptr || (request_.named_layers && graph_.value(id).role == ValueRole::kActivation))) {
        const Shape& shape = graph_.type(id).shape;
        names.push_back(i == 1 ? layer_weight(weight_plan(plan, id), layer + ".weight", shape)
                               : w_.array(layer + ".bias", DType::kF32, shape));
      } else if (request_.plan != nullptr && recurrent.size() == 2 && (i == 1 || i == 2)) {
        names.push_back(layer_weight(request_.plan->find(recurrent[i - 1]), recurrent[i - 1], graph_.type(id).shape));
      } else {
        names.push_back(float_name(id));
      }
    }
    return names;
  }

  void write(size_t n) {
    const Node& node = graph_.nodes()[n];
    w_.set_node(node);
    check_equal_attributes(w_, graph_, request_.other, n, "batch", "--batch N");
    check_equal_attributes(w_, graph_, request_.longer, n, "number of tokens", "--shape T");
    check_equal_attributes(w_, graph_, request_.later, n, "number of earlier tokens", "--no-cache");
    const auto row = rows().find(node.op->name);
    if (row == rows().end()) w_.refuse("ONNX has no equivalent operator");
    if (domain_.integer(n) && domain_.rule(n) == QuantizeRule::kScale) return write_scale(n);
    if (!domain_.table(n).empty() && tables_.contains(node.inputs[0])) return write_table(n, *tables_.at(node.inputs[0]));
    const Names inputs = input_names(n);
    w_.set_node(node);  // exporting the inputs may have set another node
    set_results(n, row->second({w_, node, inputs}));
  }

  /// Exports rows of a table of integers: each has a scale.
  void write_table(size_t n, const LayerPlan& table) {
    const Node& node = graph_.nodes()[n];
    const Shape& shape = graph_.type(node.inputs[0]).shape;
    const std::string index = float_name(node.inputs[1]);
    const Attributes rows{attribute("axis", int64_t{0})};
    const std::string integers = w_.add("Gather", {w_.array(table.weight(), DType::kI8, shape), index}, rows),
                      scales = w_.add("Gather", {w_.array(table.weight_scale(), DType::kF32, {shape[0]}), index}, rows);
    set_results(n, {w_.add("Mul", {w_.add("Cast", {integers}, {attribute("to", int64_t{onnx_type(DType::kF32)})}),
                                   w_.add("Unsqueeze", {scales, w_.ints({-1})})})});
  }

  /// Exports a batch norm on integers as a depthwise 1x1 convolution.
  void write_scale(size_t n) {
    const Node& norm = graph_.nodes()[n];
    const int64_t channels = graph_.type(norm.inputs[0]).shape[1];
    const LayerPlan* plan = request_.plan->find(domain_.layer(n));
    const std::string x = dequantized(w_, integer_name(norm.inputs[0]), map_of(norm.inputs[0]));
    const std::string weight = layer_weight(plan, plan->weight(), {channels, 1, 1, 1}),
                      bias = w_.array(plan->name + ".bias", DType::kF32, {channels});
    const std::string y =
        w_.add("Conv", {x, weight, bias}, {attribute("kernel_shape", std::vector<int64_t>{1, 1}), attribute("group", channels)});
    set_results(n, {activated(w_, y, norm.attrs<BatchNormInferenceAttrs>().activation)});
  }

  void set_results(size_t n, const Names& made) {
    const Node& node = graph_.nodes()[n];
    for (size_t o = 0; o < made.size(); ++o) {
      if (!made[o].empty()) w_.set(node.outputs[o], made[o]);
    }
    if (domain_.integer(n) && domain_.made_integer(node.outputs[0]))
      integer_names_[node.outputs[0]] = quantized(w_, made[0], map_of(node.outputs[0]));
  }

  const OnnxExport& request_;
  const Graph& graph_;
  OnnxDocument document_;
  GraphWriter w_;
  const IntegerDomain domain_;
  std::map<std::string, QuantParams> values_;
  std::map<ValueId, std::string> integer_names_;
  std::map<ValueId, const LayerPlan*> tables_;  // tables of embeddings that are stored as integers
};

}  // namespace
}  // namespace onnx_export

OnnxDocument onnx_document(const OnnxExport& request) { return onnx_export::Exporter(request).run(); }

}  // namespace galley
