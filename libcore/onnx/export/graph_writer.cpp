#include "libcore/onnx/export/graph_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "libcore/base/error.h"

namespace galley::onnx_export {

OnnxAttribute attribute(std::string name, int64_t value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kInt};
  made.i = value;
  return made;
}
OnnxAttribute attribute(std::string name, double value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kFloat};
  made.f = value;
  return made;
}
OnnxAttribute attribute(std::string name, std::string_view value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kString};
  made.s = value;
  return made;
}
OnnxAttribute attribute(std::string name, std::vector<int64_t> values) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kInts};
  made.ints = std::move(values);
  return made;
}
OnnxAttribute attribute(std::string name, Tensor value) {
  OnnxAttribute made{.name = std::move(name), .kind = OnnxAttributeKind::kTensor};
  made.tensor.emplace();
  made.tensor->shape = value.shape();
  made.tensor->values = std::move(value);
  return made;
}

namespace {

/// What determines a node's results; nullopt for nodes that are written each time. Run times expect a DequantizeLinear for each reader.
std::optional<std::string> text_of(std::string_view op, const Names& inputs, const Attributes& attributes) {
  if (op == "DequantizeLinear") return std::nullopt;
  std::string text(op);
  for (const std::string& input : inputs) text += cat("\n", input);
  for (const OnnxAttribute& a : attributes) {
    if (a.tensor || a.graph || !a.strings.empty() || !a.floats.empty()) return std::nullopt;
    text += cat("\n\n", a.name, " ", a.i, " ", std::bit_cast<int64_t>(a.f), " ", a.s);
    for (const int64_t value : a.ints) text += cat(",", value);
  }
  return text;
}

}  // namespace

GraphWriter::GraphWriter(const OnnxExport& request, OnnxDocument& document) : request_(request), document_(document) {
  for (const ValueId id : graph().inputs()) used_names_.insert(graph().value(id).name);
  for (const auto& [graph_name, file_name] : request.input_names) used_names_.insert(file_name);
  for (const auto& [name, id] : graph().outputs()) used_names_.insert(name);
  find_symbols();
}

/// Each open size is the size of an input that differs between two captures.
void GraphWriter::find_symbols() {
  symbols_[kSamples].other = request_.other;
  symbols_[kTokens].other = request_.longer;
  symbols_[kPast].other = request_.later;
  for (size_t kind = 0; kind < symbols_.size(); ++kind) {
    Symbol& symbol = symbols_[kind];
    if (symbol.other == nullptr) continue;
    for (const ValueId id : graph().inputs()) {
      if (graph().value(id).role != ValueRole::kInput || symbol.step != 0) continue;
      const Shape& shape = graph().type(id).shape;
      for (int axis = 0; axis < shape.rank() && symbol.step == 0; ++axis) {
        // An axis that holds no other open size.
        bool other_differs = false;
        for (size_t k = 0; k < symbols_.size(); ++k)
          other_differs =
              other_differs || (k != kind && symbols_[k].other != nullptr && symbols_[k].other->type(id).shape[axis] != shape[axis]);
        if (other_differs) continue;
        symbol = {symbol.other, graph().value(id).name, axis, shape[axis], symbol.other->type(id).shape[axis] - shape[axis], {}};
      }
    }
    if (symbol.step == 0) symbol.other = nullptr;  // no input has such a size
  }
  const Symbol& samples = symbols_[kSamples];
  GALLEY_ASSERT(request_.other == nullptr || (samples.base > 1 && samples.step > 0),
                "the two captures must have different batches of more than one sample");
}

void GraphWriter::refuse(std::string_view reason) const {
  throw Error(ErrorCode::kRecipe, cat("the operator ", node_->op->name, node_->path.empty() ? "" : cat(" at ", node_->path),
                                      " cannot be exported to ONNX (opset 17): ", reason));
}

std::string GraphWriter::unique_name(const std::string& wish) {
  if (used_names_.insert(wish).second) return wish;
  while (true) {
    std::string name = cat(wish, "_", ++suffixes_[wish]);
    if (used_names_.insert(name).second) return name;
  }
}

/// The value whose transposition by the returned order is the transposition of x by `order`: x itself unless it is a transposition too.
std::string GraphWriter::composed(const std::string& x, std::vector<int64_t>& order) const {
  const auto made = transposed_.find(x);
  if (made == transposed_.end()) return x;
  const auto& [source, first] = made->second;
  for (int64_t& axis : order) axis = first[static_cast<size_t>(axis)];
  return source;
}

