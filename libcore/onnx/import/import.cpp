#include "libcore/onnx/import/import.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/ops/binary.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/shape.h"

namespace galley::onnx_import {
namespace {

const std::map<std::string_view, MakeNode>& rows() {
  static const std::map<std::string_view, MakeNode> all = [] {
    std::map<std::string_view, MakeNode> made;
    for (const MakeTable& table : {product_rows(), norm_rows(), pool_rows(), resize_rows(), recurrent_rows(), elementwise_rows(),
                                   shape_rows(), index_rows(), reduce_rows(), loss_rows(), quantize_rows()}) {
      made.insert(table.begin(), table.end());
    }
    return made;
  }();
  return all;
}

constexpr int64_t kOldestOpset = 7, kNewestOpset = 21;
constexpr int64_t kLargestSize = int64_t{1} << 40;  // elements of a tensor that the file describes

/// The module path in a node's name: "/layer1/layer1.0/conv1/Conv_2" and "layer1.0.conv1/Conv" are both recognized.
std::string path_of(const OnnxNode& node) {
  std::string name = node.name.substr(0, 200);
  const size_t slash = name.rfind('/');
  if (slash != std::string::npos && std::string_view(name).substr(slash + 1).starts_with(node.op_type)) name.resize(slash);
  std::string path;
  for (const char letter : name) {
    const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
                       letter == '_' || letter == '-';
    if (plain) {
      path += letter;
    } else if (!path.empty() && path.back() != '.') {
      path += letter == '/' || letter == '.' ? '.' : '_';
    }
  }
  while (!path.empty() && path.back() == '.') path.pop_back();
  return path;
}

}  // namespace

Tensor Source::read(const OnnxTensor& tensor) const {
  const std::lock_guard lock(mutex_);
  Tensor& values = read_[&tensor];
  if (!values.defined()) {
    check_sizes(tensor.shape, cat(path(), ": tensor '", tensor.name.substr(0, 200), "'"));
    values = file_.read(tensor);
  }
  return values;
}

std::shared_ptr<const FileLayout> Source::layout(const std::string& key,
                                                 const std::function<std::shared_ptr<const FileLayout>()>& find) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = layouts_.find(key); found != layouts_.end()) return found->second;
  }
  std::shared_ptr<const FileLayout> made = find();  // not under the lock, because it reads tensors, which takes it
  const std::lock_guard lock(mutex_);
  return layouts_.emplace(key, std::move(made)).first->second;
}

std::vector<int64_t> to_ints(const Tensor& tensor) {
  std::vector<int64_t> values;
  if (tensor.dtype() == DType::kI64) {
    values.assign(tensor.data_as<int64_t>(), tensor.data_as<int64_t>() + tensor.elements());
  } else {
    for (const double value : tensor.to_doubles()) {
      GALLEY_CHECK_INPUT(!std::isnan(value), "a number is NaN, but must be an integer");
      values.push_back(static_cast<int64_t>(std::clamp(value, -9e18, 9e18)));
    }
  }
  return values;
}

Tensor from_ints(const std::vector<int64_t>& values) {
  Tensor tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data_as<int64_t>());
  return tensor;
}

int axis_in(int64_t axis, int64_t rank) {
  GALLEY_CHECK_INPUT(axis >= -rank && axis < rank, "axis ", axis, " is out of range for rank ", rank);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

void check_sizes(const Shape& shape, std::string_view what) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    GALLEY_CHECK_INPUT(!__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements) && elements <= kLargestSize, what,
                       " is too large: ", shape);
  }
}

Shape shape_of(const std::vector<int64_t>& sizes) {
  GALLEY_CHECK_INPUT(sizes.size() <= static_cast<size_t>(Shape::kMaxRank), "a tensor has ", sizes.size(), " dimensions, but at most ",
                     Shape::kMaxRank, " are supported");
  for (const int64_t size : sizes) GALLEY_CHECK_INPUT(size >= 0 && size <= kLargestSize, "a tensor has a dimension of size ", size);
  return Shape(std::span<const int64_t>(sizes));
}

Value weight_of(Call& c, size_t i, std::string_view leaf, std::string_view type) {
  if (!c.has(i)) return {};
  Item& item = c.to.item(c.node.inputs[i]);
  return item.value || item.transposed ? c.to.value(item) : c.to.parameter(item, leaf, type);
}

MakeNode find_row(std::string_view op_type) {
  const auto row = rows().find(op_type);
  return row == rows().end() ? nullptr : row->second;
}

// ---- a node

