#include "libcore/passes/integer_domain.h"

#include <algorithm>
#include <set>

#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/quant/names.h"

namespace galley {
namespace {

bool is_recurrent(const Node& node) { return node.is("lstm") || node.is("gru") || node.is("rnn"); }

bool is_product(const Node& node) { return node.is("conv2d") || node.is("linear"); }

/// b of a's shape, or a factor for each channel: the shapes of quantized_add and quantized_mul, either way round.
bool pairs(const Shape& a, const Shape& b) {
  const auto gate = [](const Shape& x, const Shape& s) { return x.rank() == 4 && s == Shape({x[0], x[1], 1, 1}); };
  return a == b || gate(a, b) || gate(b, a);
}

bool means_pixels(const Node& node, const Shape& x) {
  if (x.rank() != 4) return false;
  std::set<int64_t> axes;
  for (int64_t axis : node.attrs<ReduceAttrs>().axes) axes.insert(axis < 0 ? axis + 4 : axis);
  return axes == std::set<int64_t>{2, 3};
}

}  // namespace

std::string layer_type(const Node& node) { return node.is("batch_norm_inference") ? "batch_norm" : std::string(node.op->name); }

IntegerDomain::IntegerDomain(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float)
    : producers_(graph.producers()),
      names_(graph.value_count()),
      forms_(graph.nodes().size(), IntegerForm::kNone),
      layers_(graph.nodes().size()),
      recurrent_layers_(graph.nodes().size()),
      integer_(graph.nodes().size()),
      wanted_(graph.value_count()),
      made_integer_(graph.value_count()),
      root_(graph.value_count()) {
  for (const auto& [id, name] : quant_values(graph)) names_[static_cast<size_t>(id)] = name;
  classify(graph);
  decide(graph, in_float);
}

void IntegerDomain::classify(const Graph& graph) {
  std::vector<bool> fed(graph.value_count());
  for (ValueId id : graph.inputs()) fed[static_cast<size_t>(id)] = graph.value(id).role == ValueRole::kInput;
  const std::vector<std::vector<int>> users = graph.users();
  std::set<ValueId> outputs;
  for (const auto& [name, id] : graph.outputs()) outputs.insert(id);
  const std::vector<std::string> names = quant_names(graph);
  std::set<std::string> taken;
  const auto real = [&](ValueId id) { return id != kNoValue && fed[static_cast<size_t>(id)] && graph.type(id).dtype == DType::kF32; };
  const auto constant = [&](ValueId id) { return id == kNoValue || !fed[static_cast<size_t>(id)]; };

  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (std::all_of(node.inputs.begin(), node.inputs.end(), constant)) {
      forms_[n] = IntegerForm::kConstant;
      continue;
    }
    for (ValueId id : node.outputs) fed[static_cast<size_t>(id)] = true;
    if (node.outputs.empty() || !real(node.outputs[0]) || !real(node.inputs[0])) continue;
    const Shape& x = graph.type(node.inputs[0]).shape;
    if (is_product(node)) {
      if (!constant(node.input(1)) || !constant(node.input(2)) || graph.type(node.inputs[1]).dtype != DType::kF32) continue;
      forms_[n] = IntegerForm::kProduct;
      layers_[n] = names[n];
      taken.insert(names[n]);
    } else if (is_recurrent(node)) {
      // A weight that is computed, or read twice, has no name of its own to be stored under.
      for (const ValueId id : {node.inputs[1], node.inputs[2]}) {
        const bool own = graph.value(id).role == ValueRole::kParameter && graph.type(id).dtype == DType::kF32 && users[static_cast<size_t>(id)].size() == 1;
        if (own) recurrent_layers_[n].push_back(graph.value(id).name);
      }
      if (recurrent_layers_[n].size() == 2) forms_[n] = IntegerForm::kRecurrent;
      if (recurrent_layers_[n].size() == 1) recurrent_layers_[n].clear();
    } else if (node.is("batch_norm_inference")) {
      bool plain = x.rank() == 4 && !node.path.empty();
      for (size_t i = 1; i < node.inputs.size(); ++i) plain = plain && constant(node.inputs[i]);
      if (!plain) continue;
      forms_[n] = IntegerForm::kScale;
      layers_[n] = taken.insert(node.path).second ? node.path : names[n];
    } else if (node.is("add") || node.is("mul")) {
      if (real(node.inputs[1]) && pairs(x, graph.type(node.inputs[1]).shape)) forms_[n] = IntegerForm::kOwnMap;
    } else if (node.is("concat")) {
      if (std::all_of(node.inputs.begin(), node.inputs.end(), real)) forms_[n] = IntegerForm::kOwnMap;
    } else if (node.is("avg_pool2d") || node.is("adaptive_avg_pool2d") || (node.is("mean") && means_pixels(node, x))) {
      forms_[n] = IntegerForm::kOwnMap;
    } else if (node.op->quantize == QuantizeRule::kPassThrough && node.inputs.size() == 1) {
      bool plain = !node.is("resize") || node.attrs<ResizeAttrs>().mode == ResizeMode::kNearest;
      // Places of maxima are for backward passes and unpooling, which have no integer form.
      for (size_t o = 1; o < node.outputs.size(); ++o) plain = plain && users[static_cast<size_t>(node.outputs[o])].empty() && outputs.count(node.outputs[o]) == 0;
      if (plain) forms_[n] = IntegerForm::kPassThrough;
    } else if (node.op->quantize == QuantizeRule::kTable && node.inputs.size() == 1) {
      forms_[n] = IntegerForm::kTable;
    }
  }
}