std::string GraphWriter::transpose(const std::string& x, std::vector<int64_t> order) {
  const std::string source = composed(x, order);
  if (std::is_sorted(order.begin(), order.end())) return source;
  const std::string made = add("Transpose", {source}, {attribute("perm", order)});
  transposed_.emplace(made, std::pair(source, std::move(order)));
  return made;
}

Names GraphWriter::add_many(std::string_view op, Names inputs, Attributes attributes, size_t outputs) {
  // Nodes that compute the same, such as the mask in each layer, are written once.
  const std::optional<std::string> key = text_of(op, inputs, attributes);
  if (key) {
    if (const auto known = same_.find(*key); known != same_.end()) return known->second;
  }
  OnnxNode node;
  node.op_type = op;
  node.name = unique_name(node_ == nullptr || node_->path.empty() ? std::string(op) : cat(node_->path, "/", op));
  node.inputs = std::move(inputs);
  while (!node.inputs.empty() && node.inputs.back().empty()) node.inputs.pop_back();
  node.attributes = std::move(attributes);
  for (size_t i = 0; i < outputs; ++i) node.outputs.push_back(unique_name(cat(node.name, "_output", i == 0 ? "" : std::to_string(i))));
  document_.nodes.push_back(node);
  if (key) same_.emplace(*key, node.outputs);
  return node.outputs;
}
std::string GraphWriter::add(std::string_view op, Names inputs, Attributes attributes) {
  return add_many(op, std::move(inputs), std::move(attributes), 1).front();
}

std::string GraphWriter::loop(const std::string& count, const TensorType& each,
                              const std::function<std::string(const std::string& round)>& body) {
  const auto scalar_type = [](std::string name, DType dtype) {
    return OnnxValue{.name = std::move(name), .data_type = onnx_type(dtype), .has_shape = true};
  };
  const auto made = std::make_shared<OnnxGraph>();
  made->name = unique_name(cat(node_->path, "/body"));
  made->inputs = {scalar_type(unique_name(made->name + "/round"), DType::kI64), scalar_type(unique_name(made->name + "/go"), DType::kBool)};
  // What the body makes can be read inside it only.
  const auto constants = constants_;
  const auto same = same_;
  const auto transposed = transposed_;
  std::vector<OnnxNode> around = std::exchange(document_.nodes, {});
  const std::string result = body(made->inputs[0].name), go = add("Identity", {made->inputs[1].name});
  made->nodes = std::exchange(document_.nodes, std::move(around));
  constants_ = constants;
  same_ = same;
  transposed_ = transposed;
  OnnxValue value{.name = result, .data_type = onnx_type(each.dtype), .has_shape = true};
  for (int axis = 0; axis < each.shape.rank(); ++axis) value.shape.push_back({.size = each.shape[axis], .name = {}});
  made->outputs = {scalar_type(go, DType::kBool), std::move(value)};
  OnnxAttribute attribute{.name = "body", .kind = OnnxAttributeKind::kGraph};
  attribute.graph = made;
  return add("Loop", {count, scalar(1, DType::kBool)}, {attribute});
}

const std::string& GraphWriter::name(ValueId id) const {
  const auto found = names_.find(id);
  GALLEY_ASSERT(found != names_.end(), "a value is read before it is exported");
  return found->second;
}

std::string GraphWriter::constant(const Tensor& tensor) {
  std::string key = tensor.str();
  key.append(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.bytes()));
  std::string& name = constants_[key];
  if (name.empty()) {
    // Constants become nodes because initializers hold only the model's parameters.
    name = unique_name(cat("constant_", constants_.size()));
    OnnxNode node{.name = name, .op_type = "Constant"};
    node.outputs = {name};
    node.attributes.push_back(attribute("value", tensor));
    document_.nodes.push_back(std::move(node));
  }
  return name;
}
std::string GraphWriter::ints(const std::vector<int64_t>& values) {
  Tensor tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data_as<int64_t>());
  return constant(tensor);
}
std::string GraphWriter::scalar(double value, DType dtype) {
  Tensor tensor(dtype, {});
  tensor.from_doubles({value});
  return constant(tensor);
}
std::string GraphWriter::uniform(int64_t count, double value) {
  Tensor tensor(DType::kF32, {count});
  tensor.from_doubles(std::vector<double>(static_cast<size_t>(count), value));
  return constant(tensor);
}
std::string GraphWriter::array(const std::string& name, DType dtype, const Shape& shape) {
  return array(name, dtype, shape, [values = request_.values, name] { return values(name); });
}
std::string GraphWriter::array(const std::string& name, DType dtype, const Shape& shape, std::function<Tensor()> values) {
  if (!arrays_.insert(name).second) return name;
  used_names_.insert(name);
  document_.initializers.push_back({name, dtype, shape, std::move(values)});
  return name;
}