void Call::refuse(std::string_view why, std::string_view fix) const {
  throw Error(ErrorCode::kInput, std::string(why)).suggest(std::string(fix));
}
bool Call::needs_output(size_t i) const { return i < node.outputs.size() && !node.outputs[i].empty() && to.is_read(node.outputs[i]); }
const Item& Call::item(size_t i) const {
  GALLEY_CHECK_INPUT(has(i), "input ", i, " is missing");
  return to.item(node.inputs[i]);
}
Value Call::x(size_t i) const {
  GALLEY_CHECK_INPUT(has(i), "input ", i, " is missing");
  return to.value(to.item(node.inputs[i]));
}
std::optional<Tensor> Call::constant(size_t i) const {
  if (!has(i)) return std::nullopt;
  const Item& known = item(i);
  if (!known.constant.defined() || known.transposed) return std::nullopt;
  return known.constant;
}
std::vector<int64_t> Call::ints(size_t i) const {
  const std::optional<Tensor> known = constant(i);
  GALLEY_CHECK_INPUT(known.has_value(), "input ", i, " ('", has(i) ? node.inputs[i] : std::string(), "') must be constant");
  GALLEY_CHECK_INPUT(known->elements() <= kMaxConstant && !is_floating(known->dtype()), "input ", i, " is ", known->str(),
                     ", but must be a short list of integers");
  return to_ints(*known);
}
std::optional<double> Call::scalar(size_t i) const {
  const std::optional<Tensor> known = constant(i);
  if (!known || known->elements() != 1) return std::nullopt;
  return known->to_doubles().front();
}

const OnnxAttribute* Call::find(std::string_view attribute) {
  read_.insert(std::string(attribute));
  return node.find(attribute);
}
int64_t Call::integer(std::string_view attribute, int64_t otherwise) {
  const OnnxAttribute* found = find(attribute);
  if (found == nullptr) return otherwise;
  GALLEY_CHECK_INPUT(found->kind == OnnxAttributeKind::kInt, "attribute '", attribute, "' must be an integer");
  return found->i;
}
double Call::real(std::string_view attribute, double otherwise) {
  const OnnxAttribute* found = find(attribute);
  if (found == nullptr) return otherwise;
  GALLEY_CHECK_INPUT(found->kind == OnnxAttributeKind::kFloat, "attribute '", attribute, "' must be a float");
  return found->f;
}
std::string Call::text(std::string_view attribute, std::string_view otherwise) {
  const OnnxAttribute* found = find(attribute);
  if (found == nullptr) return std::string(otherwise);
  GALLEY_CHECK_INPUT(found->kind == OnnxAttributeKind::kString, "attribute '", attribute, "' must be a string");
  return found->s;
}
std::vector<int64_t> Call::ints(std::string_view attribute, std::vector<int64_t> otherwise) {
  const OnnxAttribute* found = find(attribute);
  if (found == nullptr) return otherwise;
  GALLEY_CHECK_INPUT(found->kind == OnnxAttributeKind::kInts, "attribute '", attribute, "' must be a list of integers");
  return found->ints;
}
std::vector<std::string> Call::texts(std::string_view attribute) {
  const OnnxAttribute* found = find(attribute);
  if (found == nullptr) return {};
  GALLEY_CHECK_INPUT(found->kind == OnnxAttributeKind::kStrings, "attribute '", attribute, "' must be a list of strings");
  return found->strings;
}
std::vector<int64_t> Call::axes(size_t i, std::vector<int64_t> otherwise) {
  const std::vector<int64_t> attribute = ints("axes", {});
  return has(i) ? ints(i) : attribute.empty() ? otherwise : attribute;
}
int64_t Call::opset() const { return to.opset(); }
Value Call::number(size_t i) const {
  const Value value = x(i);
  return value.dtype() == DType::kBool ? cast(value, DType::kF32) : value;
}
Value Call::table(const Tensor& values) const { return to.table(values); }
Value Call::scalar_value(DType dtype, double value) const { return full(to.builder().graph(), {.dtype = dtype, .shape = {}}, value); }
void Call::check_attributes() const {
  for (const OnnxAttribute& attribute : node.attributes) {
    if (attribute.kind == OnnxAttributeKind::kGraph)
      refuse(cat("attribute '", attribute.name, "' is a subgraph (a branch or loop), which Galley does not support"));
    if (!read_.contains(attribute.name)) refuse(cat("attribute '", attribute.name, "' is not supported"));
  }
}