ValueId IntegerDomain::watched(const Graph& graph, ValueId id) const {
  for (int n = producers_[static_cast<size_t>(id)]; n >= 0 && graph.nodes()[static_cast<size_t>(n)].op->view(); n = producers_[static_cast<size_t>(id)]) {
    id = graph.nodes()[static_cast<size_t>(n)].inputs[0];
  }
  return id;
}

std::vector<size_t> IntegerDomain::integer_inputs(const Node& node) const {
  if (node.is("conv2d")) return node.input(3) == kNoValue ? std::vector<size_t>{0} : std::vector<size_t>{0, 3};
  if (node.is("linear") || node.is("batch_norm_inference")) return {0};
  std::vector<size_t> all(node.inputs.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

void IntegerDomain::decide(const Graph& graph, const std::function<bool(const std::string& layer)>& in_float) {
  const std::deque<Node>& nodes = graph.nodes();
  const auto at = [](ValueId id) { return static_cast<size_t>(id); };
  std::vector<bool> may(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    const IntegerForm form = forms_[n];
    may[n] = form != IntegerForm::kNone && form != IntegerForm::kConstant && form != IntegerForm::kRecurrent && (layers_[n].empty() || !in_float(layers_[n]));
  }
  // Who would read a value as integers, if its readers got what they want.
  std::vector<bool> asked(graph.value_count());
  for (size_t n = nodes.size(); n-- > 0;) {
    if (!may[n] || (forms_[n] != IntegerForm::kProduct && !asked[at(nodes[n].outputs[0])])) continue;
    for (size_t i : integer_inputs(nodes[n])) asked[at(nodes[n].inputs[i])] = true;
  }
  // A fed value is quantized at once where it is asked for; others are integers where a node makes them so.
  std::vector<bool> available(graph.value_count());
  for (ValueId id : graph.inputs()) available[at(id)] = asked[at(id)];
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!may[n]) continue;
    const ValueId y = nodes[n].outputs[0];
    if (forms_[n] == IntegerForm::kProduct) {
      integer_[n] = true;
    } else {
      const std::vector<size_t> inputs = integer_inputs(nodes[n]);
      integer_[n] = asked[at(y)] && std::any_of(inputs.begin(), inputs.end(), [&](size_t i) { return available[at(nodes[n].inputs[i])]; });
    }
    available[at(y)] = integer_[n] && asked[at(y)];
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!integer_[n]) continue;
    for (size_t i : integer_inputs(nodes[n])) wanted_[at(nodes[n].inputs[i])] = true;
  }
  for (size_t v = 0; v < root_.size(); ++v) root_[v] = static_cast<ValueId>(v);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const ValueId y = nodes[n].outputs.empty() ? kNoValue : nodes[n].outputs[0];
    if (!integer_[n] || !wanted_[at(y)]) continue;
    made_integer_[at(y)] = true;
    if (forms_[n] == IntegerForm::kPassThrough) root_[at(y)] = root_[at(nodes[n].inputs[0])];
  }
}

}  // namespace galley