Dim GraphWriter::fitted(int64_t size, const std::array<int64_t, 3>& others) const {
  Dim made(size);
  const auto step = [&](SymbolKind kind) { return symbols_[kind].other == nullptr ? 0 : others[kind] - size; };
  const Symbol& samples = symbols_[kSamples];
  made.samples = step(kSamples) != 0;
  const int64_t each = made.samples ? size / samples.base : size;
  bool exact = !made.samples || (each * samples.base == size && each * (samples.base + samples.step) == others[kSamples]);
  const auto factor = [&](SymbolKind kind) {
    const int64_t unit = symbols_[kind].step * (made.samples ? samples.base : 1);
    if (step(kind) == 0) return int64_t{0};
    exact = exact && step(kind) % unit == 0;
    return step(kind) / unit;
  };
  made.tokens = factor(kTokens);
  made.past = factor(kPast);
  made.fixed = each - made.tokens * symbols_[kTokens].base - made.past * symbols_[kPast].base;
  if (!exact)
    refuse(cat("a size is neither fixed nor a multiple of the batch (", size, " and ", others[kSamples],
               "): export it for a fixed batch with --batch N"));
  return made;
}

std::vector<Dim> GraphWriter::dims(ValueId id) const {
  std::vector<Dim> dims;
  const Shape& shape = graph().type(id).shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    std::array<int64_t, 3> others{};
    for (size_t kind = 0; kind < others.size(); ++kind) {
      if (symbols_[kind].other == nullptr) continue;
      GALLEY_ASSERT(symbols_[kind].other->type(id).shape.rank() == shape.rank());
      others[kind] = symbols_[kind].other->type(id).shape[axis];
    }
    dims.push_back(fitted(shape[axis], others));
  }
  return dims;
}

Dim GraphWriter::dim(const std::function<int64_t(const Node&)>& attribute) const {
  const auto& nodes = graph().nodes();
  const auto n = static_cast<size_t>(
      std::distance(nodes.begin(), std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) { return &node == node_; })));
  std::array<int64_t, 3> others{};
  for (size_t kind = 0; kind < others.size(); ++kind) {
    if (symbols_[kind].other != nullptr) others[kind] = attribute(symbols_[kind].other->nodes()[n]);
  }
  return fitted(attribute(*node_), others);
}

const std::string& GraphWriter::symbol(SymbolKind kind) {
  Symbol& symbol = symbols_[kind];
  if (!symbol.name.empty()) return symbol.name;
  const Node* node = std::exchange(node_, nullptr);
  const auto renamed = request_.input_names.find(symbol.input);
  const std::string& input = renamed == request_.input_names.end() ? symbol.input : renamed->second;
  symbol.name = add("Slice", {add("Shape", {input}), ints({symbol.axis}), ints({symbol.axis + 1})});
  node_ = node;
  return symbol.name;
}

/// Name of an i64 [1] tensor with an open size.
std::string GraphWriter::symbol_sum(const Dim& dim) {
  std::string sum;
  const auto plus = [&](const std::string& term) { sum = sum.empty() ? term : add("Add", {sum, term}); };
  const auto part = [&](SymbolKind kind, int64_t factor) {
    if (factor != 0) plus(factor == 1 ? symbol(kind) : add("Mul", {symbol(kind), ints({factor})}));
  };
  part(kTokens, dim.tokens);
  part(kPast, dim.past);
  if (sum.empty() && dim.samples) return dim.fixed == 1 ? symbol(kSamples) : add("Mul", {symbol(kSamples), ints({dim.fixed})});
  if (dim.fixed != 0) plus(ints({dim.fixed}));
  return dim.samples ? add("Mul", {symbol(kSamples), sum}) : sum;
}

std::string GraphWriter::shape(const std::vector<Dim>& dims) {
  Names parts;
  std::vector<int64_t> fixed;
  const auto flush = [&] {
    if (!fixed.empty()) parts.push_back(ints(fixed));
    fixed.clear();
  };
  for (const Dim& dim : dims) {
    if (!dim.open()) {
      fixed.push_back(dim.size);
      continue;
    }
    flush();
    parts.push_back(symbol_sum(dim));
  }
  flush();
  if (parts.empty()) return ints({});
  return parts.size() == 1 ? parts.front() : add("Concat", parts, {attribute("axis", int64_t{0})});
}