void Call::set(size_t output, Value value) {
  if (output < node.outputs.size() && !node.outputs[output].empty()) to.set(node.outputs[output], {.value = value});
}
void Call::set_constant(Tensor value) {
  if (!node.outputs.empty()) to.set(node.outputs[0], {.constant = std::move(value)});
}
void Call::pass(size_t i) {
  Item copy = item(i);
  if (!copy.value && copy.is_weight && !copy.transposed) copy.value = x(i);  // both names refer to one parameter
  if (!node.outputs.empty()) to.set(node.outputs[0], std::move(copy));
}

// ---- the file

void Importer::index() {
  for (const OnnxNode& node : model().nodes) {
    for (const std::string& input : node.inputs) {
      if (!input.empty()) readers_[input].push_back(&node);
    }
    for (const std::string& output : node.outputs) {
      if (output.empty()) continue;
      GALLEY_CHECK_INPUT(producers_.emplace(output, &node).second, "two nodes produce '", output, "'");
    }
  }
  outputs_.insert(options_.outputs.begin(), options_.outputs.end());
}

const OnnxNode* Importer::only_reader(const std::string& name) const {
  const auto found = readers_.find(name);
  return found == readers_.end() || found->second.size() != 1 || outputs_.contains(name) ? nullptr : found->second.front();
}
const OnnxNode* Importer::producer(const std::string& name) const {
  const auto found = producers_.find(name);
  return found == producers_.end() ? nullptr : found->second;
}

const Node* Importer::made_by(Value value) {
  const std::deque<Node>& nodes = b_.graph().nodes();
  for (; indexed_ < nodes.size(); ++indexed_) {
    for (const ValueId id : nodes[indexed_].outputs) made_[id] = &nodes[indexed_];
  }
  const auto found = made_.find(value.id());
  return found == made_.end() ? nullptr : found->second;
}

int64_t Importer::largest_constant() const { return folded_ < kMaxTokenConstants ? kMaxTokenConstant : kMaxConstant; }

std::optional<double> Importer::known_scalar(const std::string& name) const {
  if (const auto found = items_.find(name); found != items_.end()) {
    const Tensor& known = found->second.constant;
    return known.defined() && known.elements() == 1 ? std::optional<double>(known.to_doubles().front()) : std::nullopt;
  }
  const OnnxNode* node = producer(name);
  if (node == nullptr || node->op_type != "Constant") return std::nullopt;
  if (const OnnxAttribute* value = node->find("value");
      value != nullptr && value->tensor && value->tensor->dtype && value->tensor->shape.elements() == 1) {
    return source_->read(*value->tensor).to_doubles().front();
  }
  const OnnxAttribute* value = node->find("value_float");
  return value == nullptr ? std::nullopt : std::optional<double>(value->f);
}

Item& Importer::transposed_weight(const std::string& name) {
  Item& item = items_[cat(name, "\ntransposed")];
  if (item.constant.defined()) return item;
  const Tensor& values = items_.at(name).constant;
  const int64_t rows = values.shape()[0], columns = values.shape()[1];
  item.is_weight = true;
  if (!options_.values) {
    const int64_t offset = static_cast<const std::byte*>(values.data()) - values.storage()->data();
    item.constant = Tensor(DType::kF32, {columns, rows}, {}, values.storage(), offset);
    return item;
  }
  item.constant = Tensor(DType::kF32, {columns, rows});
  const float* from = values.data_as<float>();
  float* to = item.constant.data_as<float>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
  return item;
}

Item& Importer::item(const std::string& name) {
  const auto found = items_.find(name);
  if (found == items_.end()) {
    const bool later = producer(name) != nullptr;
    fail(ErrorCode::kInput, "it reads '", name.substr(0, 200), "', which ",
         later ? cat("a later node produces (", producer(name)->str(), "): the nodes are not in topological order or form a cycle")
               : "no node, input or initializer of the file provides");
  }
  return found->second;
}

void Importer::set(const std::string& name, Item item) {
  if (item.value) check_sizes(item.value.shape(), "its result");
  items_.insert_or_assign(name, std::move(item));
}

Value Importer::in_module(const std::string& module, const std::function<Value()>& build) {
  Graph& graph = b_.graph();
  const std::string here = graph.path();
  // The current scope without the node's path at its end.
  std::string base = here;
  if (!path_.empty()) base = here.size() > path_.size() ? here.substr(0, here.size() - path_.size() - 1) : "";
  graph.set_path(base);
  Value made;
  {
    std::optional<PathScope> scope;
    if (!module.empty()) scope.emplace(graph, module);
    made = build();
  }
  graph.set_path(here);
  return made;
}

std::string Importer::module_of(const Item& item, std::string_view leaf) const {
  const std::string ending = cat(".", leaf);
  return item.name.size() > ending.size() && item.name.ends_with(ending) && item.name.find("::") == std::string::npos
             ? item.name.substr(0, item.name.size() - ending.size())
             : "";
}

std::string Importer::module_path(const OnnxNode& node) const {
  constexpr std::array<std::string_view, 5> kLayers{"Conv", "Gemm", "MatMul", "BatchNormalization", "LayerNormalization"};
  if (std::find(kLayers.begin(), kLayers.end(), node.op_type) != kLayers.end() && node.inputs.size() > 1) {
    const auto weight = items_.find(node.inputs[1]);
    const std::string module = weight == items_.end() || !weight->second.is_weight ? std::string() : module_of(weight->second, "weight");
    if (!module.empty()) return module;
  }
  const std::string path = path_of(node);
  return path.empty() ? cat("node_", node.op_type) : path;
}

Value Importer::parameter(Item& item, std::string_view leaf, std::string_view type) {
  if (item.value) return item.value;
  GALLEY_CHECK_INPUT(item.constant.defined(), "its ", leaf, " depends on the model's input, but must be constant");
  if (item.constant.dtype() != DType::kF32)
    fail(ErrorCode::kInput, "its ", leaf, " is ", item.constant.str(), ", but Galley computes in f32; export the model in float32");
  std::string module = path_, last(leaf);
  const size_t dot = item.name.rfind('.');
  if (!item.name.empty() && item.name.find("::") == std::string::npos) {
    // Use the initializer's own name, in a module or at the top level.
    if (dot != std::string::npos && dot > 0 && dot + 1 < item.name.size()) {
      module = item.name.substr(0, dot);
      last = item.name.substr(dot + 1);
    } else if (dot == std::string::npos && item.name.size() < 64) {
      module.clear();
      last = item.name;
    }
  }
  const auto full = [&](const std::string& end) { return module.empty() ? end : cat(module, ".", end); };
  std::string name = last;
  for (int turn = 2; declared(full(name)); ++turn) name = cat(last, "_", turn);
  const Tensor& values = item.constant;
  const bool trained = item.is_weight;
  item.value = in_module(module, [&] {
    return trained ? b_.parameter(name, values.shape(), Init::given(values), type)
                   : b_.buffer(name, {.dtype = DType::kF32, .shape = values.shape()}, Init::given(values), type);
  });
  return item.value;
}

/// The values of all inputs, if they are constant and none is a weight.
std::optional<std::vector<Tensor>> Importer::known_inputs(Call& call) const {
  std::vector<Tensor> known;
  for (size_t i = 0; i < call.node.inputs.size(); ++i) {
    if (!call.has(i)) {
      known.emplace_back();
      continue;
    }
    const std::optional<Tensor> input = call.constant(i);
    if (!input || call.item(i).is_weight) return std::nullopt;
    known.push_back(*input);
  }
  return known;
}

void Importer::make(const OnnxNode& node) {
  Call call(*this, node);
  if (node.op_type != "Constant" && std::any_of(node.attributes.begin(), node.attributes.end(),
                                                [](const OnnxAttribute& a) { return a.kind == OnnxAttributeKind::kGraph; }))
    call.check_attributes();
  if (!node.domain.empty()) call.refuse(cat("operators of the domain '", node.domain, "' are not supported"));
  const MakeNode row = find_row(node.op_type);
  if (row == nullptr) {
    call.refuse(cat("Galley does not support this operator (opset ", opset(), ")"),
                "export a model that uses only convolutions, matrix products, norms, pools and element-wise functions");
  }
  if (const auto known = known_inputs(call); known && !node.inputs.empty()) {
    if (std::optional<Tensor> result = fold(call, *known)) return call.set_constant(std::move(*result));
    if (std::optional<std::vector<Tensor>> found = evaluate(node, row, source_, *known, largest_constant())) {
      for (size_t i = 0; i < found->size(); ++i) {
        if (node.outputs[i].empty() || !(*found)[i].defined()) continue;
        if ((*found)[i].elements() > kMaxConstant) folded_ += (*found)[i].elements();
        set(node.outputs[i], {.constant = std::move((*found)[i])});
      }
      return;
    }
  }
  if (make_pattern(call)) return;
  row(call);
  call.check_attributes();
}