/// The size as the file declares it: "N", "2N", "P + T".
std::string GraphWriter::text(const Dim& dim) const {
  std::string sum;
  const auto part = [&](int64_t factor, const std::string& name) {
    if (factor == 0) return;
    if (!sum.empty()) sum += " + ";
    sum += factor == 1 && !name.empty() ? name : cat(factor, name);
  };
  part(dim.past, request_.size_names[kPast]);
  part(dim.tokens, request_.size_names[kTokens]);
  if (!dim.samples) {
    part(dim.fixed, "");
    return sum;
  }
  const std::string& samples = request_.size_names[kSamples];
  if (sum.empty()) return dim.fixed == 1 ? samples : cat(dim.fixed, samples);
  part(dim.fixed, "");
  return cat(samples, " * (", sum, ")");
}
OnnxDimension GraphWriter::declared(const Dim& dim) const {
  OnnxDimension made;
  if (dim.open()) {
    made.name = text(dim);
  } else {
    made.size = dim.size;
  }
  return made;
}

std::string GraphWriter::reshape(const std::string& x, const std::vector<Dim>& from, const std::vector<Dim>& to) {
  // In Reshape, 0 copies the input's size at the same axis, and one size may be -1 (inferred).
  std::vector<int64_t> sizes;
  int open = 0;
  for (size_t axis = 0; axis < to.size(); ++axis) {
    const bool copied = to[axis].open() && axis < from.size() && from[axis] == to[axis];
    open += to[axis].open() && !copied;
    sizes.push_back(!to[axis].open() ? to[axis].size : copied ? 0 : -1);
  }
  return add("Reshape", {x, open > 1 ? shape(to) : ints(sizes)});
}

void GraphWriter::declare_input(ValueId id) {
  const ValueInfo& info = graph().value(id);
  const auto renamed = request_.input_names.find(info.name);
  OnnxValue value{.name = renamed == request_.input_names.end() ? info.name : renamed->second,
                  .data_type = onnx_type(info.type.dtype),
                  .has_shape = true};
  for (const Dim& dim : dims(id)) value.shape.push_back(declared(dim));
  set(id, value.name);
  document_.inputs.push_back(std::move(value));
}

/// Removes nodes whose results nothing reads, such as permutations that another one undoes.
void GraphWriter::remove_unread() {
  std::set<std::string> read;
  for (const auto& [name, id] : graph().outputs()) read.insert(name);
  std::vector<OnnxNode> kept;
  for (size_t n = document_.nodes.size(); n-- > 0;) {
    OnnxNode& node = document_.nodes[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& output) { return read.contains(output); })) continue;
    read.insert(node.inputs.begin(), node.inputs.end());
    for (const OnnxAttribute& attribute : node.attributes) {
      if (attribute.graph == nullptr) continue;
      for (const OnnxNode& inner : attribute.graph->nodes) read.insert(inner.inputs.begin(), inner.inputs.end());
    }
    kept.push_back(std::move(node));
  }
  std::reverse(kept.begin(), kept.end());
  document_.nodes = std::move(kept);
}

void GraphWriter::finish_outputs(const std::vector<std::pair<std::string, std::string>>& outputs) {
  node_ = nullptr;
  std::map<std::string, std::string> renamed;
  for (const auto& [wanted, made] : outputs) {
    const bool of_node = std::any_of(document_.nodes.begin(), document_.nodes.end(), [&, &made = made](const OnnxNode& node) {
      return std::find(node.outputs.begin(), node.outputs.end(), made) != node.outputs.end();
    });
    if (of_node && renamed.emplace(made, wanted).second) continue;
    const std::string copy = add("Identity", {made});
    renamed[copy] = wanted;
  }
  for (OnnxNode& node : document_.nodes) {
    for (Names* names : {&node.inputs, &node.outputs}) {
      for (std::string& name : *names) {
        if (const auto found = renamed.find(name); found != renamed.end()) name = found->second;
      }
    }
  }
  remove_unread();
  for (const auto& [name, id] : graph().outputs()) {
    OnnxValue value{.name = name, .data_type = onnx_type(graph().type(id).dtype), .has_shape = true};
    for (const Dim& dim : dims(id)) value.shape.push_back(declared(dim));
    document_.outputs.push_back(std::move(value));
  }
}

}  // namespace galley::onnx_export