bool Importer::has_batch_size(const OnnxNode& node, bool fits) {
  if (options_.batch_nodes != nullptr ? options_.batch_nodes->contains(&node) : fits) {
    batch_nodes_.insert(&node);
    return true;
  }
  return false;
}

void Importer::check_version() const {
  const std::string& file = source_->path();
  if (!model().opsets.contains("") && !model().opsets.empty()) {
    fail(ErrorCode::kInput, file, ": the model uses operators of the domain '", model().opsets.begin()->first.substr(0, 200),
         "', which are not supported");
  }
  GALLEY_CHECK_INPUT(opset() >= kOldestOpset && opset() <= kNewestOpset, file, ": the model uses opset ", opset(), ", but Galley reads ",
                     kOldestOpset, " to ", kNewestOpset, "; export it again with opset_version=17");
  GALLEY_CHECK_INPUT(model().functions == 0, file, ": the model defines its own functions; inline them (onnx.inliner) or export it again");
}

void Importer::read_initializers() {
  for (const OnnxTensor& tensor : model().initializers) {
    if (!tensor.dtype) continue;  // reported if a node reads it
    items_[tensor.name] = {
        .constant = source_->read(tensor), .is_weight = tensor.dtype == DType::kF32 && tensor.shape.rank() > 0, .name = tensor.name};
  }
}

/// The nodes on which the outputs depend.
NodeSet Importer::needed() const {
  NodeSet found;
  std::vector<std::string> names = options_.outputs;
  while (!names.empty()) {
    const OnnxNode* node = producer(names.back());
    names.pop_back();
    if (node == nullptr || !found.insert(node).second) continue;
    for (const std::string& input : node->inputs) {
      if (!input.empty()) names.push_back(input);
    }
  }
  return found;
}

void Importer::make_checked(const OnnxNode& node) {
  path_ = module_path(node);
  try {
    const PathScope scope(b_.graph(), path_);
    make(node);
    mark_sized(node);
  } catch (Error& error) {
    std::string fix = error.suggestion();
    if (fix.empty() && other_batch())
      fix = cat("the file was exported for a batch of ", *other_batch(), ", but this batch has ", *batch(),
                ": export it with a dynamic batch (dynamic_axes)");
    throw Error(ErrorCode::kInput, cat(source_->path(), ": ", node.str(), ": ", error.message())).suggest(fix);
  }
}

NamedValues Importer::results() {
  path_.clear();
  NamedValues results;
  for (const std::string& name : options_.outputs) {
    const auto found = items_.find(name);
    GALLEY_CHECK_INPUT(found != items_.end(), source_->path(), ": no node produces the output '", name, "'");
    GALLEY_CHECK_INPUT(std::none_of(results.begin(), results.end(), [&](const auto& result) { return result.first == name; }),
                       source_->path(), ": two outputs are named '", name, "'");
    try {
      results.emplace_back(name, value(found->second));
    } catch (Error& error) {
      throw Error(ErrorCode::kInput, cat(source_->path(), ": output '", name, "': ", error.message())).suggest(error.suggestion());
    }
  }
  return results;
}

std::vector<Item> Importer::run_node(const OnnxNode& node, MakeNode make, const std::vector<Tensor>& inputs) {
  outputs_.insert(node.outputs.begin(), node.outputs.end());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || items_.contains(node.inputs[i])) continue;
    items_[node.inputs[i]] = {.value = b_.input(std::to_string(i), {.dtype = inputs[i].dtype(), .shape = inputs[i].shape()}),
                              .constant = inputs[i]};
  }
  Call call(*this, node);
  make(call);
  call.check_attributes();
  std::vector<Item> outputs;
  for (const std::string& name : node.outputs) {
    const auto found = items_.find(name);
    outputs.push_back(name.empty() || found == items_.end() ? Item() : found->second);
  }
  return outputs;
}

NamedValues Importer::run(const NamedValues& inputs) {
  check_version();
  try {
    index();
  } catch (Error& error) {
    throw Error(error.code(), cat(source_->path(), ": ", error.message()));
  }
  read_initializers();
  for (const auto& [name, values] : options_.constants) items_[name] = {.constant = values};
  for (const auto& [name, value] : inputs) {
    check_sizes(value.shape(), cat(source_->path(), ": the input '", name, "'"));
    items_[name] = {.value = value};
  }
  const NodeSet used = needed();
  for (const OnnxNode& node : model().nodes) {
    if (used.contains(&node) && !skipped(node)) make_checked(node);
  }
  return results();
}

}  // namespace galley::onnx_import
